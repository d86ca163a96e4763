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

    `seed` chooses the cases, as in `labkit grade --seed`.
    """
    write_atomic(folder / "nbgrader_config.py", CONFIG.encode())
    for lesson in lessons:
        notebook = learners_notebook(lesson)
        own = {e.tag: (e, cell_in(lesson, e)) for e in exercises if e.lesson == lesson.name}
        notebook["cells"] = [
            part for cell in notebook["cells"] for part in _with_tests(cell, own, seed)
        ]
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        write_atomic(folder / "source" / lesson.name / f"{lesson.name}.ipynb", text.encode())
    return folder


def _with_tests(
    cell: dict[str, Any], exercises: dict[str, tuple[Exercise, str]], seed: int
) -> list[dict[str, Any]]:
    """Return a cell; that of an exercise has its solution, and is followed by its tests."""
    found = next(
        (exercises[tag] for tag in cell["metadata"].get("tags", ()) if tag in exercises), None
    )
    if found is None:
        return [cell]
    exercise, solution = found
    metadata = {**cell["metadata"], "nbgrader": _words(exercise.cell_id, solution=True)}
    answer = {**cell, "metadata": metadata, "source": solution.splitlines(keepends=True)}
    source = TESTS.format(id=exercise.id, entry=exercise.entry, seed=seed).splitlines(keepends=True)
    words = _words(f"{exercise.cell_id}-tests", grade=True, locked=True) | {
        "points": exercise.points
    }
    tests = {
        **cell,
        "id": f"{exercise.cell_id}-tests",
        "metadata": {"nbgrader": words},
        "source": source,
    }
    return [answer, tests]


def _words(
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
