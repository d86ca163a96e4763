"""What are the two curves made of? Runs that step, the steps they did, and the marks of what a learner changed.

Idea: the controller needs little of a run, and says so in a protocol; a test brings a run that does not train.

Invariant: `steps[i].step == i + 1`, so a step is found by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from labkit.amp import Recipe, ScalerState
from labkit.train import StepRecord, Task, TrainingRun
from labkit.widgets.live.state import Settings, number_format

MEASURE_EVERY = 10  # steps between two measurements of underflow; each costs two more backward passes


class Run(Protocol):
    """What the controller needs of a run (`labkit.train.TrainingRun` has it)."""

    scaler: ScalerState
    measure_every: int

    def step(self) -> StepRecord: ...
    def change(self, recipe: Recipe) -> None: ...
    def evaluate(self) -> float: ...


MakeRun = Callable[[Task, Recipe, int], Run]


def make_run(task: Task, recipe: Recipe, seed: int) -> Run:
    """Return a run that measures underflow, but not for FP32, which underflows against nothing."""
    return TrainingRun(task, recipe, seed, measure_every=0 if number_format(recipe) == "FP32" else MEASURE_EVERY)


@dataclass(frozen=True)
class Mark:
    """A change the learner made: `step` is the first step under it; `before` the settings until then."""

    step: int
    label: str
    before: Settings


@dataclass
class Curve:
    """One run and what it did: its steps, and its metric by step."""

    recipe: Recipe
    run: Run | None = None
    steps: list[StepRecord] = field(default_factory=list)
    metrics: dict[int, float] = field(default_factory=dict)


def streak(steps: Sequence[StepRecord], holds: Callable[[StepRecord], bool]) -> tuple[int, int | None]:
    """Return how many steps at the end fulfil a condition, and the number of the first of them."""
    count = 0
    for step in reversed(steps):
        if not holds(step):
            break
        count += 1
    return count, steps[-count].step if count else None
