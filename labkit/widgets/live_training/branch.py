"""A run with its knobs, the copies from which it can be forked, and the steps that it left.

A `Branch` keeps a copy of its run every few steps, and at each change of a knob (`Checkpoints`). A
fork at any step continues from the last copy before it. When a run goes back to an earlier step,
the steps after it stay as a `Ghost`.

Invariant: all runs see the same batches, because a batch depends on seed and step alone. Until a
knob changes, the training is exactly that of the recipe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from statistics import median
from typing import Any

from labkit.amp import Recipe, initial
from labkit.instrument import GradSnapshot, merge, scale_row
from labkit.train import Picture, StepRecord
from labkit.train.run import MEASURE_EVERY
from labkit.widgets.live_training.checkpoints import Checkpoints
from labkit.widgets.live_training.knobs import (
    LOG2_SCALE_RANGE,
    Knobs,
    Scaling,
    changed,
    describe,
    has_epsilon,
    operands,
    recipe_of,
)

# The number of steps between two pictures of what the network does.
PICTURE_EVERY = 10
# The exponents of the scales in the map, which are those of the slider.
MAP_SCALES = range(LOG2_SCALE_RANGE[0], LOG2_SCALE_RANGE[1] + 1)
# How often a whole training measures the metric on the test data.
MEASUREMENTS = 10
# The fourth step under a change measures the effect of the change on underflow.
SETTLE_STEPS = 4
# Two changes share a mark if at most this many steps are between them.
MERGE_STEPS = 6
# The speed is the median of this many last steps.
TIMED_STEPS = 30

# The options of an optimizer's groups.
Options = list[dict[str, Any]]
# A step, then the share lost at each scale, then the share that overflows at each scale.
MapRow = tuple[float, ...]


@dataclass(frozen=True)
class Mark:
    """A change of knobs during a run.

    Attributes:
        step: The first step under the new positions.
        before: The positions until then.
        after: The new positions.
        rescaled: Whether the learner chose a loss scale, perhaps the same one as before.
    """

    step: int
    before: Knobs
    after: Knobs
    rescaled: bool = False

    @property
    def label(self) -> str:
        """A few words about the change, or an empty text without one."""
        text = changed(self.before, self.after)
        if not text and self.rescaled and self.after.scaling is not Scaling.OFF:
            return f"scale 2^{self.after.log2_scale}"
        return text


@dataclass(frozen=True)
class Ghost:
    """The steps that a run had done before it went back to an earlier step.

    Attributes:
        origin: The step to which the run went back.
        steps: The steps after the origin.
        knobs: The positions of the knobs at the end.
        marks: The changes after the origin.
        metrics: The metric after the origin, by step.
    """

    origin: int
    steps: tuple[StepRecord, ...]
    knobs: Knobs
    marks: tuple[Mark, ...]
    metrics: Mapping[int, float]

    @property
    def label(self) -> str:
        """The settings at the end, as text."""
        return describe(self.knobs)


@dataclass
class Branch:
    """A run, or the fork of a run, with its knobs and everything that was measured.

    Attributes:
        begin: Returns a new run at step `origin` for a recipe.
        wanted: The positions of the knobs for the next step.
        origin: The step that this branch starts from: 0, or the step of the fork.
        left: For a fork, the knobs of the other run at the step of the fork.
        options: Learning rates and epsilons of the optimizer's groups before any knob changed
            them. None until a knob does.
        forkable: Whether copies of the run are kept, so that it can be forked and go back.
        run: The run; None until the first step.
        knobs: The positions of the knobs at the last step.
        began: The positions of the knobs at the first step.
        rescaled: Whether a loss scale was chosen since the last step, perhaps the same one.
        torn: Whether an error ended a step, so that the run is between two steps.
        steps: The records of all steps after the origin.
        metrics: The metric on the test data, by step.
        marks: The changes of knobs.
        copies: Copies of the run.
        pictures: The last picture of what the network does; empty if the task has none.
        map_rows: The shares lost and overflowing at each scale, of the measured steps.
        seconds: Times of the last steps that measured nothing.
        unsettled: The number of steps until a change counts as settled.
    """

    begin: Callable[[Recipe], Any]
    wanted: Knobs
    origin: int = 0
    left: Knobs | None = None
    options: Options | None = None
    forkable: bool = True
    run: Any = None
    knobs: Knobs | None = None
    began: Knobs | None = None
    rescaled: bool = False
    torn: bool = False
    steps: list[StepRecord] = field(default_factory=list)
    metrics: dict[int, float] = field(default_factory=dict)
    marks: list[Mark] = field(default_factory=list)
    copies: Checkpoints = field(default_factory=Checkpoints)
    pictures: list[Picture] = field(default_factory=list)
    map_rows: list[MapRow] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    unsettled: int = 0

    @property
    def done(self) -> int:
        """The number of the last step."""
        return self.origin + len(self.steps)

    @property
    def scale(self) -> float:
        """The loss scale of the next step."""
        if self.run is None or self.rescaled:
            return recipe_of(self.wanted).scaler.init_scale
        return float(self.run.scaler.scale)

    @property
    def is_copied(self) -> bool:
        """Whether copies of the run are kept. A learner's own run may have no method `fork`."""
        return self.forkable and hasattr(self.run, "fork")

    @property
    def step_seconds(self) -> float | None:
        """The median time of a step that measures nothing; None before two such steps."""
        return median(self.seconds) if len(self.seconds) > 1 else None

    def build(self) -> None:
        """Make the run under the wanted knobs, unless it exists."""
        if self.run is not None:
            return
        self.run = self.begin(recipe_of(self.wanted))
        # Gradients in FP32 and TF32 do not underflow in a training of the lab.
        is_wide = operands(self.wanted) in ("FP32", "TF32")
        self.run.measure_every = 0 if is_wide else MEASURE_EVERY
        self.run.keep_exponents = True
        self.knobs = self.wanted
        self.rescaled = False
        self._set_optimizer()
        self.draw()

    def draw(self) -> None:
        """Record a picture of what the network does, if the task has pictures."""
        if hasattr(self.run, "pictures"):
            self.pictures = self.run.pictures()

    def restarted(self, wanted: Knobs) -> Branch:
        """Return a branch from the same origin that has done no steps."""
        return Branch(self.begin, wanted, self.origin, self.left, self.options, self.forkable)

    def step(self, total: int) -> None:
        """Do a step under the wanted knobs; copy the run before it if a copy is due.

        Args:
            total: The number of steps of the whole training, at whose end everything is measured.
        """
        # An error leaves the flag set.
        self.torn = True
        self._step(total)
        self.torn = False

    def _step(self, total: int) -> None:
        self.build()
        is_change = self.rescaled or self.wanted != self.knobs
        if is_change:
            self._apply_knobs()
        if self.began is None:
            self.began = self.wanted
        if self.is_copied and (is_change or self.copies.is_due(self.done)):
            self.copies.keep(self.done, self.run.fork(), self.wanted, change=is_change)

        # Underflow is measured when a change has settled. The steps before that measure nothing, so
        # that they are quick while a knob is dragged.
        self.unsettled = SETTLE_STEPS if is_change else max(0, self.unsettled - 1)
        measure_every = self.run.measure_every
        if measure_every and self.unsettled:
            self.run.measure_every = 1 if self.unsettled == 1 else 0
        start = time.perf_counter()
        try:
            record = self.run.step()
        finally:
            self.run.measure_every = measure_every
        seconds = max(time.perf_counter() - start, 1e-9)

        # The first step is slower than the others.
        if record.underflow is None and self.steps:
            self.seconds = [*self.seconds[1 - TIMED_STEPS :], seconds]
        self.steps.append(record)
        self._add_map_row(record.step)
        is_last = self.done == total
        if is_last or self.done % max(1, total // MEASUREMENTS) == 0:
            self.metrics[self.done] = self.run.evaluate()
        if is_last or self.done % PICTURE_EVERY == 0:
            self.draw()

    def _add_map_row(self, step: int) -> None:
        """Record what each scale would have lost in this step, if the step was measured."""
        exponents = getattr(self.run, "exponents", None)
        if exponents is not None and exponents.step == step:
            self.map_rows.append(map_row(exponents))

    def _apply_knobs(self) -> None:
        """Change the run to the wanted knobs, and mark the step."""
        assert self.knobs is not None
        before = self.knobs
        recipe = recipe_of(self.wanted)
        if recipe != self.run.recipe:
            self.run.change(recipe)
        # A learner can choose the same scale again, to which a dynamic scale then returns.
        if self.rescaled or recipe.scaler != recipe_of(before).scaler:
            self.run.scaler = initial(recipe.scaler)
        self.knobs = self.wanted
        self._set_optimizer()
        self._add_mark(Mark(self.done + 1, before, self.wanted, self.rescaled))
        self.rescaled = False

    def _add_mark(self, mark: Mark) -> None:
        """Mark a change; changes that follow each other quickly, as in a drag, share one mark."""
        # Before the first step, a change is the beginning of the run.
        if not self.steps or not mark.label:
            return
        if self.marks and mark.step - self.marks[-1].step <= MERGE_STEPS:
            mark = replace(mark, before=self.marks.pop().before)
        # A knob that is back in its old position leaves no mark.
        if mark.label:
            self.marks.append(mark)

    def _set_optimizer(self) -> None:
        """Set learning rates and epsilons by the knobs.

        The learning rate is a multiple of the task's. Options that no knob has changed stay as
        they are.
        """
        assert self.knobs is not None
        is_default = not self.knobs.log2_lr and self.knobs.epsilon is None
        if self.options is None and is_default:
            return
        groups = self.run.engine.optimizer.param_groups
        if self.options is None:
            self.options = [dict(group, params=[]) for group in groups]
        for group, original in zip(groups, self.options, strict=True):
            group["lr"] = original["lr"] * 2.0**self.knobs.log2_lr
            if has_epsilon(self.run.task) and "eps" in group:
                epsilon = self.knobs.epsilon
                group["eps"] = original["eps"] if epsilon is None else epsilon

    def at(self, step: int) -> tuple[Any, Knobs]:
        """Return a copy of the run as it was after a step, and the knobs at that step.

        Raises:
            ValueError: If this branch has not done the step, or it is not a whole number.
        """
        is_done = isinstance(step, Integral) and self.origin <= step <= self.done
        if self.run is None or self.knobs is None or not is_done:
            raise ValueError(
                f"a fork: expected a whole step from {self.origin} to {self.done}, got {step!r}"
            )
        if step == self.done:
            return self.run.fork(), self.knobs
        # Repeat the steps after the last copy. Batches depend on seed and step alone, so the result
        # is the same to the bit.
        copied, knobs = self.copies.before(step)
        run = copied.fork()
        run.measure_every = 0
        while run.steps_done < step:
            run.step()
        run.measure_every = self.run.measure_every
        return run, knobs

    def back_at(self, step: int) -> Branch:
        """Return this branch as it was after a step.

        Raises:
            ValueError: If this branch has not done the step, or keeps no copies.
        """
        run, knobs = self.at(step)
        back = Branch(self.begin, knobs, self.origin, self.left, self.options, self.forkable)
        back.run = run
        back.knobs = knobs
        back.began = self.began
        back.steps = self.steps[: step - self.origin]
        # A copy at a change has the new knobs, which act at the step after it.
        back.marks = [mark for mark in self.marks if mark.step <= step + 1]
        back.metrics = {at: metric for at, metric in self.metrics.items() if at <= step}
        back.map_rows = [row for row in self.map_rows if row[0] <= step]
        back.copies = self.copies.until(step)
        back.draw()
        return back

    def ghost_of(self, step: int) -> Ghost:
        """Return what this branch has done after a step."""
        return Ghost(
            origin=step,
            steps=tuple(self.steps[step - self.origin :]),
            knobs=self.knobs or self.wanted,
            marks=tuple(mark for mark in self.marks if mark.step > step + 1),
            metrics={at: metric for at, metric in self.metrics.items() if at > step},
        )


def map_row(exponents: GradSnapshot) -> MapRow:
    """Return the shares of gradients that each scale of the slider loses and overflows.

    Args:
        exponents: The exponents of all gradients of a step.

    Returns:
        The step, the shares lost by scale, and the shares that overflow by scale.
    """
    lost, overflowing = scale_row(merge(exponents.layers.values()), MAP_SCALES)
    return (float(exponents.step), *lost, *overflowing)
