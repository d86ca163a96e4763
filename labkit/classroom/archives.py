"""How does a zip archive become folders that can be graded? Canvas's and Moodle's exports, a class's, or a learner's.

Idea: notebooks and journals are written out, with their times, into folders of one's own; archives inside of archives
too. Everything else stays in the archive.

Invariant: nothing is written outside of the folder that was given, and an archive that cannot be read leaves an empty
folder of its name, so that its learner has rows like the others.
"""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath

from labkit.grading.exercise import LESSONS
from labkit.grading.submission import CANVAS, MAX_BYTES, MOODLE

WANTED = (".ipynb", ".jsonl", ".zip")
DEEPEST = 3
UTF8_NAME = 0x800  # general purpose bit 11 (APPNOTE 6.3.10, 4.4.4)


def unpacked(paths: Iterable[Path], folder: Path) -> list[Path]:
    """Return folders and notebooks to grade: those given, and what is in archives among them and inside of them.

    Raises:
        ValueError: an archive that was given by its name is none.
    """
    found = []
    for number, path in enumerate(paths):
        inside = folder / str(number)
        if path.suffix.lower() != ".zip":
            found.append(path)
            found += _archives_in(path, inside)
            continue
        try:
            _unpack(path.read_bytes(), inside / path.stem, DEEPEST)
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"{path} is no zip archive that can be read: {error}") from error
        found.append(_class_in(inside))
    return found


def _archives_in(path: Path, folder: Path) -> list[Path]:
    """Unpack the archives in a folder of hand-ins, each for the learner in whose folder, or under whose name, it is.

    One beside the learners' folders that is an export of Canvas or Moodle is a class of its own.
    """
    classes = []
    for number, archive in enumerate(sorted(path.rglob("*.[zZ][iI][pP]")) if path.is_dir() else []):
        inside = archive.relative_to(path)
        if not any(part.startswith(".") or part == "__MACOSX" for part in inside.parts):
            target = folder / inside.with_suffix("")
            with suppress(zipfile.BadZipFile, NotImplementedError, OSError):
                target.mkdir(parents=True)
                _unpack(archive.read_bytes(), target, DEEPEST)
                if len(inside.parts) == 1 and any(_is_exported(entry.name) for entry in _class_in(target).iterdir()):
                    classes.append(_class_in(target.rename(folder.with_name(f"{folder.name} class {number}"))))
    return classes + [folder] * (folder.is_dir() and any(folder.iterdir()))


def _unpack(content: bytes, folder: Path, depth: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            inside = PurePosixPath(_name_of(info).replace("\\", "/"))
            hidden = any(part in ("..", "__MACOSX") or part.startswith(".") for part in inside.parts)
            if info.is_dir() and not hidden and not inside.is_absolute():
                (folder / inside).mkdir(parents=True, exist_ok=True)
            if info.is_dir() or hidden or inside.is_absolute() or inside.suffix.lower() not in WANTED:
                continue
            if info.file_size <= MAX_BYTES:
                with suppress(
                    zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError
                ):  # RuntimeError: encrypted
                    _write(archive.read(info), folder / inside, info, depth)


def _write(content: bytes, target: Path, info: zipfile.ZipInfo, depth: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix.lower() == ".zip":
        if depth:
            _unpack(content, target.with_suffix(""), depth - 1)
        return
    target.write_bytes(content)
    with suppress(ValueError, OverflowError):
        when = time.mktime((*info.date_time, 0, 0, -1))
        os.utime(target, (when, when))


def _name_of(info: zipfile.ZipInfo) -> str:
    """Return a member's name; macOS writes UTF-8 and does not say so."""
    with suppress(UnicodeError):
        if not info.flag_bits & UTF8_NAME:
            return info.filename.encode("cp437").decode("utf-8")
    return info.filename


def _class_in(folder: Path) -> Path:
    """Return the folder whose entries are learners: an archive may hold folders around them, or be one learner's."""
    while True:
        entries = list(folder.iterdir())
        only = entries[0] if len(entries) == 1 and entries[0].is_dir() else None
        if only is None or MOODLE.fullmatch(only.name) or any(_is_lesson(path) for path in only.glob("*.ipynb")):
            return folder
        folder = only


def _is_exported(name: str) -> bool:
    return bool(MOODLE.fullmatch(name) or CANVAS.fullmatch(name))


def _is_lesson(path: Path) -> bool:
    return any(path.stem.startswith(lesson) for lesson in LESSONS.values())
