"""How is a file whole at every moment, a kill included? It is written aside and renamed, by one at a time.

Idea: the new file stands beside the old one under a hidden name, is forced onto the disk and then renamed, which the
file system does in one go. A process that writes holds a lock on it. Whose lock is gone was killed, and the next writer
of the same file deletes what it left.

Invariant: at any moment the path holds the old content or the new one, never a part.

Source: rename(2), fsync(2) and flock(2).
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

if sys.platform != "win32":
    import fcntl


def write_whole(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> Path:
    """Write a file aside, make sure it is on the disk, and rename it: whoever looks sees the old one or the new one.

    A process that is killed in between leaves a hidden `.NAME.*.part` beside it, which the next call for this path
    deletes; on a file system without locks, it stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(path)
    aside, file = _opened_aside(path)
    try:
        with file:
            file.write(content) if isinstance(content, bytes) else content(file)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # which renames no open file
                os.replace(aside, path)
        if sys.platform == "win32":
            os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return path


def _opened_aside(path: Path) -> tuple[Path, IO[bytes]]:
    """Return a new file beside another one, locked until it is closed; as the umask says, others may read it."""
    while True:
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = aside.open("xb")
        if sys.platform == "win32":  # which deletes no open file
            return aside, file
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:  # else it was taken for an abandoned one before it was locked
            return aside, file
        file.close()


def _delete_abandoned(path: Path) -> None:
    """Delete what killed processes left of this file; what cannot be locked is in use, or is not ours to delete."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # nobody lists the folder, say: it is as it was
        for left in [entry.path for entry in os.scandir(path.parent) if ours.fullmatch(entry.name)]:
            with suppress(OSError):
                if sys.platform == "win32":
                    os.unlink(left)
                    continue
                handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if stat.S_ISREG(os.fstat(handle).st_mode):
                        os.unlink(left)
                finally:
                    os.close(handle)


def write_line(file: IO[str], line: str) -> None:
    """Write a line to the end of an open file; when this returns, the line is on the disk."""
    file.write(line + "\n")
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Be the only process that is in here for this path; a kill gives it free. On Windows nobody is kept out.

    Raises:
        BlockingIOError: another one is.
        OSError: the folder cannot be written.
    """
    lock = path.with_name(f".{path.name}.lock")
    while sys.platform != "win32":
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:  # else its owner deleted it since it was opened: the next one counts
                break
            os.close(handle)
        except BlockingIOError:
            os.close(handle)
            raise BlockingIOError(f"another process is at {path}; wait until it has ended") from None
    try:
        yield
    finally:
        if sys.platform != "win32":
            lock.unlink(missing_ok=True)
            os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Force the new name onto the disk too, where the system lets a folder be opened."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
