"""Release of the lab as a course for nbgrader, with the same points as `labkit grade`.

An exercise's cell becomes nbgrader's "autograded answer". A cell of "autograder tests" follows,
whose last line is a number, which nbgrader takes as partial credit. The tests are hidden: nbgrader
removes them from the release and restores them for grading. They call `labkit.grading.earned`.

Invariant: with the same seed both give the same points. (nbgrader runs learners' code in the
grading process, without a sandbox; the teacher's guide explains the consequences.)

Source: nbgrader 0.9, documentation "Metadata"; nbgrader/utils.py, determine_grade: stderr means no
points.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.classroom.model_answers import cell_in
from labkit.course import Lesson, learners_notebook
from labkit.grading.exercise import Exercise
from labkit.records import write_atomic

TESTS = """\
# Grading adds its tests here. Leave this cell where it is.
### BEGIN HIDDEN TESTS
from labkit.grading import earned

earned("{id}", {entry}, seed={seed})
### END HIDDEN TESTS"""
CONFIG = """\
c = get_config()
c.CourseDirectory.course_id = "fp16-lab"
c.ClearSolutions.code_stub = {
    "python": 'raise NotImplementedError("your code goes here; then run this cell again")'
}
c.Execute.timeout = 600
"""


def write_course(
    folder: Path, lessons: Sequence[Lesson], exercises: Sequence[Exercise], seed: int
) -> Path:
    """Write nbgrader's course folder, its configuration and notebooks with solutions; return it.

    Args:
        folder: the course folder.
        lessons: those that become assignments.
        exercises: those that are graded.
        seed: chooses the cases, as in `labkit grade --seed`.
    """
    write_atomic(folder / "nbgrader_config.py", CONFIG.encode())
    for lesson in lessons:
        notebook = learners_notebook(lesson)
        by_tag = {
            exercise.tag: (exercise, cell_in(lesson, exercise))
            for exercise in exercises
            if exercise.lesson == lesson.name
        }
        cells = []
        for cell in notebook["cells"]:
            cells += _with_tests(cell, by_tag, seed)
        notebook["cells"] = cells
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        write_atomic(folder / "source" / lesson.name / f"{lesson.name}.ipynb", text.encode())
    return folder


def _with_tests(
    cell: dict[str, Any], exercises: dict[str, tuple[Exercise, str]], seed: int
) -> list[dict[str, Any]]:
    """Return a cell as it is; or, of an exercise, the cell with its solution and one with tests.

    Args:
        cell: a cell of the learner's notebook.
        exercises: tag -> exercise and the cell's text with the solution.
        seed: chooses the cases.
    """
    tags = [tag for tag in cell["metadata"].get("tags", ()) if tag in exercises]
    if not tags:
        return [cell]
    exercise, solution = exercises[tags[0]]
    answer = {
        **cell,
        "metadata": {**cell["metadata"], "nbgrader": _metadata(exercise.cell_id, solution=True)},
        "source": solution.splitlines(keepends=True),
    }
    source = TESTS.format(id=exercise.id, entry=exercise.entry, seed=seed)
    tests_id = f"{exercise.cell_id}-tests"
    tests = {
        **cell,
        "id": tests_id,
        "metadata": {
            "nbgrader": _metadata(tests_id, grade=True, locked=True) | {"points": exercise.points}
        },
        "source": source.splitlines(keepends=True),
    }
    return [answer, tests]


def _metadata(
    grade_id: str, *, grade: bool = False, solution: bool = False, locked: bool = False
) -> dict[str, object]:
    return {
        "grade_id": grade_id,
        "grade": grade,
        "solution": solution,
        "locked": locked,
        "task": False,
        "cell_type": "code",
        "schema_version": 3,
    }
