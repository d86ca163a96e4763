"""The command `labkit grade SUBMISSIONS --csv grades.csv`.

All students get the same cases, drawn from a seed that is reported at the end: with the same seed,
grading again writes the same bytes. A broken submission has rows like the others, with a reason.

Invariant: the file of grades is written atomically, and no row that was produced is lost
(labkit.grading.results), whether the grading ends, is interrupted or is killed.
"""

from __future__ import annotations

import difflib
import math
import secrets
import signal
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from labkit.classroom.anonymous import key_of_folder, write_anonymous
from labkit.classroom.archives import unpack_archives
from labkit.classroom.class_pages import addresses, journals_beside, report, write_feedback
from labkit.classroom.lateness import MINUTE, Rules, extensions_in, lateness, words
from labkit.classroom.marks import (
    Comments,
    Mark,
    Roster,
    check_column,
    marks_of,
    notices,
    read_comments,
    read_roster,
    unused,
    write_gradebook,
)
from labkit.commands import CommandError, use_course
from labkit.findings import counted
from labkit.grading import batch
from labkit.grading.digests import exercise_digest, lab_digest
from labkit.grading.exercises import EXERCISES
from labkit.grading.plan import attempts, implausible_times
from labkit.grading.results import (
    GradeRow,
    GradingLog,
    best_of,
    in_order,
    visible,
    write,
)
from labkit.grading.sandbox.namespaces import protect_memory
from labkit.grading.sandbox.runner import NotStarted
from labkit.grading.sandbox.worker import Limits
from labkit.grading.submission import Submission, find, hard_linked, nobodys_files
from labkit.records import exclusive_lock, now, write_atomic
from labkit.train import one_thread

# The exit status after Ctrl+C.
INTERRUPTED = 130


def grade(arguments: Namespace) -> int:
    """Run `labkit grade`: grade submissions, and write the files that the options name.

    The teacher's own tables are read before any code runs, so that an error in them costs no time.

    Returns:
        The exit status.
    """
    use_course(arguments, solutions=True)
    _check_options(arguments)
    try:
        roster = read_roster(arguments.roster) if arguments.roster else None
        if arguments.column:
            check_column(roster, arguments.column)
        comments = read_comments(arguments.manual) if arguments.manual else {}
        with TemporaryDirectory(prefix="labkit-hand-in-") as scratch:
            paths, refused = unpack_archives(arguments.submissions, Path(scratch))
            arguments.submissions = paths
            submissions = find(paths, refused, _result_paths(arguments))
            students = _unique(one.student for one in submissions)
            rules = Rules(
                due=arguments.due,
                percent=arguments.late,
                cap=arguments.late_cap,
                grace=arguments.grace * MINUTE,
                extensions=extensions_in(roster, students) if roster else {},
            )
            rows = _grade_class(arguments, submissions, rules)
            if rows is None:
                return INTERRUPTED
            late = lateness(submissions, rules)
            marks = marks_of(rows, late, rules.percent, comments, rules.cap)
            notes = unused(comments, rows)
            if roster:
                with_rows = [row.student for row in rows]
                # With --student, another learner's notebook can wait for its grading.
                waiting = students if arguments.student else []
                notes += notices(roster, _unique([*with_rows, *waiting]))
            if rules.has_deadline:
                current_time = datetime.fromisoformat(now()).timestamp()
                notes += implausible_times(submissions, current_time)
            notes += words(submissions, marks, rules)
            for line in notes:
                _print(line)
            _write_results(arguments, submissions, marks, comments, roster, notes)
    except (OSError, ValueError, NotStarted) as error:
        raise CommandError(visible(str(error))) from error
    return 0


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _result_paths(arguments: Namespace) -> list[Path]:
    """Return the files and folders of results, which may lie among the submissions."""
    paths = (arguments.feedback, arguments.report, arguments.anonymous, arguments.gradebook)
    return [path for path in paths if path]


