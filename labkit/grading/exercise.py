"""What is an exercise, and what is the answer to it?

Idea: a question is data. An `Exercise` holds a reference, checks that make random cases from a seed, and the mistakes
people really make. Answering it gives a `Grade`, which is data too: one `Verdict` per check, the first
counter-example of each, and the name of the mistake, when the answer is a known one.

Invariant: points come from checks only. A check passes when every one of its cases does; half a check earns nothing.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from labkit.grading.display import as_html, as_line, as_text
from labkit.grading.outcome import Outcome, as_it_is

Case: TypeAlias = tuple[object, ...]
"""The arguments of one call."""

Rows: TypeAlias = tuple[tuple[str, str], ...]
"""Names and texts, to be shown under one another."""


def _no_rows(*_: object) -> Rows:
    return ()


@dataclass(frozen=True)
class Check:
    """One thing that is asked of an answer.

    name     what is asked, as a sentence the learner reads beside pass or fail
    points   earned when all its cases pass
    cases    random generator -> the calls to make; the same generator state gives the same calls
    hidden   True: runs at grading only
    outcome  (answer off the wire, its case) -> what is judged: the answer itself, or what came of it (an `Outcome`)
    """

    name: str
    points: int
    cases: Callable[[random.Random], list[Case]]
    hidden: bool = False
    outcome: Callable[[object, Case], object] = as_it_is


@dataclass(frozen=True)
class Mistake:
    """A plausible wrong answer: its name, the answer itself, and what to tell the one who gave it."""

    name: str
    answer: Callable[..., object]
    sentence: str


@dataclass(frozen=True)
class Exercise:
    """A question as data.

    id          "scaling.advance": the lesson's word, a dot, the exercise's word
    lesson      the notebook it stands in, without its suffix: "06_loss_scaling"
    entry       the name of the function the learner writes
    difficulty  1 to 3 dots
    minutes     how long it takes someone who followed the lesson
    ulps        how far a float of the answer may lie from the reference; 0 where the arithmetic is exact
    provides    names that exist at grading even if the notebook's own imports are gone
    withheld    functions of labkit that are the answer, and so may not be called by one
    aside       the arguments of a call -> rows that show a counter-example in another light: its bits, for instance
    """

    id: str
    lesson: str
    title: str
    entry: str
    difficulty: int
    minutes: int
    reference: Callable[..., object]
    checks: tuple[Check, ...]
    mistakes: tuple[Mistake, ...]
    ulps: int = 0
    provides: Mapping[str, Any] = field(default_factory=dict, hash=False)
    withheld: tuple[Callable[..., object], ...] = ()
    aside: Callable[..., Rows] = _no_rows

    @property
    def points(self) -> int:
        """Return the points of all checks, hidden ones included."""
        return sum(check.points for check in self.checks)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the arguments, as the reference calls them."""
        return tuple(inspect.signature(self.reference).parameters)

    @property
    def call(self) -> str:
        """Return how the learner's function is called: "my_advance(state, found_inf, config)"."""
        return f"{self.entry}({', '.join(self.parameters)})"

    @property
    def tag(self) -> str:
        """Return the tag of the learner's cell."""
        return f"exercise-{self.id}"

    @property
    def cell_id(self) -> str:
        """Return the id of the learner's cell: the tag, in the letters that ids allow."""
        return self.tag.replace(".", "-").replace("_", "-")


@dataclass(frozen=True)
class CounterExample:
    """The first call of a check whose answer was wrong, as text."""

    given: Rows
    expected: str
    got: str
    difference: str


@dataclass(frozen=True)
class Verdict:
    """One check, answered. `counter_example` is None when it passed; `outcomes` are those that the check judges by."""

    check: Check
    counter_example: CounterExample | None = None
    unsolved: bool = False
    outcomes: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether every case passed."""
        return self.counter_example is None

    @property
    def points(self) -> int:
        """Return the points earned."""
        return self.check.points if self.passed else 0


@dataclass(frozen=True, repr=False)
class Grade:
    """The answer to an answer; a notebook shows it as a table.

    mistake    the known mistake that gives these very answers, if there is one
    complete   True: hidden checks are among the verdicts
    note       why there are no verdicts, or what happened on the way to them; "" where nothing did
    """

    exercise: Exercise
    verdicts: tuple[Verdict, ...]
    mistake: Mistake | None = None
    complete: bool = False
    note: str = ""

    @property
    def points(self) -> int:
        """Return the points earned so far."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def out_of(self) -> int:
        """Return the points of the exercise, hidden checks included."""
        return self.exercise.points

    @property
    def unsolved(self) -> bool:
        """Return whether the starter is still in place."""
        return bool(self.verdicts) and all(verdict.unsolved for verdict in self.verdicts)

    @property
    def reason(self) -> str:
        """Return one line that says why it is this many points."""
        return as_line(self)

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self)
