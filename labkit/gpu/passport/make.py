"""The writer of a passport: each item runs in a process that may hang or die, each line is saved at once.

The parts of `labkit gpu` write their items in the same way.

Invariant: a line that was written stays, whatever comes after; an item has a time limit, and one that breaks its
process costs its own line. The last line names what is missing.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import labkit
from labkit.gpu.measure import TIMING
from labkit.gpu.parts import CHECKED, Job
from labkit.gpu.worker import Line, WorkerLost, WorkerProcess, why_no_checks
from labkit.records import now, versions, write_line

SCHEMA = "labkit.passport/1"
# after which no further item begins: of all but timings, and of those
SECONDS, TIMING_SECONDS = (180.0, 120.0)
ITEM_SECONDS = 10.0  # the longest of an item


def worker_command(job: Job) -> list[str]:
    """Return the command of a process that serves the items of a job, with the checks of a checkout."""
    checked = job.part in ("", *CHECKED) and not why_no_checks()
    module = "tests.gpu.checks" if checked else "labkit.gpu.passport.items"
    return [
        sys.executable,
        "-m",
        module,
        job.device,
        job.part,
        "quick" * job.quick,
        f"{job.until:.1f}",
        f"{job.folder}",
    ]


def make(
    path: Path,
    command: Sequence[str],
    *,
    seconds: float = SECONDS,
    timing_seconds: float = TIMING_SECONDS,
    item_seconds: float = ITEM_SECONDS,
    say: Callable[[str], object] = lambda line: None,
) -> str:
    """Write a passport; return how it ended: "complete", "the time was up", "interrupted", or why no item can run.

    Args:
        path: a new file.
        command: what serves the items, as `worker_command`.
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
    """Write each line of a passport, and yield it once it is on the disk; the last one says how it ended.

    Args:
        file: where the lines are written.
        command: what serves the items, as `worker_command`.
        seconds: after which no further item begins.
        timing_seconds: after which no further timing begins.
        item_seconds: the limit of an item, after which its process is ended; it also ends with the
            last of the two.
        say: called with each line for people.
        keep: returns what is saved of an item's line.
        grace: seconds that the last item may take beyond the limits.
    """
    began, before, end = time.monotonic(), "", "interrupted"
    items: list[tuple[str, str]] = []  # names and kinds
    worker: WorkerProcess | None = None

    def write(line: Line) -> Line:
        write_line(file, json.dumps(line))
        return line

    def missing() -> list[str]:
        there = {
            json.loads(line)["item"]
            for line in Path(file.name).read_text(encoding="utf-8").splitlines()
        }
        return [name for name, _ in items if name not in there]

    def seconds_left(kind: str = TIMING) -> float:
        return (timing_seconds if kind == TIMING else seconds) - (time.monotonic() - began)

    software = {"labkit": labkit.__version__, **versions()}
    yield write({"item": "start", "kind": "facts", "schema": SCHEMA, "date": now(), **software})
    try:
        worker = WorkerProcess(command)
        items = worker.items
        for name, kind in items:
            if seconds_left(kind) < 0:
                continue  # a timing has more time than the item before it
            if kind != before:
                say(f"{kind}: {sum(each == kind for _, each in items)} items")
                before = kind
            worker = WorkerProcess(command) if worker.ended else worker
            yield write(
                keep(worker.ask(name, kind, min(item_seconds, max(1.0, seconds_left() + grace))))
            )
        end = "the time was up" if missing() else "complete"
    except WorkerLost as lost:
        end = f"no process for the items could be started: {lost}"
        yield write(
            {
                "item": "process",
                "kind": "facts",
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
                "kind": "facts",
                "outcome": end,
                "missing": missing(),
                "seconds": round(time.monotonic() - began, 1),
            }
        )
    yield last
