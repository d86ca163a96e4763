"""What happens when a learner works at the bench? One object that takes commands and does steps, one at a time.

Idea: like the live training's controller it knows no thread, no clock and no browser. A knob that may be turned on the
way acts at the next step; one that changes a format begins the run anew at its origin: step 0, or where it was forked.
FP32 walks ahead by at most one step and is kept as long as task and seed stay.

Invariant: both branches see the same batches, because a batch depends on seed and step alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit.amp import RECIPES, Recipe
from labkit.train import RunRecord, StepRecord, Task, TrainingRun, bytes_held
from labkit.train.record import device_name, now, versions
from labkit.widgets.live.state import Button, Phase, press
from labkit.widgets.workbench.knobs import Knobs, changed, describe, knobs_of, lives_on, recipe_of, why_fixed
from labkit.widgets.workbench.runs import Branch

SLOWLY = "Its sums are emulated bit by bit: seconds for a step of convolutions or attention. On digits it is quick."


@dataclass(frozen=True)
class Turn:
    """A command: put a knob of the active branch into a position."""

    knob: str
    to: Any


@dataclass(frozen=True)
class Fork:
    """A command: let a second run leave the first one after a step."""

    step: int


@dataclass(frozen=True)
class Choose:
    """A command: another task, another recipe, or the branch that the knobs turn (0 the run, 1 its fork)."""

    task: Task | None = None
    recipe: Recipe | None = None
    branch: int | None = None


@dataclass(frozen=True)
class Do:
    """A command: let the training's thread do something between two steps; what it returns is the notice."""

    work: Callable[[], str]


