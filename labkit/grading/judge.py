"""Judgement of answers: right, wrong, or a known mistake.

Reference, submission and every known mistake answer the same `CaseSet`: the calls that a seed draws for the checks of
an exercise. A check passes where the submission agrees with the reference. The submission makes a known mistake if it
agrees with that mistake on every case of every check. A notebook uses the calls of `VISIBLE_SEED`; grading repeats
them and adds those of a new seed, so that a table of the notebook's answers earns nothing.

Invariant: `judge` runs no learner's code. It compares answers that labkit.grading.sandbox.wire has read.
"""

from __future__ import annotations

import difflib
import io
import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache

from labkit.grading.answer_log import log_answer
from labkit.grading.difference import difference, show
from labkit.grading.exercise import Case, Check, Exercise, Mistake
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import CounterExample, Grade, Verdict, as_html
from labkit.grading.outcome import Outcome
from labkit.grading.sandbox.answer import answer_case
from labkit.grading.sandbox.wire import Failure, Json, dump, load
from labkit.grading.stored import StoredAnswers, StoredMistake, digest
from labkit.records.journal import current_journal

VISIBLE_SEED = 0


@dataclass(frozen=True, eq=False)
class CaseSet:
    """What is asked of an answer: the checks of an exercise that count, and the calls of each, cases[check][case].

    complete   True: a paper of grading; False: what a notebook asks
    """

    exercise: Exercise
    checks: tuple[Check, ...]
    cases: tuple[tuple[Case, ...], ...]
    complete: bool


def check(exercise_id: str, function: object) -> Grade:
    """Return the grade of `function` on the visible checks of an exercise; a notebook shows it, and keeps the answer.

    >>> grade = check("start.smallest", lambda exponent_bits, significand_bits: 2.0**-24)
    >>> grade.points, grade.mistake.name
    (0, 'answers for FP16')

    Raises:
        ValueError: there is no exercise of this name.
    """
    exercise = find_exercise(exercise_id)
    paper = visible_cases(exercise)
    grade = judge(paper, answers_of(paper, function, exercise.withheld))
    log_answer(grade, function)
    return grade


def earned(exercise_id: str, function: object, seed: int) -> int:
    """Return the points that `labkit grade --seed` gives for `function`, and show why; a gradebook's tests call this.

    What the function prints is not shown: nbgrader takes a word on stderr for a failure.

    >>> earned("start.smallest", lambda exponent_bits, significand_bits: 2.0**-24, seed=1)
    0

    Raises:
        ValueError: there is no exercise of this name.
    """
    from IPython.display import HTML, display

    exercise = find_exercise(exercise_id)
    paper = grading_cases(exercise, seed)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        grade = judge(paper, answers_of(paper, function, exercise.withheld))
    if current_journal() is not None:
        display(HTML(as_html(grade)))  # type: ignore[no-untyped-call]
    return grade.points


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


@lru_cache(maxsize=256)
def visible_cases(exercise: Exercise) -> CaseSet:
    """Return what a notebook asks: the visible checks, on the same calls every time."""
    checks = tuple(check for check in exercise.checks if not check.hidden)
    return CaseSet(exercise, checks, tuple(tuple(draw_cases(exercise, check, VISIBLE_SEED)) for check in checks), False)


@lru_cache(maxsize=256)
def grading_cases(exercise: Exercise, seed: int) -> CaseSet:
    """Return what grading asks: the notebook's calls, then those of this seed; a class meets one paper, kept."""
    visible = visible_cases(exercise)
    shown = dict(zip(visible.checks, visible.cases, strict=True))
    cases = tuple((*shown.get(check, ()), *draw_cases(exercise, check, seed)) for check in exercise.checks)
    return CaseSet(exercise, exercise.checks, cases, True)


def draw_cases(exercise: Exercise, check: Check, seed: int) -> list[Case]:
    """Return the calls of one check; the same seed gives the same calls on every machine."""
    return check.cases(random.Random(f"{seed} {exercise.id} {check.name}"))


def answers_of(paper: CaseSet, function: object, withheld: Sequence[object] = ()) -> list[list[Json]]:
    """Return what `function` says to every case of every check; `withheld` is what it may not call."""
    asked = paper.exercise
    rules = (withheld, asked.may_change, asked.run_by)
    return [[answer_case(function, asked.call, case, *rules) for case in cases] for cases in paper.cases]


