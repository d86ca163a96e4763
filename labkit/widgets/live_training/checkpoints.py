"""Copies of a run, from which it continues at any step that it has done.

Idea: a copy every few steps is enough, since the steps between two copies can be done again. Copies
that need too much memory are thinned out: every second one is removed, and the distance doubles. So
a step is never further from a copy than twice what the memory allows.

Invariant: no knob is turned between a copy and the next one, so the steps between them are repeated
under one recipe. Copies at a change are therefore never removed. A copy itself does no steps; only
forks of it do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.train import bytes_held
from labkit.widgets.live_training.knobs import Knobs

# The number of steps between two copies, before any was removed.
EVERY = 10
# The memory of all regular copies of a branch.
MOST_BYTES = 2**28


@dataclass
class Checkpoints:
    """Copies of a run by the number of steps that it had done, with the knobs of the step after it.

    Attributes:
        every: The number of steps between two regular copies.
        most_bytes: The memory that all regular copies may have together.
        copies: Number of steps -> a copy of the run after them, and the knobs of the next step.
        changes: The keys of `copies` at which knobs were turned. The other copies are regular.
    """

    every: int = EVERY
    most_bytes: int = MOST_BYTES
    copies: dict[int, tuple[Any, Knobs]] = field(default_factory=dict)
    changes: set[int] = field(default_factory=set)

    def is_due(self, step: int) -> bool:
        """Return whether a regular copy is taken after this step."""
        return step % self.every == 0

    def keep(self, step: int, run: Any, knobs: Knobs, *, change: bool) -> None:
        """Keep a copy of a run, and remove regular ones if they need too much memory.

        Args:
            step: The number of steps that the run has done.
            run: The copy.
            knobs: The knobs of the next step.
            change: Whether knobs are turned at this step.
        """
        self.copies[step] = (run, knobs)
        if change:
            self.changes.add(step)
        size = copy_bytes(run)
        while size and len(self.regular()) > 1 and len(self.regular()) * size > self.most_bytes:
            self.every *= 2
            for other in self.regular():
                if other % self.every:
                    del self.copies[other]

    def regular(self) -> list[int]:
        """Return the steps after which there is a regular copy."""
        return [step for step in self.copies if step not in self.changes]

    def before(self, step: int) -> tuple[Any, Knobs]:
        """Return the copy after this step or the last one before it, and its knobs.

        Raises:
            ValueError: There is no such copy.
        """
        steps = [at for at in self.copies if at <= step]
        if not steps:
            raise ValueError(f"expected a copy of step {step} or an earlier one, got none")
        return self.copies[max(steps)]

    def until(self, step: int) -> Checkpoints:
        """Return checkpoints without the copies of later steps."""
        return Checkpoints(
            self.every,
            self.most_bytes,
            {at: copy for at, copy in self.copies.items() if at <= step},
            {at for at in self.changes if at <= step},
        )


def copy_bytes(run: Any) -> int:
    """Return approximately how many bytes a copy of a run holds.

    A learner's own run without an engine counts as 0.
    """
    engine = getattr(run, "engine", None)
    return 0 if engine is None else sum(bytes_held(engine).values())
