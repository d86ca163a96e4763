"""Which of several notebooks counts? The last one, the best one, or what lay there when work was due.

Idea: a notebook's time is its file's, which zip archives keep. Of one learner's notebooks of one lesson, ordered by it,
the last one is graded; for the best, each is graded in a round of its own, and each exercise keeps its best row.

Invariant: where nothing is asked for, all notebooks go to the grading together, and it takes each answer from where it
stands (labkit.grading.plan).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, time

from labkit.grading.plan import read
from labkit.grading.submission import Submission
from labkit.grading.table import Row, in_order

TAKES = ("last", "best")
DAY, MINUTE = 24 * 60 * 60, 60
EARLIEST = datetime(2020, 1, 1).timestamp()  # earlier is no time: archives write 1980 for none, and so do clocks


def due_time(text: str) -> float:
    """Return a date, which means its end, or a date and a time, as seconds since 1970; local where no zone is named.

    >>> due_time("2026-11-30T23:59:59+00:00")
    1796083199.0

    Raises:
        ValueError: it is neither.
    """
    when = datetime.fromisoformat(text)
    return (datetime.combine(when, time(23, 59, 59)) if len(text) == len("2026-11-30") else when).timestamp()


def handed_in(submission: Submission) -> float:
    """Return when a notebook was last written, in seconds since 1970; 0 where there is none."""
    try:
        return submission.path.stat().st_mtime if submission.path else 0.0
    except OSError:
        return 0.0


def late_days(submission: Submission, due: float | None) -> int:
    """Return how many days, begun ones whole, a notebook was written after work was due; 1 where Canvas says LATE."""
    if due is None or submission.path is None:
        return 0
    return max("_LATE_" in submission.path.name, math.ceil((handed_in(submission) - due) / DAY))


def doubtful(submissions: Sequence[Submission], now: float) -> list[str]:
    """Return whose notebooks have a time that cannot be, each as a sentence: lateness is not known of them.

    now   in seconds since 1970
    """
    cannot_be = [one for one in submissions if one.path and not EARLIEST <= handed_in(one) <= now + MINUTE]
    says = "{0.student}: {0.notebook} has the time {1}, which cannot be; see yourself whether it is late"
    return [says.format(one, _date(handed_in(one))) for one in cannot_be]


def _date(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):  # file systems keep times that no calendar has
        return f"{seconds:.0f} s after 1970"


def attempts(submissions: Sequence[Submission], take: str | None, due: float | None = None) -> list[list[Submission]]:
    """Return what is graded, round by round.

    take   "last": of each learner's notebooks of a lesson the last one, in time if one is; "best": each in a round of
           its own, those in time alone if one is; None: all in one round
    """
    if take is None:
        return [list(submissions)]
    groups: dict[tuple[str, str], list[Submission]] = {}
    for one in submissions:
        groups.setdefault((one.student, read(one).lesson or one.notebook), []).append(one)
    ordered = [_counting(sorted(group, key=handed_in, reverse=True), due) for group in groups.values()]
    most = max((len(group) for group in ordered), default=0) if take == "best" else 1
    return [[group[number] for group in ordered if number < len(group)] for number in range(most)]


def best_of(rounds: Iterable[Iterable[Row]]) -> list[Row]:
    """Return of each learner and exercise the row with the most points, of equals the first round's."""
    best: dict[tuple[str, str], Row] = {}
    for row in (row for rows in rounds for row in rows):
        key = (row.student, row.exercise)
        if key not in best or row.points > best[key].points:
            best[key] = row
    return in_order(best.values())


def _counting(group: list[Submission], due: float | None) -> list[Submission]:
    """Return those of a learner's notebooks that came in time; all, where none did."""
    return [one for one in group if not late_days(one, due)] or group
