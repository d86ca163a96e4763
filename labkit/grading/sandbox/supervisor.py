"""Supervision of workers: time, memory and the format of their answers.

`supervise` starts a worker, a process that answers requests, and reads its channel. A worker that
dies, exceeds a limit or writes anything else loses the request it was at; a fresh worker continues
with the next. On Linux the supervisor is the first process inside the sandbox (`run_job`), so that
everything a worker started ends with it. On other systems it is a thread of the grader
(labkit.grading.sandbox.runner).

Invariant: one reply to every request, in order. Content of answers is counted here, not parsed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from labkit.grading.sandbox import descendants, namespaces
from labkit.grading.sandbox.limits import (
    address_space,
    create_control_group,
    killed_for_memory,
    resident_memory,
)
from labkit.grading.sandbox.worker import CHECK, END, NOTE, RAN, Limits, Request, answer_all
from labkit.processes import die_with_parent, signal_name

# Bytes of the answers to one exercise.
MAX_ANSWERS = 8 << 20
# The interval of the memory checks.
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Isolation:
    """The isolation of learners' code beyond limits; none by default.

    Attributes:
        namespaces: Whether it has files, processes and a network of its own.
        user: The id of the user that it runs as; None for the grader's.
        view: The files that it sees with namespaces (`namespaces.mount_private_root`).
    """

    namespaces: bool = False
    user: int | None = None
    view: Sequence[tuple[Path, bool]] = ()


@dataclass
class Reply:
    """The result of a request.

    Attributes:
        exercise: The id of the exercise.
        note: Why there are no answers, or "".
        answers: The answers to each check, as JSON; where the worker failed, those before.
        ran: Whether the exercise's cell has run.
        broken: Whether the worker ended or was killed.
        late: Whether the worker was killed after its time limit; earlier answers count.
    """

    exercise: str
    note: str = ""
    answers: list[str] = field(default_factory=list)
    ran: bool = False
    broken: bool = False
    late: bool = False


class Worker(ABC):
    """A process that answers requests.

    Attributes:
        tells_cpu: Whether the system reports its CPU time, which distinguishes waiting from
            computing.
    """

    tells_cpu = False

    @abstractmethod
    def read(self, seconds: float) -> bytes | None:
        """Return further output; b"" at its end; None if there is none within this time."""

    @abstractmethod
    def end(self) -> int | None:
        """Kill it and its descendants; return the exit code, or None if it was still running."""

    def cpu_seconds(self) -> float:
        """Return the CPU time used so far; 0.0 where the system does not report it."""
        return 0.0

    def queued_seconds(self) -> float:
        """Return how long it was ready to run while others had the processor, in seconds.

        It is 0.0 where the system does not report it.
        """
        return 0.0

    def memory_left(self) -> int:
        """Return the bytes that it and its descendants may still take.

        It is 1 where the system does not report it.
        """
        return 1

    def out_of_memory(self) -> bool:
        """Return whether the system killed one of its processes for memory.

        It is False where the system does not report it.
        """
        return False


class _BrokenWorker(Exception):
    """A worker that cannot go on; the message says why, and is empty where its exit code does."""


class _LateWorker(_BrokenWorker):
    """A worker that exceeded its time limit."""


def supervise(
    requests: Sequence[Request],
    limits: Limits,
    start: Callable[[Sequence[Request]], Worker],
    report: Callable[[Reply], None],
) -> None:
    """Report a reply to each request, in order; `start` starts a worker for those that are left."""
    left = list(requests)
    while left:
        worker = start(left)
        unread = bytearray()
        try:
            while left:
                reply = Reply(left[0].exercise)
                report(_read_reply(worker, unread, limits, reply))
                left.pop(0)
        except _BrokenWorker as broken:
            note = str(broken)
            if not note:
                code = worker.end()
                note = _memory_note(limits) if worker.out_of_memory() else _exit_note(code)
            report(replace(reply, note=note, broken=True, late=isinstance(broken, _LateWorker)))
            left.pop(0)
        finally:
            worker.end()


def _read_reply(worker: Worker, unread: bytearray, limits: Limits, reply: Reply) -> Reply:
    """Fill in a reply from the lines of a worker, up to the one that ends the request."""
    cpu = worker.cpu_seconds()
    queued = worker.queued_seconds()
    started = time.monotonic()
    size = 0
    while True:
        if (end := unread.find(b"\n")) >= 0:
            kind = bytes(unread[:1])
            content = unread[1:end].decode("ascii", "replace")
            del unread[: end + 1]
            if kind == END and content == json.dumps(reply.exercise):
                # the system may have ended a child only, and the others go on
                if worker.out_of_memory():
                    raise _BrokenWorker(_memory_note(limits))
                return reply
            if kind == CHECK:
                reply.answers.append(content)
            elif kind == RAN:
                reply.ran = True
            else:
                reply.note = _note(kind, content)
        elif size > MAX_ANSWERS:
            raise _BrokenWorker(f"no answer: the output has more than {MAX_ANSWERS >> 20} MiB")
        elif worker.memory_left() <= 0:
            raise _BrokenWorker(_memory_note(limits))
        else:
            # a busy machine takes nothing from what an answer may take
            elapsed = time.monotonic() - started - (worker.queued_seconds() - queued)
            used = worker.cpu_seconds() - cpu if worker.tells_cpu else None
            left = _seconds_left(limits, used, elapsed)
            more = worker.read(min(left, POLL_SECONDS))
            if more == b"":
                raise _BrokenWorker
            unread += more or b""
            size += len(more or b"")


def _note(kind: bytes, content: str) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        if kind == NOTE:
            return str(json.loads(content))[:1000]
    raise _BrokenWorker("no answer: the code wrote into the channel of the answers")


def _memory_note(limits: Limits) -> str:
    return f"stopped: its processes took more than {limits.memory >> 20} MiB of memory together"


def _seconds_left(limits: Limits, cpu: float | None, elapsed: float) -> float:
    """Return how many seconds a worker may still run.

    Args:
        limits: The limits of the worker.
        cpu: Seconds of CPU time that it used; None where unknown.
        elapsed: Seconds since it began, without those in which it could run and others did.

    Raises:
        _LateWorker: it exceeded a limit; the message says whether it waits, where that is known.
    """
    used = cpu or 0.0
    if used >= limits.seconds:
        raise _LateWorker(f"stopped after {limits.seconds:g} s of CPU time")
    if elapsed >= limits.wall_seconds:
        why = "it waits for something"
        if cpu is None:
            why = "it loops without end, or waits for something"
        elif used >= limits.seconds / 2:
            why = "it computes, on a machine that is too busy"
        raise _LateWorker(f"stopped after {limits.wall_seconds:g} s: {why}")
    return min(limits.seconds - used, limits.wall_seconds - elapsed) + 0.01


def _exit_note(code: int | None) -> str:
    if code is None:
        return "no answer: the code closed the channel of the answers"
    if code < 0:
        name = signal_name(-code)
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the code ended its process: {name}{hint}"
    return f"the code ended its process, with exit code {code}: os._exit?"


# --- Linux: processes forked from the server ---


def run_job(grader: socket.socket) -> None:
    """Receive a job, isolate this process, and send a line of JSON for each reply.

    It does not return.
    """
    with grader.makefile("rb") as stream:
        requests, limits, isolation = cast(
            "tuple[Sequence[Request], Limits, Isolation]", pickle.load(stream)
        )
    die_with_parent()
    used = address_space()
    group = _ControlGroup(limits)
    if isolation.namespaces:
        namespaces.unshare_namespaces()
        if first := os.fork():
            grader.close()
            os.waitpid(first, 0)
            group.remove()
            os._exit(0)
        die_with_parent()
        namespaces.mount_private_root(isolation.view)
    else:
        descendants.adopt_orphans()
    namespaces.protect_memory()
    # the limit would count the user's other processes
    if not isolation.namespaces and isolation.user is None:
        limits = replace(limits, processes=0)
    start = partial(
        Forked, limits=limits, user=isolation.user, used=used, grader=grader, group=group
    )
    try:
        supervise(
            requests,
            limits,
            start,
            lambda reply: grader.sendall(json.dumps(asdict(reply)).encode() + b"\n"),
        )
    finally:
        # With namespaces, the process outside removes it as well, after this one has ended.
        group.remove()
    os._exit(0)


class _ControlGroup:
    """A control group that limits a submission's memory as a whole, if this user may create one.

    Otherwise `Forked.memory_left` is checked ten times a second. The group is held by open files,
    since the process that removes it no longer sees the system's files.
    """

    def __init__(self, limits: Limits) -> None:
        files: list[Path] = []
        with contextlib.suppress(OSError):
            files = create_control_group(
                f"labkit/grading-{os.getpid()}", limits.memory + resident_memory()
            )
        self._entries = [os.open(file, os.O_WRONLY) for file in files]
        self._events = -1
        for file in files[:1]:
            group = file.parent
            # version 2: the system ends all of its processes together
            with contextlib.suppress(OSError):
                (group / "memory.oom.group").write_text("1")
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    self._events = os.open(group / name, os.O_RDONLY)
        self._parents = [
            (os.open(file.parents[1], os.O_RDONLY), file.parent.name) for file in files
        ]

    def enter(self) -> None:
        """Move this process and its future children into the group, and close the group's files."""
        for entry in self._entries:
            with contextlib.suppress(OSError):
                os.write(entry, b"0")
        opened = [*self._entries, *(parent for parent, _ in self._parents), self._events]
        for descriptor in opened:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def kills(self) -> int:
        """Return how many of its processes the system killed for memory.

        It is 0 where the system does not report it.
        """
        with contextlib.suppress(OSError, ValueError):
            return killed_for_memory(os.pread(self._events, 4096, 0).decode())
        return 0

    def remove(self) -> None:
        """Remove the group, if it is empty."""
        for parent, name in self._parents:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=parent)


