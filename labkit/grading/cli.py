"""How does a teacher grade a class? `labkit grade SUBMISSIONS --csv grades.csv`.

Idea: one row per student, notebook and exercise, always with a reason; a broken submission is a row like the others.
All students meet the same cases, made from a seed drawn on the day and told at the end, so that a grading can be
repeated.

Invariant: the file of grades is whole or not there: it is written aside, flushed to the disk, and renamed.
"""

from __future__ import annotations

import argparse
import csv
import io
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import Grade
from labkit.grading.judge import judge, paper_of
from labkit.grading.plan import Read, plan, read
from labkit.grading.program import program_of
from labkit.grading.submission import Submission, Unreadable, find
from labkit.grading.supervise import Limits, NotStarted, Reply, Request
from labkit.grading.supervise import run as supervise
from labkit.records import write_whole


@dataclass(frozen=True)
class Row:
    """One line of the file of grades."""

    student: str
    notebook: str
    exercise: str
    points: int
    out_of: int
    reason: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `labkit grade` to a parser."""
    lessons = sorted({exercise.lesson for exercise in EXERCISES.values()})
    parser.add_argument("submissions", nargs="+", type=Path, help="folders, <student>.ipynb, <student>/<lesson>.ipynb")
    parser.add_argument("--csv", type=Path, required=True, help="where to write the grades")
    parser.add_argument("--lesson", choices=lessons, help="grade this lesson only (default: all that are handed in)")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for one exercise of one student (default 20)")
    parser.add_argument("--memory", type=int, default=1024, help="memory for one student's code, MiB (default 1024)")
    parser.add_argument("--workers", type=int, default=2, help="students graded at once (default 2)")
    parser.add_argument("--seed", type=int, help="repeat a grading: the seed it told (default: drawn anew)")


def run(args: argparse.Namespace) -> int:
    """Grade, write the file, say what was done; return 0, or 2 where nothing could be graded."""
    seed = secrets.randbits(32) if args.seed is None else args.seed
    limits = Limits(args.seconds, args.memory << 20)
    try:
        submissions = find(args.submissions)
        if not submissions:
            raise FileNotFoundError(f"no notebook (.ipynb) in {', '.join(map(str, args.submissions))}")
        if not args.csv.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {args.csv.parent} to write {args.csv.name} into")
        rows = grade(submissions, seed, limits, lesson=args.lesson, workers=args.workers, progress=_say)
        write(rows, args.csv)
    except (OSError, NotStarted) as error:
        _say(f"labkit grade: {error}")
        return 2
    students = len({row.student for row in rows})
    _say(f"{args.csv}: {students} students, {len(rows)} rows. --seed {seed} repeats it.")
    return 0


def grade(
    submissions: Sequence[Submission],
    seed: int,
    limits: Limits,
    *,
    lesson: str | None = None,
    workers: int = 2,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Return the rows of all submissions, in their order; `workers` of them run at once.

    lesson     grade this one only; None: every lesson that some notebook tells
    progress   called with a line for each notebook
    """
    reads = [read(submission) for submission in submissions]
    todo = plan(reads, lesson)
    for one in reads:
        if all(one is not planned for planned, _ in todo):
            progress(f"passed over, as no exercise asked for is in it: {one.submission.path}")
    rows: list[Row] = []
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        jobs = [pool.submit(_rows, one, exercises, seed, limits) for one, exercises in todo]
        try:
            for number, ((one, _), job) in enumerate(zip(todo, jobs, strict=True), start=1):
                rows += (new := job.result())
                points, out_of = sum(row.points for row in new), sum(row.out_of for row in new)
                progress(f"[{number}/{len(jobs)}] {one.submission.student}: {points} of {out_of}")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return rows


def write(rows: Iterable[Row], path: Path) -> None:
    """Write the rows as CSV, whole or not at all."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [column.name for column in fields(Row)])
    table.writeheader()
    table.writerows({name: _cell(value) for name, value in asdict(row).items()} for row in rows)
    write_whole(path, text.getvalue().encode("utf-8", errors="backslashreplace"))


def _rows(read: Read, exercises: Sequence[Exercise], seed: int, limits: Limits) -> list[Row]:
    """Return a submission's rows; its code runs in a process of its own."""
    notes: dict[str, str] = {}
    requests: list[Request] = []
    for exercise in exercises:
        try:
            if read.problem:
                raise Unreadable(read.problem)
            requests.append(Request(exercise.id, program_of(read.cells, exercise), seed))
        except Unreadable as error:
            notes[exercise.id] = str(error)
    replies = supervise(requests, limits) | {name: Reply(note) for name, note in notes.items()}
    return [_row(read.submission, _grade(exercise, seed, replies[exercise.id])) for exercise in exercises]


def _grade(exercise: Exercise, seed: int, reply: Reply) -> Grade:
    if reply.note:
        return Grade(exercise, (), complete=True, note=reply.note)
    try:
        return judge(paper_of(exercise, seed), reply.answers)
    except Exception as error:  # whatever an answer does to the comparison, the class goes on
        return Grade(exercise, (), complete=True, note=f"the answers cannot be read: {str(error)[:100]}")


def _row(submission: Submission, grade: Grade) -> Row:
    return Row(submission.student, submission.notebook, grade.exercise.id, grade.points, grade.out_of, grade.reason)


def _cell(value: object) -> object:
    """Return a value that a spreadsheet shows as it is: a name like "=1+1" is no formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
