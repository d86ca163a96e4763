"""Unpacking of zip archives for grading: of Canvas, of Moodle, of a class or of one learner.

Notebooks and journals are written with their times, also those of nested archives. Of everything
else an empty file of its name is written, so that a learner who handed in nothing else has a row.

Invariant: nothing is written outside of the target folder. What cannot be unpacked is reported with
its reason, so that its learner has rows like the others.
"""

from __future__ import annotations

import errno
import io
import math
import os
import shutil
import time
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from labkit.course import lessons
from labkit.grading.program import Unreadable
from labkit.grading.submission import (
    BLACKBOARD,
    CANVAS,
    MAX_BYTES,
    MAX_DEPTH,
    MOODLE,
    NOTEBOOKS,
    assignment_in,
    content_of,
    files_in,
    is_nobodys,
    learner_in,
)

UNPACKED_SUFFIXES = (*NOTEBOOKS, ".jsonl", ".zip")
DEEPEST = 3
LONGEST_NAME = 255  # bytes, of a file or a folder
MAX_ARCHIVE = 256 << 20  # bytes of a learner's archive
# Bytes of all that comes out of an archive: a few kilobytes may hold terabytes.
MAX_UNPACKED = 512 << 20
MAX_MEMBERS = 5000
UTF8_NAME = 0x800  # general purpose bit 11 (APPNOTE 6.3.10, 4.4.4)
ENCRYPTED = 0x1  # bit 0
Refused = dict[Path, str]  # where a file would be -> why it was not unpacked


def unpack_archives(paths: Iterable[Path], folder: Path) -> tuple[list[Path], Refused]:
    """Return the folders and notebooks to grade, archives unpacked, and what could not be unpacked.

    Both are arguments of `labkit.grading.submission.find`.

    Raises:
        ValueError: an archive named by the caller is not a zip archive.
        OSError: it cannot be read, or the disk is full.
    """
    found: list[Path] = []
    refused: Refused = {}
    for number, path in enumerate(paths):
        inside = folder / str(number)
        if path.suffix.lower() != ".zip" or path.is_dir():
            found += [path, *_archives_in(path, inside, refused)]
            continue
        try:
            archive = zipfile.ZipFile(path)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise ValueError(f"{path} is not a readable zip archive: {error}") from error
        with archive:
            _Unpacking(refused).unpack(archive, inside / path.stem)
        found.append(_class_in(inside, refused))
    return found, refused


def _archives_in(path: Path, folder: Path, refused: Refused) -> list[Path]:
    """Unpack the archives in a folder of submissions, each for the learner it is named after.

    An archive beside the learners' folders is an export of Canvas or Moodle if it names several
    learners without folders beside it. Its own name must not be that of a learner's file.
    """
    found = []
    for number, archive in enumerate(files_in(path, ".zip") if path.is_dir() else []):
        inside = archive.relative_to(path)
        root = folder.with_name(f"{folder.name}.{number}")
        target = root / inside.with_suffix("")
        try:
            content = content_of(archive, path.resolve() / inside.parts[0], MAX_ARCHIVE)
        except Unreadable as error:
            content = b""
            refused[target] = str(error)
        root.mkdir(parents=True)
        if content:
            _Unpacking(refused, MAX_UNPACKED, MAX_MEMBERS).unpack_bytes(content, target)
        alone = len(inside.parts) == 1 and not _is_exported(archive.name)
        of_class = _class_in(target, refused) if alone and target.is_dir() else root
        exported = {name for name in _entries(of_class, refused) if _is_exported(name)}
        names = {learner_in(name, assignment_in(exported))[0] for name in exported}
        beside = {learner_in(name)[0] for name in _entries(path, {})}
        if alone and names & beside:
            shutil.rmtree(target)
            refused[target] = (
                f"its archive names {min(names & beside)}, who has a submission beside "
                "it; name the export itself"
            )
        found.append(of_class if len(names) > 1 and target not in refused else root)
    return found