class Forked(Worker):
    """A worker forked from this process."""

    tells_cpu = True

    def __init__(
        self,
        requests: Sequence[Request],
        limits: Limits,
        user: int | None,
        used: int,
        grader: socket.socket,
        group: _ControlGroup,
    ) -> None:
        self.grader = grader
        (self.channel, write) = os.pipe()
        self.most = limits.memory + resident_memory()
        self.group = group
        self.kills = group.kills()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                grader.close()
                os.close(self.channel)
                group.enter()
                _become_worker(user)
                answer_all(requests, cast(BinaryIO, os.fdopen(write, "wb")), limits, used)
            os._exit(70)
        os.close(write)
        self.life = os.pidfd_open(self.pid)

    def read(self, seconds: float) -> bytes | None:
        ready, _, _ = select.select(
            [self.channel, self.life, self.grader.fileno()], [], [], seconds
        )
        # The grader sends nothing more: it has closed the connection.
        if self.grader.fileno() in ready:
            raise SystemExit
        if self.channel in ready:
            return os.read(self.channel, 1 << 20)
        # It has ended, even if others hold its channel open.
        return b"" if ready else None

    def cpu_seconds(self) -> float:
        return sum(map(descendants.cpu_seconds, {self.pid, *descendants.descendants()}))

    def memory_left(self) -> int:
        processes = descendants.descendants()
        # A single process has a limit of its own.
        if len(processes) <= 1:
            return self.most
        return self.most - sum(map(descendants.memory_of, processes))

    def queued_seconds(self) -> float:
        return max(map(descendants.queued_seconds, {self.pid, *descendants.descendants()}))

    def out_of_memory(self) -> bool:
        return self.group.kills() > self.kills

    def end(self) -> int | None:
        if self.pid == 0:
            return None
        # its channel may close just before it ends
        ended, _, _ = select.select([self.life], [], [], 0.2)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) if ended else None
        descendants.kill_children()
        os.close(self.channel)
        os.close(self.life)
        self.pid = 0
        return code


def _become_worker(user: int | None) -> None:
    os.setsid()
    if user is not None:
        namespaces.switch_user(user)
    namespaces.drop_privileges()
    # The supervisor reads how much memory it uses.
    namespaces.protect_memory(False)
    os.environ.update(HOME=os.getcwd(), TMPDIR=os.getcwd(), USER="learner")
