"""Unpacking of zip archives for grading: of Canvas, of Moodle, of a class or of one learner.

Notebooks and journals are written with their times, also those in nested archives. Any other file
becomes an empty file of its name, so that a learner who handed in nothing else gets a row.

Invariant: nothing is written outside the target folder. What cannot be unpacked is reported with
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
# How deep archives may be inside archives.
DEEPEST = 3
# Bytes of the name of a file or folder.
LONGEST_NAME = 255
# Bytes of a learner's archive.
MAX_ARCHIVE = 256 << 20
# Bytes that a learner's archive may unpack to: a few kilobytes may hold terabytes.
MAX_UNPACKED = 512 << 20
MAX_MEMBERS = 5000
# General purpose bit 11 of an entry (APPNOTE 6.3.10, 4.4.4).
UTF8_NAME = 0x800
# General purpose bit 0 of an entry.
ENCRYPTED = 0x1
# Where a file would be -> why it was not unpacked.
Refused = dict[Path, str]


def unpack_archives(paths: Iterable[Path], folder: Path) -> tuple[list[Path], Refused]:
    """Return the folders and notebooks to grade, archives unpacked, and what could not be unpacked.

    Both are arguments of `labkit.grading.submission.find`.

    Args:
        paths: folders, notebooks and archives that the teacher named.
        folder: where archives are unpacked.

    Raises:
        ValueError: an archive named by the caller is not a zip archive.
        OSError: it cannot be read, or the disk is full.
    """
    to_grade: list[Path] = []
    refused: Refused = {}
    for number, path in enumerate(paths):
        target_folder = folder / str(number)
        if path.suffix.lower() != ".zip" or path.is_dir():
            to_grade.append(path)
            if path.is_dir():
                to_grade += _unpack_in(path, target_folder, refused)
            continue
        try:
            archive = zipfile.ZipFile(path)
        # These are no fault of the archive.
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise ValueError(f"{path} is not a readable zip archive: {error}") from error
        with archive:
            _Unpacking(refused, holds_class=True).unpack(archive, target_folder / path.stem)
        to_grade.append(_class_in(target_folder, refused))
    return to_grade, refused


def _unpack_in(path: Path, folder: Path, refused: Refused) -> list[Path]:
    """Unpack the archives in a folder of submissions; return the folders to grade.

    An archive belongs to the learner it is named after. One beside the learners' folders is an
    export of Canvas or Moodle if it names several learners, none of whom has a folder beside it,
    and its own name is not that of a learner's file.
    """
    to_grade = []
    for number, archive in enumerate(files_in(path, ".zip")):
        # Each archive has a root of its own, in which it lies as it does in `path`.
        root = folder.with_name(f"{folder.name}.{number}")
        root.mkdir(parents=True)
        relative = archive.relative_to(path)
        target = root / relative.with_suffix("")
        _unpack_file(archive, path.resolve() / relative.parts[0], target, refused)
        if len(relative.parts) > 1 or _is_exported(archive.name):
            to_grade.append(root)
            continue
        # Whom does it name, and who of them has a submission beside it?
        class_folder = _class_in(target, refused) if target.is_dir() else root
        names = _exported_learners(class_folder, refused)
        beside = names & {learner_in(name)[0] for name in _entries(path, {})}
        if beside and target.is_dir():
            # graded as an export, it would replace the submissions beside it
            shutil.rmtree(target)
            refused[target] = (
                f"its archive names {min(beside)}, who has a submission beside "
                "it; name the export itself"
            )
        is_export = len(names) > 1 and target not in refused
        to_grade.append(class_folder if is_export else root)
    return to_grade


def _unpack_file(archive: Path, top: Path, target: Path, refused: Refused) -> None:
    """Unpack the archive of a learner, or record why it cannot be unpacked.

    Args:
        archive: Its path.
        top: The learner's file or folder, outside which a link must not lead.
        target: The folder to write.
        refused: Receives what is not unpacked, with the reason.
    """
    try:
        content = content_of(archive, top, MAX_ARCHIVE)
    except Unreadable as error:
        refused[target] = str(error)
        return
    _Unpacking(refused).unpack_bytes(content, target)


def _exported_learners(folder: Path, refused: Refused) -> set[str]:
    """Return the learners of the entries of a folder that a school's system exported."""
    exported = {name for name in _entries(folder, refused) if _is_exported(name)}
    assignment = assignment_in(exported)
    return {learner_in(name, assignment)[0] for name in exported}


