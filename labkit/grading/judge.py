"""Judgement of answers: right, wrong, or a known mistake.

Reference, submission and every known mistake answer the same `CaseSet`: the calls that a seed draws
for the checks of an exercise. A check passes where the submission agrees with the reference. The
submission makes a known mistake if it agrees with that mistake on every case of every check. A
notebook uses the calls of `VISIBLE_SEED`; grading repeats them and adds those of a new seed, so
that a table of the notebook's answers earns nothing.

Invariant: `judge` runs no learner's code. It compares answers that labkit.grading.sandbox.wire has
read.
"""

from __future__ import annotations

import io
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from labkit.course import Lesson, lessons, lessons_hidden
from labkit.grading.answer_log import log_answer
from labkit.grading.difference import by_name, difference, show
from labkit.grading.exercise import Case, Check, Exercise, Outcome
from labkit.grading.exercises import exercises_of, find_exercise
from labkit.grading.grade import CounterExample, Grade, Verdict, as_html
from labkit.grading.sandbox.answer import answer_case
from labkit.grading.sandbox.wire import Failure, Json, dump, load
from labkit.grading.stored import StoredAnswers, StoredMistake, digest
from labkit.records.journal import current_journal

VISIBLE_SEED = 0
SECONDS_PER_UPDATE = 0.3
HINTS = 3  # of each exercise
# Some references and outcomes seed torch's generator and draw from it, and all threads of a process
# share it.
_one_at_a_time = threading.RLock()
_failed_checks: Counter[str] = Counter()  # by exercise, since the process began


@dataclass(frozen=True, eq=False)
class CaseSet:
    """The checks of an exercise, and the calls of each, cases[check][case].

    Attributes:
        complete: True: for grading; False: for a notebook.
    """

    exercise: Exercise
    checks: tuple[Check, ...]
    cases: tuple[tuple[Case, ...], ...]
    complete: bool


def check(exercise_id: str, function: object) -> Grade:
    """Return the grade of `function` on the visible checks of an exercise.

    In a notebook, the answer is also logged.

    Where `labkit grade` runs hand-ins, the cell that calls this judges nothing: the grade has no
    verdicts.

    >>> grade = check("start.smallest", lambda exponent_bits, significand_bits: 2.0**-24)
    >>> grade.points, grade.mistake.name
    (0, 'answers for FP16')

    Raises:
        ValueError: the exercise does not exist.
    """
    if lessons_hidden():
        return Grade(Exercise(exercise_id, (), ()), (), note="Hand-ins are judged by labkit grade.")
    exercise = find_exercise(exercise_id)
    case_set = visible_cases(exercise)
    with _progress(exercise):
        answers = answers_of(case_set, function)
    grade = judge(case_set, answers)
    log_answer(grade, function)
    return replace(grade, help=_help(grade))


@contextmanager
def _progress(exercise: Exercise) -> Iterator[None]:
    """Show in a notebook how many optimizer steps an answer has taken, if its checks train."""
    if exercise.run_by is None or current_journal() is None:
        yield
        return
    from IPython.display import HTML, display
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    line: Any = None
    steps = 0
    shown = 0.0

    def count(*_: object) -> None:
        nonlocal line, steps, shown
        steps += 1
        if time.monotonic() - shown > SECONDS_PER_UPDATE:
            shown = time.monotonic()
            text = HTML(f"Training your answer: step {steps} ...")  # type: ignore[no-untyped-call]
            if line is None:
                line = display(text, display_id=True)  # type: ignore[no-untyped-call]
            else:
                line.update(text)

    hook = register_optimizer_step_pre_hook(count)
    try:
        yield
    finally:
        hook.remove()
        if line is not None:
            text = f"Your answer was trained for {steps} steps."
            line.update(HTML(text))  # type: ignore[no-untyped-call]


def _help(grade: Grade) -> str:
    """Return a line that names the hints of an exercise.

    Returns:
        The line from the second failed check in this process on; before, "".
    """
    id = grade.exercise.id
    if grade.unsolved or all(verdict.passed for verdict in grade.verdicts):
        return ""
    _failed_checks[id] += 1
    if _failed_checks[id] < 2 or not any(id in lesson.table("hints") for lesson in lessons()):
        return ""
    return (
        f'Stuck? hint("{id}"), from labkit.grading, gives one more hint at each call and '
        "costs no points."
    )


