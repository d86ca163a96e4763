"""The writer of a passport: each item runs in a process that may hang or die, each line is saved at once.

Invariant: a line that was written stays, whatever comes after; an item takes ITEM_SECONDS at most, and one that breaks
its process costs its own line. The last line names what is missing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import labkit
from labkit.gpu import checks
from labkit.gpu.measure import TIMING
from labkit.gpu.worker import Line, WorkerLost, ask_all
from labkit.records import now, versions, write_line

SCHEMA = "labkit.passport/1"
SECONDS, TIMING_SECONDS = 180.0, 120.0  # after which no further item begins: of all but timings, and of those
ITEM_SECONDS = 10.0  # the longest of an item


def worker_command(device: str, *, quick: bool = False) -> list[str]:
    """Return the command of a process that serves the catalogue of a device, with the checks of a checkout."""
    if checks.missing():
        return [sys.executable, "-m", "labkit.gpu.passport.items", device, *["quick"] * quick]
    return checks.command(device, quick=quick)


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
        seconds: after which no further item begins; timings, which come last, have `timing_seconds` of their own.
        item_seconds: after which an item's process is ended, and the next item gets another.
        say: called with each line for people.

    Raises:
        FileExistsError: there is such a file; it is left as it is.
        OSError: it cannot be written.
    """
    with path.open("x", encoding="utf-8") as file:
        passport = _Passport(file, say)
        began = time.monotonic()
        software = {"labkit": labkit.__version__, **versions()}
        passport.write({"item": "start", "kind": "facts", "schema": SCHEMA, "date": now(), **software})
        limits = {True: seconds + timing_seconds, False: seconds}  # by whether it is a timing
        end = "interrupted"
        try:
            end = passport.run(command, item_seconds, lambda kind: time.monotonic() - began > limits[kind == TIMING])
        except KeyboardInterrupt:
            say("interrupted; what is done is in the file")
        finally:
            passport.write({"item": "end", "kind": "facts", "outcome": end, "missing": passport.missing(),
                            "seconds": round(time.monotonic() - began, 1)})  # fmt: skip
    return end


class _Passport:
    """The file of a passport: lines are on the disk when `write` returns; the first one lists all items."""

    def __init__(self, file: IO[str], say: Callable[[str], object]) -> None:
        self._file, self._say = file, say
        self._items: list[tuple[str, str]] = []  # name and kind

    def write(self, line: Line) -> None:
        write_line(self._file, json.dumps(line))

    def missing(self) -> list[str]:
        """Return the names of the items without a line in the file, in their order."""
        self._file.flush()
        there = {json.loads(line)["item"] for line in Path(self._file.name).read_text(encoding="utf-8").splitlines()}
        return [name for name, _ in self._items if name not in there]

    def run(self, command: Sequence[str], item_seconds: float, over: Callable[[str], bool]) -> str:
        """Write a line for each item that begins in time; return the reason if an item did not."""
        before = ""

        def begins(kind: str) -> bool:
            nonlocal before
            if over(kind):
                return False  # a timing has more time than the item before it
            if kind != before:
                self._say(f"{kind}: {sum(each == kind for _, each in self._items)} items")
                before = kind
            return True

        try:
            for line in ask_all(command, self._items, lambda: item_seconds, begins):
                self.write(line)
                if line["outcome"] != "done":
                    self._say(f"  {line['item']}: {line['outcome']}, {line.get('error', '')[:120]}")
        except WorkerLost as lost:
            self.write({"item": "process", "kind": "facts", "outcome": "failed", "error": str(lost), "said": lost.said})
            return f"no process for the items could be started: {lost}"
        return "the time was up" if self.missing() else "complete"
