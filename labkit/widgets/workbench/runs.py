"""What is on the workbench? A run, at most one fork of it, and the FP32 run of the same seed beside them.

Idea: a `Branch` is a run with a past that can be visited: every few steps, and wherever a knob was turned, a copy of
the run is kept. To fork at any step, the copy before it is taken and goes on from there, bit for bit as the run did.

Invariant: `steps[i].step == origin + i + 1`; a copy never moves, only forks of it do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from labkit.amp import Recipe, initial
from labkit.train import StepRecord, TrainingRun
from labkit.widgets.workbench.knobs import Knobs, changed, has_epsilon, recipe_of

MEASURE_EVERY = 10  # steps between two measurements of what is lost; each costs two more backward passes
COPIES = 25  # how many copies of a run are kept, about
SETTLED = 6  # a knob turned so soon after another takes the first one's mark along


@dataclass(frozen=True)
class Mark:
    """A knob was turned: `step` is the first step under `after`."""

    step: int
    before: Knobs
    after: Knobs

    @property
    def label(self) -> str:
        """What was turned, in few words."""
        return changed(self.before, self.after)


@dataclass
class Branch:
    """One run on the bench.

    begin    recipe -> a run that stands at `origin`
    left     of a fork: the knobs of the run that it left, at that step
    wanted   where its knobs stand; `knobs` is what the last step was done under
    """

    begin: Callable[[Recipe], TrainingRun]
    wanted: Knobs
    origin: int = 0
    left: Knobs | None = None
    run: TrainingRun | None = None
    knobs: Knobs | None = None
    steps: list[StepRecord] = field(default_factory=list)
    metrics: dict[int, float] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    copies: dict[int, tuple[TrainingRun, Knobs]] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """The number of its last step."""
        return self.origin + len(self.steps)

    def build(self) -> None:
        """Make the run if it is not there."""
        if self.run is None:
            self.run = self.begin(recipe_of(self.wanted))
            self.run.measure_every = 0 if self.wanted.format == "FP32" else MEASURE_EVERY
            self.knobs = self.wanted
            turn(self.run, self.wanted)

    def begin_again(self) -> None:
        """Forget the run; the next step begins another one at the origin."""
        self.run = self.knobs = None
        self.steps, self.metrics, self.marks, self.copies = [], {}, [], {}

    def step(self, total: int) -> None:
        """Do a step under what is wanted, and keep a copy of the run before it where one is due."""
        self.build()
        assert self.run is not None
        assert self.knobs is not None
        turned = self.wanted != self.knobs
        if turned:
            self._turn()
        if turned or self.done % max(10, total // COPIES) == 0:
            self.copies[self.done] = (self.run.fork(), self.wanted)
        self.steps.append(self.run.step())
        if self.done % max(1, total // 10) == 0 or self.done == total:
            self.metrics[self.done] = self.run.evaluate()

    def _turn(self) -> None:
        assert self.run is not None
        assert self.knobs is not None
        before, recipe = self.knobs, recipe_of(self.wanted)
        scaler = recipe.scaler != self.run.recipe.scaler
        if recipe != self.run.recipe:
            self.run.change(recipe)
        if scaler:
            self.run.scaler = initial(recipe.scaler)
        turn(self.run, self.wanted)
        self.knobs = self.wanted
        if self.steps:
            if self.marks and self.done + 1 - self.marks[-1].step <= SETTLED:
                before = self.marks.pop().before
            mark = Mark(self.done + 1, before, self.wanted)
            self.marks += [mark] * bool(mark.label)

    def at(self, step: int) -> tuple[TrainingRun, Knobs]:
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


def turn(run: TrainingRun, knobs: Knobs) -> None:
    """Set learning rate and epsilon of a run's optimizer: those of the task, times or instead."""
    fresh = run.task.make_optimizer(run.weights.optimizer_weights[:1])  # to ask it for the task's own options
    for group, first in zip(run.engine.optimizer.param_groups, fresh.param_groups, strict=True):
        group["lr"] = first["lr"] * 2.0**knobs.log2_lr
        if has_epsilon(run.task) and "eps" in group:
            group["eps"] = knobs.epsilon