class Bench:
    """A run, its fork and FP32 beside them, as they are driven.

    Args:
        task, recipe, seed: what is trained first.
        steps: how many; None takes the task's own number.

    Raises:
        ValueError: the knobs cannot show the recipe, or steps is less than 1.
    """

    def __init__(self, task: Task, recipe: Recipe, seed: int = 0, *, steps: int | None = None) -> None:
        if steps is not None and steps < 1:
            raise ValueError(f"steps is 1 or more; it was given {steps}")
        self.seed, self.asked_steps = seed, steps
        self.phase = Phase.IDLE
        self.notice = self.error = ""
        self._single_steps = 0
        self._set_up(task, knobs_of(recipe))

    def _set_up(self, task: Task, knobs: Knobs) -> None:
        self.task, self.total = task, self.asked_steps or task.steps
        self.fp32 = Branch(self._from_the_start, knobs_of(RECIPES["FP32"]))
        self._one_run(knobs)
        self.previous: list[StepRecord] = []

    def _one_run(self, knobs: Knobs) -> None:
        self.branches = [Branch(self._from_the_start, knobs)]
        self.active = 0

    def _from_the_start(self, recipe: Recipe) -> TrainingRun:
        return TrainingRun(self.task, recipe, self.seed)

    @property
    def run(self) -> Branch:
        """The first run, which can be forked."""
        return self.branches[0]

    @property
    def fork(self) -> Branch | None:
        """The run that left it, if there is one."""
        return self.branches[1] if len(self.branches) > 1 else None

    @property
    def turned(self) -> Branch:
        """The branch whose knobs are on show."""
        return self.branches[self.active]

    # --- commands -----------------------------------------------------------------------------------------------

    def handle(self, command: Any) -> None:
        """Obey a command; one that cannot be obeyed leaves a notice and nothing else."""
        self.notice = ""
        try:
            match command:
                case Turn():
                    self._turn(command)
                case Fork():
                    self._fork(command)
                case Choose():
                    self._choose(command)
                case Do():
                    self.notice = command.work()
                case _:
                    self._press(command)
        except (ValueError, TypeError) as error:
            self.notice = f"Not done: {error}"

    def _press(self, button: Button) -> None:
        before, self.phase = self.phase, press(self.phase, button)
        over = before in (Phase.FINISHED, Phase.FAILED)
        if button is Button.RESET or (button is Button.START and over):
            self._begin_again()
        single = button is Button.STEP and self.phase is Phase.PAUSED
        self._single_steps = self._single_steps + 1 if single else 0

    def _begin_again(self) -> None:
        self._remember()
        if self.error:
            self.fp32.begin_again()  # an error may have left it between two steps
        self.error = ""
        self._one_run(self.turned.wanted)

    def _remember(self) -> None:
        if len(self.run.steps) > 1:
            self.previous = self.run.steps

    def _turn(self, turn: Turn) -> None:
        if turn.knob in why_fixed(self.turned.wanted, self.task) and turn.knob != "accumulator":
            raise ValueError(why_fixed(self.turned.wanted, self.task)[turn.knob])
        self._want(replace(self.turned.wanted, **{turn.knob: turn.to}))
        if turn.knob == "accumulator" and turn.to != "FP32":
            self.notice += f" {SLOWLY}"

    def _want(self, wanted: Knobs) -> None:
        branch = self.turned
        anew = bool(branch.steps) and not lives_on(branch.knobs or branch.wanted, wanted)
        branch.wanted = wanted
        if anew and branch is self.run:
            self._remember()
            self._one_run(wanted)  # without the fork, which left a run that is no more
        elif anew or not branch.steps:
            branch.begin_again()
        if anew:
            where = f"after step {branch.origin}, where it was forked" if branch.origin else "at step 0"
            self.notice = f"Another format is another run: this one begins again {where}."
            self.phase = Phase.PAUSED if self.phase is Phase.FINISHED else self.phase

    def _fork(self, fork: Fork) -> None:
        if not self.run.steps:
            raise ValueError("a fork needs a run to leave. Press Start first.")
        source, knobs = self.run.at(min(fork.step, self.run.done))
        if source.steps_done >= self.total:
            raise ValueError(f"after step {self.total} nothing follows. Fork at an earlier step.")
        self.branches = [self.run, Branch(source.fork, knobs, origin=source.steps_done, left=knobs)]
        self.active = 1
        if self.phase is not Phase.FAILED:
            self.phase, self._single_steps = Phase.PAUSED, 0
        self.notice = (
            f"The fork stands after step {source.steps_done} with every digit of the run. Turn one of its knobs, then "
            "press Continue."
        )

    def _choose(self, choice: Choose) -> None:
        if choice.branch is not None:
            self.active = min(choice.branch, len(self.branches) - 1)
        if choice.recipe is not None:
            own = self.turned.wanted
            self._want(replace(knobs_of(choice.recipe), log2_lr=own.log2_lr, epsilon=own.epsilon))
        if choice.task is not None and choice.task is not self.task:
            self.phase, self._single_steps, self.error = Phase.IDLE, 0, ""
            self._set_up(choice.task, self.turned.wanted)

    # --- steps --------------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether there is a step to do now."""
        return self.phase is Phase.RUNNING or self._single_steps > 0

    @property
    def building(self) -> bool:
        """Whether the next tick begins with making a run."""
        return self.due and any(branch.run is None for branch in (self.fp32, *self.branches))

    def build(self) -> None:
        """Make the runs that are not there yet."""
        for branch in (self.fp32, *self.branches):
            self._guard(branch.build)

    def tick_other(self) -> bool:
        """Bring the FP32 run to the step that is due; return whether there was anything to do."""
        ahead = len(self.fp32.steps) > self.run.done or len(self.fp32.steps) >= self.total
        if not self.due or ahead:
            return False
        self._guard(lambda: self.fp32.step(self.total))
        return True

    def tick(self) -> None:
        """Do the step that is due, in the branch that is behind."""
        if self.due:
            self.build()
            self.tick_other()
        if self.due:
            self._guard(self._step)

    def _step(self) -> None:
        behind = min(reversed(self.branches), key=lambda branch: branch.done)
        behind.step(self.total)
        self._single_steps = max(0, self._single_steps - 1)
        if all(branch.done >= self.total for branch in self.branches):
            self.phase, self._single_steps = Phase.FINISHED, 0

    def _guard(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # whatever went wrong in the learner's task, the figure has to say it
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the training with an error that the sentence names."""
        self.phase, self._single_steps = Phase.FAILED, 0
        self.error = f"{type(error).__name__}: {error}".rstrip().rstrip(".:") + "."

    # --- what is seen -------------------------------------------------------------------------------------------

    def path(self, branch: Branch) -> list[StepRecord]:
        """Return the steps of a branch from step 1 on, those before it was forked included."""
        return [*self.run.steps[: branch.origin], *branch.steps]

    def parted(self) -> str:
        """Return what was turned where the fork left the run, in words; "" where nothing was."""
        if self.fork is None or self.fork.left is None:
            return ""
        marks = self.fork.marks
        return changed(self.fork.left, marks[0].before if marks else self.fork.wanted)

    def memory(self) -> list[tuple[str, dict[str, int]]]:
        """Return name and bytes by category of each run that has done a step."""
        named = zip(("FP32", *names(self)), (self.fp32, *self.branches), strict=True)
        return [(name, bytes_held(b.run.engine)) for name, b in named if b.run is not None and b.done]

    def record(self) -> RunRecord:
        """Return the record of the branch whose knobs are on show.

        Raises:
            ValueError: it has not done a step.
        """
        branch = self.turned
        if branch.run is None or not self.path(branch):
            raise ValueError("nothing has run yet, so there is nothing to record. Press Start first.")
        return RunRecord(
            task=self.task.name,
            recipe=self._name_on_record(branch),
            seed=self.seed,
            steps=tuple(self.path(branch)),
            metric=branch.run.evaluate(),
            metric_name=self.task.metric_name,
            seconds=float("nan"),  # it waited for a hand: its time says nothing
            device=device_name(branch.run.device),
            versions=versions(),
            date=now(),
            stopped=branch.done < self.total,
            memory=bytes_held(branch.run.engine),
        )

    def _name_on_record(self, branch: Branch) -> str:
        marks = [f"{mark.label} from step {mark.step}" for mark in branch.marks]
        if branch.origin:
            marks.insert(0, f"forked after step {branch.origin} from {recipe_of(self.run.wanted).name}")
        plain = branch.wanted == knobs_of(recipe_of(branch.wanted))
        return "; ".join((recipe_of(branch.wanted).name if plain else describe(branch.wanted), *marks))


def names(bench: Bench) -> list[str]:
    """Return what the branches are called in the figure.

    >>> from labkit.train import TASKS
    >>> names(Bench(TASKS["digits"], RECIPES["O2"])), names(Bench(TASKS["digits"], RECIPES["O0"]))
    (['O2'], ['run'])
    """
    own = recipe_of(bench.run.wanted).name
    short = own if len(own) <= 4 else bench.run.wanted.format
    return ["run" if short in ("FP32", "O0") else short, "fork"][: len(bench.branches)]
