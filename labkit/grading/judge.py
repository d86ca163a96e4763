"""Is the answer right, and if not, is it a mistake we know?

Idea: reference, submission and every known mistake meet the same cases, made from the same seed. A check passes where
the submission agrees with the reference; the submission *is* a mistake where it agrees with it on every case of every
check. A notebook shows the visible checks, made from `VISIBLE_SEED`. Grading runs all of them on a seed chosen on the
day, so a table of the visible answers earns nothing.

Invariant: `judge` runs none of the learner's code. It sees answers that came off the wire, wherever they were given.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from labkit.grading.answer import ask
from labkit.grading.compare import difference, show
from labkit.grading.exercise import Case, Check, CounterExample, Exercise, Grade, Mistake, Verdict
from labkit.grading.exercises import EXERCISES
from labkit.grading.outcome import Outcome
from labkit.grading.wire import Failure, Json, dump, load

VISIBLE_SEED = 0


def check(exercise_id: str, function: object) -> Grade:
    """Return the grade of `function` on the visible checks of an exercise; a notebook shows it as a table.

    >>> grade = check("start.smallest", lambda exponent_bits, significand_bits: 2.0**-24)
    >>> grade.points, grade.mistake.name
    (0, "writes FP16's")

    Raises:
        ValueError: there is no exercise of this name.
    """
    exercise = find_exercise(exercise_id)
    checks = checks_of(exercise, complete=False)
    answers = answers_of(exercise, checks, VISIBLE_SEED, function, exercise.withheld)
    return judge(exercise, checks, VISIBLE_SEED, answers)


def find_exercise(exercise_id: str) -> Exercise:
    """Return the exercise of this name.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    if exercise_id in EXERCISES:
        return EXERCISES[exercise_id]
    near = difflib.get_close_matches(str(exercise_id), EXERCISES, n=1, cutoff=0.0)
    raise ValueError(
        f"there is no exercise {exercise_id!r}; the nearest name is {near[0]!r}, of {', '.join(EXERCISES)}"
    )


def checks_of(exercise: Exercise, complete: bool) -> tuple[Check, ...]:
    """Return the visible checks, or all of them."""
    return tuple(check for check in exercise.checks if complete or not check.hidden)


def cases_of(exercise: Exercise, check: Check, seed: int) -> list[Case]:
    """Return the calls of one check; the same seed gives the same calls on every machine."""
    return check.cases(random.Random(f"{seed} {exercise.id} {check.name}"))


def answers_of(
    exercise: Exercise,
    checks: Iterable[Check],
    seed: int,
    function: object,
    withheld: Sequence[Callable[..., object]] = (),
) -> list[list[Json]]:
    """Return what `function` says to every case of every check; `withheld` is what it may not call."""
    groups = [cases_of(exercise, check, seed) for check in checks]
    return [[ask(function, exercise.call, case, withheld) for case in cases] for cases in groups]


def judge(exercise: Exercise, checks: tuple[Check, ...], seed: int, answers: list[list[Json]], note: str = "") -> Grade:
    """Return the grade that these answers earn: one verdict per check, in order.

    answers   answers[check][case], as `answers_of` gives them

    Raises:
        ValueError: there are not as many answers as cases, or one of them cannot be read.
    """
    expected = _loaded(exercise, checks, seed, exercise.reference)
    if [len(group) for group in answers] != [len(group) for group in expected]:
        raise ValueError("the number of answers is not the number of cases")
    given = _outcomes(exercise, checks, seed, answers)
    groups = zip(checks, expected, given, strict=True)
    verdicts = tuple(_verdict(exercise, check, seed, right, group) for check, right, group in groups)
    known = None if all(v.passed or v.unsolved for v in verdicts) else _mistake(exercise, checks, seed, given)
    return Grade(exercise, verdicts, known, len(checks) == len(exercise.checks), note)


@lru_cache(maxsize=512)
def _loaded(
    exercise: Exercise, checks: tuple[Check, ...], seed: int, function: Callable[..., object]
) -> list[list[object]]:
    """Return the answers of a reference or a known mistake; a class meets the same ones, so they are kept."""
    return _outcomes(exercise, checks, seed, answers_of(exercise, checks, seed, function))


def _outcomes(
    exercise: Exercise, checks: tuple[Check, ...], seed: int, answers: list[list[Json]]
) -> list[list[object]]:
    """Return what is judged, for every case of every check: the answer, or what came of it."""
    groups = zip(checks, answers, strict=True)
    return [
        [check.outcome(load(answer), case) for case, answer in zip(cases_of(exercise, check, seed), group, strict=True)]
        for check, group in groups
    ]


def _verdict(exercise: Exercise, check: Check, seed: int, expected: list[object], given: list[object]) -> Verdict:
    outcomes = tuple(answer for answer in given if isinstance(answer, Outcome))
    for case, right, answer in zip(cases_of(exercise, check, seed), expected, given, strict=True):
        parting = difference(right, answer, exercise.ulps)
        if parting is not None:
            arguments = tuple(
                (name, show(load(dump(argument)))) for name, argument in zip(exercise.parameters, case, strict=True)
            )
            unsolved = isinstance(answer, Failure) and answer.kind == "unsolved"
            shown = arguments + exercise.aside(*case)
            example = CounterExample(shown, _asked(check, right), show(answer), parting)
            return Verdict(check, example, unsolved, outcomes)
    return Verdict(check, outcomes=outcomes)


def _asked(check: Check, right: object) -> str:
    """Return what was expected; where many answers have the outcome, none of them is given away."""
    return check.name if isinstance(right, Outcome) else show(right)


def _mistake(exercise: Exercise, checks: tuple[Check, ...], seed: int, given: list[list[object]]) -> Mistake | None:
    """Return the first known mistake that gives the same answer to every case."""
    for mistake in exercise.mistakes:
        pairs = zip(_loaded(exercise, checks, seed, mistake.answer), given, strict=True)
        if all(_same(a, b, exercise.ulps) for theirs, group in pairs for a, b in zip(theirs, group, strict=True)):
            return mistake
    return None


def _same(mistaken: object, answer: object, ulps: int) -> bool:
    if isinstance(mistaken, Failure) or isinstance(answer, Failure):
        return isinstance(mistaken, Failure) and isinstance(answer, Failure) and mistaken.message == answer.message
    if isinstance(mistaken, Outcome) or isinstance(answer, Outcome):
        return isinstance(mistaken, Outcome) and isinstance(answer, Outcome) and mistaken.facts == answer.facts
    return difference(mistaken, answer, ulps) is None
