"""What has the learner solved, and where are the answers? Each `check()` leaves its answer in the journal.

Idea: a kept answer is the source of the cell that asked, with its points and its time. Progress is counted from the
journal alone, so it spans all notebooks of a folder; and an answer can be brought back into a notebook whose cell holds
the starter again.

Invariant: only a cell that holds no work is written. Keeping never fails a check.
"""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import Grade
from labkit.records import write_atomic
from labkit.records.journal import NAME, current_journal, entries, save_answer

STARTER = "raise NotImplementedError("


@dataclass(frozen=True)
class Kept:
    """An answer that the journal holds.

    points, out_of  what it earned at its check, and what the exercise is worth
    when            UTC, ISO 8601
    """

    id: str
    source: str
    points: int
    out_of: int
    when: str


def keep_answer(grade: Grade, function: object) -> None:
    """Note the answer that was just checked in a notebook; the starter, and what is noted already, are left out."""
    journal = current_journal()
    if journal is None or grade.unsolved:
        return
    source, id = _source(function), grade.exercise.id
    last = [line for line in entries(journal, "exercise") if line["id"] == id][-1:]
    if not source or (last and (last[0]["answer"], last[0].get("points")) == (source, grade.points)):
        return
    save_answer(journal, "exercise", id, source, points=grade.points, out_of=grade.out_of)


def kept_answers(folder: Path) -> dict[str, list[Kept]]:
    """Return exercise -> the answers that were checked in a folder's notebooks, oldest first."""
    found: dict[str, list[Kept]] = {}
    for line in entries(folder.resolve() / NAME, "exercise"):
        points, out_of = (line[key] if isinstance(line.get(key), int) else 0 for key in ("points", "out_of"))
        kept = Kept(line["id"], line["answer"], points, out_of, str(line.get("when", "")))
        found.setdefault(line["id"], []).append(kept)
    return found


def best(answers: list[Kept]) -> Kept:
    """Return the answer with the most points, the latest of those."""
    return max(reversed(answers), key=lambda kept: kept.points)


def bring_back(folder: Path) -> list[str]:
    """Write each exercise's best answer into its notebook where the cell holds no work; return what was done, in lines.

    Raises:
        OSError: a notebook cannot be written.
    """
    done = []
    for id, answers in kept_answers(folder).items():
        exercise = EXERCISES.get(id)
        if exercise is not None:
            done.append(f"{id}: {_into_notebook(folder / f'{exercise.lesson}.ipynb', exercise, best(answers))}")
    return done


def _into_notebook(notebook: Path, exercise: Exercise, kept: Kept) -> str:
    try:
        read = json.loads(notebook.read_text(encoding="utf-8"))
        (cell,) = [cell for cell in read["cells"] if exercise.tag in cell["metadata"].get("tags", ())]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{notebook.name} has no such cell; `labkit restore {exercise.id}` prints the answer"
    present = "".join(cell["source"])
    if present == kept.source:
        return "the same stands there"
    if holds_work(present, kept.source):
        return f"left alone: the cell holds work; `labkit restore {exercise.id}` prints the answer"
    cell["source"] = kept.source.splitlines(keepends=True)
    write_atomic(notebook, (json.dumps(read, indent=1, ensure_ascii=False) + "\n").encode())
    return f"brought back into {notebook.name} ({kept.points} of {kept.out_of} points)"


def holds_work(present: str, answer: str) -> bool:
    """Return whether a cell is more than a starter: it has a line or a comment that the kept answer has not.

    >>> holds_work("def f(x):\\n    raise NotImplementedError()", "def f(x):\\n    return x")
    False
    >>> holds_work("def f(x):\\n    raise NotImplementedError()\\ncheck('a.b', f)", "def f(x):\\n    return x")
    False
    >>> holds_work("def f(x):\\n    # double it?\\n    raise NotImplementedError()", "def f(x):\\n    return x")
    True
    """
    if STARTER not in present:
        return True
    try:
        own = _lines(present) - _lines(answer)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # in the middle of a line, or too deep to compare
        return True
    return any(not line.startswith(("def ", "class ", "from ", "import ", "check(", STARTER)) for line in own if line)


def _lines(source: str) -> set[str]:
    """Return the lines of code, in one spelling and without docstrings, and the comments that stand alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    comments = {line.strip() for line in source.splitlines() if line.strip().startswith("#")}
    return comments | {line.strip() for line in ast.unparse(tree).splitlines()}


def _source(function: object) -> str:
    """Return the source of the cell that runs, with that of the function before it where another cell defined it."""
    from IPython.core.getipython import get_ipython

    parent: Any = getattr(get_ipython(), "get_parent", dict)()
    cell = str(parent.get("content", {}).get("code", ""))
    try:
        own = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        own = ""
    return cell if own.strip() in cell else f"{own}\n\n{cell}"
