"""Process isolation on Linux: namespaces, privileges, control groups and process trees.

Idea: in new namespaces a process has its own file system, network and process table. Without their creator's privileges
it cannot leave them. Paths that are not mounted in its file system do not exist for it.

Invariant: a system call that fails raises an OSError that names it, so isolation is never partial without notice.

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

MOUNTS, UTS, IPC, USERS, PROCESSES, NETWORK = (
    0x20000,
    0x4000000,
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = (
    1,
    2,
    4,
    8,
    32,
    4096,
    16384,
    1 << 18,
)
DETACH = 2
PARENT_DEATH_SIGNAL, DUMPABLE, DROP_BOUND, SUBREAPER, NO_NEW_PRIVILEGES = 1, 4, 24, 36, 38
CAPABILITIES_VERSION_3 = 0x20080522
DEVICES = ("null", "zero", "random", "urandom")
SCRATCH = Path("/scratch")  # the only writable folder of `mount_private_root`


def unshare_namespaces() -> None:
    """Move this process and its children to new namespaces of mounts, processes, network and messages.

    Without root, also create a user namespace with this user only, privileged inside it and not outside.

    Raises:
        OSError: the system has no such namespaces, or this user may not create any.
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
    """Replace this process's file system by the paths in `view`, read-only, and a SCRATCH of 64 MiB.

    Must run in the first process after `unshare_namespaces`.

    view   pairs in mount order: a path, and whether to mount it (True) or an empty folder in its place
    root   mount point while the new file system is assembled

    Raises:
        OSError: a mount fails.
    """
    _mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
    for path, visible in view:
        if visible:
            _bind_read_only(path, root)
        else:
            _mount("tmpfs", _mount_point(root, path), "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
    for name in DEVICES:
        _mount(f"/dev/{name}", _mount_point(root, Path("/dev") / name, folder=False), "", BIND)
    _mount(
        "tmpfs", _mount_point(root, SCRATCH), "tmpfs", NO_SUID | NO_DEVICES, "size=64m,mode=1777"
    )
    with contextlib.suppress(OSError):  # some containers forbid it, and nothing needs it
        _mount("proc", _mount_point(root, Path("/proc")), "proc", NO_SUID | NO_DEVICES | NO_EXEC)
    for path in [root, *(_mount_point(root, path) for path, visible in view if not visible)]:
        _mount("none", path, "", REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES)
    os.chdir(root)
    _call("pivot_root", b".", b".")
    _call("umount2", b".", DETACH)
    os.chdir(SCRATCH)


def switch_user(user: int) -> None:
    """Switch from root to an unprivileged user.

    Raises:
        OSError: this process is not root, or the container has no such user.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_privileges() -> None:
    """Drop all capabilities permanently, so that no executed program can regain them."""
    for capability in range(64):
        if _prctl(DROP_BOUND, capability) != 0:
            break
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    _prctl(NO_NEW_PRIVILEGES, 1)


def create_control_group(
    name: str, memory: int, cores: float | None = None, root: Path = Path("/sys/fs/cgroup")
) -> list[Path]:
    """Create a control group with limits; return its process files, to which a process writes its id to join.

    memory   bytes
    cores    CPU cores, also fractions; None for all

    Raises:
        OSError: the system has no control groups, or this user may not create any.

    Source: cgroups(7), both versions.
    """
    period = 100_000
    if (root / "cgroup.controllers").is_file():  # version 2
        group = root / name
        for parent in [root, *(root / part for part in list(Path(name).parents)[-2::-1])]:
            parent.mkdir(exist_ok=True)
            (parent / "cgroup.subtree_control").write_text(
                "+memory +cpu" if cores is not None else "+memory"
            )
        limits: dict[Path, dict[str, object]] = {group: {"memory.max": memory}}
        if cores is not None:
            limits[group]["cpu.max"] = f"{int(cores * period)} {period}"
    else:
        limits = {root / "memory" / name: {"memory.limit_in_bytes": memory}}
        if cores is not None:
            limits[root / "cpu" / name] = {
                "cpu.cfs_period_us": period,
                "cpu.cfs_quota_us": int(cores * period),
            }
    for group, values in limits.items():
        group.mkdir(parents=True, exist_ok=True)
        for file, value in values.items():
            (group / file).write_text(str(value))
    return [group / "cgroup.procs" for group in limits]


def descendants() -> list[int]:
    """Return the ids of all descendants of this process; none where unknown."""
    found, pending = list[int](), _children()
    while pending:
        process = pending.pop()
        if process > 0:
            found.append(process)
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{process}/task").iterdir():
                    pending += map(int, (thread / "children").read_text().split())
    return found


def memory_of(process: int) -> int:
    """Return a process's proportional set size in bytes, shared pages divided; 0 if it has ended. Source: proc(5)."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        return int(rollup.split("\nPss:")[1].split()[0]) << 10
    # a protected process: memory without shared pages
    with contextlib.suppress(OSError, IndexError, ValueError):
        resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def protect_memory(private: bool = True) -> None:
    """Forbid (or allow) other processes of this user to read this one's memory; on Linux only."""
    if sys.platform == "linux":
        _prctl(DUMPABLE, 0 if private else 1)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parent has ended."""
    _prctl(SUBREAPER, 1)


def die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    _prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def kill_children(seconds: float = 5.0) -> None:
    """Kill all children until none remain; after `adopt_orphans`, all descendants."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
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
    """Return the CPU time of a process and its ended children; 0.0 if it has ended. Source: proc(5)."""
    with contextlib.suppress(OSError):
        after_name = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        # utime, stime, cutime, cstime
        return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError):  # the clock id of clock_getcpuclockid(3)
        return time.clock_gettime((~process << 3) | 2)
    return 0.0


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        # the first process of a namespace can kill all others at once
        return [-1] if os.getpid() == 1 else []
    return [int(word) for word in text.split()]


def _bind_read_only(path: Path, root: Path) -> None:
    target = _mount_point(root, path, folder=path.is_dir())
    _mount(str(path), target, "", BIND)
    no_exec = os.statvfs(path).f_flag & NO_EXEC  # a mount flag of the path, which must be repeated
    _mount("none", target, "", REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | no_exec)


def _mount_point(root: Path, path: Path, *, folder: bool = True) -> Path:
    """Return a path's counterpart below `root`, created if missing."""
    target = root / path.relative_to("/")
    if not target.exists():
        (target if folder else target.parent).mkdir(parents=True, exist_ok=True)
        if not folder:
            target.touch()
    return target


def _mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    _call(
        "mount",
        source.encode(),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        options.encode(),
    )


def _prctl(option: int, value: int) -> int:
    return int(_library().prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _call(name: str, *arguments: object) -> None:
    if getattr(_library(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
