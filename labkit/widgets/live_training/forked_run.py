"""The controller of a run, at most one fork of it, and an FP32 run of the same seed beside them.

A knob that can change during a run acts at the next step. A knob that changes a format restarts the
run at its origin: step 0, or the step of the fork. FP32 trains at most one step ahead of the run.
If the run goes back or restarts, FP32 keeps its steps; it starts again with another task, seed or
device, and after an error in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral
from typing import Any

from labkit.amp import RECIPES, Recipe
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
from labkit.widgets.driven.controller import Controller, Phase, Points
from labkit.widgets.live_training.branch import Branch, Ghost, MapRow
from labkit.widgets.live_training.knobs import (
    ALL,
    GROWTH_INTERVAL,
    Knobs,
    changed,
    knobs_of,
    lacks_masters,
    lives_on,
    recipe_of,
    require_knob,
    turn,
    why_fixed,
)

# The number of ghosts that stay; the oldest is removed first.
GHOSTS = 12

# Returns a run for (task, recipe, seed, device=). A test passes one that does not train.
MakeRun = Callable[..., Any]
# The end of the notice when an accumulator other than FP32 is chosen.
SLOW_SUMS = (
    "The sums of this accumulator are emulated bit by bit, so a step with convolutions or "
    "attention takes seconds. The task digits is quick."
)


@dataclass(frozen=True)
class _Scene:
    """The runs of one task on one device, as the learner left them."""

    fp32: Branch
    branches: list[Branch]
    active: int
    previous: list[StepRecord]
    ghosts: list[Ghost]
    phase: Phase
    error: str


class ForkedRun(Controller):
    """A run, its fork, and FP32 beside them, under the control of a widget.

    Args:
        task: The task to train.
        recipe: The recipe that the knobs start from.
        seed: The seed of weights and batches.
        steps: The number of steps; by default that of the task.
        device: "cpu", "gpu", a `Place`, or None for the best one.
        offered: The names of the knobs that the learner can turn.
        forkable: Whether the run can be forked.
        growth_interval: Clean steps before a dynamic scale grows that a knob switched on.
        make_run: Returns a run for (task, recipe, seed, device=).

    Raises:
        ValueError: If the offered knobs cannot show the recipe, `steps` is less than 1, or this
            machine does not have the device.
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
        is_whole = isinstance(steps, Integral) and not isinstance(steps, bool)
        if steps is not None and (not is_whole or steps < 1):
            raise ValueError(f"steps: expected a whole number from 1 on, or None, got {steps!r}")
        super().__init__()
        self.seed = seed
        self.asked_steps = steps
        self.place = place(device)
        self.offered = offered
        self.forkable = forkable
        self.make_run = make_run
        # By task and device.
        self._scenes: dict[tuple[str, str], _Scene] = {}
        # The picture of the targets, by task.
        self._target_pictures: dict[str, Picture | None] = {}
        self._set_up(task, replace(knobs_of(recipe, offered), growth_interval=growth_interval))

    def _set_up(self, task: Task, knobs: Knobs) -> None:
        """Begin with a task: a new run under these knobs, beside a new FP32 run."""
        self.task = task
        self.total = self.asked_steps or task.steps
        self.fp32 = Branch(self._from_the_start, knobs_of(RECIPES["FP32"]), forkable=False)
        self._start_branch(knobs)
        self.previous: list[StepRecord] = []
        self.ghosts: list[Ghost] = []

    def begin_at(self, to: Mapping[str, Any]) -> None:
        """Move knobs to other positions before the first step.

        Raises:
            ValueError: If `turn` refuses a position.
        """
        self._start_branch(turn(self.selected.wanted, to))

    def _start_branch(self, knobs: Knobs) -> None:
        """Replace run and fork by a new run under these knobs."""
        # Speeds are compared only if both runs trained at the same time.
        self.fp32.seconds = []
        self.branches = [Branch(self._from_the_start, knobs)]
        self.active = 0

    def _from_the_start(self, recipe: Recipe) -> Any:
        """Return a run that has done no steps."""
        return self.make_run(self.task, recipe, self.seed, device=self.place)

    @property
    def run(self) -> Branch:
        """The run, beside its fork and FP32."""
        return self.branches[0]

    @property
    def fork(self) -> Branch | None:
        """The fork, if there is one."""
        return self.branches[1] if len(self.branches) > 1 else None

    @property
    def selected(self) -> Branch:
        """The branch whose knobs the widget shows."""
        return self.branches[self.active]

    @property
    def sides(self) -> list[Branch]:
        """All branches, FP32 first."""
        return [self.fp32, *self.branches]

    @property
    def steps(self) -> list[StepRecord]:
        """The steps of the run."""
        return self.run.steps

    # --- commands ---------------------------------------------------------------------------------

    def begin_again(self) -> None:
        """Start a new run under the same knobs; the steps so far stay as the previous run."""
        self._keep_as_previous()
        if self.error:
            # The error may have left FP32 between two steps.
            self.fp32 = self.fp32.restarted(self.fp32.wanted)
        self._start_branch(self.selected.wanted)

    def _keep_as_previous(self) -> None:
        # A single step draws no curve.
        if len(self.run.steps) > 1:
            self.previous = self.run.steps

    def turn(self, knobs: Mapping[str, Any]) -> None:
        """Move knobs of the selected branch, all of them or none.

        Args:
            knobs: The new positions by the names of the knobs.

        Raises:
            ValueError: If a knob does not exist or is fixed, or the positions contradict each
                other.
        """
        for name in knobs:
            require_knob(name, self.offered)
        fixed = why_fixed(self.selected.wanted, self.task, self.offered)
        for name in knobs:
            # An accumulator without an effect may be chosen, since it has one in another format.
            if name in fixed and name != "accumulator":
                raise ValueError(fixed[name])
        self._set_wanted(turn(self.selected.wanted, knobs))
        chooses_scale = "scaling" in knobs or "log2_scale" in knobs
        if chooses_scale and self.selected.run is not None:
            self.selected.rescaled = True
        if knobs.get("accumulator", "FP32") != "FP32":
            self.notice = f"{self.notice} {SLOW_SUMS}".lstrip()

    def _set_wanted(self, wanted: Knobs) -> None:
        """Set the positions of the selected branch, and restart it if its format changes."""
        branch = self.selected
        restarts = bool(branch.steps) and not lives_on(branch.knobs or branch.wanted, wanted)
        branch.wanted = wanted
        if restarts and branch is self.run:
            self._keep_as_previous()
            # This removes the fork, too: the run that it continues no longer exists.
            self._start_branch(wanted)
        elif restarts or not branch.steps:
            self.branches[self.active] = branch.restarted(wanted)
        if restarts:
            where = "at step 0"
            if branch.origin:
                where = f"after step {branch.origin}, where it was forked"
            self.notice = f"Another format is another run: this one begins again {where}."
            if self.phase is Phase.FINISHED:
                self.phase = Phase.PAUSED

    def fork_after(self, step: int) -> None:
        """Fork the run after a step, and select the fork.

        Raises:
            ValueError: If this widget has no forks, nothing has run, or the step is the last one.
        """
        if not self.forkable:
            raise ValueError("this widget has no forks; labkit.widgets.Workbench has.")
        if not self.run.steps:
            raise ValueError("a fork needs a run to leave. Press Start first.")
        source, knobs = self.run.at(min(step, self.run.done))
        if source.steps_done >= self.total:
            raise ValueError(f"after step {self.total} nothing follows. Fork at an earlier step.")
        origin = source.steps_done
        fork = Branch(source.fork, knobs, origin, left=knobs, options=self.run.options)
        self.branches = [self.run, fork]
        self.active = 1
        if self.phase is not Phase.FAILED:
            self.enter(Phase.PAUSED)
        then = "Turn one of its knobs, then press Continue."
        self.notice = f"The fork begins after step {origin}, with every digit of the run. {then}"

    def go_back(self, step: int) -> None:
        """Return to an earlier step of the run. The steps after it stay as a ghost.

        A fork at a later step becomes a ghost as well. The knobs return to their positions for the
        step that follows.

        Raises:
            ValueError: If the run has not done the step, or cannot be copied.
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
        branches = [run.back_at(step)]
        ghosts = [run.ghost_of(step)]
        fork = self.fork
        if fork is not None:
            if fork.origin <= step and not fork.torn:
                branches.append(fork)
            elif fork.steps:
                ghosts.append(fork.ghost_of(fork.origin))
        self.ghosts = [*self.ghosts, *ghosts][-GHOSTS:]
        self.branches = branches
        if self.fp32.torn:
            # `lead` trains it again, up to the run.
            self.fp32 = self.fp32.restarted(self.fp32.wanted)
        self.active = 0
        # Speeds are compared only if both runs trained at the same time.
        self.fp32.seconds = []
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
        """Choose another task or recipe, or the branch that the knobs show.

        Args:
            task: The task; its runs on this device continue if it has any.
            recipe: The recipe, which sets all knobs but the ones that no recipe has.
            branch: 0 for the run, 1 for its fork.

        Raises:
            ValueError: If the offered knobs cannot show the recipe. Nothing is chosen then.
        """
        positions = None if recipe is None else knobs_of(recipe, self.offered)
        if branch is not None:
            self.active = min(branch, len(self.branches) - 1)
        self._move(task or self.task, self.place)
        if positions is not None:
            wanted = self.selected.wanted
            knobs = replace(
                positions,
                log2_lr=wanted.log2_lr,
                epsilon=wanted.epsilon,
                growth_interval=wanted.growth_interval,
            )
            self._set_wanted(knobs)

    def train_on(self, where: Place) -> None:
        self._move(self.task, where)

    def _move(self, task: Task, where: Place) -> None:
        """Keep the runs of this task and device, and continue or start those of another."""
        if task is self.task and where == self.place:
            return
        # This also cancels single steps that were requested and not done.
        self.enter(Phase.PAUSED if self.phase is Phase.RUNNING else self.phase)
        if self.run.steps:
            self._scenes[self.task.name, self.place.key] = _Scene(
                self.fp32,
                self.branches,
                self.active,
                self.previous,
                self.ghosts,
                self.phase,
                self.error,
            )
        knobs = self.selected.wanted
        self.place = where
        scene = self._scenes.pop((task.name, where.key), None)
        if scene is None:
            self._set_up(task, knobs)
            self.enter(Phase.IDLE)
            self.error = ""
            return
        self.task = task
        self.total = self.asked_steps or task.steps
        self.fp32 = scene.fp32
        self.branches = scene.branches
        self.active = scene.active
        self.previous = scene.previous
        self.ghosts = scene.ghosts
        self.phase = scene.phase
        self.error = scene.error
        self.notice = (
            f"Your run of {task.name.replace('_', ' ')} is as you left it, after step "
            f"{self.run.done}."
        )

    # --- steps ------------------------------------------------------------------------------------

    def lead(self) -> bool:
        """Train FP32 up to the step that the run does next; return whether that took a step."""
        due = min(self.run.done + 1, self.total)
        if len(self.fp32.steps) >= due:
            return False
        while len(self.fp32.steps) < due:
            self.fp32.step(self.total)
        return True

    def follow(self) -> None:
        """Do a step of the branch that is behind; of the fork, if both are equally far."""
        behind = min(reversed(self.branches), key=lambda branch: branch.done)
        behind.step(self.total)

    # --- data of the picture ----------------------------------------------------------------------

    @property
    def recorded(self) -> tuple[RunRecord | None, RunRecord | None]:
        """The recorded runs of FP32 and of the recipe, shown until the learner's own run starts.

        None takes the place of a run that is not on record.
        """
        if self.phase is not Phase.IDLE or self.fp32.steps:
            return None, None
        fp32 = on_record(self.task, RECIPES["FP32"], self.seed)
        knobs = self.run.wanted
        has_default_optimizer = knobs.log2_lr == 0 and knobs.epsilon is None
        if not has_default_optimizer:
            return fp32, None
        return fp32, on_record(self.task, recipe_of(knobs), self.seed)

    def points(self) -> list[Points]:
        """Return all curves, in the order in which the page expects them.

        Losses of FP32, of the previous run and of the recorded FP32 run; columns of the recorded
        run, the run, its fork and the ghosts; the rows of the map.
        """
        recorded_fp32, recorded_run = self.recorded
        fp32_steps = recorded_fp32.steps if recorded_fp32 else ()
        run_steps = recorded_run.steps if recorded_run else ()

        losses = [self.fp32.steps, self.previous, fp32_steps]
        runs: list[Sequence[StepRecord]] = [run_steps]
        runs += [branch.steps for branch in self.branches]
        runs += [ghost.steps for ghost in self.ghosts]
        curves: list[Points] = []
        curves += [(steps, _loss, min(len(steps), self.total)) for steps in losses]
        curves += [(steps, columns, min(len(steps), self.total)) for steps in runs]
        map_rows = self.run.map_rows
        curves.append((map_rows, _same_row, len(map_rows)))
        return curves

    @property
    def shares(self) -> list[str]:
        """The shares that the widget shows: "underflow" of gradients, "swallowed" of updates.

        A widget with every knob shows both. A run that starts without FP32 masters shows swallowed
        updates only.
        """
        run = self.run
        if "epsilon" in self.offered:
            return ["underflow", "swallowed"]
        if lacks_masters(run.began or run.wanted):
            return ["swallowed"]
        if lacks_masters(run.wanted):
            return ["underflow", "swallowed"]
        return ["underflow"]

    @property
    def wanted_picture(self) -> Picture | None:
        """The picture that the network should paint; None if the task has none."""
        name = self.task.name
        if name not in self._target_pictures:
            self._target_pictures[name] = self.task.wanted_picture()
        return self._target_pictures[name]

    def fork_change(self) -> str:
        """Return a text about the knobs that were turned at the fork, or "" if none was."""
        if self.fork is None or self.fork.left is None:
            return ""
        # Changes after the fork's first step have marks.
        marks = self.fork.marks
        first = marks[0].before if marks else self.fork.wanted
        return changed(self.fork.left, first)


_load = cache(recorded)


def on_record(task: Task, recipe: Recipe, seed: int) -> RunRecord | None:
    """Return the recorded run of exactly this task, recipe and seed, or None."""
    try:
        record = _load(task.name, recipe.name, seed)
        is_same = record.fingerprint == fingerprint(task, recipe)
    except (FileNotFoundError, ValueError):
        # There is no record, or the task was defined in a notebook and has no fingerprint.
        return None
    return record if is_same else None


def _loss(step: StepRecord) -> tuple[float, ...]:
    return (step.loss,)


def _same_row(row: MapRow) -> MapRow:
    return row


def columns(step: StepRecord) -> tuple[float, ...]:
    """Return the values that are drawn of a step: loss, scale, stepped, underflow, swallowed.

    A share that was not measured is NaN.
    """
    shares: list[float] = []
    for share in (step.underflow, step.swallowed):
        # The gradients of a loss of NaN are NaN, so their share means nothing.
        if share is None or not math.isfinite(step.loss):
            shares.append(math.nan)
        else:
            shares.append(share)
    return (step.loss, step.scale, float(step.stepped), *shares)
