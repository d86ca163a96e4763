"""What a process can reach on Linux: its namespaces and its privileges.

Idea: in new namespaces a process has its own file system, network and process table. Without their
creator's privileges it cannot leave them. Paths that are not mounted in its file system do not
exist for it.

Invariant: a system call that fails raises an OSError that names it, so isolation is never partial
without notice.

Source: unshare(2), mount(2), pivot_root(2), mount_namespaces(7), user_namespaces(7), prctl(2),
capset(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from labkit.processes import prctl

MOUNTS = 0x20000
UTS = 0x4000000
IPC = 0x8000000
USERS = 0x10000000
PROCESSES = 0x20000000
NETWORK = 0x40000000
READ_ONLY = 1
NO_SUID = 2
NO_DEVICES = 4
NO_EXEC = 8
REMOUNT = 32
BIND = 4096
RECURSIVE = 16384
PRIVATE = 1 << 18
DETACH = 2
# Options of prctl.
DUMPABLE = 4
DROP_BOUND = 24
NO_NEW_PRIVILEGES = 38
CAPABILITIES_VERSION_3 = 0x20080522
DEVICES = ("null", "zero", "random", "urandom")
# The only writable folder of `mount_private_root`.
SCRATCH = Path("/scratch")


def unshare_namespaces() -> None:
    """Move this process and its children to new namespaces.

    The namespaces are those of mounts, processes, network and messages.

    Without root, also create a user namespace with this user only, privileged inside it and not
    outside.

    Raises:
        OSError: the system has no such namespaces, or this user may not create any.
    """
    if os.geteuid() != 0:
        user = os.getuid()
        group = os.getgid()
        _call("unshare", USERS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _call("unshare", MOUNTS | UTS | IPC | PROCESSES | NETWORK)
    _mount("none", Path("/"), "", RECURSIVE | PRIVATE)


def mount_private_root(view: Sequence[tuple[Path, bool]], root: Path = Path("/sys")) -> None:
    """Replace this process's file system by the paths in `view`, read-only, and 64 MiB of SCRATCH.

    Must run in the first process after `unshare_namespaces`.

    Args:
        view: Pairs in mount order: a path, and whether to mount it (True) or an empty folder in its
            place.
        root: Mount point while the new file system is assembled.

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
    # Some containers forbid it, and nothing needs it.
    with contextlib.suppress(OSError):
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
        if prctl(DROP_BOUND, capability) != 0:
            break
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
    prctl(NO_NEW_PRIVILEGES, 1)


def protect_memory(private: bool = True) -> None:
    """Forbid (or allow) other processes of this user to read this one's memory; on Linux only."""
    if sys.platform == "linux":
        prctl(DUMPABLE, 0 if private else 1)


def _bind_read_only(path: Path, root: Path) -> None:
    target = _mount_point(root, path, folder=path.is_dir())
    _mount(str(path), target, "", BIND)
    # A mount flag of the path, which must be repeated.
    no_exec = os.statvfs(path).f_flag & NO_EXEC
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


def _call(name: str, *arguments: object) -> None:
    if getattr(_library(), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
