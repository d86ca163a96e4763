"""What is on the workbench? A run, at most one fork of it, and the FP32 run of the same seed beside them.

Idea: a `Branch` is a run with a past that can be visited: every few steps, and wherever a knob was turned, a copy of
the run is kept. To fork at any step, the copy before it is taken and goes on from there, bit for bit as the run did.

Invariant: `steps[i].step == origin + i + 1`; a copy never moves, only forks of it do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from labkit.amp import Recipe, initial
from labkit.train import StepRecord, Task, TrainingRun
from labkit.train.run import MEASURE_EVERY
from labkit.widgets.bench.knobs import recipe_of
from labkit.widgets.bench.labels import changed, has_epsilon
from labkit.widgets.bench.positions import Knobs, Scaling

MEASUREMENTS = 10  # how often in a run the metric is measured on the test data
COPIES = 25  # how many copies of a run are kept, about
SETTLE_STEPS = 4  # the fourth step under a change measures what it did to underflow
MERGE_STEPS = 6  # a knob turned so soon after another (a drag) takes the first one's mark along
TIMED_STEPS = 30  # steps a second are the median over the latest so many, without those that measured something

MakeRun = Callable[..., Any]  # (task, recipe, seed, device=) -> run; a test brings one that does not train
Options = list[dict[str, Any]]  # of an optimizer's groups


@dataclass(frozen=True)
class Mark:
    """A knob was turned: `step` is the first step under `after`; `rescaled`: a scale was asked for, new or not."""

    step: int
    before: Knobs
    after: Knobs
    rescaled: bool = False

    @property
    def label(self) -> str:
        """What was turned, in few words; an empty text for nothing."""
        again = f"scale 2^{self.after.log2_scale}" if self.rescaled and self.after.scaling is not Scaling.OFF else ""
        return changed(self.before, self.after) or again


@dataclass
class Branch:
    """One run on the bench.

    begin     recipe -> a run that stands at `origin`
    left      of a fork: the knobs of the run that it left, at that step
    options   of its optimizer, as the task made it: learning rates and epsilons before any knob; None: not asked yet
    forkable  copies are kept, so that it can be forked
    wanted    where its knobs stand; `knobs` is what the last step was done under
    rescaled  a scale was asked for since the last step, though the slider may stand where it stood
    """

    begin: Callable[[Recipe], Any]
    wanted: Knobs
    origin: int = 0
    left: Knobs | None = None
    options: Options | None = None
    forkable: bool = True
    run: Any = None
    knobs: Knobs | None = None
    rescaled: bool = False
    steps: list[StepRecord] = field(default_factory=list)
    metrics: dict[int, float] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    copies: dict[int, tuple[Any, Knobs]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)  # of the latest steps that measured nothing
    unsettled: int = 0  # steps until a change counts as settled

    @property
    def done(self) -> int:
        """The number of its last step."""
        return self.origin + len(self.steps)

    @property
    def scale(self) -> float:
        """The loss scale that the next step will use."""
        if self.run is None or self.rescaled:
            return recipe_of(self.wanted).scaler.init_scale
        return float(self.run.scaler.scale)

    @property
    def step_seconds(self) -> float | None:
        """How long a step takes that measures nothing; None before there is something to go by."""
        return median(self.seconds) if len(self.seconds) > 1 else None

    def build(self) -> None:
        """Make the run if it is not there."""
        if self.run is None:
            self.run = self.begin(recipe_of(self.wanted))
            self.run.measure_every = 0 if self.wanted.format == "FP32" else MEASURE_EVERY
            self.knobs, self.rescaled = self.wanted, False
            self._set_optimizer()

    def begin_again(self) -> None:
        """Forget the run; the next step begins another one at the origin."""
        self.run = self.knobs = None
        self.steps, self.metrics, self.marks, self.copies, self.seconds = [], {}, [], {}, []
        self.rescaled, self.unsettled = False, 0

    def step(self, total: int) -> None:
        """Do a step under what is wanted, and keep a copy of the run before it where one is due."""
        self.build()
        changed_now = self.rescaled or self.wanted != self.knobs
        if changed_now:
            self._turn()
        if self.forkable and (changed_now or self.done % max(10, total // COPIES) == 0):
            self.copies[self.done] = (self.run.fork(), self.wanted)
        with self._measured_when_settled(changed_now):
            self._timed_step()
        if self.done % max(1, total // MEASUREMENTS) == 0 or self.done == total:
            self.metrics[self.done] = self.run.evaluate()

    def _timed_step(self) -> None:
        began = time.perf_counter()
        record = self.run.step()
        if record.underflow is None and self.steps:  # the first step is slower than the others
            self.seconds = [*self.seconds[1 - TIMED_STEPS :], max(time.perf_counter() - began, 1e-9)]
        self.steps.append(record)

    @contextmanager
    def _measured_when_settled(self, changed_now: bool) -> Iterator[None]:
        """Let the step in which the hand has come to rest measure what is lost: what a change did is seen soon.

        Steps before that do not measure, so that they are quick: while a hand drags the slider, every other step
        brings a change.
        """
        every = self.run.measure_every
        self.unsettled = SETTLE_STEPS if changed_now else max(0, self.unsettled - 1)
        if every and (changed_now or self.unsettled):
            self.run.measure_every = 1 if self.unsettled == 1 else 0
        try:
            yield
        finally:
            self.run.measure_every = every

    def _turn(self) -> None:
        """Put the knobs into the run, and mark the step."""
        assert self.knobs is not None
        before, recipe = self.knobs, recipe_of(self.wanted)
        scaler = recipe.scaler != recipe_of(before).scaler
        if recipe != self.run.recipe:
            self.run.change(recipe)
        if scaler or self.rescaled:
            self.run.scaler = initial(recipe.scaler)  # also where a dynamic scale had wandered off and is asked back
        self.knobs = self.wanted
        self._set_optimizer()
        self._mark(before)
        self.rescaled = False

    def _mark(self, before: Knobs) -> None:
        step = self.done + 1
        mark = Mark(step, before, self.wanted, self.rescaled)
        if not self.steps or not mark.label:
            return  # not a change of this run but its beginning
        if self.marks and step - self.marks[-1].step <= MERGE_STEPS:
            mark = Mark(step, self.marks.pop().before, self.wanted, self.rescaled)
        self.marks += [mark] * bool(mark.label)

    def _set_optimizer(self) -> None:
        """Set learning rate and epsilon: the task's, times or instead. What no knob has touched is left alone."""
        assert self.knobs is not None
        if self.options is None:
            if not self.knobs.log2_lr and self.knobs.epsilon is None:
                return
            self.options = [dict(group, params=[]) for group in self.run.engine.optimizer.param_groups]
        for group, own in zip(self.run.engine.optimizer.param_groups, self.options, strict=True):
            group["lr"] = own["lr"] * 2.0**self.knobs.log2_lr
            if has_epsilon(self.run.task) and "eps" in group:
                group["eps"] = own["eps"] if self.knobs.epsilon is None else self.knobs.epsilon

    def at(self, step: int) -> tuple[Any, Knobs]:
        """Return a run of its own that stands after `step`, as this one stood, and its knobs.

        Raises:
            ValueError: this branch has not been there.
        """
        if self.run is None or not self.origin <= step <= self.done or self.knobs is None:
            raise ValueError(f"a fork begins at a step from {self.origin} to {self.done}; it was given {step}")
        if step == self.done:
            return self.run.fork(), self.knobs
        copied, knobs = self.copies[max(at for at in self.copies if at <= step)]
        run = copied.fork()
        run.measure_every = 0
        while run.steps_done < step:
            run.step()
        run.measure_every = self.run.measure_every
        return run, knobs


def make_run(task: Task, recipe: Recipe, seed: int, **where: Any) -> TrainingRun:
    """Return a run that trains."""
    return TrainingRun(task, recipe, seed, **where)


def streak(steps: Sequence[StepRecord], holds: Callable[[StepRecord], bool]) -> tuple[int, int | None]:
    """Return how many steps at the end fulfil a condition, and the number of the first of them."""
    count = 0
    for step in reversed(steps):
        if not holds(step):
            break
        count += 1
    return count, steps[-count].step if count else None


def latest(steps: Sequence[StepRecord], what: str) -> float | None:
    """Return the last measured share of a kind ("underflow", "swallowed"), or None."""
    return next((v for s in reversed(steps) if (v := getattr(s, what)) is not None), None)
