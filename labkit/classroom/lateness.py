"""Lateness: when work is due for each learner, how many days late it is, and what that costs.

A deadline is one for the class, with exceptions in the roster. A column `due` has a learner's own
deadline. A column `late_days` has the days that are free for this learner; the first late notebooks
use them up. A notebook's time is that of its file, which a copy may change. So the screen says what
lateness takes from the class.

Invariant: no learner loses points for lateness without a line on the screen that counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from labkit.classroom.marks import Mark, Roster, by_student, total
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
        percent: share of the earned points that each day begun takes off.
        cap: percent that lateness takes off at most.
        grace: work is not late if no more than these seconds passed after the deadline.
    """

    due: float | None = None
    percent: float = 0.0
    cap: float = 100.0
    grace: float = 0.0
    extensions: Mapping[str, Extension] = field(default_factory=dict)

    def days(self, one: Submission) -> int:
        """Return how many days late a notebook is, before free days."""
        own = self.extensions.get(one.student, Extension())
        due = own.due if own.due is not None else self.due
        if due is not None and 0 < modified(one) - due <= self.grace:
            return 0
        return late_days(one, due)


def extensions_in(roster: Roster, students: Sequence[str]) -> dict[str, Extension]:
    """Return the extensions of these learners, from the roster's columns `due` and `late_days`.

    Raises:
        ValueError: A cell is neither a date nor a whole number of days; the message names the
            learner.
    """
    found: dict[str, Extension] = {}
    for student, lines in roster.assigned(students).items():
        if len(lines) != 1:
            continue
        cells = {name.strip().lower(): text.strip() for name, text in lines[0].items()}
        due = cells.get("due", "")
        days = cells.get("late_days", "")
        try:
            own = Extension(due_time(due) if due else None, int(days) if days else 0)
        except ValueError as error:
            raise ValueError(
                f"the roster's line of {student}: expected a date such as 2026-12-01 in "
                f"the column due and a whole number in late_days, got {due!r} and {days!r}"
            ) from error
        if own != Extension():
            found[student] = own
    return found


def lateness(submissions: Sequence[Submission], rules: Rules) -> dict[tuple[str, str], int]:
    """Return (learner, notebook) -> days late, after the free days; the earliest use them up."""
    found: dict[tuple[str, str], int] = {}
    free = {student: own.free_days for student, own in rules.extensions.items()}
    for one in sorted(submissions, key=modified):
        days = rules.days(one)
        used = min(days, free.get(one.student, 0))
        if used:
            free[one.student] -= used
        found[one.student, one.notebook] = days - used
    return found


def words(submissions: Sequence[Submission], marks: Sequence[Mark], rules: Rules) -> list[str]:
    """Return the remarks on lateness: who is late, the points lost, and times that look copied."""
    if rules.due is None:
        return []
    own = by_student(marks)
    late = {student for student, theirs in own.items() if any(mark.late_days for mark in theirs)}
    found = []
    if late:
        counted = [
            mark
            for student in late
            for mark in own[student]
            if mark.late_days and (mark.comment is None or mark.comment.points is None)
        ]
        earned = sum(mark.row.points for mark in counted)
        taken = round(earned - total(counted)[0], 2)
        most = max(mark.late_days for student in late for mark in own[student])
        found.append(
            f"late: {len(late)} of {len(own)} learners by up to {most} days, which takes "
            f"{taken:g} of {earned} points"
        )
    if len(own) > 1 and len(late) == len(own):
        found.append(
            "all learners are late: is --due right? A copy, a sync or git gives files a new time"
        )
    times = {modified(one) for one in submissions if one.path}
    if len(times) == 1 and sum(one.path is not None for one in submissions) > 1:
        when = datetime.fromtimestamp(min(times)).strftime("%Y-%m-%d %H:%M:%S")
        found.append(f"all notebooks have the time {when}, as after a copy: who is late is unknown")
    return found
