"""Items that a process runs one by one, so that a crash or hang loses only its own line.

Protocol of that process: it sends {"items": [[name, kind], ...]}; then, for each line {"item":
name, "seconds": limit} of standard input, the item's line. What anything prints goes to standard
error, so that standard output holds answers alone.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from labkit.processes import LineProcess, die_with_parent

Line = dict[str, Any]
CHECKOUT = Path(__file__).parents[2]
START_SECONDS = 90.0  # the longest of a process's import of torch
END_SECONDS = 5.0  # the longest from a process's last answer to its end
FRAMES = 12  # of a traceback, the innermost
WORDS = 2000  # letters of an error message
TAIL = 3000  # letters of what a broken process had said


class Kind(StrEnum):
    """Kind of an item: what its line holds, and so how `labkit.gpu.passport.read` judges it."""

    FACTS = "facts"
    REFUSAL = "refusal"
    TRAINING = "training"
    WAITS = "waits"
    LAUNCHES = "launches"
    AUTOCAST = "autocast"
    CAPTURE = "capture"
    # begins after all others, in seconds of its own
    TIMING = "timing"
    RANKS = "ranks"


@dataclass(frozen=True)
class Item:
    """Something to measure or to check, whose answer is one line.

    Attributes:
        name: unique.
        kind: what its line holds.
        run: (device, found): fill `found` with plain values, or raise; what was found before stays
            in the line. found["summary"] is what a person reads.
    """

    name: str
    kind: Kind
    run: Callable[[str, Line], None]


def answer(item: Item, device: str) -> Line:
    """Run an item and return its line.

    The line's `outcome` is "done", "failed" or "out of memory". Its `broken` is True if the device
    takes no further call, so that the process has to be restarted.
    """
    found: Line = {"item": item.name, "kind": item.kind}
    began = time.monotonic()
    try:
        item.run(device, found)
        synchronize(device)
        found["outcome"] = "done"
    except Exception as error:
        found["outcome"] = (
            "out of memory" if isinstance(error, torch.OutOfMemoryError | MemoryError) else "failed"
        )
        found |= {
            "error": f"{type(error).__name__}: {error}"[:WORDS],
            "traceback": short_traceback(error),
        }
    found["seconds"] = round(time.monotonic() - began, 3)
    # give memory back, and try the device: its context may refuse everything now
    if found["outcome"] != "done":
        try:
            release_memory()
            synchronize(device)
        except RuntimeError:
            found["broken"] = True
    return found


def synchronize(device: str) -> None:
    """Wait until a device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def release_memory() -> None:
    """Release the device memory of an item's leftovers, reference cycles included."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reason(error: Exception) -> str:
    """Return what an exception says, in one line with its type.

    >>> reason(RuntimeError("expected scalar type Half but found Float"))
    'RuntimeError: expected scalar type Half but found Float'
    """
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:200]


def short_traceback(error: BaseException) -> list[str]:
    """Return the innermost frames as "file:line, function: source", with short paths."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return [
        f"{without_folders(frame.filename)}:{frame.lineno}, {frame.name}: {frame.line}"
        for frame in frames
    ]


def without_folders(text: str) -> str:
    """Remove from paths the folders that lead to a package, and the home folder.

    >>> without_folders("somewhere/site-packages/torch/nn/functional.py")
    'torch/nn/functional.py'
    """
    inside = text.rpartition("site-packages/")[2]
    return inside.replace(f"{CHECKOUT}{os.sep}", "").replace(str(Path.home()), "~")


def serve(items: Sequence[Item], device: str) -> None:
    """Run the items that standard input names, until it ends or the device's context is broken."""
    die_with_parent()
    if device == "cpu":
        # a dry run is small: a second thread would cost more than it saves
        torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    faulthandler.enable()

    def send(value: Line) -> None:
        answers.write(json.dumps(value, default=str) + "\n")
        answers.flush()

    by_name = {item.name: item for item in items}
    send({"items": [[item.name, item.kind] for item in items]})
    for line in sys.stdin:
        request = json.loads(line)
        # what hangs says where, before it is ended
        faulthandler.dump_traceback_later(0.9 * request["seconds"])
        found = answer(by_name[request["item"]], device)
        faulthandler.cancel_dump_traceback_later()
        send(found)
        if found.get("broken"):
            return


class WorkerLost(RuntimeError):
    """The process of the items ended without a result, or was killed at its limit.

    `said`: its output.
    """

    def __init__(self, why: str, said: str) -> None:
        super().__init__(why)
        self.said = said


class WorkerProcess:
    """A process that answers items, with a limit for each.

    Raises:
        WorkerLost: it did not begin within START_SECONDS.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.ended = False
        self._said = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this object
        self._process = LineProcess(command, stderr=self._said, env=environment())
        self.items: list[tuple[str, str]] = [
            (name, kind) for name, kind in self._answer(START_SECONDS)["items"]
        ]

    def ask(self, item: str, kind: str, seconds: float) -> Line:
        """Return an item's line, ending the process if it takes too long.

        `ended` is true if the process takes no further items.
        """
        self._said.seek(0)
        self._said.truncate()
        # one that has ended is noticed by its answer
        self._process.tell(json.dumps({"item": item, "seconds": seconds}))
        try:
            line = self._answer(seconds)
        except WorkerLost as lost:
            line = {
                "item": item,
                "kind": kind,
                "outcome": "process lost",
                "error": str(lost),
                "said": lost.said,
            }
        if line["outcome"] == "process lost" or line.get("broken"):
            self.close()
        return line

    def _answer(self, seconds: float) -> Line:
        try:
            line = self._process.read_line(seconds)
        except BaseException:  # Ctrl-C: no process is left behind
            self.close()
            raise
        if line is None:
            self.close()
            raise WorkerLost(
                f"no answer within {seconds:g} s, so its process was ended", self._tail()
            )
        if not line.endswith(b"\n"):
            self.ended = True
            status = self._process.end(END_SECONDS)
            raise WorkerLost(f"its process {how_it_ended(status)}", self._tail())
        answer: Line = json.loads(line)
        return answer

    def _tail(self) -> str:
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - TAIL))
        lines = self._said.read().decode(errors="replace").splitlines()
        return "\n".join(without_folders(line) for line in lines)

    def close(self) -> None:
        """End the process and its children."""
        self.ended = True
        self._process.end()


def how_it_ended(status: int | None) -> str:
    """Return how a process ended that gives no further answer, by its exit status.

    >>> how_it_ended(7), how_it_ended(-6), how_it_ended(None)
    ('ended with status 7',
     'ended with SIGABRT',
     'closed its answers without an end, so it was ended')
    """
    if status is None:
        return "closed its answers without an end, so it was ended"
    return f"ended with {signal.Signals(-status).name if status < 0 else f'status {status}'}"


def environment() -> dict[str, str]:
    """Return the environment in which a Python process finds this lab."""
    paths = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths}


def why_no_checks(checkout: Path = CHECKOUT) -> str:
    """Return why the checks, tests of the checkout, cannot be run here; "" where they can."""
    if not (checkout / "tests" / "gpu" / "checks").is_dir():
        return (
            "The checks need a checkout of the lab: what is recorded, measured and written into a "
            "passport is done."
        )
    return (
        ""
        if find_spec("pytest")
        else "The checks need pytest (pip install pytest): all else is done."
    )
