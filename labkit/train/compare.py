"""Does a recipe reach what FP32 reaches, or is it only another roll of the dice?

Idea: a seed decides initial weights and batches, so runs of two recipes under one seed are a pair, and it is their
differences that count. A difference is called one only if it passes two tests: its mean is larger than the range over
which the seeds of the reference (as a rule FP32) scatter, and the 95% interval of the paired differences (Student's t)
leaves out zero.

Invariant: a verdict follows from the records alone; without the reference's runs of the same seeds there is none.
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
from labkit.train.race import race
from labkit.train.record import RunRecord
from labkit.train.tasks import Task

# Two-sided 95% points of Student's t for 1, 2, ... degrees of freedom. Source: NIST/SEMATECH e-Handbook, 1.3.6.7.2.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
T_95_BEYOND = 1.960  # of the normal distribution: a little too narrow from 11 degrees of freedom on


@dataclass(frozen=True)
class Difference:
    """How far a recipe's metric lies from the reference's, seed by seed.

    recipe       whose
    seeds        how many pairs
    mean         mean of (recipe - reference); negative where the recipe is worse
    interval     half width of the 95% interval of that mean; infinite for a single pair
    spread       largest minus smallest metric of the reference
    broken       runs that ended with a loss of inf or NaN
    reference    the recipe it is compared with
    """

    recipe: str
    seeds: int
    mean: float
    interval: float
    spread: float
    broken: int
    reference: str = "FP32"

    @property
    def verdict(self) -> str:
        """Return "worse", "better", "as good" (no difference was shown) or "one seed"."""
        if self.seeds < 2:
            return "one seed"
        if abs(self.mean) <= self.spread or abs(self.mean) <= self.interval:
            return "as good"
        return "worse" if self.mean < 0 else "better"

    def __str__(self) -> str:
        within = f"no more than seeds scatter ({self.reference}'s by {self.spread:.3f})"
        if abs(self.mean) > self.spread:  # only the second test failed
            within = f"not the same from seed to seed ({self.reference}'s by {self.spread:.3f}): more would tell"
        ends = {"one seed": "one seed says nothing about a difference", "as good": within}
        broken = f"; {self.broken} of {self.seeds} runs ended in inf or NaN" if self.broken else ""
        tail = ends.get(self.verdict, f"beyond {self.reference}'s spread of {self.spread:.3f}")
        width = f" ± {self.interval:.3f}" if math.isfinite(self.interval) else ""
        return f"{self.recipe}: {self.verdict}, {self.mean:+.3f}{width}, {tail}{broken}"


@dataclass(frozen=True)
class Comparison:
    """Runs of one task under several recipes, and what they say about each against a reference."""

    task: str
    records: tuple[RunRecord, ...]
    reference: str = "FP32"

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
            interval=_half_width(pairs),
            spread=max(shared) - min(shared),
            broken=broken,
            reference=self.reference,
        )

    def __str__(self) -> str:
        others = [recipe for recipe in self.recipes if recipe != self.reference]
        lines = [f"  {self._sentence(recipe)}" for recipe in others] or ["  no other recipe has run"]
        return "\n".join([f"{self.task} against {self.reference}:", *lines])

    def _sentence(self, recipe: str) -> str:
        shared = {record.seed for record in self.of(self.reference)} & {record.seed for record in self.of(recipe)}
        return str(self.difference(recipe)) if shared else f"{recipe}: no seed in common with {self.reference}"


def compare(
    task: Task,
    recipes: Iterable[Recipe],
    seeds: Iterable[int] = range(3),
    folder: Path | str = "runs",
    *,
    device: torch.device | str | Place | None = "cpu",
    workers: int | None = None,
    progress: Callable[[RunRecord], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Comparison:
    """Train a task under every recipe and seed (or read what is on record) and compare each with the first recipe.

    Arguments are those of `labkit.train.race`.

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
    records = race(task, chosen, seeds, Path(folder), device=device, workers=workers, progress=progress, stop=stop)
    return Comparison(task.name, tuple(records), chosen[0].name if chosen else "FP32")


def _number(metric: float) -> float:
    """Return the metric; one that is NaN counts as the worst there is."""
    return 0.0 if math.isnan(metric) else metric


def _half_width(differences: list[float]) -> float:
    if len(differences) < 2:
        return math.inf
    freedom = len(differences) - 1
    t = T_95[freedom - 1] if freedom <= len(T_95) else T_95_BEYOND
    return t * statistics.stdev(differences) / math.sqrt(len(differences))
