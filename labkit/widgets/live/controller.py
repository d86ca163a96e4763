"""What happens when a learner drives a training? One object that takes commands and does steps, one at a time.

Idea: the controller knows no thread, no clock and no browser. Somebody calls `handle(command)` and, while `due`,
`tick()`: in the widget a thread, in a test the test. The FP32 run of the same task and seed goes in lockstep the first
time and is kept: after a reset its curve is there already.

Invariant: a change takes effect at the next step and leaves a mark there; an error becomes the phase FAILED and a
sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from labkit.amp import RECIPES, Recipe, initial
from labkit.train import StepRecord, Task
from labkit.widgets.live.runs import Curve, MakeRun, Mark, make_run, streak
from labkit.widgets.live.state import (
    Button,
    Change,
    Command,
    Phase,
    Scaling,
    Settings,
    number_format,
    press,
    recipe_for,
    settings_of,
)
from labkit.widgets.live.words import Scene, change_label

GROWTH_INTERVAL = 25  # clean steps before a dynamic scale grows; torch's 2,000 would never grow in a run of 250
MEASUREMENTS = 10  # how often in a run the metric is measured on the test data
SETTLE_STEPS = 4  # the fourth step under a change measures what it did to underflow
MERGE_STEPS = 6  # a change so soon after another (a drag) takes its mark along


class Controller:
    """A training that is driven.

    Args:
        task, recipe, seed: what is trained; the controls begin where the recipe's scaling and master weights stand.
        steps: how many; None takes the task's own number.
        growth_interval: clean steps before a dynamic scale doubles.
        make_run: (task, recipe, seed) -> run.

    Raises:
        ValueError: the recipe's scale cannot be shown on the slider, or steps is less than 1.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        seed: int = 0,
        *,
        steps: int | None = None,
        growth_interval: int = GROWTH_INTERVAL,
        make_run: MakeRun = make_run,
    ) -> None:
        self.task, self.recipe, self.seed = task, recipe, seed
        self.total = task.steps if steps is None else steps
        if self.total < 1:
            raise ValueError(f"steps is 1 or more; it was given {steps}")
        self.growth_interval = growth_interval
        self.make_run = make_run
        self.phase = Phase.IDLE
        self.settings = settings_of(recipe)
        self.fp32 = Curve(RECIPES["FP32"])
        self.ours = Curve(recipe)
        self.previous: list[StepRecord] = []
        self.marks: list[Mark] = []
        self.notice = ""
        self.error = ""
        self._in_force: Settings | None = None
        self._scale_was_set = False
        self._single_steps = 0  # asked for by the step button and not done yet
        self._unsettled = 0  # steps until the settings count as settled

    # --- commands -----------------------------------------------------------------------------------------------

    def handle(self, command: Command) -> None:
        """Obey a command; a change that the recipe cannot have leaves a notice and nothing else."""
        self.notice = ""
        if isinstance(command, Change):
            self._change(command)
        else:
            self._press(command)

    def _press(self, button: Button) -> None:
        before, self.phase = self.phase, press(self.phase, button)
        over = before in (Phase.FINISHED, Phase.FAILED)
        if button is Button.RESET or (button is Button.START and over):
            self._begin_again()
        single = button is Button.STEP and self.phase is Phase.PAUSED
        self._single_steps = self._single_steps + 1 if single else 0

    def _begin_again(self) -> None:
        if len(self.ours.steps) > 1:
            self.previous = self.ours.steps
        if self.error:
            self.fp32 = Curve(RECIPES["FP32"])  # an error may have left it between two steps
        self.ours = Curve(self.recipe)
        self.marks, self.error = [], ""
        self._in_force, self._scale_was_set, self._unsettled = None, False, 0

    def _change(self, change: Change) -> None:
        asked = {k: v for k, v in vars(change).items() if v is not None}
        try:
            wanted = replace(self.settings, **asked)
            recipe_for(self.recipe, wanted, self.growth_interval)
        except ValueError as error:
            self.notice = f"Not changed: {error}"
            return
        self.settings = wanted
        self._scale_was_set = self._scale_was_set or change.scaling is not None or change.log2_scale is not None

    # --- steps --------------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether there is a step to do now."""
        return self.phase is Phase.RUNNING or self._single_steps > 0

    @property
    def building(self) -> bool:
        """Whether the next tick begins with making the runs, which can take a second or two."""
        return self.due and (self.ours.run is None or self.fp32.run is None)

    def build(self) -> None:
        """Make the runs that are not there yet."""
        self._guard(self._build)

    def tick_other(self) -> bool:
        """Bring the FP32 run to the step that is due; return whether there was anything to do."""
        before = len(self.fp32.steps)
        if self.due and before <= len(self.ours.steps):
            self._guard(self._step_fp32)
        return len(self.fp32.steps) > before

    def tick(self) -> None:
        """Do the step that is due, in both runs; does nothing when none is."""
        if self.due:
            self.build()
            self.tick_other()
        if self.due:
            self._guard(self._step_ours)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever went wrong in the learner's task, the figure has to say it
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the training with an error that the sentence names."""
        self.phase, self._single_steps = Phase.FAILED, 0
        self.error = f"{type(error).__name__}: {error}".rstrip().rstrip(".:") + "."

    def _build(self) -> None:
        if self.fp32.run is None:
            self.fp32.run = self.make_run(self.task, self.fp32.recipe, self.seed)
        if self.ours.run is None:
            self._in_force = self.settings
            recipe = recipe_for(self.recipe, self.settings, self.growth_interval)
            self.ours = Curve(recipe, self.make_run(self.task, recipe, self.seed))
            self._scale_was_set = False

    def _step_fp32(self) -> None:
        self._build()
        self._step(self.fp32)

    def _step_ours(self) -> None:
        self._build()
        changed = self._apply()
        with self._measured_when_settled(changed):
            self._step(self.ours)
        self._single_steps = max(0, self._single_steps - 1)
        if len(self.ours.steps) >= self.total:
            self.phase, self._single_steps = Phase.FINISHED, 0

    def _step(self, curve: Curve) -> None:
        assert curve.run is not None
        curve.steps.append(curve.run.step())
        done = len(curve.steps)
        if done % max(1, self.total // MEASUREMENTS) == 0 or done == self.total:
            curve.metrics[done] = curve.run.evaluate()

    @contextmanager
    def _measured_when_settled(self, changed: bool) -> Iterator[None]:
        """Let the step in which the hand has come to rest measure underflow: what a change did is seen soon.

        Steps before that do not measure, so that they are quick: while a hand drags the slider, every other step
        brings a change.
        """
        run = self.ours.run
        assert run is not None
        every = run.measure_every
        self._unsettled = SETTLE_STEPS if changed else max(0, self._unsettled - 1)
        if every and (changed or self._unsettled):
            run.measure_every = 1 if self._unsettled == 1 else 0
        try:
            yield
        finally:
            run.measure_every = every

    def _apply(self) -> bool:
        """Put the learner's settings into the run, and mark the step; return whether something changed."""
        before, run = self._in_force, self.ours.run
        assert before is not None
        assert run is not None
        recipe = recipe_for(self.recipe, self.settings, self.growth_interval)
        changed = self._scale_was_set or self.settings != before
        if self._scale_was_set:
            run.change(recipe)
            run.scaler = initial(recipe.scaler)  # also where a dynamic scale had wandered off and is asked back
        elif self.settings != before:
            run.change(recipe)
        self._mark(before)
        self._in_force, self._scale_was_set = self.settings, False
        return changed

    def _mark(self, before: Settings) -> None:
        if not self.ours.steps:
            return  # not a change of this run but its beginning
        step = len(self.ours.steps) + 1
        moved = self._scale_was_set and self.settings.scaling is not Scaling.OFF
        if not change_label(before, self.settings) and not moved:
            return
        if self.marks and step - self.marks[-1].step <= MERGE_STEPS:
            before = self.marks.pop().before
        label = change_label(before, self.settings)
        if label or moved:
            self.marks.append(Mark(step, label or f"scale 2^{self.settings.log2_scale}", before))

    # --- what is seen -------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """The number format of the learner's run."""
        return number_format(self.recipe)

    @property
    def scale(self) -> float:
        """The loss scale that the next step will use."""
        run = self.ours.run
        if run is not None and not self._scale_was_set:
            return run.scaler.scale
        return 1.0 if self.settings.scaling is Scaling.OFF else 2.0**self.settings.log2_scale

    @property
    def metric(self) -> tuple[int, float, float] | None:
        """The latest step at which both metrics were measured: (step, this run, FP32)."""
        both = self.ours.metrics.keys() & self.fp32.metrics.keys()
        step = max(both, default=None)
        return None if step is None else (step, self.ours.metrics[step], self.fp32.metrics[step])

    def scene(self) -> Scene:
        """Return what a sentence needs to know about this moment."""
        steps = self.ours.steps
        last = steps[-1] if steps else None
        there = last is not None and last.step <= len(self.fp32.steps)
        return Scene(
            phase=self.phase,
            total=self.total,
            label=self.label,
            settings=self._in_force or self.settings,
            wanted=self.settings,
            task=self.task.name,
            metric_name=self.task.metric_name,
            last=last,
            fp32_loss=self.fp32.steps[last.step - 1].loss if last is not None and there else None,
            underflow=next((s.underflow for s in reversed(steps) if s.underflow is not None), None),
            bad_since=streak(steps, lambda s: not math.isfinite(s.loss))[1],
            skipped=sum(not s.stepped for s in steps),
            skipped_in_a_row=streak(steps, lambda s: not s.stepped)[0],
            changes=len(self.marks),
            metric=self.metric,
            error=self.error,
            building=self.building,
        )
