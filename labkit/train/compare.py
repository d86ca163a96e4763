"""Paired comparison of recipes with a reference, usually FP32.

Idea: a seed determines initial weights and batches, so two runs with one seed form a pair, and
differences of pairs are tested. The verdict is

- *as good* if the 90% interval of the mean difference (Student's t) lies inside the margin, the
  largest difference that does not matter, and no run ended in inf or NaN. This is TOST, two
  one-sided tests at 5%.
- *worse* or *better* if the mean difference exceeds the range of the reference's metrics over its
  seeds, and its 95% interval excludes zero.
- *cannot tell* otherwise.

Invariant: a verdict follows from records and margin alone, and needs runs of the reference with the
same seeds.

Source: D. Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657, for TOST and its 90% interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.amp import Recipe, as_recipes
from labkit.formats.arguments import require_kind
from labkit.train.devices import Place
from labkit.train.grid import train_grid
from labkit.train.record import RunRecord
from labkit.train.tasks import MARGIN, Task, as_task

# Two-sided points of Student's t for 1, 2, ... degrees of freedom, and then those of the normal
# distribution, which are a little too narrow from 11 degrees of freedom on. Source: NIST/SEMATECH
# e-Handbook, 1.3.6.7.2.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 1.960)
T_90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.645)
VERDICTS = ("as good", "better", "worse", "cannot tell", "one seed")


@dataclass(frozen=True)
class Difference:
    """Difference of a recipe's metric from the reference's, over pairs of equal seeds.

    Attributes:
        seeds: number of pairs.
        mean: mean of (recipe - reference); negative if the recipe is worse.
        interval: half width of the 95% interval of the mean; infinite for a single pair.
        interval_90: half width of its 90% interval.
        spread: largest minus smallest metric of the reference.
        broken: number of runs that ended with a loss of inf or NaN.
        margin: the largest difference that does not matter.
    """

    recipe: str
    seeds: int
    mean: float
    interval: float
    interval_90: float
    spread: float
    broken: int
    reference: str = "FP32"
    margin: float = MARGIN

    @property
    def verdict(self) -> str:
        """One of VERDICTS. A recipe with a broken run is never as good."""
        if self.seeds < 2:
            return "one seed"
        if self.is_inside_margin and not self.broken:
            return "as good"
        if abs(self.mean) > max(self.spread, self.interval):
            return "worse" if self.mean < 0 else "better"
        return "cannot tell"

    @property
    def is_inside_margin(self) -> bool:
        """Whether the whole 90% interval is inside the margin."""
        return abs(self.mean) + self.interval_90 < self.margin

    def __str__(self) -> str:
        # a difference is claimed at 95%; equality, a test on two sides, at 90%
        width = self.interval_90
        level = 90
        if self.verdict in ("worse", "better"):
            width = self.interval
            level = 95
        interval = f" ± {width:.3f} ({level}% interval)" if math.isfinite(width) else ""
        if self.verdict == "one seed":
            reason = "one seed says nothing about a difference"
        elif self.verdict == "as good":
            reason = f"inside the margin of {self.margin:g}"
        elif self.verdict == "cannot tell" and self.is_inside_margin:
            reason = f"inside the margin of {self.margin:g}, but a recipe that broke is not as good"
        elif self.verdict == "cannot tell":
            reason = (
                f"not inside the margin of {self.margin:g}, and no clear difference: "
                f"{self.reference}'s seeds scatter by {self.spread:.3f}; more seeds may tell"
            )
        else:
            reason = f"beyond {self.reference}'s spread of {self.spread:.3f}"
        text = f"{self.recipe}: {self.verdict}, {signed(self.mean, 3)}{interval}, {reason}"
        if self.broken:
            text += f"; {self.broken} of {self.seeds} runs ended in inf or NaN"
        return text


def signed(value: float, places: int) -> str:
    """Format a number with its sign, and without one if it rounds to zero.

    >>> signed(-0.0041, 2), signed(-0.0061, 2), signed(0.5, 2)
    ('0.00', '-0.01', '+0.50')
    """
    text = f"{value:+.{places}f}"
    return text if float(text) else text[1:]


@dataclass(frozen=True)
class Comparison:
    """Runs of one task under several recipes, one of them the reference.

    Attributes:
        margin: the largest difference of the metric that does not matter.
    """

    task: str
    records: tuple[RunRecord, ...]
    reference: str = "FP32"
    margin: float = MARGIN

    @property
    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes, in order of their first run."""
        return tuple(dict.fromkeys(record.recipe for record in self.records))

    def of(self, recipe: str) -> tuple[RunRecord, ...]:
        """Return the runs of a recipe, by its name."""
        return tuple(record for record in self.records if record.recipe == recipe)

    def difference(self, recipe: str) -> Difference:
        """Return a recipe's difference from the reference over their common seeds.

        Raises:
            ValueError: they have no seed in common.
        """
        reference = {record.seed: record.metric for record in self.of(self.reference)}
        runs = [record for record in self.of(recipe) if record.seed in reference]
        if not runs:
            raise ValueError(
                f"on {self.task}, {recipe} has no seed in common with {self.reference}: run both "
                "on the same seeds"
            )
        metrics = [_finite_or_worst(record.metric) for record in runs]
        reference_metrics = [_finite_or_worst(reference[record.seed]) for record in runs]
        differences = [a - b for a, b in zip(metrics, reference_metrics, strict=True)]
        return Difference(
            recipe=recipe,
            seeds=len(differences),
            mean=statistics.fmean(differences),
            interval=_half_width(differences, T_95),
            interval_90=_half_width(differences, T_90),
            spread=max(reference_metrics) - min(reference_metrics),
            broken=sum(not math.isfinite(record.final_loss) for record in runs),
            reference=self.reference,
            margin=self.margin,
        )

    def __str__(self) -> str:
        lines = [f"{self.task} against {self.reference}:"]
        others = [recipe for recipe in self.recipes if recipe != self.reference]
        if not others:
            lines.append("  no other recipe has run")
        reference_seeds = {record.seed for record in self.of(self.reference)}
        for recipe in others:
            if reference_seeds.isdisjoint(record.seed for record in self.of(recipe)):
                lines.append(f"  {recipe}: no seed in common with {self.reference}")
            else:
                lines.append(f"  {self.difference(recipe)}")
        differing = self.differing_provenance()
        if differing:
            lines.append(
                "  these runs differ in how they were made, which may explain a difference:"
            )
        for name, values in differing.items():
            runs_by_value = [f"{value} ({_shorten(runs)})" for value, runs in values.items()]
            lines.append(f"    {name}: {'; '.join(runs_by_value)}")
        return "\n".join(lines)

    def differing_provenance(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return devices, versions and settings that differ between runs: name -> value -> runs.

        The recipe TF32 switches TF32 on, so that setting of its runs is not compared.

        >>> from labkit.train import recorded
        >>> runs = (recorded("digits", "FP32", 0), recorded("digits", "FP32", 1))
        >>> Comparison("digits", runs).differing_provenance()
        {}
        """
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for record in self.records:
            settings = "recorded" if record.arithmetic else "not recorded"
            provenance = (
                {"device": record.device, "torch settings": settings}
                | record.versions
                | record.arithmetic
            )
            for name, value in provenance.items():
                if record.recipe == "TF32" and value.startswith("tf32"):
                    continue
                values = found.setdefault(name, {})
                values[value] = (*values.get(value, ()), f"{record.recipe} seed {record.seed}")
        return {name: values for name, values in found.items() if len(values) > 1}


def compare(
    task: Task | str,
    recipes: Iterable[Recipe | str],
    seeds: Iterable[int] = range(3),
    folder: Path | str = "runs",
    *,
    device: torch.device | str | Place | None = "cpu",
    workers: int | None = None,
    begins: Callable[[str, str, int], None] | None = None,
    progress: Callable[[RunRecord], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Comparison:
    """Train a task under every recipe and seed, and compare each recipe with the first.

    Runs that have a saved record are not trained again. The arguments are those of
    `labkit.train.train_grid`.

    >>> import tempfile
    >>> from dataclasses import replace
    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> short = replace(TASKS["digits"], steps=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recipes = [RECIPES["FP32"], RECIPES["O1"]]
    ...     found = compare(short, recipes, seeds=(0, 1), folder=folder, workers=1)
    >>> found.difference("O1").verdict
    'as good'
    """
    require_kind(seeds, Iterable, "seeds", "Pass a list of seeds")
    task = as_task(task)
    chosen = as_recipes(recipes)
    records = train_grid(
        task,
        chosen,
        seeds,
        Path(folder),
        device=device,
        workers=workers,
        begins=begins,
        progress=progress,
        stop=stop,
    )
    return Comparison(task.name, tuple(records), chosen[0].name if chosen else "FP32", task.margin)


def _shorten(names: tuple[str, ...], limit: int = 3) -> str:
    text = ", ".join(names[:limit])
    if len(names) > limit:
        text += f" and {len(names) - limit} more"
    return text


def _finite_or_worst(metric: float) -> float:
    # 0 is the worst value of every task's metric
    return metric if math.isfinite(metric) else 0.0


def _half_width(differences: list[float], t: tuple[float, ...]) -> float:
    if len(differences) < 2:
        return math.inf
    freedom = len(differences) - 1
    return t[min(freedom, len(t)) - 1] * statistics.stdev(differences) / math.sqrt(len(differences))
