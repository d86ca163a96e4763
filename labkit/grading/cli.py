"""The grading behind `labkit grade SUBMISSIONS --csv grades.csv`.

All students get the same cases, drawn from a seed that is reported at the end: with the same seed, grading again writes
the same bytes. A broken submission has rows like the others, with a reason.

Invariant: the file of grades is written atomically, and no row that was produced is lost (labkit.grading.results),
whether the grading ends, is interrupted or is killed.
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

from labkit.grading.batch import grade
from labkit.grading.plan import attempts
from labkit.grading.results import GradeRow, GradingLog, best_of, visible, write
from labkit.grading.sandbox.runner import NotStarted
from labkit.grading.sandbox.worker import Limits
from labkit.grading.submission import Submission, find, hard_linked
from labkit.records import exclusive_lock, linux

INTERRUPTED = 130


def grade_class(args: argparse.Namespace, refused: Mapping[Path, str] | None = None) -> tuple[int, list[GradeRow]]:
    """Grade and write the file; return the exit status and the rows of a completed grading.

    The status is 2 if nothing can be graded, 130 after an interrupt.

    refused   what archives hold and could not be unpacked, as labkit.grading.submission.find takes it
    """
    try:
        submissions = find(args.submissions, refused)
        if not submissions:
            raise FileNotFoundError(f"no notebook (.ipynb) in {', '.join(map(str, args.submissions))}")
        if not args.csv.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {args.csv.parent} to write {args.csv.name} into")
        for group in hard_linked(submissions):
            _print(f"several learners handed in one file (hard links): {', '.join(str(one.path) for one in group)}")
        with exclusive_lock(args.csv):
            return _grade(args, submissions)
    except (OSError, NotStarted) as error:
        _print(f"labkit grade: {error}")
        return 2, []


def _grade(args: argparse.Namespace, submissions: list[Submission]) -> tuple[int, list[GradeRow]]:
    """Resume the log of an earlier grading or begin one; in any case write the rows that were produced."""
    settings = {"seed": args.seed, "lesson": args.lesson, "seconds": args.seconds, "memory": args.memory}
    earlier = args.csv.with_name(f"{args.csv.name}.kept") if args.changed else None
    path = args.csv.with_name(f"{args.csv.name}.part")
    log = GradingLog(path, settings, earlier)
    if log.rows:
        origin = "where a grading was interrupted" if path.is_file() else "with the last grading"
        _print(f"going on {origin}, after {len(log.rows)} notebooks")
    seed = log.settings["seed"] if isinstance(log.settings["seed"], int) else secrets.randbits(32)
    log.begin(seed)
    limits = Limits(args.seconds, args.memory << 20)
    torch.set_num_threads(1)
    linux.protect_memory()
    try:
        with _interruptible():
            rounds = [
                grade(
                    attempt, seed, limits, lesson=args.lesson, workers=args.workers, progress=_print, log=log,
                    output=args.csv.parent,
                )
                for attempt in attempts(submissions, args.take, args.due)
            ]  # fmt: skip
            rows = best_of(rounds)
    except KeyboardInterrupt:
        rows = log.all_rows(log.rows)
        write(rows, args.csv)
        _print(f"interrupted: {args.csv} has the {len(rows)} rows made so far. The same command goes on from here.")
        return INTERRUPTED, []
    write(rows, args.csv)
    log.end()
    _print(f"{args.csv}: {len({row.student for row in rows})} students, {len(rows)} rows. --seed {seed} repeats it.")
    return 0, rows


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first SIGTERM or SIGINT into KeyboardInterrupt, and ignore further ones during the cleanup."""
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
    with suppress(OSError):  # the reader of a pipe has gone; grading continues
        print(visible(line), file=sys.stderr, flush=True)