def _write_results(
    arguments: Namespace,
    submissions: Sequence[Submission],
    marks: Sequence[Mark],
    comments: Comments,
    roster: Roster | None,
    notes: Sequence[str],
) -> None:
    """Write feedback pages, class page, gradebook and anonymous copies, as the options say."""
    page_addresses: dict[str, str] = {}
    if arguments.feedback:
        pages = write_feedback(arguments.feedback, marks, comments)
        _print(f"{arguments.feedback}: {counted(len(pages), 'page')}")
        if arguments.report:
            page_addresses = addresses(marks, pages, arguments.report)
    if arguments.report:
        text = report(marks, journals_beside(submissions), notes, page_addresses)
        _print(str(write_atomic(arguments.report, text)))
    if arguments.gradebook:
        write_gradebook(arguments.gradebook, marks, roster, arguments.column)
        _print(str(arguments.gradebook))
    if arguments.anonymous:
        names = write_anonymous(arguments.anonymous, marks, submissions)
        key = key_of_folder(arguments.anonymous)
        _print(f"{arguments.anonymous}: {len(names)} learners without names; {key} has them")


def _require_student(student: str, submissions: Sequence[Submission]) -> None:
    """Raise a ValueError if no submission is of a learner with this name."""
    students = _unique(one.student for one in submissions)
    if student not in students:
        near = difflib.get_close_matches(student, students, 1, cutoff=0)
        hint = f"; the nearest name is {near[0]!r}" if near else ""
        raise ValueError(f"there is no learner {student!r}{hint}")


def _check_options(arguments: Namespace) -> None:
    """Refuse missing, wrong and contradictory options.

    Raises:
        CommandError: If an option is refused.
    """
    with_exercises = sorted({exercise.lesson for exercise in EXERCISES.values()})
    if arguments.lesson and arguments.lesson not in with_exercises:
        raise CommandError(
            f"no exercises in lesson {arguments.lesson!r}; choose from {', '.join(with_exercises)}"
        )
    for path in arguments.submissions:
        if not path.exists():
            raise CommandError(f"there is no {path}; give a folder of notebooks, or notebooks")
    if arguments.csv is None:
        raise CommandError(
            "expected --csv FILE, where to write the grades: labkit grade ... --csv grades.csv"
        )
    for option in ("seconds", "memory", "workers"):
        number = getattr(arguments, option)
        if not 0 < number < math.inf:
            raise CommandError(f"--{option}: expected a number above 0, got {number}")
    for option, percent in (("--late", arguments.late), ("--late-cap", arguments.late_cap)):
        if not 0 <= percent <= 100:
            raise CommandError(f"{option}: expected 0 to 100 percent, got {percent:g}")
    if arguments.late and arguments.due is None:
        raise CommandError("--late is a deduction after the deadline, and needs --due")
    if not 0 <= arguments.grace < math.inf:
        raise CommandError(f"--grace: expected minutes from 0 on, got {arguments.grace:g}")
    if arguments.column and not (arguments.roster and arguments.gradebook):
        raise CommandError("--column names a column of the roster: give --roster and --gradebook")


def _grade_class(
    args: Namespace, submissions: Sequence[Submission], rules: Rules
) -> list[GradeRow] | None:
    """Grade the submissions, and write the file of grades.

    The log of an interrupted or an earlier grading is continued.

    Returns:
        The rows; None after an interrupt, when the rows so far are written.
    """
    if not args.csv.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {args.csv.parent} to write {args.csv.name} into"
        )
    _print_problems(args, submissions)
    late = None
    if rules.has_deadline:
        late = lateness(submissions, rules)
    if args.student:
        _require_student(args.student, submissions)
    with exclusive_lock(args.csv):
        log, seed = _open_log(args)
        others: list[GradeRow] = []
        if args.student:
            others = log.keep_others(args.student)
            _print_ungraded(args.student, others, submissions)
        if log.rows:
            _print(
                f"rows of {counted(len(log.rows), 'notebook')} are taken from an earlier grading"
            )
        try:
            rows = best_of([*_grade_attempts(args, submissions, rules, log, seed), others])
        except KeyboardInterrupt:
            rows = _rows_so_far(log, args.take)
            write(rows, args.csv, late)
            _print(
                f"interrupted: {args.csv} has the {counted(len(rows), 'row')} made so far. The "
                "same command continues from here."
            )
            return None
        write(rows, args.csv, late)
        log.end()
    students = {row.student for row in rows}
    counts = f"{counted(len(students), 'student')}, {counted(len(rows), 'row')}"
    _print(f"{args.csv}: {counts}. --seed {seed} repeats it.")
    return rows


