"""What if two right answers are not equal?

Idea: some answers are judged by what comes of them. A check may bring an `outcome`: a function from the answer, as it
came off the wire, to an `Outcome`, which says itself whether it is good enough. Where a check brings none, the answer
is compared as it is.

Invariant: an outcome is made by the judge, from plain data; no code of a learner's runs for it.
"""

from __future__ import annotations

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
