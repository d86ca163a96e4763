"""Files that are whole at every moment, a kill included, and the folders of the lab's data and notebooks.

Idea: a new file stands beside the old one under a hidden name, is forced onto the disk and then renamed, which the file
system does in one go. A process that writes holds a lock on it. Whose lock is gone was killed, and the next writer of
the same file deletes what it left. Of data and notebooks there is one copy: a wheel carries them in the package
(setup.py), a checkout beside it.

Invariant: at any moment a path holds the old content or the new one, never a part. What travels with the lab is read
where it lies and never written there by a lesson; and nothing at all is written into an installed package.

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


def write_atomic(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> Path:
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
    if os.name == "posix":  # the new name onto the disk, too
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
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
def exclusive_lock(path: Path) -> Iterator[None]:
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


PACKAGE = Path(__file__).parents[1]
OWN_FOLDER = "fp16-lab"  # in the home folder: what is recorded where the lab has no checkout


def checkout() -> Path | None:
    """Return the top of the checkout that labkit runs from, or None where it was installed without one."""
    top = PACKAGE.parent
    return top if (top / "pyproject.toml").is_file() and (top / "notebooks").is_dir() else None


def notebooks_folder() -> Path:
    """Return the folder of the learners' notebooks as they are handed out."""
    return (checkout() or PACKAGE) / "notebooks"


def data_folder() -> Path:
    """Return the lab's `data/` folder: $LABKIT_DATA, or the one of the checkout, or that of the installed package.

    Raises:
        FileNotFoundError: it is not there; the message says what to do.
    """
    folder = Path(os.environ.get("LABKIT_DATA") or (checkout() or PACKAGE) / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"the lab's data folder was looked for at {folder} and is not there. Install the lab again, or set "
            "LABKIT_DATA to the folder that holds digits.npz."
        )
    return folder


def results_folder() -> Path:
    """Return where new records are written: `data_folder()`, or the user's own folder where that is the package's."""
    folder = data_folder()
    return Path.home() / OWN_FOLDER / "data" if folder == PACKAGE / "data" else folder


def refuse_simulated(device: str, path: Path) -> None:
    """Keep what a simulated device did out of the checkout's `data/`, where everything was measured.

    Raises:
        ValueError: the device's name says that it is simulated, and the path lies there.

    >>> refuse_simulated("Tesla T4", data_folder() / "runs")
    >>> refuse_simulated("Tesla T4 (simulated)", Path("elsewhere"))
    """
    measured = ((checkout() or PACKAGE) / "data").resolve()
    if "simulated" in device and path.resolve().is_relative_to(measured):
        raise ValueError(
            f"expected a real device for records in {measured}, got {device!r}; write them to another folder, e.g. "
            "labkit compare or labkit gpu with --folder simulated"
        )


def recorded_files(pattern: str) -> dict[str, Path]:
    """Return the files of this pattern, by their place in the folder: those that travel with the lab, and one's own.

    >>> recorded_files("runs/digits/fp32-seed[01].json").keys()
    dict_keys(['runs/digits/fp32-seed0.json', 'runs/digits/fp32-seed1.json'])
    """
    folders = (data_folder(), results_folder())
    return {path.relative_to(f).as_posix(): path for f in folders for path in sorted(f.glob(pattern))}
