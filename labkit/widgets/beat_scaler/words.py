"""Who is ahead, and what is said about it?

Idea: a step is useful if it was taken and kept its gradients; the score is the share of useful steps. While the game
runs nobody is told how many of their steps lost gradients, because no training tells: overflow announces itself,
underflow does not. The verdict counts both.

Invariant: useful + skipped + lossy = steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.widgets.base.number_words import short
from labkit.widgets.beat_scaler.runs import GameStep
from labkit.widgets.driven.state import Phase

LAST_STEPS = 20  # the final loss is the mean over these


@dataclass(frozen=True)
class Tally:
    """How one side has fared: numbers of steps, and the loss at the end."""

    steps: int = 0
    skipped: int = 0
    lossy: int = 0
    loss: float = float("nan")

    @property
    def useful(self) -> float:
        """The score: the share of steps that were taken and kept their gradients, 0 to 1."""
        return (self.steps - self.skipped - self.lossy) / self.steps if self.steps else 0.0


def tally(steps: Sequence[GameStep]) -> Tally:
    """Count one side's steps.

    >>> clean = GameStep(1, loss=0.5, scale=2.0**16, skipped=False, keeps_from=8.0, overflows_at=20.0)
    >>> tally([clean, clean]).useful
    1.0
    """
    last = steps[-LAST_STEPS:]
    return Tally(
        steps=len(steps),
        skipped=sum(step.skipped for step in steps),
        lossy=sum(step.lossy for step in steps),
        loss=sum(step.loss for step in last) / len(last) if last else float("nan"),
    )


def sentence(phase: Phase, total: int, yours: Tally, scaler: Tally, *, in_sight: bool, error: str = "") -> str:
    """Say how the game stands; the verdict when it is over.

    in_sight  the window was shown during the game

    >>> sentence(Phase.RUNNING, 480, Tally(100, 4, 20), Tally(100, 6, 3), in_sight=False)
    'Step 100 of 480: you have skipped 4 steps, the scaler 6. How many more have lost gradients is told at the end.'
    """
    if phase is Phase.FAILED:
        return f"The game ended by an error: {error} Press Reset to begin again."
    if not yours.steps:
        return (
            "Press Start and keep the scale in the window, which you do not see: ↑ doubles the scale, ↓ halves it. "
            "Beside you a dynamic scaler trains the same network on the same batches."
        )
    if phase is Phase.FINISHED:
        return _verdict(total, yours, scaler, in_sight=in_sight)
    where = f"{'Paused at step' if phase is Phase.PAUSED else 'Step'} {yours.steps} of {total}: "
    if in_sight:
        return where + f"{_share(yours)} of your steps were useful, {_share(scaler)} of the scaler's."
    return where + (
        f"you have skipped {_steps(yours.skipped)}, the scaler {scaler.skipped}. How many more have lost gradients is "
        "told at the end."
    )


def _verdict(total: int, yours: Tally, scaler: Tally, *, in_sight: bool) -> str:
    won, lost = yours.useful > scaler.useful, yours.useful < scaler.useful
    who = "You win" if won else "The scaler wins" if lost else "A draw"
    shares = f"{_share(yours)} of your {yours.steps} steps were useful, {_share(scaler)} of the scaler's"
    first = f"{who}{' with the window in sight' * in_sight}: {shares}."
    early = f" You stopped at step {yours.steps} of {total}." if yours.steps < total else ""
    return (
        f"{first}{early} You skipped {yours.skipped} and ran {yours.lossy} at a scale that loses gradients; the scaler "
        f"{scaler.skipped} and {scaler.lossy}. Loss at the end: {short(yours.loss)} against {short(scaler.loss)}."
    )


def _share(side: Tally) -> str:
    return f"{100 * side.useful:.0f}%"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
