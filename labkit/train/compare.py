"""Comparison of recipes: whether one reaches what FP32 reaches, does not, or these seeds cannot tell.

Idea: a seed decides initial weights and batches, so runs of two recipes under one seed are a pair, and it is their
differences that count. Both answers are claims, and each has a test. *As good*: the 90% interval of the mean difference
(Student's t) lies inside the margin, the difference that does not matter; that is TOST, two one-sided tests at 5%.
*Worse* or *better*: the mean difference is larger than the range over which the seeds of the reference (as a rule FP32)
scatter, and its 95% interval leaves out zero. Where neither holds, the runs *cannot tell*.

Invariant: a verdict follows from records and margin alone; without the reference's runs of the same seeds there is
none.

Source: D. Schuirmann, J. Pharmacokinet. Biopharm. 15 (1987) 657, for TOST and its 90% interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from labkit.amp import Recipe
from labkit.train.devices import Place
from labkit.train.grid import train_grid
from labkit.train.record import RunRecord
from labkit.train.tasks import MARGIN, Task

# Two-sided points of Student's t for 1, 2, ... degrees of freedom, and then those of the normal distribution, which are
# a little too narrow from 11 degrees of freedom on. Source: NIST/SEMATECH e-Handbook, 1.3.6.7.2.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 1.960)
T_90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.645)
VERDICTS = ("as good", "better", "worse", "cannot tell", "one seed")


@dataclass(frozen=True)
class Difference:
    """How far a recipe's metric lies from the reference's, seed by seed.

    recipe       whose
    seeds        how many pairs
    mean         mean of (recipe - reference); negative where the recipe is worse
    interval     half width of the 95% interval of that mean; infinite for a single pair
    interval_90  that of its 90% interval
    spread       largest minus smallest metric of the reference
    broken       runs that ended with a loss of inf or NaN
    reference    the recipe it is compared with
    margin       how large a difference may be and still not matter
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
        """Return one of VERDICTS. A recipe with a broken run is never as good."""
        if self.seeds < 2:
            return "one seed"
        if not self.broken and abs(self.mean) + self.interval_90 < self.margin:
            return "as good"
        if abs(self.mean) > max(self.spread, self.interval):
            return "worse" if self.mean < 0 else "better"
        return "cannot tell"

    def __str__(self) -> str:
        width, level = (self.interval, 95) if self.verdict in ("worse", "better") else (self.interval_90, 90)
        shown = f" ± {width:.3f} ({level}% interval)" if math.isfinite(width) else ""
        beyond = f"beyond {self.reference}'s spread of {self.spread:.3f}"
        why = {
            "one seed": "one seed says nothing about a difference",
            "as good": f"inside the margin of {self.margin:g}",
            "cannot tell": f"not inside the margin of {self.margin:g}, and no clear difference: {self.reference}'s "
            f"seeds scatter by {self.spread:.3f}; more seeds may tell",
        }.get(self.verdict, beyond)
        broken = f"; {self.broken} of {self.seeds} runs ended in inf or NaN" if self.broken else ""
        return f"{self.recipe}: {self.verdict}, {signed(self.mean, 3)}{shown}, {why}{broken}"


def signed(value: float, places: int) -> str:
    """Return a number with its sign; what rounds to zero has none.

    >>> signed(-0.0041, 2), signed(-0.0061, 2), signed(0.5, 2)
    ('0.00', '-0.01', '+0.50')
    """
    text = f"{value:+.{places}f}"
    return text if float(text) else text[1:]