def earned(exercise_id: str, function: object, seed: int) -> int:
    """Return the points that `labkit grade --seed` gives for `function`, and display why.

    The tests in nbgrader's assignments call this.

    Output of the function is suppressed: nbgrader takes any on stderr for a failure.

    >>> earned("start.smallest", lambda exponent_bits, significand_bits: 2.0**-24, seed=1)
    0

    Raises:
        ValueError: the exercise does not exist.
    """
    from IPython.display import HTML, display

    exercise = find_exercise(exercise_id)
    case_set = grading_cases(exercise, seed)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), warnings.catch_warnings():
        grade = judge(case_set, answers_of(case_set, function))
    if current_journal() is not None:
        display(HTML(as_html(grade)))  # type: ignore[no-untyped-call]
    return grade.points


@lru_cache(maxsize=256)
def visible_cases(exercise: Exercise) -> CaseSet:
    """Return the cases of a notebook: those of the visible checks, the same every time."""
    checks = tuple(check for check in exercise.checks if not check.hidden)
    return CaseSet(
        exercise,
        checks,
        tuple(tuple(draw_cases(exercise, check, VISIBLE_SEED)) for check in checks),
        False,
    )


@lru_cache(maxsize=256)
def grading_cases(exercise: Exercise, seed: int) -> CaseSet:
    """Return the cases of grading: the notebook's, then those of this seed."""
    visible = visible_cases(exercise)
    shown = dict(zip(visible.checks, visible.cases, strict=True))
    cases = tuple(
        (*shown.get(check, ()), *draw_cases(exercise, check, seed)) for check in exercise.checks
    )
    return CaseSet(exercise, exercise.checks, cases, True)


def draw_cases(exercise: Exercise, check: Check, seed: int) -> list[Case]:
    """Return the calls of one check; the same seed gives the same calls on every machine."""
    return check.cases(random.Random(f"{seed} {exercise.id} {check.name}"))


def answers_of(case_set: CaseSet, function: object) -> list[list[Json]]:
    """Return the answers of `function` to every case of every check."""
    exercise = case_set.exercise
    rules = (exercise.may_change, exercise.run_by)
    return [
        [answer_case(function, exercise.call, case, *rules) for case in cases]
        for cases in case_set.cases
    ]


def judge(case_set: CaseSet, answers: list[list[Json]], note: str = "") -> Grade:
    """Return the grade of these answers: one verdict for each check, in order.

    Args:
        case_set: The cases, and the exercise that they are drawn for.
        answers: Answers[check][case], as `answers_of` gives them.
        note: What happened on the way; the grade repeats it.

    Raises:
        ValueError: the number of answers differs from that of cases, or one cannot be read.
    """
    if [len(group) for group in answers] != [len(cases) for cases in case_set.cases]:
        raise ValueError("the number of answers is not the number of cases")
    with _one_at_a_time:
        return _judge(case_set, answers, note)


def _judge(case_set: CaseSet, answers: list[list[Json]], note: str) -> Grade:
    expected = known_outcomes(case_set, case_set.exercise.reference)
    obtained = outcomes_of(case_set, answers)
    right = known_answers(case_set, case_set.exercise.reference)
    verdicts = tuple(
        _verdict(
            case_set.exercise,
            check,
            cases,
            theirs,
            yours,
            [a == b for a, b in zip(written, answer, strict=True)],
        )
        for check, cases, theirs, yours, written, answer in zip(
            case_set.checks, case_set.cases, expected, obtained, right, answers, strict=True
        )
    )
    is_right = all(verdict.passed or verdict.unsolved for verdict in verdicts)
    mistakes = () if is_right else case_set.exercise.mistakes
    known = next(
        (mistake for mistake in mistakes if _makes(case_set, mistake.answer, obtained)), None
    )
    return Grade(case_set.exercise, verdicts, known, case_set.complete, note)


@lru_cache(maxsize=512)
def known_answers(case_set: CaseSet, function: Callable[..., object]) -> list[list[Json]]:
    """Return the answers of a reference or a known mistake, computed once."""
    if isinstance(function, StoredAnswers):
        return [[[] for _ in cases] for cases in case_set.cases]  # only their outcomes are stored
    # overflows in it do not concern the learner
    with _one_at_a_time, warnings.catch_warnings(action="ignore"):
        return answers_of(case_set, function)


@lru_cache(maxsize=512)
def known_outcomes(case_set: CaseSet, function: Callable[..., object]) -> list[list[object]]:
    """Return the outcomes of a reference or a known mistake, computed once."""
    if isinstance(function, StoredAnswers):
        return function.outcomes
    return outcomes_of(case_set, known_answers(case_set, function))


def outcomes_of(case_set: CaseSet, answers: list[list[Json]]) -> list[list[object]]:
    """Return what is judged for every case of every check: the answer, or its outcome."""
    groups = zip(case_set.checks, case_set.cases, answers, strict=True)
    return [
        [check.outcome(load(answer), case) for case, answer in zip(cases, group, strict=True)]
        for check, cases, group in groups
    ]


