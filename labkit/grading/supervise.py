"""How is code run that nobody has read?

Idea: in a process of its own, with a limit of time per exercise and a limit of memory, in an empty folder. The
process answers one line per exercise. If it dies or hangs at one, that exercise gets the reason, and a fresh process
goes on with the next.

What this defends: the marks of the others and the run as a whole, against code that loops, eats memory, exits, prints
without end, replaces parts of torch or labkit in its own process, or writes nonsense where answers are expected. An
answer is only ever an answer: the expected ones are not computed in that process, and nothing it writes can award a
point.

What it does not: this is no sandbox. The code runs as the user who grades: it can read and write that user's files, use
the network, and leave processes behind that start others faster than they are killed. References cannot be imported
from there, but they are course material, and whoever searches the memory or the disk finds them. Grade strangers' code
in a container or a virtual machine, without network, and read the code of those whose marks matter.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.grading.child import READY
from labkit.grading.wire import Json
from labkit.records import system

STARTING_SECONDS = 120.0
MAX_LINE = 256 << 20


@dataclass(frozen=True)
class Limits:
    """seconds: per exercise, on the wall; memory: bytes beyond what torch and labkit take."""

    seconds: float = 20.0
    memory: int = 1 << 30


@dataclass(frozen=True)
class Request:
    """An exercise's id, the code to run (labkit.grading.program.program_of), and the seed of its cases."""

    exercise: str
    program: list[str]
    seed: int


@dataclass(frozen=True)
class Reply:
    """answers[check][case], or none of them and a note that says why."""

    note: str = ""
    answers: list[list[Json]] = field(default_factory=list)


class NotStarted(RuntimeError):
    """The grading process itself does not start: not the submission's fault."""


def run(requests: Sequence[Request], limits: Limits) -> dict[str, Reply]:
    """Return one reply per request, whatever the code in them does.

    Raises:
        NotStarted: torch and labkit could not be loaded in a process of their own.
    """
    replies: dict[str, Reply] = {}
    while pending := [request for request in requests if request.exercise not in replies]:
        with tempfile.TemporaryDirectory(prefix="labkit-grading-", ignore_cleanup_errors=True) as folder:
            replies |= _run_until_broken(pending, limits, Path(folder))
    return replies


def _run_until_broken(requests: Sequence[Request], limits: Limits, folder: Path) -> dict[str, Reply]:
    """Return replies up to the first that broke the process, that one included."""
    replies: dict[str, Reply] = {}
    with (folder / "errors").open("w+b") as errors, _started(requests, limits, folder, errors) as child:
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(child, lines), daemon=True).start()
        if _next(lines, STARTING_SECONDS).strip() != READY.encode():
            errors.seek(0)
            raise NotStarted(f"the grading process does not start:\n{errors.read().decode(errors='replace')[-2000:]}")
        for request in requests:
            started = time.monotonic()
            line = _next(lines, limits.seconds)
            reply = _parse(line, request)
            if reply is None:
                late = time.monotonic() - started >= limits.seconds
                why = f"stopped after {limits.seconds:g} s: an endless loop?" if late else _why_no_answer(child, line)
                return replies | {request.exercise: Reply(why)}
            replies[request.exercise] = reply
    return replies


@contextlib.contextmanager
def _started(requests: Sequence[Request], limits: Limits, folder: Path, errors: Any) -> Any:
    """Start the grading process in its own process group; at the end, whatever is left of the group is killed."""
    work = folder / "work"
    work.mkdir()
    lines = [json.dumps({**vars(request), **vars(limits)}) for request in requests]
    (folder / "requests").write_text("\n".join(lines), encoding="ascii")
    here = str(Path(__file__).parents[2])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")])),
        "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(work), "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "labkit.grading.child"]
    with (folder / "requests").open("rb") as standard_input:
        child = system.start_group(
            command,
            stdin=standard_input,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=work,
            env=environment,
        )
    try:
        yield child
    finally:
        system.end_group(child)
        child.wait()


def _listen(child: subprocess.Popen[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Pass on the child's lines; an empty one says that there will be no more."""
    assert child.stdout is not None
    with child.stdout as stream, contextlib.suppress(OSError, ValueError):
        while (line := stream.readline(MAX_LINE)).endswith(b"\n"):
            lines.put(line)
    lines.put(b"")


def _next(lines: queue.SimpleQueue[bytes], seconds: float) -> bytes:
    try:
        return lines.get(timeout=seconds)
    except queue.Empty:
        return b""


def _parse(line: bytes, request: Request) -> Reply | None:
    """Return what a line of the child says; None if it is not an answer to this request."""
    try:
        content = json.loads(line)
        if content["exercise"] != request.exercise or not isinstance(content["answers"], list):
            return None
        return Reply(str(content["note"])[:1000], content["answers"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _why_no_answer(child: subprocess.Popen[bytes], line: bytes) -> str:
    """Return why there is no answer: the process is gone, or it wrote something else."""
    if line:
        return "no answer: the code wrote into the channel of the answers"
    try:
        code = child.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return "no answer: the code closed the channel of the answers"
    if code < 0:
        return f"the code ended its process: {signal.Signals(-code).name}" + (" (out of memory?)" if code == -9 else "")
    return f"the code ended its process, with exit code {code}: os._exit?"