def judge(paper: CaseSet, answers: list[list[Json]], note: str = "") -> Grade:
    """Return the grade that these answers earn: one verdict per check, in order.

    answers   answers[check][case], as `answers_of` gives them

    Raises:
        ValueError: there are not as many answers as cases, or one of them cannot be read.
    """
    if [len(group) for group in answers] != [len(cases) for cases in paper.cases]:
        raise ValueError("the number of answers is not the number of cases")
    expected, given = known_outcomes(paper, paper.exercise.reference), outcomes_of(paper, answers)
    right = known_answers(paper, paper.exercise.reference)
    verdicts = tuple(
        _verdict(paper.exercise, check, cases, theirs, yours, [a == b for a, b in zip(written, answer, strict=True)])
        for check, cases, theirs, yours, written, answer in zip(
            paper.checks, paper.cases, expected, given, right, answers, strict=True
        )
    )
    known = None if all(verdict.passed or verdict.unsolved for verdict in verdicts) else _mistake(paper, given)
    return Grade(paper.exercise, verdicts, known, paper.complete, note)


@lru_cache(maxsize=512)
def known_answers(paper: CaseSet, function: Callable[..., object]) -> list[list[Json]]:
    """Return the answers of a reference, or of a known mistake, as `answers_of` gives them; they are computed once."""
    if isinstance(function, StoredAnswers):
        return [[[] for _ in cases] for cases in paper.cases]  # only what came of them is stored
    with warnings.catch_warnings(action="ignore"):  # an overflow in the solution is no news for a learner
        return answers_of(paper, function)


@lru_cache(maxsize=512)
def known_outcomes(paper: CaseSet, function: Callable[..., object]) -> list[list[object]]:
    """Return what comes of the answers of a reference, or of a known mistake; it is computed once."""
    if isinstance(function, StoredAnswers):
        return function.outcomes
    return outcomes_of(paper, known_answers(paper, function))


def outcomes_of(paper: CaseSet, answers: list[list[Json]]) -> list[list[object]]:
    """Return what is judged, for every case of every check: the answer, or what came of it."""
    groups = zip(paper.checks, paper.cases, answers, strict=True)
    return [
        [check.outcome(load(answer), case) for case, answer in zip(cases, group, strict=True)]
        for check, cases, group in groups
    ]


def _verdict(
    exercise: Exercise,
    check: Check,
    cases: tuple[Case, ...],
    expected: list[object],
    given: list[object],
    same: list[bool],
) -> Verdict:
    """Return whether a check passed; `same` is where answers are equal to the letter, and need no closer look."""
    outcomes = tuple(answer for answer in given if isinstance(answer, Outcome))
    for case, right, answer, equal in zip(cases, expected, given, same, strict=True):
        parting = None if equal and not outcomes else difference(right, answer, exercise.ulps, exercise.two_zeros)
        if parting is not None:
            unsolved = isinstance(answer, Failure) and answer.kind == "unsolved"
            return Verdict(check, _counter_example(exercise, check, case, right, answer, parting), unsolved, outcomes)
    return Verdict(check, outcomes=outcomes)


def _counter_example(
    exercise: Exercise, check: Check, case: Case, right: object, answer: object, parting: str
) -> CounterExample:
    values = [] if exercise.run_by else [_shown(exercise, load(dump(argument))) for argument in case]
    expected = check.name if isinstance(right, Outcome) else _shown(exercise, right)  # no right order is given away
    got = _shown(exercise, answer)
    if exercise.codes and type(right) is type(answer) is int:
        parting = f"expected {expected}, got {got}"
    if expected == got:  # they part behind what is shown
        expected = got = f"{got}, the same as far as shown"
    given = tuple(zip(exercise.parameters if values else (), values, strict=True))
    return CounterExample(given + exercise.aside(*case), expected, got, parting)


def _shown(exercise: Exercise, value: object) -> str:
    """Return a value as a person reads it: a code in hexadecimal."""
    if exercise.codes and type(value) is int:
        return f"{'-' if value < 0 else ''}0x{abs(value):04X}"
    return show(value)


def _mistake(paper: CaseSet, given: list[list[object]]) -> Mistake | None:
    """Return the first known mistake that gives the same answer to every case."""
    return next((mistake for mistake in paper.exercise.mistakes if _made(paper, mistake.answer, given)), None)


def _made(paper: CaseSet, mistaken: Callable[..., object], given: list[list[object]]) -> bool:
    if isinstance(mistaken, StoredMistake):
        return mistaken.digest == digest(given, paper.exercise)
    pairs = zip(known_outcomes(paper, mistaken), given, strict=True)
    return all(_same(a, b, paper.exercise) for theirs, group in pairs for a, b in zip(theirs, group, strict=True))


def _same(mistaken: object, answer: object, exercise: Exercise) -> bool:
    if isinstance(mistaken, Failure) or isinstance(answer, Failure):
        return isinstance(mistaken, Failure) and isinstance(answer, Failure) and mistaken.message == answer.message
    if isinstance(mistaken, Outcome) or isinstance(answer, Outcome):
        return isinstance(mistaken, Outcome) and isinstance(answer, Outcome) and mistaken.facts == answer.facts
    return difference(mistaken, answer, exercise.ulps, exercise.two_zeros) is None
