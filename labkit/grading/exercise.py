"""Exercises as data: checks with random cases drawn from a seed, and known mistakes.

A lesson's exercises.py holds the checks. Title, difficulty, minutes, the name of the function and
the reference come from the lesson's text (labkit.grading.exercises). A known mistake is a row: a
sentence for its author, and the wrong answer as an expression or as an edit of the solution.

Invariant: points come from checks only. A check passes if all of its cases pass; there are no
partial points.
"""

from __future__ import annotations

import inspect
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

Case: TypeAlias = tuple[object, ...]
"""The arguments of one call."""

Rows: TypeAlias = tuple[tuple[str, str], ...]
"""Names and texts, shown as a table of two columns."""


@dataclass(frozen=True)
class Outcome:
    """The judgement of an answer.

    Attributes:
        passed: Whether the answer is good enough.
        says: What happened, for the learner, whether it passed or not.
        facts: What identifies a known mistake: two answers with the same facts make the same
            mistake.
        bytes: Memory kept between two steps, where that counts; else 0.
    """

    passed: bool
    says: str
    facts: tuple[object, ...] = ()
    bytes: int = 0


def as_it_is(answer: object, case: tuple[object, ...]) -> object:
    """Return the answer: the outcome of a check without a judgement of its own."""
    return answer


def _no_rows(*_: object) -> Rows:
    return ()


@dataclass(frozen=True)
class Check:
    """One requirement of an exercise.

    Attributes:
        name: The requirement, as a sentence that the learner reads beside pass or fail.
        points: The points that it earns when all its cases pass.
        cases: Random generator -> the calls to make; the same generator state gives the same calls.
        hidden: True if it runs at grading only, because it takes long. It requires nothing beyond
            the visible checks.
        outcome: (answer off the wire, its case) -> what is judged: the answer itself, or an
            `Outcome`.
    """

    name: str
    points: int
    cases: Callable[[random.Random], list[Case]]
    hidden: bool = False
    outcome: Callable[[object, Case], object] = as_it_is


Edit: TypeAlias = tuple[str, str]
"""A text of a solution, and its replacement."""


def _unknown(*_: object) -> object:
    raise TypeError(
        "expected an exercise of the course, whose reference and edits labkit.grading.exercises "
        "fills in"
    )


@dataclass(frozen=True)
class Mistake:
    """A plausible wrong answer: its name, the answer itself, and a sentence for its author.

    Attributes:
        edits: The edits of the lesson's solution that make the answer; () where the answer is a
            function of its own.
    """

    name: str
    answer: Callable[..., object]
    sentence: str
    edits: tuple[Edit, ...] = ()


def mistake(answer: Callable[..., object]) -> Mistake:
    """Return the known mistake that this function makes.

    Its name is the function's, and its sentence for the learner is the docstring.

    >>> @mistake
    ... def forgets_the_sign(x: float) -> float:
    ...     "This is what leaving out the sign gives."
    ...     return abs(x)
    >>> forgets_the_sign.name, forgets_the_sign.sentence
    ('forgets the sign', 'this is what leaving out the sign gives.')
    """
    sentence = " ".join((answer.__doc__ or "").split())
    return Mistake(answer.__name__.replace("_", " "), answer, sentence[:1].lower() + sentence[1:])


def wrong(
    name: str,
    sentence: str,
    answer: Callable[..., object] | None = None,
    *,
    replace: Edit | Sequence[Edit] = (),
) -> Mistake:
    """Return a known mistake as a row of a table.

    Args:
        name: What the mistake does, as in "forgets the sign".
        sentence: What its author reads.
        answer: The wrong answer as an expression; None if `replace` makes it.
        replace: Edits that make the wrong answer out of the lesson's solution: a text of the
            solution and the text in its place, or several such pairs.

    >>> sentence = "this is what leaving out the sign gives."
    >>> wrong("forgets the sign", sentence, lambda x: abs(x)).answer(-1.0)
    1.0
    >>> wrong("one too far", "this stops one step too late.", replace=("<", "<=")).edits
    (('<', '<='),)

    Raises:
        TypeError: it has an answer and an edit, or neither, or an edit is not a pair.
    """
    pair = len(replace) == 2 and isinstance(replace[0], str)
    edits = cast("tuple[Edit, ...]", (tuple(replace),) if pair else tuple(replace))
    if (answer is None) == (not edits):
        raise TypeError(
            f"wrong({name!r}, ...): expected either an answer or replace=(text of the solution, "
            "other text)"
        )
    if any(isinstance(edit, str) or len(edit) != 2 for edit in edits):
        raise TypeError(
            f"wrong({name!r}, ...), replace: expected a text of the solution and another text, or "
            f"several such pairs, got {replace!r}"
        )
    return Mistake(name, answer or _unknown, sentence, edits)