class _Unpacking:
    """Unpacking of an archive and those inside it, with limits on `bytes` and `members` written."""

    def __init__(
        self, refused: Refused, bytes: float = math.inf, members: float = math.inf
    ) -> None:
        self.refused = refused
        self.bytes = bytes
        self.members = members
        # names of files that are not unpacked: a virtual environment holds thousands
        self.names = members

    def unpack_bytes(self, content: bytes, folder: Path, depth: int = DEEPEST) -> None:
        """Unpack the archive in these bytes, or record why it cannot be unpacked."""
        try:
            archive = zipfile.ZipFile(io.BytesIO(content))
        except Exception as error:
            # damage raises many kinds of errors
            self.refused[folder] = f"its archive cannot be unpacked: {str(error)[:100]}"
            return
        with archive:
            self.unpack(archive, folder, depth)

    def unpack(self, archive: zipfile.ZipFile, folder: Path, depth: int = DEEPEST) -> None:
        """Write the notebooks and journals of an archive below a folder, which is created."""
        folder.mkdir(parents=True, exist_ok=True)
        for info in archive.infolist():
            path = PurePosixPath(_name_of(info).replace("\\", "/"))
            parts = [part for part in path.parts if part not in ("..", "/")]
            if not parts or any(part == "__MACOSX" or part.startswith(".") for part in parts):
                continue
            target = folder.joinpath(*parts)
            if not info.is_dir() and not parts[-1].lower().endswith(UNPACKED_SUFFIXES):
                self._write_name(target, parts)
                continue
            why = (
                "its name leads out of the archive"
                if len(parts) < len(path.parts)
                else self._problem(info, parts)
            )
            try:
                if not why and info.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                elif not why:
                    self._write(archive.read(info), target, info, depth)
            except Exception as error:
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise  # the disk is full: no archive is at fault
                why = (
                    f"it cannot be unpacked: {getattr(error, 'strerror', None) or str(error)[:100]}"
                )
            if why:
                self.refused[target] = why

    def _problem(self, info: zipfile.ZipInfo, parts: list[str]) -> str:
        """Return why a member is not unpacked, or ""; else count it."""
        if len(parts) > MAX_DEPTH or any(
            len(part.encode(errors="replace")) > LONGEST_NAME for part in parts
        ):
            return (
                f"its name has more than {LONGEST_NAME} bytes, or it lies in more than "
                f"{MAX_DEPTH} folders"
            )
        if info.flag_bits & ENCRYPTED:
            return "it is encrypted"
        if info.file_size > MAX_BYTES and not parts[-1].lower().endswith(".zip"):
            return f"it is larger than {MAX_BYTES >> 20} MiB"
        if info.file_size > MAX_ARCHIVE:
            return f"an archive inside of an archive has at most {MAX_ARCHIVE >> 20} MiB"
        self.bytes -= info.file_size
        self.members -= 1
        if self.bytes < 0 or self.members < 0:
            return f"its archive holds more than {MAX_UNPACKED >> 20} MiB or {MAX_MEMBERS} files"
        return ""

    def _write_name(self, target: Path, parts: list[str]) -> None:
        """Write an empty file for one not unpacked, unless its name or their number is too big."""
        self.names -= 1
        if self.names >= 0 and len(parts) <= MAX_DEPTH:
            with suppress(OSError, ValueError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()

    def _write(self, content: bytes, target: Path, info: zipfile.ZipInfo, depth: int) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix.lower() == ".zip":
            if depth:
                inner = (
                    self
                    if self.bytes < math.inf
                    else _Unpacking(self.refused, MAX_UNPACKED, MAX_MEMBERS)
                )
                inner.unpack_bytes(content, target.with_suffix(""), depth - 1)
            else:
                self.refused[target.with_suffix("")] = (
                    f"archives lie more than {DEEPEST} deep in each other"
                )
            return
        target.write_bytes(content)
        with suppress(ValueError, OverflowError, OSError):
            when = time.mktime((*info.date_time, 0, 0, -1))
            os.utime(target, (when, when))


def _name_of(info: zipfile.ZipInfo) -> str:
    """Return a member's name; macOS writes UTF-8 without the flag."""
    with suppress(UnicodeError):
        if not info.flag_bits & UTF8_NAME:
            return info.filename.encode("cp437").decode("utf-8")
    return info.filename


def _class_in(folder: Path, refused: Refused) -> Path:
    """Return the folder whose entries are learners: an archive may wrap it in further folders."""
    while True:
        entries = {name for name in _entries(folder, refused) if not is_nobodys(name)}
        only = folder / min(entries) if len(entries) == 1 else folder
        if only == folder or not only.is_dir() or MOODLE.fullmatch(only.name):
            return folder
        if any(
            path.name.lower().startswith(lesson.name.lower())
            for path in only.iterdir()
            for lesson in lessons()
        ):
            return folder
        folder = only


def _entries(folder: Path, refused: Refused) -> set[str]:
    """Return the names in a folder, with those that could not be unpacked."""
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return present | {
        path.relative_to(folder).parts[0] for path in refused if folder in path.parents
    }


def _is_exported(name: str) -> bool:
    return any(system.fullmatch(name) for system in (MOODLE, CANVAS, BLACKBOARD))
