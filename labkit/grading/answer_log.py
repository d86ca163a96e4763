"""The learner's log: checked answers, their restoration into notebooks, hints, and progress.

Each `check` in a notebook appends the source of its cell, the points and the time to the journal
beside the notebook (labkit.records.journal). Each `hint` appends its number, so that the next call
shows the next hint, even after a restart. Progress is computed from the journal alone, so it covers
all notebooks of a folder.

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
        id: The id of the exercise.
        source: The source of the cell.
        points: The points of the answer when it was checked.
        out_of: The points of the exercise.
        when: The time in UTC, as ISO 8601.
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
    if not source:
        return
    logged = [line for line in entries(journal, "exercise") if line["id"] == id]
    if logged:
        last = logged[-1]
        if last["answer"] == source and last.get("points") == grade.points:
            return
    save_answer(journal, "exercise", id, source, points=grade.points, out_of=grade.out_of)


def logged_answers(folder: Path) -> dict[str, list[LoggedAnswer]]:
    """Return the answers that were checked in a folder's notebooks, by exercise, oldest first."""

    def number(line: dict[str, Any], key: str) -> int:
        # A learner can edit the journal.
        value = line.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            return 0
        return value

    answers: dict[str, list[LoggedAnswer]] = {}
    for line in entries(folder.resolve() / NAME, "exercise"):
        answer = LoggedAnswer(
            id=line["id"],
            source=line["answer"],
            points=number(line, "points"),
            out_of=number(line, "out_of"),
            when=str(line.get("when", "")),
        )
        answers.setdefault(answer.id, []).append(answer)
    return answers


def best(answers: list[LoggedAnswer]) -> LoggedAnswer:
    """Return the answer with the most points; the latest among equals."""
    # max returns the first of equal elements.
    return max(reversed(answers), key=lambda answer: answer.points)


# --- restoring answers ---


def restore_answers(folder: Path) -> list[str]:
    """Write each exercise's best answer into its notebook if the cell holds no work.

    Returns:
        A line of text for each exercise with a logged answer.

    Raises:
        OSError: If a notebook cannot be written.
    """
    lines = []
    for id, answers in logged_answers(folder).items():
        if id in EXERCISES:
            exercise = EXERCISES[id]
            notebook = folder / f"{exercise.lesson}.ipynb"
            lines.append(f"{id}: {_restore(notebook, exercise, best(answers))}")
    return lines