Key: TypeAlias = tuple[str, Any, int]
"""A training: its task, what is trained, a seed."""


@dataclass(frozen=True, eq=False)
class Trained:
    """The trainings that decide what answers are worth: grading runs each once, in the sandbox.

    Attributes:
        train: A function of the lesson's cases.py, which takes the parts of a key.
        result: The dataclass that it returns.
        needed: (cases[check][case], answers off the wire) -> the keys of the trainings that decide
            these answers.
        results: Key -> its result, or why it failed; the judgement reads it.
        baseline: What is trained for comparison: where that fails, no answer is at fault.
    """

    train: Callable[[str, Any, int], object]
    result: Callable[..., object]
    needed: Callable[[Sequence[Sequence[Case]], list[list[list[Any]]]], list[Key]]
    results: dict[Key, Any]
    baseline: object


@dataclass(frozen=True)
class Exercise:
    """A question as data.

    Attributes:
        id: "scaling.advance": a word for the lesson, a dot, a word for the exercise.
        notes: For teachers: the point of the exercise, and why its tolerances are what they are.
        ulps: How far a float of the answer may lie from the reference; 0 where the arithmetic is
            exact.
        codes: Whether its integers are codes, which are shown in hexadecimal.
        two_zeros: Whether the floats -0 and 0 are different answers; inside a list or a tensor,
            they are equal.
        provides: Names that exist at grading even if the notebook's own imports are gone.
        former: The last arguments of the calls that an earlier form of the exercise did not have,
            with the values that this form implied.
        may_change: Names of the arguments that an answer should change; all others must be
            unchanged after the call.
        run_by: (answer, *case) -> what is judged: it calls the answer; None: the answer is called
            with the case.
        trained: The trainings that decide what answers are worth; None: the answers themselves do.
        aside: The arguments of a call -> further rows for a counter-example: its bits, for
            instance.
        lesson: Its notebook, without the suffix: "06_loss_scaling". This field and those below are
            read from the lesson's text.
        title: The exercise's heading.
        entry: The name of the function that the learner writes.
        difficulty: 1 to 3 dots.
        minutes: The time that learners need who followed the lesson.
        reference: The lesson's solution.
    """

    id: str
    checks: tuple[Check, ...]
    mistakes: tuple[Mistake, ...]
    notes: str = ""
    ulps: int = 0
    two_zeros: bool = False
    codes: bool = False
    provides: Mapping[str, Any] = field(default_factory=dict, hash=False)
    former: tuple[object, ...] = ()
    may_change: tuple[str, ...] = ()
    aside: Callable[..., Rows] = _no_rows
    run_by: Callable[..., object] | None = None
    trained: Trained | None = None
    lesson: str = ""
    title: str = ""
    entry: str = ""
    difficulty: int = 0
    minutes: int = 0
    reference: Callable[..., object] = _unknown

    @property
    def points(self) -> int:
        """Return the points of all checks, hidden ones included."""
        return sum(check.points for check in self.checks)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the arguments, as the reference calls them."""
        return tuple(inspect.signature(self.reference).parameters)

    @property
    def results(self) -> tuple[str, ...]:
        """Return the names of the parts of an answer, from "Return (a, b)" in the docstring.

        The number format of a part does not belong to its name. A description with brackets inside
        names nothing.

        Returns:
            The names; () where the docstring names no parts.
        """
        stored: tuple[str, ...] | None = getattr(self.reference, "results", None)
        if stored is not None:
            # A lab without solutions has no docstring of the reference.
            return stored
        described = re.match(r"Return \(([^()\[\]]+)\)", inspect.getdoc(self.reference) or "")
        if described is None:
            return ()
        inside = described[1]
        parts = inside.split("; " if "; " in inside else ", ")
        return tuple(part.split(" in FP")[0] for part in parts)

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
