"""What happens in a game against the scaler? Two runs in lockstep, one of them by your hand.

Idea: the scaler's run goes first in each step, then yours with whatever scale your hand has asked for by then. A game
has its own pace: nobody can react to forty steps a second.

Invariant: a move takes effect at the next step; the same seed and the same moves at the same steps give the same game.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.amp import ScalerState
from labkit.train import Place, Task, place
from labkit.widgets.beat_scaler.runs import SCALERS, START_LOG2, YOURS, GameStep, MakeRun, Run, course, make_run
from labkit.widgets.beat_scaler.words import Tally, sentence, tally
from labkit.widgets.driven.lockstep import Lockstep
from labkit.widgets.driven.state import Button, Phase

LOG2_RANGE = (-4, 30)
MEASURE_EVERY = 8  # steps between two looks at the window; each costs about three steps


@dataclass(frozen=True)
class Move:
    """A command: put the scale to 2^log2_scale from the next step on.

    Raises:
        ValueError: log2_scale is no whole number from -4 to 30.
    """

    log2_scale: int

    def __post_init__(self) -> None:
        low, high = LOG2_RANGE
        if not isinstance(self.log2_scale, int) or not low <= self.log2_scale <= high:
            raise ValueError(f"log2_scale is a whole number from {low} to {high}; it was given {self.log2_scale!r}")


@dataclass(frozen=True)
class Show:
    """A command: show the window during the game, or hide it."""

    window: bool


class Side:
    """One of the two: its run, and the steps it did."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.steps: list[GameStep] = []
        self._window = (0.0, 0.0)

    def step(self, log2_weight: int) -> None:
        """Do one step and note it, with the window where it lies under the step's weight."""
        if len(self.steps) % MEASURE_EVERY == 0:
            self._window = self.run.window()
        keeps, overflows = self._window
        done = self.run.step()
        loss = done.loss / 2.0**log2_weight
        self.steps.append(
            GameStep(done.step, loss, done.scale, not done.stepped, keeps - log2_weight, overflows - log2_weight)
        )


class Duel(Lockstep):
    """A game that is driven by a thread, or by a test.

    Args:
        task: what both sides train.
        seed: decides first weights, batches and the course of the loss's weight.
        steps: how long the game is.
        pace: steps a second at most.
        device: where both train; None takes the GPU where there is one.
        make_run: (task, recipe, seed, log2 weights, device=) -> run.
        clock, wait: seconds, and how to let them pass.

    Raises:
        ValueError: steps is less than 1, pace is not positive, or there is no such device.
    """

    buttons = frozenset(Button) - {Button.STEP}  # a game has no single steps

    def __init__(
        self,
        task: Task,
        seed: int = 0,
        *,
        steps: int = 480,
        pace: float = 8.0,
        device: Any = None,
        make_run: MakeRun = make_run,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if steps < 1 or not pace > 0:
            raise ValueError(f"a game has 1 step or more and a positive pace; it was given {steps} and {pace}")
        super().__init__()
        self.task, self.seed, self.total, self.pace, self.place = task, seed, steps, pace, place(device)
        self.course = course(steps, seed)
        self.make_run, self._clock, self._wait = make_run, clock, wait
        self.in_sight = self._peeked = False
        self.begin_again()

    def carry_out(self, command: Move | Show | Place) -> None:
        """Move the scale, show the window or hide it, or begin a new game on another device."""
        match command:
            case Move():
                self.log2_scale = command.log2_scale
            case Show():
                self.in_sight = command.window
                self._peeked = self._peeked or command.window
            case Place():
                self.place = command
                self.stand(Phase.IDLE)
                self.begin_again()

    def begin_again(self) -> None:
        """Forget both runs, and put the scale back."""
        self.yours: Side | None = None
        self.scalers: Side | None = None
        self.log2_scale = START_LOG2
        self._peeked = self.in_sight
        self._next = 0.0

    # --- steps --------------------------------------------------------------------------------------------------

    @property
    def built(self) -> bool:
        """Whether both runs are made."""
        return self.yours is not None and self.scalers is not None

    def make(self) -> None:
        """Make the runs that are not there yet."""
        if not self.built:
            self.scalers, self.yours = (
                Side(self.make_run(self.task, recipe, self.seed, self.course, device=self.place))
                for recipe in (SCALERS, YOURS)
            )

    def lead(self) -> bool:
        """Wait for the pace, and let the scaler do the step that is due."""
        assert self.scalers is not None
        if len(self.scalers.steps) > self.steps_done:
            return False
        self._wait(max(0.0, self._next - self._clock()))
        self._next = max(self._next, self._clock()) + 1 / self.pace
        self._advance(self.scalers)
        return True

    def follow(self) -> None:
        """Do your step, with the scale that your hand asks for."""
        assert self.yours is not None
        self.yours.run.scaler = ScalerState(2.0**self.log2_scale)
        self._advance(self.yours)

    def _advance(self, side: Side) -> None:
        side.step(self.course[len(side.steps)])

    @property
    def complete(self) -> bool:
        """Whether you have done the last step."""
        return self.steps_done >= self.total

    # --- what is seen -------------------------------------------------------------------------------------------

    @property
    def steps_done(self) -> int:
        """How many steps you have done."""
        return 0 if self.yours is None else len(self.yours.steps)

    @property
    def told(self) -> bool:
        """Whether the window and the scaler's scale are shown: when the game is over, or when you asked for it."""
        return self.phase is Phase.FINISHED or self.in_sight

    def tallies(self) -> tuple[Tally, Tally]:
        """Return how you and the scaler have fared, both up to your last step."""
        yours, scalers = (side.steps[: self.steps_done] if side else [] for side in (self.yours, self.scalers))
        return tally(yours), tally(scalers)

    def sentence(self) -> str:
        """Say how the game stands."""
        if self.building:
            return "Getting ready: the data, and the same network twice."
        yours, scaler = self.tallies()
        in_sight = self._peeked if self.phase is Phase.FINISHED else self.in_sight
        return sentence(self.phase, self.total, yours, scaler, in_sight=in_sight, error=self.error)
