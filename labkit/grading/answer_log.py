"""The learner's log: checked answers, their restoration into notebooks, hints, and progress.

Each `check()` in a notebook appends the source of its cell, the points and the time to the journal
beside the notebook (labkit.records.journal). Each `hint()` appends its step: the next call shows
the next one, even after a restart. Progress is computed from the journal alone, so it spans all
notebooks of a folder.

Invariant: only a cell without work is overwritten. Logging never fails a check.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from labkit.course import learners_notebook, lessons, lessons_hidden
from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES, find_exercise
from labkit.grading.grade import Grade
from labkit.grading.program import bare
from labkit.records import write_atomic
from labkit.records.journal import (
    NAME,
    append_answer,
    current_journal,
    entries,
    last_answers,
    save_answer,
)

STARTER = "raise NotImplementedError("


@dataclass(frozen=True)
class LoggedAnswer:
    """An answer in the journal.

    Attributes:
        points, out_of: What it earned when it was checked, and the points of the exercise.
        when: UTC, ISO 8601.
    """

    id: str
    source: str
    points: int
    out_of: int
    when: str


def log_answer(grade: Grade, function: object) -> None:
    """Log a checked answer, unless it is the starter or equals the last one."""
    journal = current_journal()
    if journal is None or grade.unsolved:
        return
    source = _source(function)
    id = grade.exercise.id
    last = [line for line in entries(journal, "exercise") if line["id"] == id][-1:]
    if not source or (
        last and (last[0]["answer"], last[0].get("points")) == (source, grade.points)
    ):
        return
    save_answer(journal, "exercise", id, source, points=grade.points, out_of=grade.out_of)


def logged_answers(folder: Path) -> dict[str, list[LoggedAnswer]]:
    """Return exercise -> the answers that were checked in a folder's notebooks, oldest first."""
    found: dict[str, list[LoggedAnswer]] = {}
    for line in entries(folder.resolve() / NAME, "exercise"):
        points, out_of = (
            line[key] if isinstance(line.get(key), int) else 0 for key in ("points", "out_of")
        )
        answer = LoggedAnswer(line["id"], line["answer"], points, out_of, str(line.get("when", "")))
        found.setdefault(line["id"], []).append(answer)
    return found


def best(answers: list[LoggedAnswer]) -> LoggedAnswer:
    """Return the answer with the most points, the latest of those."""
    return max(reversed(answers), key=lambda answer: answer.points)


# --- restoring answers ---


def restore_answers(folder: Path) -> list[str]:
    """Write each exercise's best answer into its notebook if the cell holds no work.

    Returns:
        A line of text for each answer that was logged.

    Raises:
        OSError: a notebook cannot be written.
    """
    known = (
        (EXERCISES[id], best(answers))
        for id, answers in logged_answers(folder).items()
        if id in EXERCISES
    )
    return [
        f"{exercise.id}: {_restore(folder / f'{exercise.lesson}.ipynb', exercise, top)}"
        for exercise, top in known
    ]


