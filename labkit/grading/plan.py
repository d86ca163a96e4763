"""Choice of the notebooks to grade: lessons, attempts, lateness, and which holds each answer.

Every learner gets one row for every exercise of every lesson that is graded. The answer is taken
from whichever of the learner's notebooks holds it; if none does, the row says what is missing. A
notebook's time is that of its file, which zip archives preserve. With `--take`, a learner's
notebooks of one lesson are attempts, ordered by time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, datetime, time

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES
from labkit.grading.program import defines
from labkit.grading.submission import Submission

DAY = 24 * 60 * 60
MINUTE = 60
# Archives and clocks without a time say 1980 or 1970.
EARLIEST = datetime(2020, 1, 1).timestamp()


def plan(
    submissions: Sequence[Submission], lesson: str | None
) -> list[tuple[Submission, list[Exercise]]]:
    """Return the exercises to grade from each notebook.

    Students are in order, and each student has each exercise once.

    Args:
        submissions: What learners handed in.
        lesson: The lesson to grade. None for every lesson that some notebook belongs to, or for all
            lessons if no notebook is recognized.
    """
    whole = Counter(exercise.lesson for exercise in EXERCISES.values())
    graded = {lesson} if lesson else {one.lesson for one in submissions if one.lesson}
    # A notebook also belongs to a lesson of which it holds half of the exercises.
    if not lesson:
        graded |= {
            name for one in submissions for name, n in one.lessons.items() if 2 * n >= whole[name]
        }
    exercises = [
        exercise for exercise in EXERCISES.values() if not graded or exercise.lesson in graded
    ]
    rows: dict[Submission, list[Exercise]] = {}
    for student in dict.fromkeys(one.student for one in submissions):
        own = [one for one in submissions if one.student == student]
        for exercise in exercises:
            rows.setdefault(_source_of(exercise, student, own), []).append(exercise)
    return list(rows.items())


def _source_of(exercise: Exercise, student: str, own: Sequence[Submission]) -> Submission:
    """Return the notebook from which an answer is taken.

    First come those that hold an answer, then those with the starter, then those without the cell;
    among equals those of the exercise's own lesson, then the last by name.
    """
    with_cell = [one for one in own if any(cell.belongs_to(exercise) for cell in one.cells)]
    of_lesson = [one for one in own if one.lesson == exercise.lesson]
    answered = [one for one in {*with_cell, *of_lesson} if defines(one.cells, exercise)]
    for group in (answered, with_cell, of_lesson, [one for one in own if one.lesson is None]):
        if group:
            return max(group, key=lambda one: (one.lesson == exercise.lesson, own.index(one)))
    return Submission(
        student, "", None, refused=f"no notebook of lesson {exercise.lesson} was handed in"
    )


# --- attempts and lateness ---


def due_time(text: str) -> float:
    """Return a date (its end) or a date and a time as seconds since 1970.

    A time without a zone is local time.

    >>> due_time("2026-11-30T23:59:59+00:00")
    1796083199.0

    Raises:
        ValueError: it is neither.
    """
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
    return datetime.combine(day, time(23, 59, 59)).timestamp()


def modified(submission: Submission) -> float:
    """Return when a notebook was last written, in seconds since 1970; 0 if there is none."""
    try:
        return submission.path.stat().st_mtime if submission.path else 0.0
    except OSError:
        return 0.0


def late_days(submission: Submission, due: float | None) -> int:
    """Return how many days late a notebook is, rounded up; at least 1 if Canvas marked it LATE."""
    if due is None or submission.path is None:
        return 0
    least = 1 if "_LATE_" in submission.path.name else 0
    return max(least, math.ceil((modified(submission) - due) / DAY))


def implausible_times(submissions: Sequence[Submission], now: float) -> list[str]:
    """Return a warning for each notebook whose time is before 2020 or in the future.

    The lateness of such a notebook is unknown.

    Args:
        submissions: What learners handed in.
        now: In seconds since 1970.
    """
    doubtful = [
        one for one in submissions if one.path and not EARLIEST <= modified(one) <= now + MINUTE
    ]
    message = (
        "{0.student}: {0.notebook} has the time {1}, which cannot be right; check yourself "
        "whether it is late"
    )
    return [message.format(one, _date(modified(one))) for one in doubtful]


def _date(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        # File systems allow times outside of the calendar.
        return f"{seconds:.0f} s after 1970"


def attempts(
    submissions: Sequence[Submission],
    take: str | None,
    due: float | None = None,
    days: Callable[[Submission], int] | None = None,
) -> list[list[Submission]]:
    """Return the submissions to grade, round by round.

    Args:
        submissions: What learners handed in.
        take: "last" for each learner's last notebook of a lesson. "best" for all of them, each in a
            round of its own. In both cases, late notebooks are left out if one is in time. None for
            all notebooks in one round.
        due: The deadline in seconds since 1970; None without a deadline.
        days: Returns how many days late a notebook is; by default, its days after `due`.
    """
    if take is None:
        return [list(submissions)]
    groups: dict[tuple[str, str], list[Submission]] = {}
    for one in submissions:
        groups.setdefault((one.student, one.lesson or one.notebook), []).append(one)
    late = days or (lambda one: late_days(one, due))
    # the attempts of each group that may count, the last first
    ordered: list[list[Submission]] = []
    for group in groups.values():
        last_first = sorted(group, key=modified, reverse=True)
        in_time = [one for one in last_first if not late(one)]
        ordered.append(in_time or last_first)
    rounds = 1
    if take == "best":
        rounds = max((len(group) for group in ordered), default=0)
    return [[group[number] for group in ordered if number < len(group)] for number in range(rounds)]