def _rows_so_far(log: GradingLog, take: str | None) -> list[GradeRow]:
    """Return one row for each learner and exercise, after an interrupt.

    The log has several if a notebook was changed since the earlier grading, if each attempt is
    graded, or if several notebooks answer an exercise.
    """
    # The rows of an earlier grading come first in the log.
    rows = [row for of_notebook in log.rows.values() for row in of_notebook]
    if take == "last":
        newest = {(row.student, row.exercise): row for row in rows}
        return in_order(newest.values())
    if take is None:
        rows = list({(row.student, row.notebook, row.exercise): row for row in rows}.values())
    return best_of([rows])


def _open_log(args: Namespace) -> tuple[GradingLog, int]:
    """Open the log of the grading, and print why earlier rows are graded again, if they are.

    With --changed and --student, the rows of the last complete grading are used where they would be
    the same; in any case those of an interrupted one.

    Returns:
        The log, and the seed of the grading: that of the option, that of the earlier rows, or a new
        one.

    Raises:
        ValueError: With --student, no earlier rows can be used. Then no file has changed.
    """
    settings = {
        "seed": args.seed,
        "lesson": args.lesson,
        "seconds": args.seconds,
        "memory": args.memory,
        "lab": lab_digest(),
        "old_forms": args.old_forms,
    }
    uses_earlier = args.changed or args.student
    earlier = args.csv.with_name(f"{args.csv.name}.kept") if uses_earlier else None
    path = args.csv.with_name(f"{args.csv.name}.part")
    log = GradingLog(path, settings, earlier, exercise_digest)
    known = log.settings["seed"]
    seed = known if isinstance(known, int) else secrets.randbits(32)
    for line in log.read(seed):
        _print(line)
    if args.student and not log.rows:
        raise ValueError(
            "--student needs an earlier grading of the class: grade it with --changed first, into "
            "the same file"
        )
    log.begin()
    return log, seed


def _grade_attempts(
    args: Namespace, submissions: Sequence[Submission], rules: Rules, log: GradingLog, seed: int
) -> list[list[GradeRow]]:
    """Grade each attempt that --take counts, and return the rows of each.

    Raises:
        KeyboardInterrupt: If the grading is interrupted; the log has its rows so far.
    """
    protect_memory()
    rounds = []
    with one_thread(), _interruptible():
        for attempt in attempts(submissions, args.take, args.due, rules.days):
            rows = batch.grade(
                attempt,
                seed,
                Limits(args.seconds, args.memory << 20),
                lesson=args.lesson,
                workers=args.workers,
                progress=_print,
                log=log,
                output=args.csv.parent,
                old_forms=args.old_forms,
                student=args.student,
            )
            rounds.append(rows)
    return rounds


def _print_problems(args: Namespace, submissions: Sequence[Submission]) -> None:
    """Print notices about missing, ignored and shared files."""
    for one in submissions:
        if one.path is None:
            _print(f"{one.student}: {one.refused}")
    learners = {one.student for one in submissions}
    without = learners - {one.student for one in submissions if one.path is not None}
    # In a wrong folder, each file and folder looks like a learner.
    if 2 * len(without) > len(learners):
        _print(
            f"! {len(without)} of {len(learners)} learners have no notebook that can be read, and "
            "get 0 points: is it the right folder?"
        )
    names = nobodys_files(args.submissions)
    if names:
        _print(f"ignored, as they name no learner: {', '.join(names)}")
    for group in hard_linked(submissions):
        paths = ", ".join(str(one.path) for one in group)
        _print(f"several learners handed in one file (hard links): {paths}")


def _print_ungraded(
    student: str, others: Sequence[GradeRow], submissions: Sequence[Submission]
) -> None:
    """Print which learners the earlier grading does not have."""
    graded = {student, *(row.student for row in others)}
    new = [name for name in _unique(one.student for one in submissions) if name not in graded]
    if new:
        _print(f"without a row until --changed grades them: {', '.join(new)}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGTERM or SIGINT, and ignore further ones."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def interrupt(*_: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(each, interrupt) for each in signals]
    try:
        yield
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)


def _print(line: str) -> None:
    # If the reader of a pipe has ended, the grading continues.
    with suppress(OSError):
        print(visible(line), file=sys.stderr, flush=True)
