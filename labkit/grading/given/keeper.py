"""How long is a learner's code waited for, and what is done when it never comes back?

Idea: `keep` starts a worker, a process that answers questions, and reads what it writes. A worker that dies, takes too
long or writes something else costs the question it was at, and a fresh one goes on with the next. On Linux the keeper
is the first process behind the walls (`keep_behind_walls`), and whatever a worker started ends with it; elsewhere it is
a thread of the process that grades (labkit.grading.supervise).

Invariant: one reply to every question, in order, whatever a worker does; what it wrote is counted here, not read.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from labkit.grading.given.child import CHECK, END, NOTE, RAN, Limits, Question, answer_all
from labkit.records import linux, system

MAX_ANSWERS = 8 << 20  # bytes, for one exercise
LOOK_SECONDS = 0.1  # how long it takes to notice that all processes of a submission together take too much memory


@dataclass(frozen=True)
class Walls:
    """What stands between a learner's code and the rest; as it is made, nothing but limits.

    namespaces   files, processes and network of its own
    user         the user it becomes; None: it stays the one who grades
    view         the files it sees (labkit.records.linux.mount_private_root), where it has namespaces
    """

    namespaces: bool = False
    user: int | None = None
    view: Sequence[tuple[Path, bool]] = ()


@dataclass(frozen=True)
class Job:
    """A submission to be run behind walls."""

    questions: Sequence[Question]
    limits: Limits
    walls: Walls


@dataclass
class Reply:
    """What came of a question.

    note      why there are no answers, or ""
    answers   the answers to each check, as JSON; those before the one it broke at, if it broke
    ran       its cell has run
    broken    its process had to be ended, or had ended itself
    late      it was ended because its time was over: the answers before that are its own
    """

    exercise: str
    note: str = ""
    answers: list[str] = field(default_factory=list)
    ran: bool = False
    broken: bool = False
    late: bool = False


class Worker(Protocol):
    """A process that answers questions."""

    def read(self, seconds: float) -> bytes | None:
        """Return more of what it wrote; b"" at the end; None where nothing came in time."""

    def cpu_seconds(self) -> float:
        """Return the CPU time it took so far; 0.0 where that cannot be told."""

    def memory_left(self) -> int:
        """Return the bytes that it, and all that it started, may take yet; 1 where that cannot be told."""

    def end(self) -> int | None:
        """End it, and all that it started; return the exit code it had by then, or None."""


class _Broken(Exception):
    """A worker that cannot go on; the message says why, and is empty where its exit code does."""


class _Late(_Broken):
    """A worker whose time is over."""


def keep(
    questions: Sequence[Question],
    limits: Limits,
    start: Callable[[Sequence[Question]], Worker],
    say: Callable[[Reply], None],
) -> None:
    """Say what came of each question, in order; `start` starts a worker for those that are left."""
    left = list(questions)
    while left:
        worker, unread = start(left), bytearray()
        try:
            while left:
                reply = Reply(left[0].exercise)
                say(_read(worker, unread, limits, reply))
                left.pop(0)
        except _Broken as broken:
            note = str(broken) or _why_it_ended(worker.end())
            say(replace(reply, note=note, broken=True, late=isinstance(broken, _Late)))
            left.pop(0)
        finally:
            worker.end()


def _read(worker: Worker, unread: bytearray, limits: Limits, reply: Reply) -> Reply:
    """Fill in what a worker says to one question, until it says that this was all."""
    cpu, wall, size = worker.cpu_seconds(), time.monotonic(), 0
    while True:
        if (end := unread.find(b"\n")) >= 0:
            kind, content = bytes(unread[:1]), unread[1:end].decode("ascii", "replace")
            del unread[: end + 1]
            if kind == END and content == json.dumps(reply.exercise):
                return reply
            _take(kind, content, reply)
        elif size > MAX_ANSWERS:
            raise _Broken(f"no answer: what came as one has more than {MAX_ANSWERS >> 20} MiB")
        elif worker.memory_left() <= 0:
            raise _Broken(f"stopped: its processes took more than {limits.memory >> 20} MiB of memory together")
        else:
            left = _seconds_left(limits, worker.cpu_seconds() - cpu, time.monotonic() - wall)
            more = worker.read(min(left, LOOK_SECONDS))
            if more == b"":
                raise _Broken
            unread += more or b""
            size += len(more or b"")


def _take(kind: bytes, content: str, reply: Reply) -> None:
    if kind == CHECK:
        reply.answers.append(content)
    elif kind == NOTE:
        reply.note = _text(content)
    elif kind == RAN:
        reply.ran = True
    else:
        raise _Broken("no answer: the code wrote into the channel of the answers")


def _text(content: str) -> str:
    with contextlib.suppress(ValueError, RecursionError):
        return str(json.loads(content))[:1000]
    raise _Broken("no answer: the code wrote into the channel of the answers")


def _seconds_left(limits: Limits, cpu: float, wall: float) -> float:
    if cpu >= limits.seconds:
        raise _Late(f"stopped after {limits.seconds:g} s of CPU time")
    if wall >= limits.wall_seconds:
        raise _Late(f"stopped after {limits.wall_seconds:g} s, {cpu:.0f} s of them CPU time: it waits for something")
    return min(limits.seconds - cpu, limits.wall_seconds - wall) + 0.01


def _why_it_ended(code: int | None) -> str:
    if code is None:
        return "no answer: the code closed the channel of the answers"
    if code < 0:
        name = signal.Signals(-code).name
        return f"the code ended its process: {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"the code ended its process, with exit code {code}: os._exit?"


# --- on Linux: a process forked from one that has loaded torch, behind walls ---


def keep_behind_walls(parent: socket.socket) -> None:
    """Receive a job, wall this process in, and answer; a line of JSON per reply. Does not return."""
    with parent.makefile("rb") as stream:
        job: Job = pickle.load(stream)
    linux.die_with_parent()
    used = system.address_space()
    group = _Group(job.limits)
    if job.walls.namespaces:
        linux.unshare_namespaces()
        if first := os.fork():
            parent.close()
            os.waitpid(first, 0)
            group.remove()
            os._exit(0)
        linux.die_with_parent()
        linux.mount_private_root(job.walls.view)
    else:
        linux.adopt_orphans()
    linux.protect_memory()
    alone = job.walls.namespaces or job.walls.user is not None  # else the limit would count the processes of others
    limits = job.limits if alone else replace(job.limits, processes=0)
    start = partial(Forked, limits=limits, user=job.walls.user, used=used, parent=parent, group=group)
    try:
        keep(job.questions, limits, start, lambda reply: parent.sendall(json.dumps(asdict(reply)).encode() + b"\n"))
    finally:
        group.remove()  # behind walls, the process outside of them does it too: who is first in there has ended then
    os._exit(0)


class _Group:
    """A control group that limits the memory of a submission as a whole, where this user may make one.

    Where there is none, what `Forked.memory_left` sees has to do: it looks ten times a second. What is held of it are
    open files, since the process that removes it sees no file of the system's any more.
    """

    def __init__(self, limits: Limits) -> None:
        files: list[Path] = []
        with contextlib.suppress(OSError):
            files = linux.create_control_group(
                f"labkit/grading-{os.getpid()}", limits.memory + system.resident_memory()
            )
        self._doors = [os.open(file, os.O_WRONLY) for file in files]
        self._places = [(os.open(file.parents[1], os.O_RDONLY), file.parent.name) for file in files]

    def enter(self) -> None:
        """Have this process in it, with all that it starts; nothing of it is open here afterwards."""
        for door in self._doors:
            with contextlib.suppress(OSError):
                os.write(door, b"0")
        for handle in [*self._doors, *(place for place, _ in self._places)]:
            os.close(handle)

    def remove(self) -> None:
        """Remove it, when nobody is left in it."""
        for place, name in self._places:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=place)


class Forked:
    """A worker forked from this process."""

    def __init__(
        self,
        questions: Sequence[Question],
        limits: Limits,
        user: int | None,
        used: int,
        parent: socket.socket,
        group: _Group,
    ) -> None:
        self.parent, (self.channel, write) = parent, os.pipe()
        self.most = limits.memory + system.resident_memory()
        self.pid = os.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                parent.close()
                os.close(self.channel)
                group.enter()
                _become_worker(user)
                answer_all(questions, cast(BinaryIO, os.fdopen(write, "wb")), limits, used)
            os._exit(70)
        os.close(write)
        self.life = os.pidfd_open(self.pid)

    def read(self, seconds: float) -> bytes | None:
        """Return more of what it wrote; b"" when it ended, even where others hold its channel open."""
        ready, _, _ = select.select([self.channel, self.life, self.parent.fileno()], [], [], seconds)
        if self.parent.fileno() in ready:  # nothing more is ever sent on it: it was closed
            raise SystemExit
        if self.channel in ready:
            return os.read(self.channel, 1 << 20)
        return b"" if ready else None

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its processes."""
        return sum(map(linux.cpu_seconds, {self.pid, *linux.descendants()}))

    def memory_left(self) -> int:
        """Return the bytes that its processes may take together; one alone has a limit of its own."""
        processes = linux.descendants()
        return self.most - sum(map(linux.memory_of, processes)) if len(processes) > 1 else self.most

    def end(self) -> int | None:
        """Kill what is left of it, and of what it started."""
        if self.pid == 0:
            return None
        ended, _, _ = select.select([self.life], [], [], 0.2)  # its channel may close a moment before it ends
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) if ended else None
        linux.kill_children()
        os.close(self.channel)
        os.close(self.life)
        self.pid = 0
        return code


def _become_worker(user: int | None) -> None:
    os.setsid()
    if user is not None:
        linux.switch_user(user)
    linux.drop_privileges()
    linux.protect_memory(False)  # the keeper counts it
    os.environ.update(HOME=os.getcwd(), TMPDIR=os.getcwd(), USER="learner")
