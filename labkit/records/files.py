"""Atomic writes, file locks, and the folders of the lab's data and notebooks.

Idea: a new file is written beside the old one under a hidden name, synced to the disk, and renamed,
which is atomic. Its writer holds a lock on it. A hidden file without a lock was left by a killed
process, and the next writer deletes it. Data and notebooks exist once: inside an installed package
(hatch_build.py), or beside the package in a checkout. The lessons are a package of their own in
both cases (labkit.course).

Invariant: at any moment a path holds the old content or the new one, never a part of it. Lessons do
not write to the data that is shipped with the lab, and nothing writes into an installed package.

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
    """Replace a file's content atomically, and return the path.

    Readers see the old content or the new one. A link is replaced by a file, so that nothing is
    written where it leads. A process that is killed meanwhile leaves a hidden file `.NAME.*.part`.
    The next call for this path deletes it; on a file system without locks it remains.

    Args:
        path: the file; its folder is created if missing.
        content: the new content, or a function that writes it to an open file.

    Raises:
        IsADirectoryError: path is a folder.
    """
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(f"expected a file to write, got the folder {path}")
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
            # under the lock: after it, another writer would take the file for an abandoned one
            if sys.platform != "win32":
                os.replace(temporary, path)
        # Windows cannot rename an open file
        if sys.platform == "win32":
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        # a new name is on the disk only after its folder is synced
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return path


def _open_temporary(path: Path) -> tuple[Path, IO[bytes]]:
    """Create a hidden file beside `path`, locked until it is closed.

    Its permissions follow the umask, which those of `tempfile` do not.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        file = temporary.open("xb")
        # on Windows, no process can delete a file that is open, so it needs no lock
        if sys.platform == "win32":
            return temporary, file
        # a file system may have no locks
        with suppress(OSError):
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        # Another writer may have deleted the file before it was locked: then it has no link, and
        # the next attempt takes another name.
        if os.fstat(file.fileno()).st_nlink:
            return temporary, file
        file.close()


def _delete_abandoned(path: Path) -> None:
    """Delete the temporary files that killed processes left; a locked one is in use."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.part")
    try:
        names = os.listdir(path.parent)
    except OSError:
        return
    for name in names:
        if pattern.fullmatch(name):
            # an error means that the file is in use, or is gone already
            with suppress(OSError):
                _delete_if_unlocked(path.parent / name)


def _delete_if_unlocked(file: Path) -> None:
    """Delete a regular file, unless a process holds a lock on it.

    Raises:
        OSError: the file is locked, or cannot be deleted.
    """
    # Windows does not delete a file that is open
    if sys.platform == "win32":
        file.unlink()
        return
    # neither follow a link nor wait for the writer of a pipe
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            file.unlink()
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
    """Parse a record that was saved as a JSON object with its schema.

    Args:
        content: the JSON.
        schema: the expected value of its field "schema".
        make: the other fields -> the record.
        problem: the beginning of an error's message.

    Raises:
        ValueError: the content is not such an object, or `make` cannot use its fields.

    >>> parse_record('{"schema": "a/1", "n": 3}', "a/1", lambda fields: fields["n"], "not an a")
    3
    """
    try:
        fields = json.loads(content)
        own_schema = fields.pop("schema")
        if own_schema != schema:
            raise ValueError(f"expected the schema {schema!r}, got {own_schema!r}")
        return make(fields)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(f"{problem}: {type(error).__name__}: {error}") from error


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock for a path, which ends with the process; on Windows, do nothing.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the folder cannot be written, or its file system has no locks.
    """
    if sys.platform == "win32":
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    while True:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise BlockingIOError(
                f"another process has locked {path}; wait until it has ended"
            ) from None
        except OSError:
            os.close(handle)
            raise
        if os.fstat(handle).st_nlink:
            break
        # the previous owner deleted the file after it was opened here: try again with a new one
        os.close(handle)
    try:
        yield
    finally:
        # before the lock is released, so that no other process holds a lock on a deleted file
        lock.unlink(missing_ok=True)
        os.close(handle)


PACKAGE = Path(__file__).parents[1]
# in the home folder: records of a lab without a checkout
USER_FOLDER = "fp16-lab"


def checkout() -> Path | None:
    """Return the root of the checkout that labkit runs from, or None for an installed package."""
    root = PACKAGE.parent
    if (root / "pyproject.toml").is_file() and (root / "notebooks").is_dir():
        return root
    return None


def notebooks_folder() -> Path:
    return (checkout() or PACKAGE) / "notebooks"


def data_folder() -> Path:
    """Return the lab's `data/` folder.

    It is $LABKIT_DATA, else the checkout's, else the installed package's.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    chosen = os.environ.get("LABKIT_DATA")
    folder = Path(chosen) if chosen else (checkout() or PACKAGE) / "data"
    if not folder.is_dir():
        raise FileNotFoundError(
            f"expected the lab's data folder at {folder}, which does not exist. Install the lab "
            "again, or set LABKIT_DATA to the folder that holds digits.npz."
        )
    return folder


def results_folder() -> Path:
    """Return the folder for new records: `data_folder()`, or one in the home folder.

    An installed package is not written to.
    """
    folder = data_folder()
    if folder == PACKAGE / "data":
        return Path.home() / USER_FOLDER / "data"
    return folder


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

    Files that are shipped with the lab come first. A file of the user with the same relative path
    replaces one of them.

    >>> recorded_files("runs/digits/fp32-seed[01].json").keys()
    dict_keys(['runs/digits/fp32-seed0.json', 'runs/digits/fp32-seed1.json'])
    """
    files = {}
    for folder in (data_folder(), results_folder()):
        for path in sorted(folder.glob(pattern)):
            files[path.relative_to(folder).as_posix()] = path
    return files