def _restore(notebook: Path, exercise: Exercise, answer: LoggedAnswer) -> str:
    try:
        # some editors begin a file with a byte order mark
        content = json.loads(notebook.read_text(encoding="utf-8-sig"))
        (cell,) = [
            cell for cell in content["cells"] if exercise.tag in cell["metadata"].get("tags", ())
        ]
        present = "".join(cell["source"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return f"{notebook.name} has no such cell; `labkit restore {exercise.id}` prints the answer"
    if present == answer.source:
        return "the cell holds this answer already"
    if has_work(present, answer.source, _starter(exercise)):
        return f"left alone: the cell holds work; `labkit restore {exercise.id}` prints the answer"
    cell["source"] = answer.source.splitlines(keepends=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    # A lone surrogate, which UTF-8 cannot hold, is written as its escape, which JSON reads.
    write_atomic(notebook, text.encode(errors="backslashreplace"))
    return f"restored into {notebook.name} ({answer.points} of {answer.out_of} points)"


def _starter(exercise: Exercise) -> str:
    """Return the source of an exercise's cell in the handout; "" without the lesson."""
    for lesson in lessons():
        if lesson.name != exercise.lesson:
            continue
        for cell in learners_notebook(lesson)["cells"]:
            if exercise.tag in cell["metadata"].get("tags", ()):
                return "".join(cell["source"])
    return ""


def has_work(present: str, answer: str, starter: str = "") -> bool:
    r"""Return whether a cell has a line or a comment that the logged answer lacks.

    Args:
        present: The source of the cell.
        answer: The source of the logged answer.
        starter: The source of the cell in the handout.

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
    new_lines = _lines(present) - _lines(answer) - _lines(starter) - {""}
    no_work = ("def ", "class ", "from ", "import ", "check(", STARTER)
    return any(not line.startswith(no_work) for line in new_lines)


def _lines(source: str) -> set[str]:
    """Return the normalized lines of code without docstrings, and whole-line comments."""
    comments = {line.strip() for line in source.splitlines() if line.strip().startswith("#")}
    return comments | {line.strip() for line in bare(source).splitlines()}


def _source(function: object) -> str:
    """Return the source of the running cell, preceded by the function if it has another cell."""
    from IPython.core.getipython import get_ipython

    parent: Any = getattr(get_ipython(), "get_parent", dict)()
    cell = str(parent.get("content", {}).get("code", ""))
    try:
        own = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        own = ""
    if own.strip() in cell:
        return cell
    return f"{own}\n\n{cell}"


# --- hints: three for each exercise, which cost no points ---


@dataclass(frozen=True, repr=False)
class Hint:
    """A hint, which a notebook shows as a line.

    Attributes:
        text: The hint.
        step: Its number, from 1.
        of: The number of hints of the exercise.
    """

    text: str
    step: int
    of: int

    def __str__(self) -> str:
        more = "(That was the last one.)"
        if self.step < self.of:
            more = f"(Ask again for hint {self.step + 1}.)"
        return f"Hint {self.step} of {self.of}: {self.text} {more}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<p>{escape(str(self))}</p>"


def hints() -> dict[str, tuple[str, ...]]:
    """Return the hints of every exercise, in their order."""
    hints_by_id = {}
    for lesson in lessons():
        for id, steps in lesson.table("hints").items():
            hints_by_id[id] = tuple(steps)
    return hints_by_id


def hint(exercise_id: str, journal: Path | None = None) -> Hint:
    """Return the next hint for an exercise; after the last hint, the last again.

    When `labkit grade` runs a submission, this returns a remark instead of a hint.

    Args:
        exercise_id: The id of the exercise, such as "scaling.advance".
        journal: The journal that records the hints; by default the one beside the notebook. Without
            a journal, the first hint is returned.

    >>> hint("start.smallest").text
    'The formula is in the docstring. It has two parts: the bias, and a power of two.'

    Raises:
        ValueError: If the exercise does not exist. The message names the nearest id.
    """
    if lessons_hidden():
        return Hint("there are none where hand-ins are graded.", 1, 1)
    steps = hints().get(find_exercise(exercise_id).id)
    if not steps:
        raise ValueError(
            f"exercise {exercise_id!r} has no hints: its lesson's hints.toml holds none"
        )
    if journal is None:
        journal = current_journal()
    if journal is None:
        return Hint(steps[0], 1, len(steps))
    # A learner can edit the journal: what is not the number of a hint counts as none.
    numbers = {str(number): number for number in range(1, len(steps) + 1)}
    last = numbers.get(last_answers(journal, "hint").get(exercise_id, ""), 0)
    step = min(last + 1, len(steps))
    save_answer(journal, "hint", exercise_id, str(step))
    return Hint(steps[step - 1], step, len(steps))


# --- progress ---


@dataclass(frozen=True)
class LessonProgress:
    """The progress in a lesson. An exercise is solved if all checks in the notebook passed."""

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
    """The progress in all lessons, which a notebook shows as a table.

    Attributes:
        lessons: The progress in each lesson.
        next: A line about the first unsolved exercise.
    """

    lessons: tuple[LessonProgress, ...]
    next: str

    def __str__(self) -> str:
        # Two blanks after the longest name.
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
    """Return the progress in the notebooks of a folder, from the journal. No cell is run."""
    points = dict.fromkeys(EXERCISES, 0)
    for id, answers in logged_answers(Path(folder)).items():
        if id in points:
            # A learner can edit the journal.
            points[id] = min(max(best(answers).points, 0), EXERCISES[id].points)
    solved = {id for id in EXERCISES if points[id] >= visible_points(id)}
    rows = []
    for name in dict.fromkeys(exercise.lesson for exercise in EXERCISES.values()):
        ids = [id for id, exercise in EXERCISES.items() if exercise.lesson == name]
        row = LessonProgress(
            name=name,
            solved=len(solved.intersection(ids)),
            exercises=len(ids),
            points=sum(points[id] for id in ids),
            out_of=sum(EXERCISES[id].points for id in ids),
        )
        rows.append(row)
    line = "Everything is solved."
    for id, exercise in EXERCISES.items():
        if id not in solved:
            line = f"Next: {exercise.title}, in {exercise.lesson}"
            break
    return Progress(tuple(rows), line)


def visible_points(id: str) -> int:
    """Return the points of the checks that a notebook makes for an exercise."""
    return sum(check.points for check in EXERCISES[id].checks if not check.hidden)
