"""Exercises without solutions, for a learner's lab.

In place of references there are the right answers to the visible cases, and of each known mistake a
digest of its answers to them. A stored exercise is an ordinary `Exercise`; `labkit release` writes
those of a lesson into one file of its folder.

Invariant: answers are judged as in the teacher's lab. Grading, which draws further cases, is not
available.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from labkit.course import CourseError, Lesson
from labkit.grading.exercise import Case, Exercise, Outcome, Rows
from labkit.grading.sandbox.kinds import is_array, is_boolean_tensor, is_tensor
from labkit.grading.sandbox.wire import Failure, Instance

# Significand bits of a digest, if an exercise tolerates ulps.
COARSE_DIGITS = 12


@dataclass(frozen=True, eq=False)
class StoredAnswers:
    """Replaces a reference: the names of its arguments and results, and outcomes[check][case]."""

    parameters: tuple[str, ...]
    outcomes: list[list[object]]
    results: tuple[str, ...] = ()

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.parameters])

    def __call__(self, *_: object) -> object:
        raise TypeError(
            "this lab has only the reference's answers to the visible cases; the teacher's lab "
            "has the reference"
        )


@dataclass(frozen=True, eq=False)
class StoredMistake:
    """Replaces a known mistake: the digest of its outcomes on the visible cases."""

    digest: str

    def __call__(self, *_: object) -> object:
        raise TypeError(
            "this lab has only a digest of the mistake's answers; the teacher's lab has the mistake"
        )


def stored_cases(cases: Sequence[Case], _: Random) -> list[Case]:
    """Replace a draw, as `partial(stored_cases, cases)`: return the visible cases."""
    return list(cases)


def stored_rows(rows: Mapping[str, Rows], *case: object) -> Rows:
    """Return the stored rows of a visible case, by its repr.

    `partial(stored_rows, rows)` replaces `Exercise.aside`.
    """
    return rows.get(repr(case), ())


def stored_exercises(lesson: Lesson) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson in a learner's lab; () if it has none.

    Raises:
        CourseError: the file cannot be read, for instance because another version of the lab wrote
            it.
    """
    if not lesson.judge.is_file():
        return ()
    lesson.register()
    try:
        exercises: tuple[Exercise, ...] = pickle.loads(gzip.decompress(lesson.judge.read_bytes()))
    except Exception as error:
        # Unpickling can raise anything.
        raise CourseError(
            f"{lesson.judge} cannot be read: {type(error).__name__}: {error}"
        ) from error
    return exercises


def digest(outcomes: Sequence[Sequence[object]], exercise: Exercise) -> str:
    """Return a digest of outcomes, equal where `difference` finds none, up to a few ulps.

    >>> import torch
    >>> from labkit.grading.exercises import EXERCISES
    >>> one = [[(1, 2.0, torch.tensor([0.0]))]]
    >>> other = [[[1.0, 2, torch.tensor([-0.0])]]]
    >>> digest(one, EXERCISES["start.smallest"]) == digest(other, EXERCISES["start.smallest"])
    True
    """
    plain = [[_form_of_outcome(outcome, exercise) for outcome in group] for group in outcomes]
    return hashlib.sha256(repr([exercise.id, plain]).encode()).hexdigest()


def _form_of_outcome(outcome: object, exercise: Exercise) -> object:
    """Return the normal form of a whole answer, of which -0 may be another one than 0."""
    if exercise.two_zeros and type(outcome) is float and str(outcome) == "-0.0":
        return "-0"
    return _normal_form(outcome, exercise)


def _normal_form(value: object, exercise: Exercise) -> object:
    """Return the normal form that all equal values share."""
    if is_boolean_tensor(value):
        # As Python's own boolean, which it may replace.
        return repr(bool(value))
    if is_tensor(value) or is_array(value):
        elements = [_normal_form(item, exercise) for item in value.reshape(-1).tolist()]
        return type(value).__name__, str(value.dtype), tuple(value.shape), elements
    match value:
        case Outcome(facts=facts):
            return "outcome", facts
        case Failure():
            return "failure", value.what
        case Instance(name, fields):
            return name, _pairs(fields, exercise)
        case dict():
            return "dict", _pairs(value, exercise)
        case list() | tuple():
            return [_normal_form(item, exercise) for item in value]
        case bool() | None | str():
            return repr(value)
        case int() | float():
            return _number(value, exercise)
    return repr(value)


def _pairs(items: Mapping[Any, object], exercise: Exercise) -> list[str]:
    """Return the normal form of keys and items, the same for any order and for 4 and 4.0."""
    forms = [
        (_normal_form(key, exercise), _normal_form(item, exercise)) for key, item in items.items()
    ]
    # As texts, since normal forms of different types have no order.
    return sorted(map(repr, forms))


def _number(value: float, exercise: Exercise) -> str:
    if isinstance(value, int):
        try:
            as_float = float(value)
        except OverflowError:
            return str(value)
        return _number(as_float, exercise) if as_float == value else str(value)
    if value == 0:
        return "0"
    if exercise.ulps and math.isfinite(value):
        fraction, exponent = math.frexp(value)
        coarse = round(math.ldexp(fraction, COARSE_DIGITS))
        try:
            value = math.ldexp(coarse, exponent - COARSE_DIGITS)
        except OverflowError:
            # The value was rounded up, beyond the largest float.
            value = math.copysign(math.inf, value)
    return value.hex()
