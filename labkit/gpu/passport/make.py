"""Writer of a passport: each item runs in a process that may fail, each line is saved at once.

The parts of `labkit gpu` write their items in the same way.

Invariant: a line that was written stays, whatever happens later. Every item has a time limit, and
an item that breaks its process affects only its own line. The last line names the missing items.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import labkit
from labkit.gpu.worker import Kind, Line, WorkerLost, WorkerProcess
from labkit.records import now, versions, write_line

SCHEMA = "labkit.passport/1"
# Seconds after which no further item begins. Timings come last and have further seconds.
SECONDS = 180.0
TIMING_SECONDS = 120.0
# The time limit of one item.
ITEM_SECONDS = 10.0


def make(
    path: Path,
    command: Sequence[str],
    *,
    seconds: float = SECONDS,
    timing_seconds: float = TIMING_SECONDS,
    item_seconds: float = ITEM_SECONDS,
    say: Callable[[str], object] = lambda line: None,
) -> str:
    """Write a passport and return how it ended.

    Args:
        path: a new file.
        command: command of a process that serves the items, as
            `labkit.gpu.catalogue.worker_command` returns it.
        seconds: time after which no further item begins, except timings.
        timing_seconds: further time for the timings, which come last.
        item_seconds: time limit of an item; beyond it, its process is ended, and the next item gets
            another.
        say: called with each line for people.

    Returns:
        "complete", "the time was up", "interrupted", or why no item can run.

    Raises:
        FileExistsError: the file exists already; it is not changed.
        OSError: the file cannot be written.
    """
    with path.open("x", encoding="utf-8") as file:
        line: Line = {}
        for line in lines(file, command, seconds, seconds + timing_seconds, item_seconds, say):
            if line["item"] not in ("start", "end") and line["outcome"] != "done":
                say(f"  {line['item']}: {line['outcome']}, {line['error'][:120]}")
    return str(line["outcome"])


def lines(
    file: IO[str],
    command: Sequence[str],
    seconds: float,
    timing_seconds: float,
    item_seconds: float = math.inf,
    say: Callable[[str], object] = lambda line: None,
    keep: Callable[[Line], Line] = lambda line: line,
    grace: float = 0.0,
) -> Iterator[Line]:
    """Write each line of a passport, and yield it once it is on the disk.

    The last line says how the passport ended.

    Args:
        file: where the lines are written.
        command: command of a process that serves the items, as
            `labkit.gpu.catalogue.worker_command` returns it.
        seconds: time after which no further item begins, except timings.
        timing_seconds: time after which no further timing begins, from the same start.
        item_seconds: time limit of an item; every item also ends `grace` after `timing_seconds`.
        say: called with each line for people.
        keep: returns the part of an item's line that is saved.
        grace: seconds that the last item may take beyond the limits.
    """
    passport = _Passport(file, seconds, timing_seconds)
    end = "interrupted"
    worker: WorkerProcess | None = None
    software = {"labkit": labkit.__version__, **versions()}
    yield passport.write(
        {"item": "start", "kind": Kind.FACTS, "schema": SCHEMA, "date": now(), **software}
    )
    try:
        worker = WorkerProcess(command)
        passport.items = worker.items
        kind_before = ""
        for name, kind in passport.items:
            # A later timing may have time left.
            if passport.seconds_left(kind) < 0:
                continue
            if kind != kind_before:
                say(f"{kind}: {sum(each == kind for _, each in passport.items)} items")
                kind_before = kind
            if worker.ended:
                worker = WorkerProcess(command)
            limit = min(item_seconds, max(1.0, passport.seconds_left(Kind.TIMING) + grace))
            yield passport.write(keep(worker.ask(name, kind, limit)))
        end = "the time was up" if passport.missing() else "complete"
    except WorkerLost as lost:
        end = f"no process for the items could be started: {lost}"
        yield passport.write(
            {
                "item": "process",
                "kind": Kind.FACTS,
                "outcome": "failed",
                "error": str(lost),
                "said": lost.output,
            }
        )
    except KeyboardInterrupt:
        say("interrupted; what is done is in the file")
    finally:
        if worker is not None:
            worker.close()
        # The file ends with its last line also after an exception in the consumer.
        last = passport.write_end(end)
    yield last


class _Passport:
    """The file of a passport while it is written.

    Args:
        file: where the lines are written.
        seconds: time after which no further item begins, except timings.
        timing_seconds: time after which no further timing begins, from the same start.

    Attributes:
        items: (name, kind) of each item that shall be written.
    """

    def __init__(self, file: IO[str], seconds: float, timing_seconds: float) -> None:
        self.items: list[tuple[str, str]] = []
        self._file = file
        self._seconds = seconds
        self._timing_seconds = timing_seconds
        self._start = time.monotonic()
        self._written: set[str] = set()

    def write(self, line: Line) -> Line:
        """Write a line to the disk, and return it."""
        write_line(self._file, json.dumps(line))
        self._written.add(line["item"])
        return line

    def write_end(self, outcome: str) -> Line:
        """Write the last line, and return it."""
        return self.write(
            {
                "item": "end",
                "kind": Kind.FACTS,
                "outcome": outcome,
                "missing": self.missing(),
                "seconds": round(time.monotonic() - self._start, 1),
            }
        )

    def missing(self) -> list[str]:
        """Return the names of the items that are not written."""
        return [name for name, _ in self.items if name not in self._written]

    def seconds_left(self, kind: str) -> float:
        """Return the time until no further item of a kind begins; negative after it."""
        limit = self._timing_seconds if kind == Kind.TIMING else self._seconds
        return limit - (time.monotonic() - self._start)
