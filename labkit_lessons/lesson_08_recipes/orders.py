"""The outcome of an exercise whose answer is a list of lines with several valid orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AnyOrder:
    """The outcome of a list of lines: one normal form for all valid orders.

    Attributes:
        lines: The lines that an answer may have, in that order.
        needs: Pairs of lines: the first comes before the second, if both are present. If both are
            repeated equally often, each occurrence comes before its counterpart; otherwise all
            occurrences of the first come before all of the second.

    >>> needs = (("egg", "whisk"), ("milk", "whisk"), ("whisk", "eat"))
    >>> whisked = AnyOrder(("egg", "milk", "whisk", "eat"), needs)
    >>> whisked(["milk", "egg", "whisk", "eat"], ()), whisked(["whisk", "egg", "eat"], ())
    (['egg', 'milk', 'whisk', 'eat'], ['whisk', 'egg', 'eat'])
    """

    lines: tuple[str, ...]
    needs: tuple[tuple[str, str], ...]

    def __call__(self, answer: object, case: tuple[object, ...]) -> object:
        """Return the lines in normal order, or the answer itself if a line is unknown or too early.

        Repeated lines are returned in rounds, the last occurrences in the last round.
        """
        if not isinstance(answer, list | tuple):
            return answer
        if not {str(line) for line in answer} <= set(self.lines):
            return answer
        found = [str(line) for line in answer]
        if not all(_is_before(found, a, b) for a, b in self.needs):
            return answer
        # Count rounds from the end, so that a line that occurs once belongs to the last round.
        rounds = [
            (-found[at:].count(line), self.lines.index(line)) for at, line in enumerate(found)
        ]
        return [self.lines[place] for _, place in sorted(rounds)]


def _is_before(lines: Sequence[object], first: str, second: str) -> bool:
    """Return whether a line comes before another, at each occurrence."""
    ones = [place for place, line in enumerate(lines) if line == first]
    others = [place for place, line in enumerate(lines) if line == second]
    if len(ones) == len(others):
        return all(one < other for one, other in zip(ones, others, strict=True))
    return max(ones, default=-1) < min(others, default=len(lines))
