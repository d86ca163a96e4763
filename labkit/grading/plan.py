"""Who is asked what, and in which notebook does the answer stand?

Idea: every learner has one row for every exercise of every lesson that is asked for. The answer is taken from the
notebook of theirs that holds it, wherever its cell was pasted; where none does, the row says what is missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES
from labkit.grading.program import defines
from labkit.grading.submission import Cell, Submission, Unreadable, is_of, read_cells


@dataclass(frozen=True)
class Read:
    """A submission, opened: its code cells, or the reason why there are none; its lesson, if it can be told."""

    submission: Submission
    cells: tuple[Cell, ...]
    problem: str
    lesson: str | None


def read(submission: Submission) -> Read:
    """Return a submission, opened."""
    try:
        cells, problem = tuple(read_cells(submission)), ""
    except Unreadable as error:
        cells, problem = (), str(error)
    except Exception as error:  # whatever is in it, the class goes on
        cells, problem = (), f"it cannot be read: {type(error).__name__}: {str(error)[:100]}"
    return Read(submission, cells, problem, lesson_of(submission, cells))


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


def plan(reads: Sequence[Read], lesson: str | None) -> list[tuple[Read, list[Exercise]]]:
    """Return which exercises are graded from which notebook, students in order, each exercise once for each of them.

    lesson   ask for this one only; None: for every lesson that some notebook tells, or all where none does
    """
    told = {lesson} if lesson else {name for one in reads for name in _told(one)}
    asked = [exercise for exercise in EXERCISES.values() if not told or exercise.lesson in told]
    rows: dict[Read, list[Exercise]] = {}
    for student in dict.fromkeys(one.submission.student for one in reads):
        theirs = [one for one in reads if one.submission.student == student]
        for exercise in asked:
            rows.setdefault(_notebook_of(exercise, student, theirs), []).append(exercise)
    return list(rows.items())


def _told(one: Read) -> set[str]:
    """Return the lessons that a notebook stands for: its own, and any of which it holds half of the exercises."""
    whole = lessons_in([Cell(exercise.cell_id, (), "") for exercise in EXERCISES.values()])
    return {name for name, n in lessons_in(one.cells).items() if 2 * n >= whole[name]} | ({one.lesson} - {None})  # type: ignore[operator]


def _notebook_of(exercise: Exercise, student: str, reads: Sequence[Read]) -> Read:
    """Return the notebook that an answer is taken from.

    One that holds an answer goes before one that holds the starter, and that before one without the cell; then its own
    lesson before another, and of equals the last by name.
    """
    with_cell = [one for one in reads if any(is_of(cell, exercise) for cell in one.cells)]
    of_lesson = [one for one in reads if one.lesson == exercise.lesson]
    answered = [one for one in {*with_cell, *of_lesson} if defines(one.cells, exercise)]
    for group in (answered, with_cell, of_lesson, [one for one in reads if one.lesson is None]):
        if group:
            return max(group, key=lambda one: (one.lesson == exercise.lesson, reads.index(one)))
    return Read(Submission(student, "", None), (), f"no notebook of lesson {exercise.lesson} was handed in", None)
