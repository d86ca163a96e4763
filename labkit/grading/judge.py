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
# The time between two updates of the line about the training of an answer.
SECONDS_PER_UPDATE = 0.3
# The number of hints of each exercise.
HINTS = 3
# Some references and outcomes seed torch's generator and draw from it, and all threads of a process
# share it.
_one_at_a_time = threading.RLock()
# The number of failed calls of `check` by exercise, since the process began.
_failed_checks: Counter[str] = Counter()


@dataclass(frozen=True, eq=False)
class CaseSet:
    """The cases of an exercise: the calls by which an answer is judged.

    Attributes:
        exercise: The exercise.
        checks: Its checks.
        cases: The calls of each check, as cases[check][case].
        complete: Whether the cases are those of grading; otherwise they are those of a notebook.
    """

    exercise: Exercise
    checks: tuple[Check, ...]
    cases: tuple[tuple[Case, ...], ...]
    complete: bool


def check(exercise_id: str, function: object) -> Grade:
    """Return the grade of `function` on the visible checks of an exercise.

    In a notebook, this also logs the answer. When `labkit grade` runs a submission, a cell that
    calls this function judges nothing: the grade has no verdicts.

    Args:
        exercise_id: The id of the exercise, such as "start.smallest".
        function: The learner's answer.

    >>> grade = check("start.smallest", lambda exponent_bits, significand_bits: 2.0**-24)
    >>> grade.points, grade.mistake.name
    (0, 'answers for FP16')

    Raises:
        ValueError: If the exercise does not exist.
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
    """Show the number of optimizer steps in a notebook while an answer is trained."""
    if exercise.run_by is None or current_journal() is None:
        yield
        return
    from IPython.display import HTML, display
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    line: Any = None
    steps = 0
    last_update = 0.0

    def count(*_: object) -> None:
        nonlocal line, steps, last_update
        steps += 1
        if time.monotonic() - last_update <= SECONDS_PER_UPDATE:
            return
        last_update = time.monotonic()
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
            noun = "step" if steps == 1 else "steps"
            text = f"Your answer was trained for {steps} {noun}."
            line.update(HTML(text))  # type: ignore[no-untyped-call]


def _help(grade: Grade) -> str:
    """Return a line about the hints of an exercise, or "" before its second failed check."""
    id = grade.exercise.id
    if grade.unsolved or all(verdict.passed for verdict in grade.verdicts):
        return ""
    _failed_checks[id] += 1
    has_hints = any(id in lesson.table("hints") for lesson in lessons())
    if _failed_checks[id] < 2 or not has_hints:
        return ""
    return (
        f'Stuck? hint("{id}"), from labkit.grading, gives one more hint at each call and '
        "costs no points."
    )


def earned(exercise_id: str, function: object, seed: int) -> int:
    """Return the points that `labkit grade --seed` gives for `function`, and display the grade.

    The tests in nbgrader's assignments call this. nbgrader treats output on stderr as a failure, so
    the output of the function is suppressed.

    Args:
        exercise_id: The id of the exercise.
        function: The learner's answer.
        seed: The seed of the cases.

    >>> earned("start.smallest", lambda exponent_bits, significand_bits: 2.0**-24, seed=1)
    0

    Raises:
        ValueError: If the exercise does not exist.
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
    """Return the cases of a notebook, which are those of the visible checks."""
    checks = tuple(check for check in exercise.checks if not check.hidden)
    cases = tuple(tuple(draw_cases(exercise, check, VISIBLE_SEED)) for check in checks)
    return CaseSet(exercise, checks, cases, complete=False)


@lru_cache(maxsize=256)
def grading_cases(exercise: Exercise, seed: int) -> CaseSet:
    """Return the cases of grading: those of the notebook, then those of this seed."""
    visible = visible_cases(exercise)
    visible_by_check = dict(zip(visible.checks, visible.cases, strict=True))
    cases = []
    for check in exercise.checks:
        drawn = draw_cases(exercise, check, seed)
        cases.append((*visible_by_check.get(check, ()), *drawn))
    return CaseSet(exercise, exercise.checks, tuple(cases), complete=True)


