"""What did the learner hand in?

Idea: a submission is a notebook, read as JSON. An exercise's cell is found by its tag or its id, and a notebook's
lesson by the exercises in it. Which of its code is run, labkit.grading.program says.

Invariant: nothing in here runs a learner's code.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES

MAX_BYTES = 64 << 20
CANVAS = re.compile(r"(?P<who>[^_]+)_(?:LATE_)?(?P<number>\d+)_\d+_(?P<file>.+)")
MOODLE = re.compile(r"(?P<who>.+)_(?P<number>\d+)_assignsubmission_[a-z]+_?(?P<file>.*)")


class Unreadable(Exception):
    """Something handed in cannot be graded; the message says why, for the teacher's list."""


@dataclass(frozen=True)
class Submission:
    """One notebook of one student. `path` is None where a student's folder holds no notebook."""

    student: str
    notebook: str
    path: Path | None


@dataclass(frozen=True)
class Cell:
    """A code cell: its id, its tags and its source."""

    id: str
    tags: tuple[str, ...]
    source: str


def find(paths: Iterable[Path]) -> list[Submission]:
    """Return the submissions in files and folders, in order of name.

    <folder>/<student>.ipynb and <folder>/<student>/.../<lesson>.ipynb both do, mixed or not; a file given by itself
    is its student's. Names that Canvas and Moodle give are taken apart. Checkpoints, hidden files and what macOS adds
    to an archive (__MACOSX) are passed over.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    found: list[Submission] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}; give a folder of notebooks, or notebooks")
        found += _in_folder(path) if path.is_dir() else [_of_file(path)]
    return found


def learner_in(name: str) -> tuple[str, str]:
    """Return who handed in, and the name of the file, as the exports of Canvas and Moodle tell them.

    >>> learner_in("lovelaceada_LATE_12345_678901_06_loss_scaling-1.ipynb")
    ('lovelaceada_12345', '06_loss_scaling-1.ipynb')
    >>> learner_in("Ada Lovelace_1234567_assignsubmission_file_")
    ('Ada Lovelace_1234567', '')
    >>> learner_in("ada.ipynb")
    ('ada', 'ada.ipynb')
    """
    found = MOODLE.fullmatch(name) or CANVAS.fullmatch(name)
    return (f"{found['who']}_{found['number']}", found["file"]) if found else (name.removesuffix(".ipynb"), name)


def _of_file(path: Path) -> Submission:
    student, name = learner_in(path.name)
    return Submission(student, name, path)


def _in_folder(folder: Path) -> Iterator[Submission]:
    for entry in sorted(folder.iterdir()):
        if _is_hidden(entry.name):
            continue
        if _is_folder(entry):
            inside = [p.relative_to(entry) for p in _notebooks_in(entry)]
            notebooks = [p for p in inside if not any(_is_hidden(part) for part in p.parts)]
            student, _ = learner_in(entry.name)
            yield from (Submission(student, p.as_posix(), entry / p) for p in notebooks)
            if not notebooks:
                yield Submission(student, "", None)
        elif entry.suffix == ".ipynb":
            yield _of_file(entry)


def _is_folder(entry: Path) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a folder above it may be listed, and not entered
        return entry.suffix != ".ipynb"


def _notebooks_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.rglob("*.ipynb"))
    except OSError:
        return []


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def read_cells(submission: Submission) -> list[Cell]:
    """Return the code cells of a notebook.

    Raises:
        Unreadable: it is no notebook, or has no code.
    """
    path = submission.path
    if path is None:
        raise Unreadable("no notebook in this student's folder, or none that can be read")
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"not a file of at most {MAX_BYTES >> 20} MiB")
    except OSError as error:
        raise Unreadable(f"it cannot be opened: {error.strerror}") from error
    try:
        notebook = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable(f"not a notebook: its text is not JSON ({str(error)[:100]})") from error
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise Unreadable("not a notebook: it has no list of cells (nbformat 4 is asked for)")
    code = [_cell(cell) for cell in cells if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    if not any(cell.source.strip() for cell in code):
        raise Unreadable("empty notebook: no cell holds any code")
    return code


def _cell(cell: dict[str, object]) -> Cell:
    metadata, source = cell.get("metadata"), cell.get("source")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    lines = source if isinstance(source, list) else [source]
    return Cell(
        id=str(cell.get("id", "")),
        tags=tuple(str(tag) for tag in tags) if isinstance(tags, list) else (),
        source="".join(line for line in lines if isinstance(line, str)),
    )


def lesson_of(submission: Submission, cells: Sequence[Cell]) -> str | None:
    """Return the lesson a notebook belongs to: that of most exercises in it, else its file's name, else None."""
    lessons = lessons_in(cells)
    named = Path(submission.notebook).stem
    if lessons:
        most = max(lessons.values())
        return named if lessons.get(named) == most else next(name for name, n in lessons.items() if n == most)
    return named if any(exercise.lesson == named for exercise in EXERCISES.values()) else None


def lessons_in(cells: Sequence[Cell]) -> Counter[str]:
    """Return how many exercises of each lesson have a cell here."""
    return Counter(exercise.lesson for exercise in EXERCISES.values() if any(is_of(cell, exercise) for cell in cells))


def is_of(cell: Cell, exercise: Exercise) -> bool:
    """Return whether a cell is the exercise's, by its tag or its id."""
    return exercise.tag in cell.tags or cell.id == exercise.cell_id