@dataclass(frozen=True)
class Comparison:
    """Runs of one task under several recipes, and what they say about each against a reference.

    margin  how large a difference of the metric may be and still not matter
    """

    task: str
    records: tuple[RunRecord, ...]
    reference: str = "FP32"
    margin: float = MARGIN

    @property
    def recipes(self) -> tuple[str, ...]:
        """Return the recipes, in the order they were asked for."""
        return tuple(dict.fromkeys(record.recipe for record in self.records))

    def of(self, recipe: str) -> tuple[RunRecord, ...]:
        """Return the runs of a recipe."""
        return tuple(record for record in self.records if record.recipe == recipe)

    def difference(self, recipe: str) -> Difference:
        """Return how a recipe differs from the reference, over the seeds that both have.

        Raises:
            ValueError: they share no seed.
        """
        reference = {record.seed: record.metric for record in self.of(self.reference)}
        runs = [record for record in self.of(recipe) if record.seed in reference]
        if not runs:
            raise ValueError(
                f"on {self.task}, {recipe} has no seed in common with {self.reference}: run both on the same seeds"
            )
        pairs = [_number(record.metric) - _number(reference[record.seed]) for record in runs]
        shared = [_number(reference[record.seed]) for record in runs]
        broken = sum(not math.isfinite(record.final_loss) for record in runs)
        return Difference(
            recipe=recipe,
            seeds=len(pairs),
            mean=statistics.fmean(pairs),
            interval=_half_width(pairs, T_95),
            interval_90=_half_width(pairs, T_90),
            spread=max(shared) - min(shared),
            broken=broken,
            reference=self.reference,
            margin=self.margin,
        )

    def __str__(self) -> str:
        others = [recipe for recipe in self.recipes if recipe != self.reference]
        lines = [] if others else ["  no other recipe has run"]
        for recipe in others:
            shared = {r.seed for r in self.of(self.reference)} & {r.seed for r in self.of(recipe)}
            none = f"{recipe}: no seed in common with {self.reference}"
            lines.append(f"  {self.difference(recipe) if shared else none}")
        origins = self.origins_that_differ()
        lines += ["  these runs were not made alike, and a difference may come from that:"] if origins else []
        for name, values in origins.items():
            lines.append(f"    {name}: " + "; ".join(f"{value} ({_some(runs)})" for value, runs in values.items()))
        return "\n".join([f"{self.task} against {self.reference}:", *lines])

    def origins_that_differ(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Return what could change a number and was not the same for all runs: name -> value -> runs.

        Compared are devices, versions and torch's switches. That the recipe TF32 computes in TF32 is meant to be.

        >>> from labkit.train import recorded
        >>> Comparison("digits", (recorded("digits", "FP32", 0), recorded("digits", "FP32", 1))).origins_that_differ()
        {}
        """
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for record in self.records:
            noted = "recorded" if record.arithmetic else "not recorded"
            origin = {"device": record.device, "torch's switches": noted} | record.versions | record.arithmetic
            for name, value in origin.items():
                if not (record.recipe == "TF32" and value.startswith("tf32")):
                    values = found.setdefault(name, {})
                    values[value] = (*values.get(value, ()), f"{record.recipe} seed {record.seed}")
        return {name: values for name, values in found.items() if len(values) > 1}


def compare(
    task: Task,
    recipes: Iterable[Recipe],
    seeds: Iterable[int] = range(3),
    folder: Path | str = "runs",
    *,
    device: torch.device | str | Place | None = "cpu",
    workers: int | None = None,
    begins: Callable[[str, str, int], None] | None = None,
    progress: Callable[[RunRecord], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Comparison:
    """Train a task under every recipe and seed (or read what is on record) and compare each with the first recipe.

    Arguments are those of `labkit.train.train_grid`.

    >>> import tempfile
    >>> from dataclasses import replace
    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> short = replace(TASKS["digits"], steps=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = compare(short, [RECIPES["FP32"], RECIPES["O1"]], seeds=(0, 1), folder=folder, workers=1)
    >>> found.difference("O1").verdict
    'as good'
    """
    chosen = list(recipes)
    records = train_grid(
        task, chosen, seeds, Path(folder), device=device, workers=workers, begins=begins, progress=progress, stop=stop
    )
    return Comparison(task.name, tuple(records), chosen[0].name if chosen else "FP32", task.margin)


def _some(names: tuple[str, ...], shown: int = 3) -> str:
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def _number(metric: float) -> float:
    """Return the metric; one that is NaN counts as the worst there is."""
    return 0.0 if math.isnan(metric) else metric


def _half_width(differences: list[float], t: tuple[float, ...]) -> float:
    if len(differences) < 2:
        return math.inf
    freedom = len(differences) - 1
    return t[min(freedom, len(t)) - 1] * statistics.stdev(differences) / math.sqrt(len(differences))