def draw_cases(exercise: Exercise, check: Check, seed: int) -> list[Case]:
    """Return the calls of a check for a seed, which are the same on every machine."""
    return check.cases(random.Random(f"{seed} {exercise.id} {check.name}"))


def answers_of(case_set: CaseSet, function: object) -> list[list[Json]]:
    """Return the answers of `function` as answers[check][case]."""
    exercise = case_set.exercise

    def answer(case: Case) -> Json:
        return answer_case(function, exercise.call, case, exercise.may_change, exercise.run_by)

    return [[answer(case) for case in cases] for cases in case_set.cases]


def judge(case_set: CaseSet, answers: list[list[Json]], note: str = "") -> Grade:
    """Return the grade of some answers, with a verdict for each check.

    Args:
        case_set: The exercise and its cases.
        answers: The answers as answers[check][case]; see `answers_of`.
        note: A remark about the run of the answer, which the grade repeats.

    Raises:
        ValueError: If the number of answers differs from that of cases, or an answer is invalid.
    """
    if [len(group) for group in answers] != [len(cases) for cases in case_set.cases]:
        raise ValueError("the number of answers is not the number of cases")
    with _one_at_a_time:
        return _judge(case_set, answers, note)


def _judge(case_set: CaseSet, answers: list[list[Json]], note: str) -> Grade:
    exercise = case_set.exercise
    right_answers = known_answers(case_set, exercise.reference)
    expected = known_outcomes(case_set, exercise.reference)
    obtained = outcomes_of(case_set, answers)
    verdicts = []
    for i, check in enumerate(case_set.checks):
        pairs = zip(right_answers[i], answers[i], strict=True)
        are_equal = [right == answer for right, answer in pairs]
        verdicts.append(
            _verdict(exercise, check, case_set.cases[i], expected[i], obtained[i], are_equal)
        )
    mistake = None
    if not all(verdict.passed or verdict.unsolved for verdict in verdicts):
        for known in exercise.mistakes:
            if _makes(case_set, known.answer, obtained):
                mistake = known
                break
    return Grade(exercise, tuple(verdicts), mistake, case_set.complete, note)


@lru_cache(maxsize=512)
def known_answers(case_set: CaseSet, function: Callable[..., object]) -> list[list[Json]]:
    """Return the answers of a reference or a known mistake, computed once."""
    if isinstance(function, StoredAnswers):
        # A learner's lab stores outcomes only. An empty list equals no answer.
        return [[[] for _ in cases] for cases in case_set.cases]
    # Warnings of a reference do not concern the learner.
    with _one_at_a_time, warnings.catch_warnings(action="ignore"):
        return answers_of(case_set, function)


@lru_cache(maxsize=512)
def known_outcomes(case_set: CaseSet, function: Callable[..., object]) -> list[list[object]]:
    """Return the outcomes of a reference or a known mistake, computed once."""
    if isinstance(function, StoredAnswers):
        return function.outcomes
    return outcomes_of(case_set, known_answers(case_set, function))


def outcomes_of(case_set: CaseSet, answers: list[list[Json]]) -> list[list[object]]:
    """Return what is judged of each answer, as outcomes[check][case]: itself or its outcome."""
    outcomes = []
    for check, cases, group in zip(case_set.checks, case_set.cases, answers, strict=True):
        pairs = zip(cases, group, strict=True)
        outcomes.append([check.outcome(load(answer), case) for case, answer in pairs])
    return outcomes


