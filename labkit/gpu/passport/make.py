"""Writer of a passport: each item runs in a process that may fail, each line is saved at once.

The parts of `labkit gpu` write their items in the same way.

Invariant: a line that was written stays, whatever comes after; an item has a time limit, and one
that breaks its process costs its own line. The last line names what is missing.
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
# after which no further item begins: of all but timings, and of those
SECONDS, TIMING_SECONDS = (180.0, 120.0)
ITEM_SECONDS = 10.0  # the longest of an item


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

    It is "complete", "the time was up", "interrupted", or why no item can run.

    Args:
        path: a new file.
        command: what serves the items, as `labkit.gpu.catalogue.worker_command`.
        seconds: after which no further item begins; the timings come last and have a limit of their
            own.
        timing_seconds: the limit of the timings.
        item_seconds: after which an item's process is ended, and the next item gets another.
        say: called with each line for people.

    Raises:
        FileExistsError: there is such a file; it is left as it is.
        OSError: it cannot be written.
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

    The last one says how it ended.

    Args:
        file: where the lines are written.
        command: what serves the items, as `labkit.gpu.catalogue.worker_command`.
        seconds: after which no further item begins.
        timing_seconds: after which no further timing begins.
        item_seconds: the limit of an item, after which its process is ended; it also ends with the
            last of the two.
        say: called with each line for people.
        keep: returns what is saved of an item's line.
        grace: seconds that the last item may take beyond the limits.
    """
    began = time.monotonic()
    before = ""
    end = "interrupted"
    items: list[tuple[str, str]] = []  # names and kinds
    worker: WorkerProcess | None = None

    written: set[str] = set()  # the items of lines that are on the disk

    def write(line: Line) -> Line:
        write_line(file, json.dumps(line))
        written.add(line["item"])
        return line

    def missing() -> list[str]:
        return [name for name, _ in items if name not in written]

    def seconds_left(kind: str = Kind.TIMING) -> float:
        return (timing_seconds if kind == Kind.TIMING else seconds) - (time.monotonic() - began)

    software = {"labkit": labkit.__version__, **versions()}
    yield write({"item": "start", "kind": Kind.FACTS, "schema": SCHEMA, "date": now(), **software})
    try:
        worker = WorkerProcess(command)
        items = worker.items
        for name, kind in items:
            if seconds_left(kind) < 0:
                continue  # a timing has more time than the item before it
            if kind != before:
                say(f"{kind}: {sum(each == kind for _, each in items)} items")
                before = kind
            if worker.ended:
                worker = WorkerProcess(command)
            yield write(
                keep(worker.ask(name, kind, min(item_seconds, max(1.0, seconds_left() + grace))))
            )
        end = "the time was up" if missing() else "complete"
    except WorkerLost as lost:
        end = f"no process for the items could be started: {lost}"
        yield write(
            {
                "item": "process",
                "kind": Kind.FACTS,
                "outcome": "failed",
                "error": str(lost),
                "said": lost.said,
            }
        )
    except KeyboardInterrupt:
        say("interrupted; what is done is in the file")
    finally:
        if worker is not None:
            worker.close()
        last = write(
            {
                "item": "end",
                "kind": Kind.FACTS,
                "outcome": end,
                "missing": missing(),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    yield last
