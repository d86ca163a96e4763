"""The grader's side of the sandbox: it starts the server, sends submissions, receives replies.

Learners' code always has limits of CPU time, memory and processes. On Linux it also has files,
processes and a network of its own, and where root grades a user of its own.
`labkit.grading.sandbox.isolation` tests at the start which of these the machine provides.

On every system, answers are only data: cases are drawn and judged in the grader, output is limited
to 8 MiB, and a failure costs the exercise at which it happens. Elsewhere than on Linux the code can
read and write whatever the user who grades can; docker/grader is a container with full isolation.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import pickle
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
from labkit.grading.sandbox.limits import remove_groups_of_the_dead
from labkit.grading.sandbox.supervisor import Isolation, Reply, Worker, supervise
from labkit.grading.sandbox.worker import Limits, Request, tensor_of
from labkit.processes import LineProcess, kill_group, start_group
from labkit.records import data_folder

STARTING_SECONDS = 120.0
ENDING_SECONDS = 20.0
# The most bytes that are read of a worker at once if it ends no line.
PIECE = 1 << 20
SERVER = Path(__file__).with_name("server.py")
# Messages of the server and to it; see server.py, which is a program and cannot be imported here.
READY = b"ready\n"
PLAIN_JOB = b"."
OPTIMIZER_JOB = b"o"
# On other systems, each submission has a process that is started for it (`Spawned`).
FORKS = sys.platform == "linux"
# The number of users for submissions, from labkit.grading.sandbox.isolation.FIRST_USER on.
USERS = 4096
# Variables that the server inherits.
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG", "LC_ALL")


class NotStarted(RuntimeError):
    """The sandbox does not start, for any submission."""


class Runner:
    """A sandbox that runs the requests of submissions. Several threads may use it at once.

    Args:
        limits: The limits of learners' code.
        folder: A folder for the files of the server, as `scratch` provides it.

    Raises:
        NotStarted: If the server cannot load torch and labkit, or cannot set up the isolation.
    """

    def __init__(self, limits: Limits, folder: Path) -> None:
        self.limits = limits
        self.isolation = Isolation()
        self.folder = folder
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._numbers = itertools.count()
        self._open: set[socket.socket] = set()
        self._one_at_a_time = threading.Lock()
        if FORKS:
            remove_groups_of_the_dead()
            self._control, theirs = socket.socketpair()
            with theirs, (folder / "errors").open("ab") as errors:
                self._server = start_group(
                    [sys.executable, str(SERVER), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    cwd=folder,
                    env=environment(folder),
                    pass_fds=(theirs.fileno(),),
                )
            self._control.settimeout(STARTING_SECONDS)
            with contextlib.suppress(TimeoutError):
                if self._control.recv(len(READY), socket.MSG_WAITALL) == READY:
                    return
            self.close()
            raise NotStarted(f"the sandbox does not start:\n{_errors(folder)}")

    def run(self, requests: Sequence[Request], limits: Limits | None = None) -> dict[str, Reply]:
        """Return one reply for each request, by exercise."""
        replies: dict[str, Reply] = {}
        limits = limits or self.limits
        if self._control is None:
            start_worker = partial(Spawned, limits=limits, folder=self.folder)
            supervise(
                requests,
                limits,
                start_worker,
                lambda reply: replies.update({reply.exercise: reply}),
            )
            return replies
        # A supervisor that is killed leaves requests without a reply, which are sent again.
        left = list(requests)
        while left:
            before = len(replies)
            for reply in self._replies(self._control, left, limits):
                replies[reply.exercise] = reply
            if len(replies) == before:
                # The first request killed the supervisor.
                first = left[0].exercise
                note = "no answer: the process that supervises the code was killed"
                replies[first] = Reply(first, note)
            left = [request for request in requests if request.exercise not in replies]
        return replies

    def _replies(
        self, control: socket.socket, requests: Sequence[Request], limits: Limits
    ) -> Iterator[Reply]:
        """Send requests to a new supervisor, and yield its replies until it ends."""
        isolation = self.isolation
        # Limits of resources are per user, so concurrent submissions have different users.
        if isolation.user is not None:
            isolation = replace(isolation, user=isolation.user + next(self._numbers) % USERS)
        ours, theirs = socket.socketpair()
        self._open.add(ours)
        message = OPTIMIZER_JOB if any(map(_optimizes, requests)) else PLAIN_JOB
        try:
            with ours, ours.makefile("rb") as stream:
                with theirs, self._one_at_a_time:
                    try:
                        socket.send_fds(control, [message], [theirs.fileno()])
                    except OSError as error:
                        errors = _errors(self.folder)
                        raise NotStarted(f"the sandbox has ended:\n{errors}") from error
                ours.sendall(packed((requests, limits, isolation)))
                for line in stream:
                    if not line.startswith(b"{"):
                        raise NotStarted(line.decode(errors="replace").strip())
                    # The supervisor was killed while it wrote this line.
                    if not line.endswith(b"\n"):
                        break
                    yield Reply(**json.loads(line))
        finally:
            self._open.discard(ours)

    def close(self) -> None:
        """End all processes. Supervisors kill their workers when their connection closes."""
        connections = list(self._open)
        if self._control is not None:
            connections.append(self._control)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout=ENDING_SECONDS)
            kill_group(self._server)
            self._server.wait()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Provide a temporary folder that other users may pass through but not list."""
    with tempfile.TemporaryDirectory(
        prefix="labkit-grading-", ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def environment(folder: Path) -> dict[str, str]:
    """Return the minimal environment of a server that runs in this folder."""
    python_path = str(Path(__file__).parents[3])
    if os.environ.get("PYTHONPATH"):
        python_path += os.pathsep + os.environ["PYTHONPATH"]
    inherited = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return inherited | {
        "PYTHONPATH": python_path,
        "PYTHONUSERBASE": site.getuserbase(),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "LABKIT_DATA": str(data_folder()),
        COURSE: os.environ.get(COURSE, ""),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


class Spawned(Worker):
    """A worker on systems without fork: a process that loads torch and labkit itself.

    Elapsed time is limited instead of CPU time, and memory is limited for each process alone.
    """

    def __init__(self, requests: Sequence[Request], limits: Limits, folder: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True)
        place = Path(self._folder.name)
        with (place / "requests").open("w+b") as file, (place / "errors").open("ab") as errors:
            file.write(packed((requests, limits)))
            file.seek(0)
            self._process = LineProcess(
                [sys.executable, str(SERVER)],
                stdin=file,
                stderr=errors,
                longest_line=PIECE,
                cwd=place,
                env=environment(place),
            )
        if self.read(STARTING_SECONDS) != READY:
            self.end()
            raise NotStarted(f"the sandbox does not start:\n{_errors(place)}")

    def read(self, seconds: float) -> bytes | None:
        return self._process.read_line(seconds)

    def end(self) -> int | None:
        # The channel of a process may close just before the process ends.
        code = self._process.end(1.0)
        self._folder.cleanup()
        return code


def _optimizes(request: Request) -> bool:
    """Return whether a program may make an optimizer, by its text."""
    return request.run_by is not None or any("optim" in source for source in request.program)


class _Pickler(pickle.Pickler):
    """A pickler that writes a module as its name, and a plain tensor as its bytes.

    For tensors, it is ten times as fast as torch's own pickling.
    """

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, ModuleType):
            return importlib.import_module, (obj.__name__,)
        # torch's own classes and subclasses with more state are pickled as torch does it.
        if type(obj) is not torch.Tensor or obj.requires_grad:
            return NotImplemented
        if obj.is_contiguous() and obj.numel():
            content = obj.reshape(-1).view(torch.uint8).numpy().tobytes()
            return tensor_of, (content, obj.dtype, tuple(obj.shape))
        return NotImplemented


def packed(content: object) -> bytes:
    """Return the pickle of content for the sandbox. The grader unpickles nothing from there."""
    stream = io.BytesIO()
    _Pickler(stream).dump(content)
    return stream.getvalue()


def _errors(folder: Path) -> str:
    """Return the last lines that a server wrote to its standard error."""
    with contextlib.suppress(OSError):
        return (folder / "errors").read_text(errors="replace")[-2000:]
    return ""
