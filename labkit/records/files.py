"""Atomic writes, file locks, and the folders of the lab's data and notebooks.

Idea: a new file is written beside the old one under a hidden name, synced to the disk and renamed,
which is atomic. Its writer holds a lock on it; a hidden file without a lock was left by a killed
process, and the next writer deletes it. Data and notebooks exist once: in the package where a wheel
was installed (hatch_build.py), beside it in a checkout. Lessons are a package beside it in both
(labkit.course).

Invariant: at any moment a path holds the old content or the new one, never a part. Lessons do not
write to the data that is shipped with the lab, and nothing writes into an installed package.

Source: rename(2), fsync(2) and flock(2).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")


def write_atomic(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> Path:
    """Replace a file's content atomically and return the path.

    Readers see the old content or the new one.

    A process that is killed meanwhile leaves a hidden `.NAME.*.part` file. The next call for this
    path deletes it, but on a file system without locks it remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _delete_abandoned(path)
    temporary, file = _open_temporary(path)
    try:
        with file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # Windows cannot rename an open file
                os.replace(temporary, path)
        if sys.platform == "win32":
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # sync the new name, too
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return path


def _open_temporary(path: Path) -> tuple[Path, IO[bytes]]:
    """Create a hidden file beside `path`, locked until it is closed.

    Its permissions follow the umask.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = temporary.open("xb")
        if sys.platform == "win32":  # Windows cannot delete an open file
            return temporary, file
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        # a file without links was deleted by another process before it was locked
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()


def _delete_abandoned(path: Path) -> None:
    """Delete the temporary files that killed processes left; a locked one is in use."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    with suppress(OSError):  # a folder that cannot be listed
        for abandoned in [
            entry.path for entry in os.scandir(path.parent) if pattern.fullmatch(entry.name)
        ]:
            with suppress(OSError):
                if sys.platform == "win32":
                    os.unlink(abandoned)
                    continue
                handle = os.open(abandoned, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if stat.S_ISREG(os.fstat(handle).st_mode):
                        os.unlink(abandoned)
                finally:
                    os.close(handle)


def write_line(file: IO[str], line: str) -> None:
    """Append a line to an open file and sync it to the disk."""
    file.write(line + "\n")
    file.flush()
    os.fsync(file.fileno())


def parse_record(
    content: str | bytes, schema: str, make: Callable[[dict[str, Any]], T], problem: str
) -> T:
    """Parse a measurement saved as JSON by `make`.

    The file holds an object whose "schema" is the expected one.

    Raises:
        ValueError: it is not one, or `make` raises; the message begins with `problem`.

    >>> parse_record('{"schema": "a/1", "n": 3}', "a/1", lambda fields: fields["n"], "not an a")
    3
    """
    try:
        fields = json.loads(content)
        if (found := fields.pop("schema")) != schema:
            raise ValueError(f"expected the schema {schema!r}, got {found!r}")
        return make(fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{problem}: {type(error).__name__}: {error}") from error


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock for a path, which a kill releases; on Windows, do nothing.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the folder cannot be written.
    """
    lock = path.with_name(f".{path.name}.lock")
    while sys.platform != "win32":
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                break
            # its owner deleted it after it was opened here: try again
            os.close(handle)
        except BlockingIOError:
            os.close(handle)
            raise BlockingIOError(
                f"another process has locked {path}; wait until it has ended"
            ) from None
    try:
        yield
    finally:
        if sys.platform != "win32":
            lock.unlink(missing_ok=True)
            os.close(handle)


PACKAGE = Path(__file__).parents[1]
USER_FOLDER = "fp16-lab"  # in the home folder: records of a lab without a checkout


def checkout() -> Path | None:
    """Return the root of the checkout that labkit runs from, or None for an installed package."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "notebooks").is_dir() else None


def notebooks_folder() -> Path:
    return (checkout() or PACKAGE) / "notebooks"


def data_folder() -> Path:
    """Return the lab's `data/` folder.

    It is $LABKIT_DATA, else the checkout's, else the installed package's.

    Raises:
        FileNotFoundError: it does not exist.
    """
    folder = Path(os.environ.get("LABKIT_DATA") or (checkout() or PACKAGE) / "data")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"expected the lab's data folder at {folder}, which does not exist. Install the lab "
            "again, or set LABKIT_DATA to the folder that holds digits.npz."
        )
    return folder


def results_folder() -> Path:
    """Return the folder for new records.

    It is `data_folder()`, or a folder in the user's home if that one is inside the package.
    """
    folder = data_folder()
    return Path.home() / USER_FOLDER / "data" if folder == PACKAGE / "data" else folder


def refuse_simulated(device: str, path: Path) -> None:
    """Refuse to save records of a simulated device in the checkout's `data/`.

    That folder holds measurements only.

    Raises:
        ValueError: the device's name contains "simulated", and the path is in that folder.

    >>> refuse_simulated("Tesla T4", data_folder() / "runs")
    >>> refuse_simulated("Tesla T4 (simulated)", Path("elsewhere"))
    """
    measured = ((checkout() or PACKAGE) / "data").resolve()
    if "simulated" in device and path.resolve().is_relative_to(measured):
        raise ValueError(
            f"expected a real device for records in {measured}, got {device!r}; write them to "
            "another folder, e.g. labkit compare or labkit gpu with --folder simulated"
        )


def recorded_files(pattern: str) -> dict[str, Path]:
    """Return relative path -> file for a glob pattern.

    Files shipped with the lab come first, then the user's own.

    >>> recorded_files("runs/digits/fp32-seed[01].json").keys()
    dict_keys(['runs/digits/fp32-seed0.json', 'runs/digits/fp32-seed1.json'])
    """
    folders = (data_folder(), results_folder())
    return {
        path.relative_to(f).as_posix(): path for f in folders for path in sorted(f.glob(pattern))
    }
