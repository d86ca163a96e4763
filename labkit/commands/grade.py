"""`labkit grade`: grade a class, and give back: pages for learners, a page of the class, the school's own table."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from labkit.commands.course import add_course_option, use_course

if TYPE_CHECKING:
    from labkit.classroom.marks import Mark, Roster, Said


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("submissions", nargs="+", type=Path, help="folders, <student>.ipynb, <student>/<lesson>.ipynb")
    parser.add_argument("--csv", type=Path, help="where to write the grades; it takes one")
    parser.add_argument("--lesson", help="grade this lesson only, 06_loss_scaling (default: all handed in)")
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU time for one exercise (default 20)")
    parser.add_argument("--memory", type=int, default=1024, help="memory for one student's code, MiB (default 1024)")
    parser.add_argument("--workers", type=int, default=2, help="students graded at once (default 2)")
    parser.add_argument("--seed", type=int, help="repeat a grading: the seed it told (default: drawn anew)")
    parser.add_argument("--changed", action="store_true", help="grade only what changed since the last time")
    parser.add_argument(
        "--take", choices=("last", "best"), help="of several notebooks of a lesson (default: any with answers)"
    )
    parser.add_argument("--due", type=_due, help="when work was due, 2026-11-30 or 2026-11-30T18:00, local time")
    add_course_option(parser)
    more = parser.add_argument_group("giving back")
    more.add_argument("--feedback", type=Path, metavar="FOLDER", help="write a page for each learner into this folder")
    more.add_argument("--report", type=Path, metavar="FILE", help="write a page of the class: mistakes, time, guesses")
    more.add_argument("--gradebook", type=Path, metavar="FILE", help="write a table, one line a learner")
    more.add_argument("--roster", type=Path, help="the class: Canvas's gradebook, Moodle's worksheet, any CSV of names")
    more.add_argument("--late", type=float, default=0.0, metavar="PERCENT", help="taken off for each day after --due")
    more.add_argument("--manual", type=Path, help="your own points and comments: student,exercise,points,comment")


def _due(text: str) -> float:
    from labkit.grading.attempts import due_time

    try:
        return due_time(text)
    except ValueError as error:
        raise ArgumentTypeError(f"expected a date or a date and a time, 2026-11-30T18:00, got {text!r}") from error


def run(arguments: Namespace) -> int:
    """Grade, then write what was asked for; 2 where a table of the teacher's cannot be read, before anything runs."""
    from labkit.classroom.archives import unpacked
    from labkit.classroom.marks import marks_of, notices, read_roster, read_said, unused
    from labkit.classroom.pages import journals_beside
    from labkit.grading import cli
    from labkit.grading.attempts import doubtful, late_days
    from labkit.grading.exercises import EXERCISES
    from labkit.grading.submission import find
    from labkit.records import now

    use_course(arguments, solutions=True)
    try:
        lessons = sorted({exercise.lesson for exercise in EXERCISES.values()})
        if arguments.lesson and arguments.lesson not in lessons:
            raise ValueError(f"there is no lesson {arguments.lesson!r} with exercises; there are {', '.join(lessons)}")
        for path in arguments.submissions:
            if not path.exists():
                raise FileNotFoundError(f"there is no {path}; give a folder of notebooks, or notebooks")
        if arguments.csv is None:
            raise ValueError("expected --csv FILE, where to write the grades: labkit grade ... --csv grades.csv")
        roster = read_roster(arguments.roster) if arguments.roster else None
        said = read_said(arguments.manual) if arguments.manual else {}
        if not 0 <= arguments.late <= 100 or (arguments.late and arguments.due is None):
            raise ValueError("--late takes 0 to 100 percent a day, and needs --due")
        with TemporaryDirectory(prefix="labkit-hand-in-") as scratch:
            arguments.submissions, refused = unpacked(arguments.submissions, Path(scratch))
            status, rows = cli.graded(arguments, refused)
            if status == 0:
                submissions = find(arguments.submissions, refused)
                late = {(one.student, one.notebook): late_days(one, arguments.due) for one in submissions}
                marks = marks_of(rows, late, arguments.late, said)
                told = unused(said, rows) + (
                    notices(roster, [*dict.fromkeys(r.student for r in rows)]) if roster else []
                )
                if arguments.due is not None:
                    told += doubtful(submissions, datetime.fromisoformat(now()).timestamp())
                journals = journals_beside(submissions)
                _give_back(arguments, marks, said, told, roster, journals)
            return status
    except (OSError, ValueError) as error:
        print(f"labkit grade: {error}", file=sys.stderr)
        return 2


def _give_back(
    arguments: Namespace,
    marks: Sequence[Mark],
    said: dict[tuple[str, str], Said],
    told: Sequence[str],
    roster: Roster | None,
    journals: Sequence[Path],
) -> None:
    from labkit.classroom.marks import write_gradebook
    from labkit.classroom.pages import report, write_feedback
    from labkit.grading.table import visible
    from labkit.records import write_atomic

    for line in told:
        print(visible(line), file=sys.stderr)
    if arguments.feedback:
        written = write_feedback(arguments.feedback, marks, said)
        print(f"{arguments.feedback}: {len(written)} pages", file=sys.stderr)
    if arguments.report:
        print(write_atomic(arguments.report, report(marks, journals, told)), file=sys.stderr)
    if arguments.gradebook:
        write_gradebook(arguments.gradebook, marks, roster)
        print(arguments.gradebook, file=sys.stderr)