def _verdict(
    exercise: Exercise,
    check: Check,
    cases: tuple[Case, ...],
    expected: list[object],
    obtained: list[object],
    same: list[bool],
) -> Verdict:
    """Return the verdict on a check; where `same`, answers are identical and need no comparison."""
    outcomes = tuple(answer for answer in obtained if isinstance(answer, Outcome))
    for case, right, answer, equal in zip(cases, expected, obtained, same, strict=True):
        mismatch = (
            None
            if equal and not outcomes
            else difference(right, answer, exercise.ulps, exercise.two_zeros)
        )
        if mismatch is not None:
            unsolved = isinstance(answer, Failure) and answer.kind == "unsolved"
            return Verdict(
                check,
                _counter_example(exercise, check, case, right, answer, mismatch),
                unsolved,
                outcomes,
            )
    return Verdict(check, outcomes=outcomes)


def _counter_example(
    exercise: Exercise, check: Check, case: Case, right: object, answer: object, mismatch: str
) -> CounterExample:
    arguments = [] if exercise.run_by else [load(dump(argument)) for argument in case]
    # a code comes first; widths and counts after it are numbers
    values = [_text(exercise, value) for value in arguments[:1]]
    values += [show(value) for value in arguments[1:]]
    # An outcome is a judgement: the check's name takes its place, so no right answer is revealed.
    expected = check.name if isinstance(right, Outcome) else _text(exercise, right)
    got = _text(exercise, answer)
    if exercise.codes and type(right) is type(answer) is int:
        mismatch = f"expected {expected}, got {got}"
    mismatch = by_name(mismatch, right, exercise.results)
    if expected == got:
        # The two differ in a part that `show` cuts off.
        got = f"{got}, the same as far as shown"
        expected = got
    inputs = tuple(zip(exercise.parameters if values else (), values, strict=True))
    return CounterExample(inputs + exercise.aside(*case), expected, got, mismatch)


def _text(exercise: Exercise, value: object) -> str:
    """Return a value as text, a code in hexadecimal."""
    if exercise.codes and type(value) is int:
        return f"{'-' if value < 0 else ''}0x{abs(value):04X}"
    return show(value)


def _makes(
    case_set: CaseSet, mistaken: Callable[..., object], obtained: list[list[object]]
) -> bool:
    """Return whether a known mistake gives the same answer to every case."""
    if isinstance(mistaken, StoredMistake):
        return mistaken.digest == digest(obtained, case_set.exercise)
    pairs = zip(known_outcomes(case_set, mistaken), obtained, strict=True)
    return all(
        _same(a, b, case_set.exercise)
        for theirs, group in pairs
        for a, b in zip(theirs, group, strict=True)
    )


def _same(mistaken: object, answer: object, exercise: Exercise) -> bool:
    if isinstance(mistaken, Failure) or isinstance(answer, Failure):
        return (
            isinstance(mistaken, Failure)
            and isinstance(answer, Failure)
            and mistaken.what == answer.what
        )
    if isinstance(mistaken, Outcome) or isinstance(answer, Outcome):
        return (
            isinstance(mistaken, Outcome)
            and isinstance(answer, Outcome)
            and mistaken.facts == answer.facts
        )
    return difference(mistaken, answer, exercise.ulps, exercise.two_zeros) is None


def problems(lesson: Lesson) -> list[str]:
    """Return the problems of a lesson's exercises for its author, each with its file and exercise.

    The solution must earn full marks. Each known mistake must lose points and be recognized by its
    own name.

    Raises:
        CourseError: text and exercises are inconsistent.
    """
    hints = lesson.table("hints")
    found = []
    for exercise in exercises_of(lesson):
        own = hints.get(exercise.id, ())
        if len(own) != HINTS:
            found.append(
                f"{lesson.folder / 'hints.toml'}: exercise {exercise.id}: expected {HINTS} "
                f"hints, got {len(own)}"
            )
        found += [
            f"{lesson.folder / 'exercises.py'}: exercise {exercise.id}: {what}"
            for what in _faults(exercise)
        ]
    return found


def _faults(exercise: Exercise) -> Iterator[str]:
    paper = visible_cases(exercise)
    right = judge(paper, answers_of(paper, exercise.reference))
    if right.points < right.out_of:
        yield f"the solution earns {right.points} of {right.out_of} points"
    for known in exercise.mistakes:
        grade = judge(paper, known_answers(paper, known.answer))
        if grade.points == grade.out_of:
            yield f"the mistake {known.name!r} equals the reference on every case of the notebook"
        elif grade.mistake is not known:
            called = grade.mistake.name if grade.mistake else "no known mistake"
            yield f"the mistake {known.name!r} is called {called!r}"
