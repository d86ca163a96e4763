"""What if two right answers are not equal?

Idea: some answers are judged by what comes of them. A check may bring an `outcome`: a function from the answer, as it
came off the wire, to an `Outcome`, which says itself whether it is good enough. Where a check brings none, the answer
is compared as it is.

Invariant: an outcome is made by the judge, from plain data; no code of a learner's runs for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What came of an answer.

    passed   good enough
    says     what happened, for the learner, whether it passed or not
    facts    what a known mistake is known by: two answers with the same facts are called the same
    bytes    memory that it kept, where that counts; 0 elsewhere
    """

    passed: bool
    says: str
    facts: tuple[object, ...] = ()
    bytes: int = 0


def as_it_is(answer: object, case: tuple[object, ...]) -> object:
    """Return the answer: the outcome of a check that brings none."""
    return answer


@dataclass(frozen=True)
class AnyOrder:
    """The outcome of a list of lines: one order for all in which everything stands as it must.

    lines   the lines that an answer may have, in that order
    needs   pairs of lines: the first must come before the second, where both are there; of lines that are repeated
            as often, each before its own; else all of the first before all of the second

    >>> whisked = AnyOrder(("egg", "milk", "whisk", "eat"), (("egg", "whisk"), ("milk", "whisk"), ("whisk", "eat")))
    >>> whisked(["milk", "egg", "whisk", "eat"], ()), whisked(["whisk", "egg", "eat"], ())
    (['egg', 'milk', 'whisk', 'eat'], ['whisk', 'egg', 'eat'])
    """

    lines: tuple[str, ...]
    needs: tuple[tuple[str, str], ...]

    def __call__(self, answer: object, case: tuple[object, ...]) -> object:
        """Return the lines in order, in rounds where some are repeated; the answer itself if one comes too early."""
        if not isinstance(answer, list | tuple) or not {*map(str, answer)} <= {*self.lines}:
            return answer
        found = [str(line) for line in answer]
        if not all(_stands(found, a, b) for a, b in self.needs):
            return answer
        rounds = [(-found[at:].count(line), self.lines.index(line)) for at, line in enumerate(found)]
        return [self.lines[place] for _, place in sorted(rounds)]


def _stands(lines: Sequence[object], first: str, second: str) -> bool:
    """Return whether a line comes before another, each time."""
    ones, others = ([place for place, line in enumerate(lines) if line == name] for name in (first, second))
    if len(ones) == len(others):
        return all(one < other for one, other in zip(ones, others, strict=True))
    return max(ones, default=-1) < min(others, default=len(lines))
