"""What happens when a learner works at the bench? Knobs that are turned, a fork, another task, another device.

Idea: a `Lockstep` of a run, its fork, and FP32 beside them. A knob that may be turned on the way acts at the next step;
one that changes a format begins the run anew at its origin: step 0, or where it was forked. FP32 walks ahead by at most
one step and is kept as long as task, seed and device stay. The live training is a bench with fewer knobs and no fork.

Invariant: all runs see the same batches, because a batch depends on seed and step alone; until a knob is turned, what
is trained is the recipe that was given, to its last field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from labkit.amp import RECIPES, Recipe
from labkit.train import Place, StepRecord, Task, place
from labkit.widgets.bench.commands import Choose, Do, Fork, Turn
from labkit.widgets.bench.knobs import knobs_of, lives_on, turn
from labkit.widgets.bench.labels import changed, why_fixed
from labkit.widgets.bench.positions import ALL, GROWTH_INTERVAL, Knobs
from labkit.widgets.bench.runs import Branch, MakeRun, make_run
from labkit.widgets.driven.lockstep import Lockstep
from labkit.widgets.driven.state import Phase

SLOWLY = "Its sums are emulated bit by bit: seconds for a step of convolutions or attention. On digits it is quick."


class Bench(Lockstep):
    """A run, its fork and FP32 beside them, as they are driven.

    Args:
        task, recipe, seed: what is trained first.
        steps: how many; None takes the task's own number.
        device: where all of them train; None takes the GPU where there is one.
        offered: the knobs that can be turned.
        forkable: whether the run can be forked.
        growth_interval: clean steps before a dynamic scale grows that is switched on here.
        make_run: (task, recipe, seed, device=) -> run.

    Raises:
        ValueError: the offered knobs cannot show the recipe, steps is less than 1, or there is no such device.
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
        make_run: MakeRun = make_run,
    ) -> None:
        if steps is not None and steps < 1:
            raise ValueError(f"steps is 1 or more; it was given {steps}")
        super().__init__()
        self.seed, self.asked_steps, self.place = seed, steps, place(device)
        self.offered, self.forkable, self.make_run = offered, forkable, make_run
        self._left: dict[tuple[str, str], tuple[Any, ...]] = {}  # task, device -> its runs as they were left
        self._set_up(task, replace(knobs_of(recipe, offered), growth_interval=growth_interval))

    def _set_up(self, task: Task, knobs: Knobs) -> None:
        self.task, self.total = task, self.asked_steps or task.steps
        self.fp32 = Branch(self._from_the_start, knobs_of(RECIPES["FP32"]), forkable=False)
        self._one_run(knobs)
        self.previous: list[StepRecord] = []

    def begin_at(self, to: Mapping[str, Any]) -> None:
        """Begin with knobs in other positions than the recipe has them.

        Raises:
            ValueError: a knob has no such position, or the recipe would contradict itself.
        """
        self._one_run(turn(self.shown.wanted, to))

    def _one_run(self, knobs: Knobs) -> None:
        self.branches = [Branch(self._from_the_start, knobs, forkable=self.forkable)]
        self.active = 0

    def _from_the_start(self, recipe: Recipe) -> Any:
        return self.make_run(self.task, recipe, self.seed, device=self.place)

    @property
    def run(self) -> Branch:
        """The first run, which can be forked."""
        return self.branches[0]

    @property
    def fork(self) -> Branch | None:
        """The run that left it, if there is one."""
        return self.branches[1] if len(self.branches) > 1 else None

    @property
    def shown(self) -> Branch:
        """The branch whose knobs are on show."""
        return self.branches[self.active]

    @property
    def fixed(self) -> dict[str, str]:
        """Knob -> why it cannot be turned now."""
        return why_fixed(self.shown.wanted, self.task, self.offered)

    # --- commands -----------------------------------------------------------------------------------------------

    def carry_out(self, command: Any) -> None:
        """Turn, fork, choose or do.

        Raises:
            ValueError: it cannot be done.
        """
        match command:
            case Turn():
                self._turn(command.knobs)
            case Fork():
                self._fork(command)
            case Choose():
                self._choose(command)
            case Do():
                self.notice = command.work()
            case _:
                raise TypeError(f"a command is a Turn, Fork, Choose, Do or Button; it was given {command!r}")

    def begin_again(self) -> None:
        """Keep the steps so far as the run before, and the knobs."""
        self._remember()
        if self.error:
            self.fp32.begin_again()  # an error may have left it between two steps
        self._one_run(self.shown.wanted)

    def _remember(self) -> None:
        if len(self.run.steps) > 1:
            self.previous = self.run.steps

    def _turn(self, knobs: Mapping[str, Any]) -> None:
        unknown = [name for name in knobs if name not in self.offered]
        if unknown:
            raise ValueError(f"there is no knob {unknown[0]!r} here; there are {', '.join(self.offered)}")
        for name in knobs:
            if name in self.fixed and name != "accumulator":
                raise ValueError(self.fixed[name])
        self._want(turn(self.shown.wanted, knobs))
        self.shown.rescaled |= not knobs.keys().isdisjoint(("scaling", "log2_scale")) and self.shown.run is not None
        if knobs.get("accumulator", "FP32") != "FP32":
            self.notice += f" {SLOWLY}"

    def _want(self, wanted: Knobs) -> None:
        branch = self.shown
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
        if not self.forkable:
            raise ValueError("this widget has no forks; labkit.widgets.Workbench has.")
        if not self.run.steps:
            raise ValueError("a fork needs a run to leave. Press Start first.")
        source, knobs = self.run.at(min(fork.step, self.run.done))
        if source.steps_done >= self.total:
            raise ValueError(f"after step {self.total} nothing follows. Fork at an earlier step.")
        origin = source.steps_done
        self.branches = [self.run, Branch(source.fork, knobs, origin, left=knobs, options=self.run.options)]
        self.active = 1
        if self.phase is not Phase.FAILED:
            self.stand(Phase.PAUSED)
        self.notice = (
            f"The fork stands after step {origin} with every digit of the run. Turn one of its knobs, then press "
            "Continue."
        )

    def _choose(self, choice: Choose) -> None:
        if choice.branch is not None:
            self.active = min(choice.branch, len(self.branches) - 1)
        task, where = choice.task or self.task, choice.place or self.place
        if task is not self.task or where != self.place:
            self._move(task, where)
        if choice.recipe is not None:
            own = self.shown.wanted
            kept = {name: getattr(own, name) for name in ("log2_lr", "epsilon", "growth_interval")}
            self._want(replace(knobs_of(choice.recipe, self.offered), **kept))

    def _move(self, task: Task, where: Place) -> None:
        """Leave the runs of this task and device as they are; take up those of another, or begin there."""
        self.stand(Phase.PAUSED if self.phase is Phase.RUNNING else self.phase)
        if self.run.steps:
            here = (self.fp32, self.branches, self.active, self.previous, self.phase, self.error)
            self._left[self.task.name, self.place.key] = here
        knobs, self.place = self.shown.wanted, where
        there = self._left.pop((task.name, where.key), None)
        if there is None:
            self._set_up(task, knobs)
            self.stand(Phase.IDLE)
            self.error = ""
            return
        self.task, self.total = task, self.asked_steps or task.steps
        self.fp32, self.branches, self.active, self.previous, self.phase, self.error = there
        self.notice = f"Your run of {task.name.replace('_', ' ')} is as you left it, after step {self.run.done}."

    # --- steps --------------------------------------------------------------------------------------------------

    @property
    def built(self) -> bool:
        """Whether all runs are made."""
        return all(branch.run is not None for branch in (self.fp32, *self.branches))

    def make(self) -> None:
        """Make the runs that are not there yet."""
        for branch in (self.fp32, *self.branches):
            branch.build()

    def lead(self) -> bool:
        """Bring the FP32 run to the step that is due."""
        if len(self.fp32.steps) > self.run.done or len(self.fp32.steps) >= self.total:
            return False
        self.fp32.step(self.total)
        return True

    def follow(self) -> None:
        """Do the step that is due, in the branch that is behind."""
        min(reversed(self.branches), key=lambda branch: branch.done).step(self.total)

    @property
    def complete(self) -> bool:
        """Whether every branch has done its last step."""
        return all(branch.done >= self.total for branch in self.branches)

    # --- what is seen -------------------------------------------------------------------------------------------

    def path(self, branch: Branch) -> list[StepRecord]:
        """Return the steps of a branch from step 1 on, those before it was forked included."""
        return [*self.run.steps[: branch.origin], *branch.steps]

    def fork_change(self) -> str:
        """Return what was turned where the fork left the run, in words; "" where nothing was."""
        if self.fork is None or self.fork.left is None:
            return ""
        marks = self.fork.marks
        return changed(self.fork.left, marks[0].before if marks else self.fork.wanted)

    @property
    def metric(self) -> tuple[int, float, float] | None:
        """The latest step at which both metrics were measured: (step, the run, FP32)."""
        step = max(self.run.metrics.keys() & self.fp32.metrics.keys(), default=None)
        return None if step is None else (step, self.run.metrics[step], self.fp32.metrics[step])
