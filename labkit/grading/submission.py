"""What did the learner hand in?

Idea: a submission is a notebook, read as JSON. An exercise's cell is found by its tag or its id. Of the other cells,
grading takes only what the exercise's cell names, directly or through another definition: imports, functions, classes
and constants. So a helper written in a cell of its own counts, and a training run or a widget elsewhere does not run
again.

Invariant: nothing in here runs a learner's code; it is parsed at most.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES

MAX_BYTES = 64 << 20
_MAGIC = re.compile(r"^(?=[%!?])", re.MULTILINE)


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
    is its student's. Checkpoints and hidden files are passed over.

    Raises:
        FileNotFoundError: a path does not exist.
    """
    found: list[Submission] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"there is no {path}; give a folder of notebooks, or notebooks")
        found += _in_folder(path) if path.is_dir() else [Submission(path.stem, path.name, path)]
    return found


def _in_folder(folder: Path) -> Iterator[Submission]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            inside = [p.relative_to(entry) for p in sorted(entry.rglob("*.ipynb"))]
            notebooks = [p for p in inside if not any(part.startswith(".") for part in p.parts)]
            yield from (Submission(entry.name, p.as_posix(), entry / p) for p in notebooks)
            if not notebooks:
                yield Submission(entry.name, "", None)
        elif entry.suffix == ".ipynb":
            yield Submission(entry.stem, entry.name, entry)


def read_cells(submission: Submission) -> list[Cell]:
    """Return the code cells of a notebook.

    Raises:
        Unreadable: it is no notebook, or has no code.
    """
    path = submission.path
    if path is None:
        raise Unreadable("no notebook in this student's folder")
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise Unreadable(f"not a file of at most {MAX_BYTES >> 20} MiB")
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
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
    """Return the lesson a notebook belongs to: by the exercises in it, else by its file's name, else None."""
    inside = [exercise.lesson for exercise in EXERCISES.values() if any(_is_of(cell, exercise) for cell in cells)]
    named = [exercise.lesson for exercise in EXERCISES.values() if exercise.lesson == Path(submission.notebook).stem]
    return next(iter(inside + named), None)


def program_of(cells: Sequence[Cell], exercise: Exercise) -> list[str]:
    """Return the code to run for one exercise: what it needs of other cells, statement by statement, then its own cell.

    Raises:
        Unreadable: the cell is gone, is there twice with different code, or is not Python.
    """
    own = [cell for cell in cells if _is_of(cell, exercise)]
    if not own:
        raise Unreadable(f"its cell was deleted: no code cell has the tag {exercise.tag} or the id {exercise.cell_id}")
    if len({cell.source for cell in own}) > 1:
        raise Unreadable(f"{len(own)} different cells have the tag {exercise.tag}: which one counts?")
    source = without_magic(own[0].source)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise Unreadable(f"syntax error{at}: {getattr(error, 'msg', error)}") from error
    others = [cell for cell in cells if cell not in own]
    return [*_needed(tree, others, frozenset(exercise.provides)), source]


def without_magic(source: str) -> str:
    """Return the source with lines for IPython (%, !, ?) commented out, so that line numbers stay."""
    return _MAGIC.sub("# ", source)


def _is_of(cell: Cell, exercise: Exercise) -> bool:
    return exercise.tag in cell.tags or cell.id == exercise.cell_id


def _needed(tree: ast.AST, others: Iterable[Cell], provided: frozenset[str]) -> list[str]:
    """Return the definitions that `tree` names, and those that they name in turn, in the order of the notebook."""
    definitions = [statement for cell in others for statement in _definitions(cell)]
    wanted, names = set[int](), _names(tree) - provided
    while True:
        more = {i for i, statement in enumerate(definitions) if i not in wanted and _bound(statement) & names}
        if not more:
            return [ast.unparse(definitions[i]) for i in sorted(wanted)]
        wanted |= more
        names = names.union(*(_names(definitions[i]) for i in more)) - provided


def _definitions(cell: Cell) -> list[ast.stmt]:
    """Return the statements of a cell that define a name and do nothing else."""
    try:
        statements = ast.parse(without_magic(cell.source)).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return [s for s in statements if isinstance(s, kinds) or (isinstance(s, ast.Assign) and _is_constant(s.value))]


def _is_constant(value: ast.expr) -> bool:
    if isinstance(value, ast.Lambda):
        return True
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a definition binds."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
