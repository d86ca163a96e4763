"""How does a teacher grade a class? `labkit grade SUBMISSIONS --csv grades.csv`.

Idea: one row per student and exercise, always with a reason; a broken submission is a row like the others. All
students meet the same cases, made from a seed drawn on the day and told at the end, so that a grading can be repeated:
with the same seed it writes the same bytes.

Invariant: the file of grades is whole or not there, and no row that was made is lost (labkit.grading.table), whether
the grading ends, is interrupted or is killed.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from labkit.grading.attempts import attempts, best_of
from labkit.grading.batch import grade
from labkit.grading.given.child import Limits
from labkit.grading.submission import Submission, find, shared
from labkit.grading.supervise import NotStarted
from labkit.grading.table import Journal, Row, visible, write
from labkit.records import exclusive_lock, linux

INTERRUPTED = 130


def run(args: argparse.Namespace) -> int:
    """Grade, write the file, say what was done; return 0, 2 where nothing could be graded, 130 when interrupted."""
    return graded(args)[0]


def graded(args: argparse.Namespace, refused: Mapping[Path, str] | None = None) -> tuple[int, list[Row]]:
    """Grade and write the file; return the exit status, and the rows of a grading that ended.

    refused   what archives hold and could not be unpacked, as labkit.grading.submission.find takes it
    """
    try:
        submissions = find(args.submissions, refused)
        if not submissions:
            raise FileNotFoundError(f"no notebook (.ipynb) in {', '.join(map(str, args.submissions))}")
        if not args.csv.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {args.csv.parent} to write {args.csv.name} into")
        for group in shared(submissions):
            _say(f"one file was handed in by several (hard links): {', '.join(str(one.path) for one in group)}")
        with exclusive_lock(args.csv):
            return _begun(args, submissions)
    except (OSError, NotStarted) as error:
        _say(f"labkit grade: {error}")
        return 2, []


def _begun(args: argparse.Namespace, submissions: list[Submission]) -> tuple[int, list[Row]]:
    """Go on with the journal of a grading that was cut short or kept, or begin one."""
    settings = {"seed": args.seed, "lesson": args.lesson, "seconds": args.seconds, "memory": args.memory}
    kept = args.csv.with_name(f"{args.csv.name}.kept") if args.changed else None
    journal = Journal(args.csv.with_name(f"{args.csv.name}.part"), settings, kept)
    if journal.rows:
        cut = args.csv.with_name(f"{args.csv.name}.part").is_file()
        begun = "where a grading was interrupted" if cut else "with the last grading"
        _say(f"going on {begun}, after {len(journal.rows)} notebooks")
    seed = journal.settings["seed"] if isinstance(journal.settings["seed"], int) else secrets.randbits(32)
    journal.begin(seed)
    return _graded(args, submissions, journal, seed)


def _graded(
    args: argparse.Namespace, submissions: list[Submission], journal: Journal, seed: int
) -> tuple[int, list[Row]]:
    """Grade and write; whatever happens in between, the rows that were made are in the file of grades."""
    limits = Limits(args.seconds, args.memory << 20)
    torch.set_num_threads(1)
    linux.protect_memory()
    try:
        with _interruptible():
            rounds = [
                grade(
                    attempt, seed, limits, lesson=args.lesson, workers=args.workers, progress=_say, journal=journal,
                    output=args.csv.parent,
                )
                for attempt in attempts(submissions, args.take, args.due)
            ]  # fmt: skip
            rows = best_of(rounds)
    except KeyboardInterrupt:
        rows = journal.all_rows(journal.rows)
        write(rows, args.csv)
        _say(f"interrupted: {args.csv} has the {len(rows)} rows made so far. The same command goes on from here.")
        return INTERRUPTED, []
    write(rows, args.csv)
    journal.end()
    _say(f"{args.csv}: {len({row.student for row in rows})} students, {len(rows)} rows. --seed {seed} repeats it.")
    return 0, rows


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into KeyboardInterrupt, and let the rest of them pass: somebody tidies up."""
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


def _say(line: str) -> None:
    with suppress(OSError):  # whoever read it has gone; the grading goes on
        print(visible(line), file=sys.stderr, flush=True)
