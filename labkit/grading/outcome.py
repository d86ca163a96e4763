"""What if two right answers are not equal?

Idea: some answers are judged by what comes of them. A check may bring an `outcome`: a function from the answer, as it
came off the wire, to an `Outcome`, which says itself whether it is good enough. Where a check brings none, the answer
is compared as it is.

Invariant: an outcome is made by the judge, from plain data; no code of a learner's runs for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """The outcome of a list of lines: an order of the right lines in which all stands as it must is the right one.

    right   the arguments of the call -> the right lines, in a right order
    needs   pairs of lines: the first must come before the second, where both are there; of lines that are repeated
            as often, each before its own; else all of the first before all of the second
    """

    right: Callable[..., list[str]]
    needs: tuple[tuple[str, str], ...]

    def __call__(self, answer: object, case: tuple[object, ...]) -> object:
        """Return the right order for every order that is as good; another answer as it is."""
        right = self.right(*case)
        if not isinstance(answer, list | tuple) or sorted(map(str, answer)) != sorted(right):
            return answer
        sound = all(_stands(answer, a, b) for a, b in self.needs)
        return right if sound else answer


def _stands(lines: Sequence[object], first: str, second: str) -> bool:
    """Return whether a line comes before another, each time."""
    ones, others = ([place for place, line in enumerate(lines) if line == name] for name in (first, second))
    if len(ones) == len(others):
        return all(one < other for one, other in zip(ones, others, strict=True))
    return max(ones, default=-1) < min(others, default=len(lines))