def _restore(notebook: Path, exercise: Exercise, answer: LoggedAnswer) -> str:
    try:
        content = json.loads(notebook.read_text(encoding="utf-8"))
        (cell,) = [
            cell for cell in content["cells"] if exercise.tag in cell["metadata"].get("tags", ())
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{notebook.name} has no such cell; `labkit restore {exercise.id}` prints the answer"
    present = "".join(cell["source"])
    if present == answer.source:
        return "the cell holds this answer already"
    if has_work(present, answer.source, _starter(exercise)):
        return f"left alone: the cell holds work; `labkit restore {exercise.id}` prints the answer"
    cell["source"] = answer.source.splitlines(keepends=True)
    write_atomic(notebook, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return f"restored into {notebook.name} ({answer.points} of {answer.out_of} points)"


def _starter(exercise: Exercise) -> str:
    """Return the source of an exercise's cell as it was handed out.

    Returns:
        The source; "" if the exercise's lesson is not installed.
    """
    lesson = next((lesson for lesson in lessons() if lesson.name == exercise.lesson), None)
    cells = [] if lesson is None else learners_notebook(lesson)["cells"]
    return next(
        (
            "".join(cell["source"])
            for cell in cells
            if exercise.tag in cell["metadata"].get("tags", ())
        ),
        "",
    )


def has_work(present: str, answer: str, starter: str = "") -> bool:
    r"""Return whether a cell has a line or a comment that the logged answer lacks.

    >>> has_work("def f(x):\n    raise NotImplementedError()", "def f(x):\n    return x")
    False
    >>> answer = "def f(x):\n    return x"
    >>> has_work("def f(x):\n    raise NotImplementedError()\ncheck('a.b', f)", answer)
    False
    >>> has_work("def f(x):\n    # double it?\n    raise NotImplementedError()", answer)
    True
    """
    if STARTER not in present:
        return True
    own = _lines(present) - _lines(answer) - _lines(starter)
    return any(
        not line.startswith(("def ", "class ", "from ", "import ", "check(", STARTER))
        for line in own
        if line
    )


def _lines(source: str) -> set[str]:
    """Return the normalized lines of code, and the comments on lines of their own.

    Docstrings are left out.
    """
    comments = {line.strip() for line in source.splitlines() if line.strip().startswith("#")}
    return comments | {line.strip() for line in bare(source).splitlines()}


def _source(function: object) -> str:
    """Return the source of the running cell, after the function's if another cell defined it."""
    from IPython.core.getipython import get_ipython

    parent: Any = getattr(get_ipython(), "get_parent", dict)()
    cell = str(parent.get("content", {}).get("code", ""))
    try:
        own = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        own = ""
    return cell if own.strip() in cell else f"{own}\n\n{cell}"


# --- hints: three for each exercise, which cost no points ---


@dataclass(frozen=True, repr=False)
class Hint:
    """One hint; a notebook shows it as a line. step: from 1 to `of`."""

    text: str
    step: int
    of: int

    def __str__(self) -> str:
        more = (
            f" (Ask again for hint {self.step + 1}.)"
            if self.step < self.of
            else " (That was the last one.)"
        )
        return f"Hint {self.step} of {self.of}: {self.text}{more}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>"


def hints() -> dict[str, tuple[str, ...]]:
    """Return the hints of every exercise, the first step first."""
    return {id: tuple(steps) for lesson in lessons() for id, steps in lesson.table("hints").items()}


def hint(exercise_id: str, journal: Path | None = None) -> Hint:
    """Return the next hint for an exercise; after the last one, the last again.

    Where `labkit grade` runs hand-ins there are no hints, and it says so.

    Args:
        exercise_id: The exercise's id, as in "scaling.advance".
        journal: Records hints that were read; None: the journal beside the notebook; without any,
            the first is returned.

    >>> hint("start.smallest").text
    'The formula is in the docstring. It has two parts: the bias, and a power of two.'

    Raises:
        ValueError: the exercise does not exist; the message names the nearest.
    """
    if lessons_hidden():
        return Hint("there are none where hand-ins are graded.", 1, 1)
    steps = hints().get(find_exercise(exercise_id).id)
    if not steps:
        raise ValueError(
            f"exercise {exercise_id!r} has no hints: its lesson's hints.toml holds none"
        )
    journal = journal or current_journal()
    if journal is None:
        return Hint(steps[0], 1, len(steps))
    read = last_answers(journal, "hint").get(exercise_id, "0")
    step = min(int(read) + 1 if read.isdigit() else 1, len(steps))
    append_answer(journal, "hint", exercise_id, str(step))
    return Hint(steps[step - 1], step, len(steps))


# --- progress ---


@dataclass(frozen=True)
class LessonProgress:
    """The progress in one lesson; an exercise is solved if every check of the notebook passed."""

    name: str
    solved: int
    exercises: int
    points: int
    out_of: int

    @property
    def columns(self) -> tuple[str, str, str]:
        """The lesson, its solved exercises and its points, as texts."""
        return (
            self.name,
            f"{self.solved} of {self.exercises} solved",
            f"{self.points} of {self.out_of} points",
        )


@dataclass(frozen=True, repr=False)
class Progress:
    """The progress in all lessons, and the first unsolved exercise.

    A notebook shows it as a table.
    """

    lessons: tuple[LessonProgress, ...]
    next: str

    def __str__(self) -> str:
        # two blanks behind the longest name
        width = max((len(lesson.name) for lesson in self.lessons), default=0) + 2
        lines = []
        for lesson in self.lessons:
            name, solved, points = lesson.columns
            lines.append(f"{name:<{width}}{solved:<18}{points}")
        return "\n".join([*lines, self.next])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = 'style="text-align:left"'
        row = f'<tr><th scope="row" {left}>{{}}</th><td {left}>{{}}</td><td {left}>{{}}</td></tr>'
        rows = "".join(row.format(*map(escape, lesson.columns)) for lesson in self.lessons)
        caption = (
            '<caption style="caption-side:bottom;text-align:left;color:inherit">'
            f"{escape(self.next)}</caption>"
        )
        return (
            '<table style="color:var(--jp-ui-font-color1,inherit)">'
            f"{caption}<tbody>{rows}</tbody></table>"
        )


def progress(folder: Path | str = ".") -> Progress:
    """Return the progress in the notebooks of a folder; nothing is run."""
    points = dict.fromkeys(EXERCISES, 0)
    points |= {
        id: best(answers).points
        for id, answers in logged_answers(Path(folder)).items()
        if id in points
    }
    solved = {id for id in EXERCISES if points[id] >= visible_points(id)}
    rows = []
    for name in dict.fromkeys(exercise.lesson for exercise in EXERCISES.values()):
        own = [id for id, exercise in EXERCISES.items() if exercise.lesson == name]
        out_of = sum(EXERCISES[id].points for id in own)
        rows.append(
            LessonProgress(
                name, len(solved & {*own}), len(own), sum(points[id] for id in own), out_of
            )
        )
    following = next((exercise for id, exercise in EXERCISES.items() if id not in solved), None)
    line = (
        f"Next: {following.title}, in {following.lesson}" if following else "Everything is solved."
    )
    return Progress(tuple(rows), line)


def visible_points(id: str) -> int:
    """Return the points of the checks that a notebook makes for an exercise."""
    return sum(check.points for check in EXERCISES[id].checks if not check.hidden)
