"""Lateness: when work is due for each learner, how many days late it is, and what that costs.

The class has one deadline, and the roster has the exceptions. Its column `due` has a learner's own
deadline, and its column `late_days` the days that are free for this learner; the first late
notebooks use them up. The time of a notebook is that of its file, which a copy may change. So the
command prints what lateness takes from the class.

Invariant: each point that a learner loses for lateness is counted in a printed line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from labkit.classroom.marks import Mark, Roster, by_student, total
from labkit.findings import counted
from labkit.grading.plan import due_time, late_days, modified
from labkit.grading.submission import Submission

MINUTE = 60.0


@dataclass(frozen=True)
class Extension:
    """Extension of one learner: a deadline in seconds since 1970, or None, and free late days."""

    due: float | None = None
    free_days: int = 0


@dataclass(frozen=True)
class Rules:
    """The deadline of a class, and what lateness costs.

    Attributes:
        due: the deadline in seconds since 1970, or None.
        percent: percent of the earned points that each day begun takes off.
        cap: percent that lateness takes off at most.
        grace: seconds after the deadline in which work is not late.
        extensions: learner -> extension.
    """

    due: float | None = None
    percent: float = 0.0
    cap: float = 100.0
    grace: float = 0.0
    extensions: Mapping[str, Extension] = field(default_factory=dict)

    @property
    def has_deadline(self) -> bool:
        """Whether the class or one of its learners has a deadline."""
        own = [extension.due for extension in self.extensions.values()]
        return self.due is not None or any(due is not None for due in own)

    def days(self, submission: Submission) -> int:
        """Return how many days late a notebook is, before free days."""
        extension = self.extensions.get(submission.student, Extension())
        due = extension.due if extension.due is not None else self.due
        if due is not None and 0 < modified(submission) - due <= self.grace:
            return 0
        return late_days(submission, due)


def extensions_in(roster: Roster, students: Sequence[str]) -> dict[str, Extension]:
    """Return the extensions of these learners, from the roster's columns `due` and `late_days`.

    Raises:
        ValueError: a cell holds no date, or no whole number of days of 0 or more; the message names
            the learner and the column.
    """
    extensions: dict[str, Extension] = {}
    for student, lines in roster.assigned(students).items():
        if len(lines) != 1:
            continue
        cells = {name.strip().lower(): text.strip() for name, text in lines[0].items()}
        due = cells.get("due", "")
        days = cells.get("late_days", "")
        try:
            own_due = due_time(due) if due else None
        except ValueError as error:
            raise ValueError(
                f"the roster's line of {student}, due: expected a date such as 2026-12-01, got "
                f"{due!r}"
            ) from error
        if days and not days.isdecimal():
            raise ValueError(
                f"the roster's line of {student}, late_days: expected a whole number of 0 or more, "
                f"got {days!r}"
            )
        extension = Extension(own_due, int(days or 0))
        if extension != Extension():
            extensions[student] = extension
    return extensions


def lateness(submissions: Sequence[Submission], rules: Rules) -> dict[tuple[str, str], int]:
    """Return (learner, notebook) -> days late, after the free days; the earliest use them up."""
    late: dict[tuple[str, str], int] = {}
    free = {student: extension.free_days for student, extension in rules.extensions.items()}
    for submission in sorted(submissions, key=modified):
        days = rules.days(submission)
        used = min(days, free.get(submission.student, 0))
        if used:
            free[submission.student] -= used
        late[submission.student, submission.notebook] = days - used
    return late


def words(submissions: Sequence[Submission], marks: Sequence[Mark], rules: Rules) -> list[str]:
    """Return the remarks on lateness: who is late, the points lost, and times that look copied."""
    if not rules.has_deadline:
        return []
    late_marks = [mark for mark in marks if mark.late_days]
    late = by_student(late_marks)
    learners = by_student(marks)
    remarks = []
    if late_marks:
        # points that the teacher set count whether the work is late or not
        reduced = [
            mark for mark in late_marks if mark.comment is None or mark.comment.points is None
        ]
        earned = sum(mark.row.points for mark in reduced)
        taken = round(earned - total(reduced)[0], 2)
        most = counted(max(mark.late_days for mark in late_marks), "day")
        remarks.append(
            f"late: {len(late)} of {counted(len(learners), 'learner')} by up to {most}, "
            f"which takes {taken:g} of {earned} points"
        )
    if len(learners) > 1 and len(late) == len(learners):
        remarks.append(
            "all learners are late: is --due right? A copy, a sync or git gives files a new time"
        )
    times = [modified(submission) for submission in submissions if submission.path]
    if len(times) > 1 and len(set(times)) == 1:
        when = datetime.fromtimestamp(times[0]).strftime("%Y-%m-%d %H:%M:%S")
        remarks.append(
            f"all notebooks have the time {when}, as after a copy: who is late is unknown"
        )
    return remarks
