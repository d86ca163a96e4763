"""Copies of a run, from which it continues at any step that it has done.

Idea: a copy every few steps is enough, since the steps between two copies can be done again. Copies
that need too much memory are thinned out: every second one goes, and the distance doubles. So a
step is never further from a copy than twice what the memory allows.

Invariant: no knob is turned between a copy and the next one, so the steps between them are repeated
under one recipe. Copies at a change are therefore never thinned out. A copy never moves, only forks
of it do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from labkit.train import bytes_held
from labkit.widgets.live_training.knobs import Knobs

EVERY = 10  # steps between two copies, at first
MOST_BYTES = 2**28  # of all copies of a branch


@dataclass
class Checkpoints:
    """Copies of a run by the number of steps that it had done, with the knobs of the step after it.

    Attributes:
        every: steps between two regular copies.
        most_bytes: what the copies may hold together, those at changes apart.
    """

    every: int = EVERY
    most_bytes: int = MOST_BYTES
    copies: dict[int, tuple[Any, Knobs]] = field(default_factory=dict)
    changes: set[int] = field(default_factory=set)

    def is_due(self, step: int) -> bool:
        """Say whether a regular copy is taken after this step."""
        return step % self.every == 0

    def keep(self, step: int, run: Any, knobs: Knobs, *, change: bool) -> None:
        """Keep a copy of a run after a step; `change`: knobs are turned there."""
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
        """Return the steps after which there is a copy that may go."""
        return [step for step in self.copies if step not in self.changes]

    def before(self, step: int) -> tuple[Any, Knobs]:
        """Return the copy after this step or the last one before it, and its knobs.

        Raises:
            ValueError: there is none.
        """
        steps = [at for at in self.copies if at <= step]
        if not steps:
            raise ValueError(f"expected a copy of step {step} or an earlier one, got none")
        return self.copies[max(steps)]

    def until(self, step: int) -> Checkpoints:
        """Return the copies after this step and before it; the later ones are left out."""
        return Checkpoints(
            self.every,
            self.most_bytes,
            {at: copy for at, copy in self.copies.items() if at <= step},
            {at for at in self.changes if at <= step},
        )


def copy_bytes(run: Any) -> int:
    """Return approximately how many bytes a copy of a run holds.

    A run of one's own that does not tell counts as 0.
    """
    engine = getattr(run, "engine", None)
    return 0 if engine is None else sum(bytes_held(engine).values())
