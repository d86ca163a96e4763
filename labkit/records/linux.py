"""Isolation of a process by Linux's own calls, which Python does not bring.

Idea: namespaces give a process a file system, a network and a table of processes of its own; without the rights of the
one who made them, it cannot leave them. What is not shown in its file system is not there for it.

Invariant: a call that the system refuses is an OSError that names it, so nobody is half walled in unknowingly.

Source: unshare(2), mount(2), pivot_root(2), mount_namespaces(7), user_namespaces(7), prctl(2), capset(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

MOUNTS, UTS, IPC, USERS, PROCESSES, NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
PARENT_DEATH_SIGNAL, DUMPABLE, DROP_BOUND, SUBREAPER, NO_NEW_RIGHTS = 1, 4, 24, 36, 38
CAPABILITIES_VERSION_3 = 0x20080522
DEVICES = ("null", "zero", "random", "urandom")
SCRATCH = Path("/scratch")  # the only folder of `mount_private_root` that can be written to


def unshare_namespaces() -> None:
    """Give this process, and those it starts, mounts, processes, network and messages of their own.

    Who is not root becomes the only user of a user namespace, with all rights inside it and none outside.

    Raises:
        OSError: the system has no such namespaces, or lets this user make none.
    """
    if os.geteuid() != 0:
        user, group = os.getuid(), os.getgid()
        _call("unshare", USERS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("unshare", MOUNTS | UTS | IPC | PROCESSES | NETWORK)
    _mount("none", Path("/"), "", RECURSIVE | PRIVATE)


def mount_private_root(view: Sequence[tuple[Path, bool]], root: Path = Path("/sys")) -> None:
    """Give this process a file system of its own: what `view` shows, read-only, and a SCRATCH of 64 MiB; no more.

    view   in this order: a path, and whether it is shown (True) or an empty folder is put in its place
    root   a folder in whose place the new file system is put together

    Raises:
        OSError: the system refuses. To be called by the first process in its `unshare_namespaces`.
    """
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
    for path, shown in view:
        (_show if shown else _empty)(path, root)
    for name in DEVICES:
        _mount(f"/dev/{name}", _place(root, Path("/dev") / name, folder=False), "", BIND)
    _mount("tmpfs", _place(root, SCRATCH), "tmpfs", NO_SUID | NO_DEVICES, "size=64m,mode=1777")
    with contextlib.suppress(OSError):  # some containers refuse it, and nothing needs it
        _mount("proc", _place(root, Path("/proc")), "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    for path in [root, *(_place(root, path) for path, shown in view if not shown)]:
        _mount("none", path, "", REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)
    os.chdir(root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", DETACH)
    os.chdir(SCRATCH)


def switch_user(user: int) -> None:
    """Give up root for a user that owns nothing.

    Raises:
        OSError: this process is not root, or the user is not among those that a container knows.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_privileges() -> None:
    """Give up all rights beyond an ordinary user's, for good, and those of programs that would bring them back."""
    for capability in range(64):
        if _prctl(DROP_BOUND, capability) != 0:
            break
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    _prctl(NO_NEW_RIGHTS, 1)


def create_control_group(
    name: str, memory: int, cores: float | None = None, root: Path = Path("/sys/fs/cgroup")
) -> list[Path]:
    """Make a control group with these limits; return the files that a process enters it by, when it writes its number.

    memory   bytes;  cores   of the CPU, 0.5 for a half; None: all

    Raises:
        OSError: there are no control groups here, or this user may make none. Source: cgroups(7), both versions.
    """
    period = 100_000
    if (root / "cgroup.controllers").is_file():  # version 2
        group = root / name
        for parent in [root, *(root / part for part in list(Path(name).parents)[-2::-1])]:
            parent.mkdir(exist_ok=True)
            (parent / "cgroup.subtree_control").write_text("+memory +cpu" if cores is not None else "+memory")
        limits: dict[Path, dict[str, object]] = {group: {"memory.max": memory}}
        if cores is not None:
            limits[group]["cpu.max"] = f"{int(cores * period)} {period}"
    else:
        limits = {root / "memory" / name: {"memory.limit_in_bytes": memory}}
        if cores is not None:
            limits[root / "cpu" / name] = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": int(cores * period)}
    for group, values in limits.items():
        group.mkdir(parents=True, exist_ok=True)
        for file, value in values.items():
            (group / file).write_text(str(value))
    return [group / "cgroup.procs" for group in limits]


def descendants() -> list[int]:
    """Return the processes that this one started, and those that they started; none where the system does not say."""
    found, waiting = list[int](), _children()
    while waiting:
        process = waiting.pop()
        if process > 0:
            found.append(process)
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{process}/task").iterdir():
                    waiting += map(int, (thread / "children").read_text().split())
    return found


def memory_of(process: int) -> int:
    """Return the bytes of memory that a process has, of what it shares its part; 0 if it is gone. Source: proc(5)."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        return int(rollup.split("\nPss:")[1].split()[0]) << 10
    with contextlib.suppress(OSError, IndexError, ValueError):  # it keeps its memory private: what no file is behind
        resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def protect_memory(private: bool = True) -> None:
    """Let no other process of this user read this one's memory, or let them; only Linux can tell the two apart."""
    if sys.platform == "linux":
        _prctl(DUMPABLE, 0 if private else 1)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ended."""
    _prctl(SUBREAPER, 1)


def die_with_parent() -> None:
    """Be killed when the process ends that started this one."""
    _prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def kill_children(seconds: float = 5.0) -> None:
    """Kill all children until there are none: with `adopt_orphans`, all descendants."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process, and of its children that ended; 0.0 if it is gone. Source: proc(5)."""
    with contextlib.suppress(OSError):
        after_name = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime
    with contextlib.suppress(OSError):  # clock_getcpuclockid(3) makes the clock's number so
        return time.clock_gettime((~process << 3) | 2)
    return 0.0


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return [-1] if os.getpid() == 1 else []  # the first process of a namespace may kill all others at once
    return [int(word) for word in text.split()]


def _show(path: Path, root: Path) -> None:
    """Bind a file or folder to its own name below `root`, read-only, as restricted as it is already."""
    target = _place(root, path, folder=path.is_dir())
    _mount(str(path), target, "", BIND)
    kept = os.statvfs(path).f_flag & NO_EXEC
    _mount("none", target, "", REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | kept)


def _empty(path: Path, root: Path) -> None:
    _mount("tmpfs", _place(root, path), "tmpfs", NO_SUID | NO_DEVICES, "mode=755")


def _place(root: Path, path: Path, *, folder: bool = True) -> Path:
    """Return where a path stands below `root`, made if it is not there."""
    target = root / path.relative_to("/")
    if not target.exists():
        (target if folder else target.parent).mkdir(parents=True, exist_ok=True)
        if not folder:
            target.touch()
    return target


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    _call("mount", source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())


def _prctl(option: int, value: int) -> int:
    return int(_library().prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _call(name: str, *arguments: object) -> None:
    if getattr(_library(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