def _verdict(
    exercise: Exercise,
    check: Check,
    cases: tuple[Case, ...],
    expected: list[object],
    obtained: list[object],
    are_equal: list[bool],
) -> Verdict:
    """Return the verdict on a check, with the first case that fails.

    Args:
        exercise: The exercise.
        check: The check.
        cases: The cases of the check.
        expected: What is judged of the reference's answers.
        obtained: What is judged of the learner's answers.
        are_equal: For each case, whether the answer equals the reference's as written.
    """
    outcomes = tuple(answer for answer in obtained if isinstance(answer, Outcome))
    for case, right, answer, is_equal in zip(cases, expected, obtained, are_equal, strict=True):
        # An outcome is compared in any case: it also depends on the check.
        if is_equal and not outcomes:
            continue
        mismatch = difference(right, answer, exercise.ulps, exercise.two_zeros)
        if mismatch is not None:
            unsolved = isinstance(answer, Failure) and answer.kind == "unsolved"
            example = _counter_example(exercise, check, case, right, answer, mismatch)
            return Verdict(check, example, unsolved, outcomes)
    return Verdict(check, outcomes=outcomes)


def _counter_example(
    exercise: Exercise, check: Check, case: Case, right: object, answer: object, mismatch: str
) -> CounterExample:
    values: list[str] = []
    if not exercise.run_by:
        # As the sandbox passes them to the answer.
        arguments = [load(dump(argument)) for argument in case]
        # Only the first argument can be a code; those after it are widths and counts.
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
    parameters = exercise.parameters if values else ()
    inputs = tuple(zip(parameters, values, strict=True))
    return CounterExample(inputs + exercise.aside(*case), expected, got, mismatch)


def _text(exercise: Exercise, value: object) -> str:
    """Return a value as text, a code in hexadecimal."""
    if exercise.codes and type(value) is int:
        sign = "-" if value < 0 else ""
        return f"{sign}0x{abs(value):04X}"
    return show(value)


def _makes(case_set: CaseSet, mistake: Callable[..., object], obtained: list[list[object]]) -> bool:
    """Return whether the answers agree with a known mistake on every case."""
    if isinstance(mistake, StoredMistake):
        return mistake.digest == digest(obtained, case_set.exercise)
    for expected, answers in zip(known_outcomes(case_set, mistake), obtained, strict=True):
        for mistaken, answer in zip(expected, answers, strict=True):
            if not _agrees(mistaken, answer, case_set.exercise):
                return False
    return True


def _agrees(mistaken: object, answer: object, exercise: Exercise) -> bool:
    if isinstance(mistaken, Failure) and isinstance(answer, Failure):
        return mistaken.what == answer.what
    if isinstance(mistaken, Outcome) and isinstance(answer, Outcome):
        return mistaken.facts == answer.facts
    if isinstance(mistaken, Failure | Outcome) or isinstance(answer, Failure | Outcome):
        return False
    return difference(mistaken, answer, exercise.ulps, exercise.two_zeros) is None


def problems(lesson: Lesson) -> list[str]:
    """Return the problems of a lesson's exercises for its author, each with its file and exercise.

    The solution must earn full marks. Each known mistake must lose points and be recognized by its
    own name.

    Raises:
        CourseError: If the text and the exercises are inconsistent.
    """
    hints = lesson.table("hints")
    lines = []
    for exercise in exercises_of(lesson):
        count = len(hints.get(exercise.id, ()))
        if count != HINTS:
            file = lesson.folder / "hints.toml"
            lines.append(f"{file}: exercise {exercise.id}: expected {HINTS} hints, got {count}")
        file = lesson.folder / "exercises.py"
        lines += [f"{file}: exercise {exercise.id}: {what}" for what in _problems_of(exercise)]
    return lines


def _problems_of(exercise: Exercise) -> Iterator[str]:
    case_set = visible_cases(exercise)
    # Those of the visible checks: hidden ones are judged at grading only.
    points = sum(check.points for check in case_set.checks)
    right = judge(case_set, answers_of(case_set, exercise.reference))
    if right.points < points:
        yield f"the solution earns {right.points} of {points} points"
    for known in exercise.mistakes:
        grade = judge(case_set, known_answers(case_set, known.answer))
        if grade.points == points:
            yield f"the mistake {known.name!r} equals the reference on every case of the notebook"
        elif grade.mistake is not known:
            called = grade.mistake.name if grade.mistake else "no known mistake"
            yield f"the mistake {known.name!r} is called {called!r}"