class _Unpacking:
    """Unpacking of an archive and of those inside it.

    Args:
        refused: Receives what is not unpacked, with the reason.
        holds_class: Whether this is the teacher's own archive of a class, which has no limits;
            each archive inside it is a learner's, and has.
    """

    def __init__(self, refused: Refused, holds_class: bool = False) -> None:
        self.refused = refused
        self.holds_class = holds_class
        self.bytes_left = math.inf if holds_class else MAX_UNPACKED
        # notebooks, journals and archives
        self.files_left = math.inf if holds_class else MAX_MEMBERS
        # empty files in place of others: a virtual environment holds thousands
        self.empty_files_left = self.files_left

    def unpack_bytes(self, content: bytes, folder: Path, depth: int = DEEPEST) -> None:
        """Unpack the archive in these bytes, or record why it cannot be unpacked."""
        try:
            archive = zipfile.ZipFile(io.BytesIO(content))
        except Exception as error:
            # A damaged archive raises many kinds of errors.
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
            if len(parts) < len(path.parts):
                self.refused[target] = "its name leads out of the archive"
                continue
            problem = _problem(info, parts) or self._count(info)
            if problem:
                self.refused[target] = problem
                continue
            try:
                if info.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    self._write(archive.read(info), target, info, depth)
            except Exception as error:
                # a full disk is not the fault of an archive
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                reason = getattr(error, "strerror", None) or str(error)[:100]
                self.refused[target] = f"it cannot be unpacked: {reason}"

    def _count(self, info: zipfile.ZipInfo) -> str:
        """Count a member, and return which limit of the archive it exceeds, or ""."""
        self.bytes_left -= info.file_size
        self.files_left -= 1
        if self.bytes_left < 0:
            return f"its archive holds more than {MAX_UNPACKED >> 20} MiB"
        if self.files_left < 0:
            return f"its archive holds more than {MAX_MEMBERS} files"
        return ""

    def _write_name(self, target: Path, parts: list[str]) -> None:
        """Write an empty file in place of another, within the limits of number and depth."""
        self.empty_files_left -= 1
        if self.empty_files_left >= 0 and len(parts) <= MAX_DEPTH:
            with suppress(OSError, ValueError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.touch()

    def _write(self, content: bytes, target: Path, info: zipfile.ZipInfo, depth: int) -> None:
        """Write a file with its time; unpack an archive, at most `depth` levels deep."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix.lower() == ".zip":
            folder = target.with_suffix("")
            if not depth:
                self.refused[folder] = f"archives lie more than {DEEPEST} deep in each other"
                return
            # A learner's archive shares its limits with those inside it.
            inner = _Unpacking(self.refused) if self.holds_class else self
            inner.unpack_bytes(content, folder, depth - 1)
            return
        target.write_bytes(content)
        # a date in an archive may be impossible
        with suppress(ValueError, OverflowError, OSError):
            when = time.mktime((*info.date_time, 0, 0, -1))
            os.utime(target, (when, when))


def _problem(info: zipfile.ZipInfo, parts: list[str]) -> str:
    """Return why a member is not unpacked by itself, whatever else its archive holds, or ""."""
    if len(parts) > MAX_DEPTH:
        return f"it lies in more than {MAX_DEPTH} folders"
    if max(len(part.encode(errors="replace")) for part in parts) > LONGEST_NAME:
        return f"its name has a part of more than {LONGEST_NAME} bytes"
    if info.flag_bits & ENCRYPTED:
        return "it is encrypted"
    if info.file_size > MAX_BYTES and not parts[-1].lower().endswith(".zip"):
        return f"it is larger than {MAX_BYTES >> 20} MiB"
    if info.file_size > MAX_ARCHIVE:
        return f"an archive inside of an archive has at most {MAX_ARCHIVE >> 20} MiB"
    return ""


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
        if len(entries) != 1:
            return folder
        only = folder / min(entries)
        if not only.is_dir() or MOODLE.fullmatch(only.name):
            return folder
        # A folder with notebooks of lessons is a learner's.
        lesson_names = tuple(lesson.name.lower() for lesson in lessons())
        if any(path.name.lower().startswith(lesson_names) for path in only.iterdir()):
            return folder
        folder = only


def _entries(folder: Path, refused: Refused) -> set[str]:
    """Return the names in a folder, with those that could not be unpacked."""
    entries = {path.relative_to(folder).parts[0] for path in refused if folder in path.parents}
    if folder.is_dir():
        entries |= {path.name for path in folder.iterdir()}
    return entries


def _is_exported(name: str) -> bool:
    return any(system.fullmatch(name) for system in (MOODLE, CANVAS, BLACKBOARD))
