"""The making of a passport: every item in a process that may hang or die, every line on the disk at once.

Invariant: a line that was written stays, whatever comes after; an item takes ITEM_SECONDS at most, and one that breaks
its process costs its own line. The last line names what is missing.

Protocol of that process, `python -m labkit.gpu.passport.make DEVICE [quick]`: it sends {"items": [[name, kind], ...]};
then, for each line {"item": name, "seconds": limit} of standard input, the item's line. What anything prints goes to
standard error, so that standard output holds answers alone.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import torch

import labkit
from labkit.gpu.checks.measure import release_memory
from labkit.gpu.passport.items import TIMING, Item, catalogue
from labkit.records import linux, now, system, versions, write_line

FRAMES = 12  # of a traceback, the innermost
WORDS = 2000  # letters of an error message


def main(device: str, quick: str = "") -> None:
    """Serve the catalogue of a device."""
    serve(catalogue(device, quick=bool(quick)), device)


def serve(items: Sequence[Item], device: str) -> None:
    """Run the items that standard input names, until it ends or the device's context is broken."""
    if sys.platform == "linux":
        linux.end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()

    def send(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value, default=str) + "\n")
        answers.flush()

    by_name = {item.name: item for item in items}
    send({"items": [[item.name, item.kind] for item in items]})
    for line in sys.stdin:
        request = json.loads(line)
        faulthandler.dump_traceback_later(0.9 * request["seconds"])  # what hangs says where, before it is ended
        found = answer(by_name[request["item"]], device)
        faulthandler.cancel_dump_traceback_later()
        send(found)
        if found.get("broken"):
            return


def answer(item: Item, device: str) -> dict[str, Any]:
    """Run an item and return its line.

    outcome    "done", "failed" or "out of memory"
    broken     True where the device takes no further call: the process has to be started anew
    """
    found: dict[str, Any] = {"item": item.name, "kind": item.kind}
    began = time.monotonic()
    try:
        item.run(device, found)
        _synchronize(device)
        found["outcome"] = "done"
    except Exception as error:
        found["outcome"] = "out of memory" if isinstance(error, torch.OutOfMemoryError | MemoryError) else "failed"
        found |= {"error": f"{type(error).__name__}: {error}"[:WORDS], "traceback": short_traceback(error)}
    found["seconds"] = round(time.monotonic() - began, 3)
    if found["outcome"] != "done":  # give memory back, and try the device: its context may refuse everything now
        try:
            release_memory()
            _synchronize(device)
        except RuntimeError:
            found["broken"] = True
    return found


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def short_traceback(error: BaseException) -> list[str]:
    """Return the innermost frames as "file:line, function: source", without the folders of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return [f"{without_folders(frame.filename)}:{frame.lineno}, {frame.name}: {frame.line}" for frame in frames]


def without_folders(text: str) -> str:
    """Return a text of paths without the folders that lead to a package, and without the home folder.

    >>> without_folders("somewhere/site-packages/torch/nn/functional.py")
    'torch/nn/functional.py'
    """
    inside = text.rpartition("site-packages/")[2]
    root = str(Path(__file__).parents[3]) + os.sep
    return inside.replace(root, "").replace(str(Path.home()), "~")


SCHEMA = "labkit.passport/1"
SECONDS, TIMING_SECONDS = 180.0, 120.0  # after which no further item begins: of all but timings, and of those
ITEM_SECONDS, START_SECONDS = 10.0, 90.0  # the longest of an item, and of a process's import of torch
CHECKOUT = Path(__file__).parents[3]
TAIL = 3000  # letters of what a broken process had said
Line = dict[str, Any]


class WorkerLost(RuntimeError):
    """The process of the items gave no answer: it ended, or was ended after its limit. `said`: what it had printed."""

    def __init__(self, why: str, said: str) -> None:
        super().__init__(why)
        self.said = said


class Worker:
    """A process that answers items, with a limit for each.

    Raises:
        WorkerLost: it did not begin within START_SECONDS.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this object
        paths = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = system.start_group(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.items: list[tuple[str, str]] = [(name, kind) for name, kind in self._answer(START_SECONDS)["items"]]

    def ask(self, item: str, seconds: float) -> Line:
        """Return an item's line.

        Raises:
            WorkerLost: the process ended, or took longer than that and was ended.
        """
        assert self._process.stdin is not None
        self._said.seek(0)
        self._said.truncate()
        with contextlib.suppress(OSError):  # a process that has ended is noticed by its answer
            self._process.stdin.write(json.dumps({"item": item, "seconds": seconds}) + "\n")
            self._process.stdin.flush()
        return self._answer(seconds)

    def _answer(self, seconds: float) -> Line:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            self.close()
            raise WorkerLost(f"no answer within {seconds:g} s, so its process was ended", self._tail()) from None
        except BaseException:  # Ctrl-C: no process is left behind
            self.close()
            raise
        if not line.endswith("\n"):
            status = self._process.wait()
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            self.close()
            raise WorkerLost(f"its process ended with {ended}", self._tail())
        answer: Line = json.loads(line)
        return answer

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _tail(self) -> str:
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - TAIL))
        lines = self._said.read().decode(errors="replace").splitlines()
        return "\n".join(without_folders(line) for line in lines)

    def close(self) -> None:
        """End the process and whatever it started."""
        system.end_group(self._process)
        self._process.wait()


def worker_command(device: str, *, quick: bool = False) -> list[str]:
    """Return the command of a process that serves the catalogue of a device."""
    return [sys.executable, "-m", "labkit.gpu.passport.make", device, *["quick"] * quick]


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
    """The file of a passport: lines that are on the disk when `write` returns, and what is to come."""

    def __init__(self, file: IO[str], say: Callable[[str], object]) -> None:
        self._file, self._say = file, say
        self._items: list[tuple[str, str]] = []  # name and kind

    def write(self, line: Line) -> None:
        write_line(self._file, json.dumps(line))

    def missing(self) -> list[str]:
        """Return the names of the items that have no line, in their order: by the file, whenever it was interrupted."""
        self._file.flush()
        there = {json.loads(line)["item"] for line in Path(self._file.name).read_text(encoding="utf-8").splitlines()}
        return [name for name, _ in self._items if name not in there]

    def run(self, command: Sequence[str], item_seconds: float, over: Callable[[str], bool]) -> str:
        """Write a line for each item that begins in time, and return why no further one did."""
        worker: Worker | None = None
        before = ""
        try:
            worker = Worker(command)
            self._items = worker.items
            for name, kind in self._items:
                if over(kind):
                    continue  # a timing has more time than the item before it
                if kind != before:
                    self._say(f"{kind}: {sum(each == kind for _, each in self._items)} items")
                    before = kind
                if worker is None:
                    worker = Worker(command)
                try:
                    line = worker.ask(name, item_seconds)
                except WorkerLost as lost:
                    line = {"item": name, "kind": kind, "outcome": "process lost"}
                    line |= {"error": str(lost), "said": lost.said}
                self.write(line)
                if line["outcome"] == "process lost" or line.get("broken"):
                    worker.close()
                    worker = None
                if line["outcome"] != "done":
                    self._say(f"  {name}: {line['outcome']}, {line.get('error', '')[:120]}")
        except WorkerLost as lost:
            self.write({"item": "process", "kind": "facts", "outcome": "failed", "error": str(lost), "said": lost.said})
            return f"no process for the items could be started: {lost}"
        finally:
            if worker is not None:
                worker.close()
        return "the time was up" if self.missing() else "complete"


if __name__ == "__main__":
    main(*sys.argv[1:])
