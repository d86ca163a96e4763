"""A run, at most one fork of it, and the FP32 run of the same seed beside them.

A `Branch` is a run with snapshots: a copy of the run every few steps, and at each change of a knob
(`Checkpoints`). A fork at any step continues from the copy before it. A run can go back to a step
that it has done; what it had done after that step stays as a `Ghost`. A knob that may change during
the run acts at the next step; one that changes a format restarts the run at its origin: step 0, or
the step of the fork. FP32 is at most one step ahead and stays as long as task, seed and device do.

Invariant: all runs see the same batches, because a batch depends on seed and step alone. Until a
knob changes, the training is that of the recipe, to its last field.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Integral
from statistics import median
from typing import Any

from labkit.amp import RECIPES, Recipe, initial
from labkit.instrument import GradSnapshot, merge, scale_row
from labkit.train import (
    Picture,
    Place,
    RunRecord,
    StepRecord,
    Task,
    TrainingRun,
    place,
    recorded,
)
from labkit.train.record import fingerprint
from labkit.train.run import MEASURE_EVERY
from labkit.widgets.driven.controller import Controller, Phase, Points
from labkit.widgets.live_training.checkpoints import Checkpoints
from labkit.widgets.live_training.knobs import (
    ALL,
    GROWTH_INTERVAL,
    LOG2_SCALE_RANGE,
    Knobs,
    Scaling,
    changed,
    describe,
    has_epsilon,
    knobs_of,
    lacks_masters,
    lives_on,
    operands,
    recipe_of,
    turn,
    why_fixed,
)

PICTURE_EVERY = 10  # steps between two pictures of what the network does
# those of the slider
MAP_SCALES = range(LOG2_SCALE_RANGE[0], LOG2_SCALE_RANGE[1] + 1)
MEASUREMENTS = 10  # how often in a run the metric is measured on the test data
GHOSTS = 12  # how many ghosts stay; the oldest goes first
SETTLE_STEPS = 4  # the fourth step under a change measures what it did to underflow
# a knob turned so soon after another (a drag) takes the first one's mark along
MERGE_STEPS = 6
# Steps a second are the median of this many latest steps, without those that measured something.
TIMED_STEPS = 30

# (task, recipe, seed, device=) -> run; a test brings one that does not train
MakeRun = Callable[..., Any]
Options = list[dict[str, Any]]  # of an optimizer's groups
# a step, then the share lost at each scale, then that which overflows
MapRow = tuple[float, ...]
SLOWLY = (
    "Its sums are emulated bit by bit: seconds for a step of convolutions or attention. On "
    "digits it is quick."
)


@dataclass(frozen=True)
class Mark:
    """A change of a knob: `step` is the first step under `after`.

    `rescaled` means that a scale was chosen, new or not.
    """

    step: int
    before: Knobs
    after: Knobs
    rescaled: bool = False

    @property
    def label(self) -> str:
        """What was turned, in few words; an empty text for nothing."""
        again = (
            f"scale 2^{self.after.log2_scale}"
            if self.rescaled and self.after.scaling is not Scaling.OFF
            else ""
        )
        return changed(self.before, self.after) or again


@dataclass(frozen=True)
class Ghost:
    """What a run had done before it went back: its steps, without the run.

    Attributes:
        origin: the step to which it went back.
        steps: those after the origin.
        knobs: their positions at its end.
        marks: changes after the origin.
        metrics: step -> metric, after the origin.
    """

    origin: int
    steps: tuple[StepRecord, ...]
    knobs: Knobs
    marks: tuple[Mark, ...]
    metrics: Mapping[int, float]

    @property
    def label(self) -> str:
        """Text of its settings at its end."""
        return describe(self.knobs)


@dataclass
class Branch:
    """A run, or the fork of a run.

    Attributes:
        begin: recipe -> a run that is at step `origin`.
        left: of a fork: the knobs of the run that it left, at that step.
        options: of its optimizer, as the task made it: learning rates and epsilons before any knob;
            None: not asked yet.
        forkable: copies are kept, so that it can be forked and go back.
        wanted: the positions of its knobs; `knobs` is what the last step was done under.
        began: what the first step was done under.
        rescaled: a scale was chosen since the last step, perhaps the same one.
        torn: an error ended a step of it, so it is between two steps.
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
    # the latest one; none where a task has none
    pictures: list[Picture] = field(default_factory=list)
    # of the steps that were measured
    map_rows: list[MapRow] = field(default_factory=list)
    # of the latest steps that measured nothing
    seconds: list[float] = field(default_factory=list)
    unsettled: int = 0  # steps until a change counts as settled

    @property
    def done(self) -> int:
        return self.origin + len(self.steps)

    @property
    def scale(self) -> float:
        """The loss scale that the next step will use."""
        if self.run is None or self.rescaled:
            return recipe_of(self.wanted).scaler.init_scale
        return float(self.run.scaler.scale)

    @property
    def is_copied(self) -> bool:
        """Whether copies of its run are kept; a run of one's own may have no `fork`."""
        return self.forkable and hasattr(self.run, "fork")

    @property
    def step_seconds(self) -> float | None:
        """How long a step takes that measures nothing; None before there is something to go by."""
        return median(self.seconds) if len(self.seconds) > 1 else None

    def build(self) -> None:
        if self.run is None:
            self.run = self.begin(recipe_of(self.wanted))
            self.run.measure_every = (
                0 if operands(self.wanted) in ("FP32", "TF32") else MEASURE_EVERY
            )
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
        """Return a branch that begins at the same origin, without a run yet."""
        return Branch(self.begin, wanted, self.origin, self.left, self.options, self.forkable)

    def step(self, total: int) -> None:
        """Do a step under the wanted knobs, after a copy of the run where one is due."""
        self.torn = True
        self._step(total)
        self.torn = False

    def _step(self, total: int) -> None:
        self.build()
        changed_now = self.rescaled or self.wanted != self.knobs
        if changed_now:
            self._turn()
        self.began = self.began or self.wanted
        if self.is_copied and (changed_now or self.copies.is_due(self.done)):
            self.copies.keep(self.done, self.run.fork(), self.wanted, change=changed_now)
        every = self.run.measure_every
        self.unsettled = SETTLE_STEPS if changed_now else max(0, self.unsettled - 1)
        # measure when the hand has come to rest, soon; steps before that are quick
        if every and self.unsettled:
            self.run.measure_every = int(self.unsettled == 1)
        began = time.perf_counter()
        try:
            record = self.run.step()
        finally:
            self.run.measure_every = every
        # the first step is slower than the others
        if record.underflow is None and self.steps:
            self.seconds = [
                *self.seconds[1 - TIMED_STEPS :],
                max(time.perf_counter() - began, 1e-9),
            ]
        self.steps.append(record)
        self._map(record.step)
        if self.done % max(1, total // MEASUREMENTS) == 0 or self.done == total:
            self.metrics[self.done] = self.run.evaluate()
        if self.done % PICTURE_EVERY == 0 or self.done == total:
            self.draw()

    def _map(self, step: int) -> None:
        """Note what each scale would have lost in a step that was measured."""
        taken = getattr(self.run, "exponents", None)
        if taken is not None and taken.step == step:
            self.map_rows.append(map_row(taken))

    def _turn(self) -> None:
        """Put the knobs into the run, and mark the step."""
        assert self.knobs is not None
        before = self.knobs
        recipe = recipe_of(self.wanted)
        scaler = recipe.scaler != recipe_of(before).scaler
        if recipe != self.run.recipe:
            self.run.change(recipe)
        if scaler or self.rescaled:
            # also where a dynamic scale had wandered off and is asked back
            self.run.scaler = initial(recipe.scaler)
        self.knobs = self.wanted
        self._set_optimizer()
        step = self.done + 1
        mark = Mark(step, before, self.wanted, self.rescaled)
        # a mark without these is not a change of this run but its beginning
        if self.steps and mark.label:
            if self.marks and step - self.marks[-1].step <= MERGE_STEPS:
                mark = Mark(step, self.marks.pop().before, self.wanted, self.rescaled)
            if mark.label:
                self.marks.append(mark)
        self.rescaled = False

    def _set_optimizer(self) -> None:
        """Set the learning rate, a multiple of the task's, and the epsilon, in place of the task's.

        What no knob has changed is left alone.
        """
        assert self.knobs is not None
        if self.options is None:
            if not self.knobs.log2_lr and self.knobs.epsilon is None:
                return
            self.options = [
                dict(group, params=[]) for group in self.run.engine.optimizer.param_groups
            ]
        for group, own in zip(self.run.engine.optimizer.param_groups, self.options, strict=True):
            group["lr"] = own["lr"] * 2.0**self.knobs.log2_lr
            if has_epsilon(self.run.task) and "eps" in group:
                group["eps"] = own["eps"] if self.knobs.epsilon is None else self.knobs.epsilon

    def at(self, step: int) -> tuple[Any, Knobs]:
        """Return a run of its own as this one was after `step`, and its knobs.

        Raises:
            ValueError: this branch has not been there.
        """
        if self.run is None or not self.origin <= step <= self.done or self.knobs is None:
            raise ValueError(
                f"a fork: expected a step from {self.origin} to {self.done}, got {step}"
            )
        if step == self.done:
            return self.run.fork(), self.knobs
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
            ValueError: this branch has not been there, or keeps no copies.
        """
        run, knobs = self.at(step)
        back = Branch(self.begin, knobs, self.origin, self.left, self.options, self.forkable)
        back.run = run
        back.knobs = knobs
        back.began = self.began
        back.steps = self.steps[: step - self.origin]
        # a copy at a change is under the new knobs, which act at the step after it
        back.marks = [mark for mark in self.marks if mark.step <= step + 1]
        back.metrics = {at: metric for at, metric in self.metrics.items() if at <= step}
        back.map_rows = [row for row in self.map_rows if row[0] <= step]
        back.copies = self.copies.until(step)
        back.draw()
        return back

    def ghost_of(self, step: int) -> Ghost:
        """Return what was done after a step."""
        return Ghost(
            step,
            tuple(self.steps[step - self.origin :]),
            self.knobs or self.wanted,
            tuple(mark for mark in self.marks if mark.step > step + 1),
            {at: metric for at, metric in self.metrics.items() if at > step},
        )


class ForkedRun(Controller):
    """A run, its fork and FP32 beside them, as they are driven.

    `Workbench` says what task to device are.

    Args:
        offered: the knobs that can be turned.
        forkable: whether the run can be forked.
        growth_interval: clean steps before a dynamic scale grows that is switched on here.
        make_run: (task, recipe, seed, device=) -> run.

    Raises:
        ValueError: the offered knobs cannot show the recipe, steps is less than 1, or there is no
            such device.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        seed: int = 0,
        *,
        steps: int | None = None,
        device: Any = None,
        offered: tuple[str, ...] = ALL,
        forkable: bool = True,
        growth_interval: int = GROWTH_INTERVAL,
        make_run: MakeRun = TrainingRun,
    ) -> None:
        if steps is not None and (not isinstance(steps, Integral) or steps < 1):
            raise ValueError(f"steps: expected a whole number from 1 on, or None, got {steps!r}")
        super().__init__()
        self.seed = seed
        self.asked_steps = steps
        self.place = place(device)
        self.offered = offered
        self.forkable = forkable
        self.make_run = make_run
        # task, device -> its runs as they were left
        self._left: dict[tuple[str, str], tuple[Any, ...]] = {}
        # task -> the picture of its targets
        self._wanted: dict[str, Picture | None] = {}
        self._set_up(task, replace(knobs_of(recipe, offered), growth_interval=growth_interval))

    def _set_up(self, task: Task, knobs: Knobs) -> None:
        self.task = task
        self.total = self.asked_steps or task.steps
        self.fp32 = Branch(self._from_the_start, knobs_of(RECIPES["FP32"]), forkable=False)
        self._one_run(knobs)
        self.previous: list[StepRecord] = []
        self.ghosts: list[Ghost] = []

    def begin_at(self, to: Mapping[str, Any]) -> None:
        """Begin with knobs in other positions than the recipe has them.

        `turn` says which it refuses.
        """
        self._one_run(turn(self.selected.wanted, to))

    def _one_run(self, knobs: Knobs) -> None:
        # FP32's steps of another moment say nothing about the speed of this run
        self.fp32.seconds = []
        self.branches = [Branch(self._from_the_start, knobs)]
        self.active = 0

    def _from_the_start(self, recipe: Recipe) -> Any:
        return self.make_run(self.task, recipe, self.seed, device=self.place)

    @property
    def run(self) -> Branch:
        return self.branches[0]

    @property
    def fork(self) -> Branch | None:
        return self.branches[1] if len(self.branches) > 1 else None

    @property
    def selected(self) -> Branch:
        """The branch whose knobs are on show."""
        return self.branches[self.active]

    @property
    def sides(self) -> list[Branch]:
        return [self.fp32, *self.branches]

    @property
    def steps(self) -> list[StepRecord]:
        return self.run.steps

    # --- commands ---------------------------------------------------------------------------------

    def begin_again(self) -> None:
        """Keep the steps so far as the run before, and the knobs."""
        self._remember()
        if self.error:
            # an error may have left it between two steps
            self.fp32 = self.fp32.restarted(self.fp32.wanted)
        self._one_run(self.selected.wanted)

    def _remember(self) -> None:
        if len(self.run.steps) > 1:
            self.previous = self.run.steps

    def turn(self, knobs: Mapping[str, Any]) -> None:
        """Put knobs of the branch on show into positions, all of them or none."""
        unknown = [name for name in knobs if name not in self.offered]
        if unknown:
            raise ValueError(
                f"there is no knob {unknown[0]!r} here; there are {', '.join(self.offered)}"
            )
        fixed = why_fixed(self.selected.wanted, self.task, self.offered)
        for name in knobs:
            if name in fixed and name != "accumulator":
                raise ValueError(fixed[name])
        self._want(turn(self.selected.wanted, knobs))
        self.selected.rescaled |= (
            not knobs.keys().isdisjoint(("scaling", "log2_scale")) and self.selected.run is not None
        )
        if knobs.get("accumulator", "FP32") != "FP32":
            self.notice += f" {SLOWLY}"

    def _want(self, wanted: Knobs) -> None:
        branch = self.selected
        restarts = bool(branch.steps) and not lives_on(branch.knobs or branch.wanted, wanted)
        branch.wanted = wanted
        if restarts and branch is self.run:
            self._remember()
            # The fork goes, too: the run that it left is gone.
            self._one_run(wanted)
        elif restarts or not branch.steps:
            self.branches[self.active] = branch.restarted(wanted)
        if restarts:
            where = (
                f"after step {branch.origin}, where it was forked" if branch.origin else "at step 0"
            )
            self.notice = f"Another format is another run: this one begins again {where}."
            self.phase = Phase.PAUSED if self.phase is Phase.FINISHED else self.phase

    def fork_after(self, step: int) -> None:
        """Let a second run leave the first one after a step."""
        if not self.forkable:
            raise ValueError("this widget has no forks; labkit.widgets.Workbench has.")
        if not self.run.steps:
            raise ValueError("a fork needs a run to leave. Press Start first.")
        source, knobs = self.run.at(min(step, self.run.done))
        if source.steps_done >= self.total:
            raise ValueError(f"after step {self.total} nothing follows. Fork at an earlier step.")
        origin = source.steps_done
        self.branches = [
            self.run,
            Branch(source.fork, knobs, origin, left=knobs, options=self.run.options),
        ]
        self.active = 1
        if self.phase is not Phase.FAILED:
            self.enter(Phase.PAUSED)
        then = "Turn one of its knobs, then press Continue."
        self.notice = f"The fork stands after step {origin} with every digit of the run. {then}"

    def go_back(self, step: int) -> None:
        """Put the run back to a step that it has done; what it did after that stays as a ghost.

        A fork that left it later becomes a ghost as well. The knobs have the positions they had for
        the step after it.

        Raises:
            ValueError: nothing has run yet, the run has not been there, or it cannot be copied.
        """
        run = self.run
        if not run.steps:
            raise ValueError("there is no step to go back to. Press Start first.")
        if not run.is_copied:
            raise ValueError("a run of your own needs a method fork() to go back.")
        if not isinstance(step, Integral) or not 0 <= step < run.done:
            raise ValueError(
                f"expected a whole step from 0 to {run.done - 1} to go back to, got {step!r}"
            )
        step = int(step)
        back = run.back_at(step)
        gone = [run.ghost_of(step)]
        kept = []
        if self.fork is not None and self.fork.origin <= step and not self.fork.torn:
            kept = [self.fork]
        elif self.fork is not None and self.fork.steps:
            gone.append(self.fork.ghost_of(self.fork.origin))
        self.ghosts = [*self.ghosts, *gone][-GHOSTS:]
        self.branches = [back, *kept]
        if self.fp32.torn:
            # it is trained again, up to the run
            self.fp32 = self.fp32.restarted(self.fp32.wanted)
        self.active = 0
        self.fp32.seconds = []  # of another moment
        self.error = ""
        self.enter(Phase.PAUSED)
        then = "Turn a knob, then press Continue."
        self.notice = (
            f"Back after step {step}, with every digit. What came after stays as a faint "
            f"curve. {then}"
        )

    def choose(
        self, task: Task | None = None, recipe: Recipe | None = None, branch: int | None = None
    ) -> None:
        """Take another task or recipe, or the branch that the knobs turn: 0 the run, 1 its fork."""
        if branch is not None:
            self.active = min(branch, len(self.branches) - 1)
        self._move(task or self.task, self.place)
        if recipe is not None:
            own = self.selected.wanted
            kept = {name: getattr(own, name) for name in ("log2_lr", "epsilon", "growth_interval")}
            self._want(replace(knobs_of(recipe, self.offered), **kept))

    def train_on(self, where: Place) -> None:
        self._move(self.task, where)

    def _move(self, task: Task, where: Place) -> None:
        """Leave the runs of this task and device as they are.

        Take up those of another, or begin there.
        """
        if task is self.task and where == self.place:
            return
        self.enter(Phase.PAUSED if self.phase is Phase.RUNNING else self.phase)
        if self.run.steps:
            here = (
                self.fp32,
                self.branches,
                self.active,
                self.previous,
                self.ghosts,
                self.phase,
                self.error,
            )
            self._left[self.task.name, self.place.key] = here
        knobs = self.selected.wanted
        self.place = where
        there = self._left.pop((task.name, where.key), None)
        if there is None:
            self._set_up(task, knobs)
            self.enter(Phase.IDLE)
            self.error = ""
            return
        self.task = task
        self.total = self.asked_steps or task.steps
        self.fp32, self.branches, self.active, self.previous, self.ghosts, *ended = there
        self.phase, self.error = ended
        self.notice = (
            f"Your run of {task.name.replace('_', ' ')} is as you left it, after step "
            f"{self.run.done}."
        )

    # --- steps ------------------------------------------------------------------------------------

    def lead(self) -> bool:
        """Bring the FP32 run to the step that is due: one further, or all where it begins again."""
        due = min(self.run.done + 1, self.total)
        if len(self.fp32.steps) >= due:
            return False
        while len(self.fp32.steps) < due:
            self.fp32.step(self.total)
        return True

    def follow(self) -> None:
        """Do the step that is due, in the branch that is behind."""
        min(reversed(self.branches), key=lambda branch: branch.done).step(self.total)

    # --- what is seen -----------------------------------------------------------------------------

    @property
    def recorded(self) -> tuple[RunRecord | None, RunRecord | None]:
        """The recorded runs that are shown until the learner's own begin: FP32's and one other."""
        if self.phase is not Phase.IDLE or self.fp32.steps:
            return None, None
        knobs = self.run.wanted
        same = knobs.log2_lr == 0 and knobs.epsilon is None
        run = on_record(self.task, recipe_of(knobs), self.seed) if same else None
        return on_record(self.task, RECIPES["FP32"], self.seed), run

    def points(self) -> list[Points]:
        fp32, run = ((() if record is None else record.steps) for record in self.recorded)
        losses = [(steps, _loss) for steps in (self.fp32.steps, self.previous, fp32)]
        runs = [(steps, columns) for steps in (run, *(branch.steps for branch in self.branches))]
        gone = [(ghost.steps, columns) for ghost in self.ghosts]
        drawn = [
            (steps, row, min(len(steps), self.total)) for steps, row in (*losses, *runs, *gone)
        ]
        rows = self.run.map_rows
        return [*drawn, (rows, _as_it_is, len(rows))]

    @property
    def shares(self) -> list[str]:
        """The shares that are on show: "underflow" of gradients, "swallowed" of updates, or both.

        With every knob there are both. A run that begins without FP32 masters is about swallowed
        updates.
        """
        run = self.run
        if "epsilon" in self.offered:
            return ["underflow", "swallowed"]
        if lacks_masters(run.began or run.wanted):
            return ["swallowed"]
        return ["underflow", "swallowed"] if lacks_masters(run.wanted) else ["underflow"]

    @property
    def wanted_picture(self) -> Picture | None:
        """The picture of what the network should do; None where the task has none."""
        name = self.task.name
        if name not in self._wanted:
            self._wanted[name] = self.task.wanted_picture()
        return self._wanted[name]

    def fork_change(self) -> str:
        """Return the text on the knobs turned at the fork; "" if none was."""
        if self.fork is None or self.fork.left is None:
            return ""
        marks = self.fork.marks
        return changed(self.fork.left, marks[0].before if marks else self.fork.wanted)


_load = cache(recorded)


def on_record(task: Task, recipe: Recipe, seed: int) -> RunRecord | None:
    """Return the run that is on record of exactly this task, recipe and seed.

    Returns None if there is none.
    """
    try:
        record = _load(task.name, recipe.name, seed)
        return record if record.fingerprint == fingerprint(task, recipe) else None
    except (FileNotFoundError, ValueError):
        # none, or a task that was typed into a notebook
        return None


def _loss(step: StepRecord) -> tuple[float, ...]:
    return (step.loss,)


def map_row(taken: GradSnapshot) -> MapRow:
    """Return a step with the shares lost and overflowing at each scale of the slider."""
    lost, overflowing = scale_row(merge(taken.layers.values()), MAP_SCALES)
    return (float(taken.step), *lost, *overflowing)


def _as_it_is(row: MapRow) -> MapRow:
    return row


def columns(step: StepRecord) -> tuple[float, ...]:
    """Return what is drawn of a step of a run: loss, scale, stepped, underflow, swallowed."""
    sound = math.isfinite(step.loss)  # what NaN underflows to means nothing
    shares = (v if v is not None and sound else math.nan for v in (step.underflow, step.swallowed))
    return (step.loss, step.scale, float(step.stepped), *shares)
