"""Items that a process runs one by one, so that a crash or hang loses only its own line.

Protocol of that process: it sends {"items": [[name, kind], ...]}; then, for each line {"item":
name, "seconds": limit} of standard input, the item's line. Whatever items print goes to standard
error, so that standard output holds only answers.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
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

from labkit.processes import LineProcess, die_with_parent, signal_name

# An item's answer, a JSON object; its keys depend on the kind, its values are plain.
Line = dict[str, Any]
CHECKOUT = Path(__file__).parents[2]
# The limit from a process's start to its first line; it imports torch.
START_SECONDS = 90.0
# The limit from a process's last answer to its end.
END_SECONDS = 5.0
# The innermost frames of a traceback that are kept.
FRAMES = 12
# The largest number of characters of an error message.
ERROR_LENGTH = 2000
# The last characters of a broken process's output that are kept.
TAIL = 3000


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
    """A measurement or a check whose answer is one line.

    Attributes:
        name: unique.
        kind: what its line holds.
        run: (device, found): fills `found` with plain values, or raises; the values until then stay
            in the line. found["summary"] is the text for people.
    """

    name: str
    kind: Kind
    run: Callable[[str, Line], None]


def answer(item: Item, device: str) -> Line:
    """Run an item and return its line.

    The line's `outcome` is "done", "failed" or "out of memory". Its `broken` is True if the device
    refuses further calls, so that the process has to be restarted.
    """
    found: Line = {"item": item.name, "kind": item.kind}
    began = time.monotonic()
    try:
        item.run(device, found)
        synchronize(device)
        found["outcome"] = "done"
    except Exception as error:
        found["outcome"] = "failed"
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            found["outcome"] = "out of memory"
        found["error"] = f"{type(error).__name__}: {error}"[:ERROR_LENGTH]
        found["traceback"] = short_traceback(error)
    found["seconds"] = round(time.monotonic() - began, 3)
    # an error may leave a CUDA context that refuses every further call: try one
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
    """Release device memory that nothing uses, reference cycles included."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reason(error: Exception) -> str:
    """Return the type of an exception and the first line of its message, at most 200 characters.

    >>> reason(RuntimeError("expected scalar type Half but found Float"))
    'RuntimeError: expected scalar type Half but found Float'
    """
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"[:200]


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
    # with the separator, since the folder of another user can begin with the name of this one
    home = f"{Path.home()}{os.sep}"
    return inside.replace(f"{CHECKOUT}{os.sep}", "").replace(home, f"~{os.sep}")


def serve(items: Sequence[Item], device: str) -> None:
    """Run the items that standard input names, until it ends or the device's context is broken."""
    die_with_parent()
    if device == "cpu":
        # a dry run is small: a second thread would cost more than it saves
        torch.set_num_threads(1)
    # answers go to the original standard output; descriptor 1 becomes standard error, so that no
    # print, also of a C library, gets between them
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
        # an item that hangs prints where, shortly before its process is ended
        faulthandler.dump_traceback_later(0.9 * request["seconds"])
        found = answer(by_name[request["item"]], device)
        faulthandler.cancel_dump_traceback_later()
        send(found)
        if found.get("broken"):
            return


class WorkerLost(RuntimeError):
    """The process of the items ended without a result, or was killed at its limit.

    Args:
        why: what happened to the process.
        output: the end of the process's standard error.
    """

    def __init__(self, why: str, output: str) -> None:
        super().__init__(why)
        self.output = output


class WorkerProcess:
    """A process that runs items one by one, with a time limit for each.

    Attributes:
        items: name and kind of each item of the process.
        ended: whether the process takes no further items.

    Raises:
        WorkerLost: the process did not list its items within START_SECONDS.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.ended = False
        self._stderr = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with this object
        self._process = LineProcess(command, stderr=self._stderr, env=environment())
        first_line = self._answer(START_SECONDS)
        self.items: list[tuple[str, str]] = [(name, kind) for name, kind in first_line["items"]]

    def ask(self, item: str, kind: str, seconds: float) -> Line:
        """Run an item and return its line; end the process if it takes longer than `seconds`.

        If the process was lost, the line's outcome is "process lost".
        """
        # output of earlier items does not belong to this one
        self._stderr.seek(0)
        self._stderr.truncate()
        # a process that has ended is noticed when its answer is read
        self._process.tell(json.dumps({"item": item, "seconds": seconds}))
        try:
            line = self._answer(seconds)
        except WorkerLost as lost:
            line = {
                "item": item,
                "kind": kind,
                "outcome": "process lost",
                "error": str(lost),
                "said": lost.output,
            }
        if line["outcome"] == "process lost" or line.get("broken"):
            self.close()
        return line

    def _answer(self, seconds: float) -> Line:
        try:
            line = self._process.read_line(seconds)
        except BaseException:
            # also on Ctrl-C, no process is left behind
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
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - TAIL))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return "\n".join(without_folders(line) for line in lines)

    def close(self) -> None:
        """End the process and its children."""
        self.ended = True
        self._process.end()


def how_it_ended(status: int | None) -> str:
    """Describe the end of a process that stopped answering, by its exit status.

    The status is negative if a signal ended it, and None if it was still running.

    >>> how_it_ended(7), how_it_ended(-6), how_it_ended(None)
    ('ended with status 7',
     'ended with SIGABRT',
     'closed its answers without an end, so it was ended')
    """
    if status is None:
        return "closed its answers without an end, so it was ended"
    if status < 0:
        return f"ended with {signal_name(-status)}"
    return f"ended with status {status}"


def environment() -> dict[str, str]:
    """Return the environment in which a Python process finds this lab."""
    paths = str(CHECKOUT)
    if os.environ.get("PYTHONPATH"):
        paths += os.pathsep + os.environ["PYTHONPATH"]
    return {**os.environ, "PYTHONPATH": paths}


def why_no_checks(checkout: Path = CHECKOUT) -> str:
    """Return why the checks, which are tests of a checkout, cannot be run here; "" if they can."""
    if not (checkout / "tests" / "gpu" / "checks").is_dir():
        return (
            "The checks need a checkout of the lab and are left out; records, measurements and "
            "passports do not need one."
        )
    if find_spec("pytest") is None:
        return "The checks need pytest (pip install pytest) and are left out; all else runs."
    return ""
