"""How is code run that nobody has read?

Idea: in a process of its own, forked from one that loaded torch and labkit once (labkit.grading.given), with limits of
CPU time, memory and processes. On Linux there are walls around it: files, processes and network of its own, and a user
of its own where root grades. What is needed of them is tried at the start, by code that runs as a learner's would
(labkit.grading.walls), and the best that the machine gives is taken.

What always holds: an answer is only ever an answer. Cases are drawn and judged here; the process that runs a learner's
code gets that code and the arguments, and has no reference, no known mistake, no seed and no points in its memory. It
ends when its time is over, whatever it wrote is refused beyond 8 MiB, and the others are graded all the same.

What holds where `labkit grade` says so, and only there: references, other submissions and the grades are out of its
sight, there is no network, and nothing that it started outlives it. On Windows and macOS none of these walls stand:
there the code can read and write what the one who grades can. docker/grader has a container with all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import pickle
import queue
import site
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from labkit.course import COURSE
from labkit.grading.given.child import Limits, Question, tensor_of
from labkit.grading.given.keeper import Job, Reply, Walls, keep
from labkit.records import data_folder, system

STARTING_SECONDS, ENDING_SECONDS = 120.0, 20.0
PROGRAM = Path(__file__).parent / "given" / "__main__.py"
READY = b"ready\n"
FORKS = sys.platform == "linux"  # elsewhere each submission gets a program of its own (`Spawned`)
USERS = 4096  # from labkit.grading.walls.OWN_USER on
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL")


class NotStarted(RuntimeError):
    """The grading process itself does not start: not the submission's fault."""


class Runner:
    """Runs questions of one submission after another; several threads may ask it at once.

    Raises:
        NotStarted: torch and labkit could not be loaded in a process of their own, or its walls not be built.
    """

    def __init__(self, limits: Limits, folder: Path) -> None:
        self.limits, self.walls, self.folder = limits, Walls(), folder
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count()
        self._open, self._one_at_a_time = set[socket.socket](), threading.Lock()
        if FORKS:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._server = start(folder, str(theirs.fileno()), pass_fds=(theirs.fileno(),))
            self._control.settimeout(STARTING_SECONDS)
            with contextlib.suppress(TimeoutError):
                if self._control.recv(len(READY), socket.MSG_WAITALL) == READY:
                    return
            self.close()
            raise NotStarted(f"the grading process does not start:\n{_errors(folder)}")

    def run(self, questions: Sequence[Question], limits: Limits | None = None) -> dict[str, Reply]:
        """Return one reply per question, whatever the code in them does."""
        replies: dict[str, Reply] = {}
        limits = limits or self.limits
        if self._control is None:
            keep(questions, limits, partial(Spawned, limits=limits, folder=self.folder), lambda r: _put(replies, r))
            return replies
        while left := [question for question in questions if question.exercise not in replies]:
            before = len(replies)
            for reply in self._behind_walls(self._control, Job(left, limits, self._own_walls())):
                _put(replies, reply)
            if len(replies) == before:  # the keeper itself was ended at the first of them
                _put(replies, Reply(left[0].exercise, "no answer: the process that watches over the code was ended"))
        return replies

    def _own_walls(self) -> Walls:
        """Return walls with a user that no other submission has meanwhile: what one uses up is its own."""
        if self.walls.user is None:
            return self.walls
        return replace(self.walls, user=self.walls.user + next(self._numbers) % USERS)

    def _behind_walls(self, control: socket.socket, job: Job) -> Iterator[Reply]:
        ours, theirs = socket.socketpair()
        self._open.add(ours)
        with ours, ours.makefile("rb") as stream:
            with theirs, self._one_at_a_time:
                try:
                    socket.send_fds(control, [b"."], [theirs.fileno()])
                except OSError as error:
                    raise NotStarted(f"the grading process is gone:\n{_errors(self.folder)}") from error
            ours.sendall(packed(job))
            for line in stream:
                if not line.startswith(b"{"):
                    raise NotStarted(line.decode(errors="replace").strip())
                if not line.endswith(b"\n"):  # the keeper was ended in the middle of it
                    break
                yield Reply(**json.loads(line))
        self._open.discard(ours)

    def close(self) -> None:
        """End every process there is: keepers end what they keep when nobody listens any more."""
        for connection in [*self._open, *filter(None, [self._control])]:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout=ENDING_SECONDS)
            system.kill_group(self._server)
            self._server.wait()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Lend a folder that others may pass through, but not look into; it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="labkit-grading-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start the program of labkit.grading.given in a group of its own, in this folder, knowing little of this one."""
    here = str(Path(__file__).parents[2])
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")])),
        "PYTHONUSERBASE": site.getuserbase(), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder), "CUDA_VISIBLE_DEVICES": "", "LABKIT_DATA": str(data_folder()),
        COURSE: os.environ.get(COURSE, ""),
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **options}
    with (folder / "errors").open("ab") as errors:
        return system.start_group(
            [sys.executable, str(PROGRAM), *arguments], stderr=errors, cwd=folder, env=environment, **options
        )


class Spawned:
    """A worker where there is no fork: a program of its own, which loads everything anew."""

    def __init__(self, questions: Sequence[Question], limits: Limits, folder: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True)
        place = Path(self._folder.name)
        with (place / "questions").open("w+b") as file:
            file.write(packed((questions, limits)))
            file.seek(0)
            self._process = start(place, stdin=file, stdout=subprocess.PIPE)
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        first = self.read(STARTING_SECONDS) or b""
        if not first.startswith(READY):
            self.end()
            raise NotStarted(f"the grading process does not start:\n{_errors(place)}")
        self._chunks.put(first.removeprefix(READY)) if first != READY else None

    def read(self, seconds: float) -> bytes | None:
        """Return more of what it wrote; b"" at the end."""
        with contextlib.suppress(queue.Empty):
            return self._chunks.get(timeout=seconds)
        return None

    def cpu_seconds(self) -> float:
        """Return 0.0: elsewhere than on Linux the clock on the wall decides."""
        return 0.0

    def memory_left(self) -> int:
        """Return 1: elsewhere than on Linux each process has its own limit alone."""
        return 1

    def end(self) -> int | None:
        """Kill what is left of its group."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its channel may close a moment before it ends
            self._process.wait(timeout=1.0)
        code = self._process.poll()
        system.kill_group(self._process)
        self._process.wait()
        self._folder.cleanup()
        return code

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream, contextlib.suppress(OSError, ValueError):
            while chunk := stream.read1(1 << 20):  # type: ignore[attr-defined]
                self._chunks.put(chunk)
        self._chunks.put(b"")


class _Pickler(pickle.Pickler):
    """A pickler that writes a module as its name, and a plain tensor as its bytes, ten times as fast as torch does."""

    def reducer_override(self, thing: object) -> Any:
        if isinstance(thing, ModuleType):
            return importlib.import_module, (thing.__name__,)
        if type(thing) is torch.Tensor and not thing.requires_grad and thing.is_contiguous() and thing.numel():
            content = thing.reshape(-1).view(torch.uint8).numpy().tobytes()
            return tensor_of, (content, thing.dtype, tuple(thing.shape))
        return NotImplemented


def packed(content: object) -> bytes:
    """Return what a learner's process reads with pickle; whatever is in it comes from this side."""
    stream = io.BytesIO()
    _Pickler(stream).dump(content)
    return stream.getvalue()


def _put(replies: dict[str, Reply], reply: Reply) -> None:
    replies[reply.exercise] = reply


def _errors(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return (folder / "errors").read_text(errors="replace")[-2000:]
    return ""
