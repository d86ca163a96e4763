"""How does nbgrader, where a school has it, give the same points? Each exercise gets its words, and a cell of tests.

Idea: an exercise's cell is nbgrader's "autograded answer". Behind it stands a cell of "autograder tests" whose last
line is a number, which nbgrader takes as partial credit. The tests are hidden ones, so nbgrader takes them out of what
learners get and puts them back when it grades. They ask `labkit.grading.earned`, which asks what `labkit grade` asks.

Invariant: with the same seed both give the same points. (nbgrader runs a learner's code in the process that grades it,
without walls: the teacher's guide says what follows.)

Source: nbgrader 0.9, documentation "Metadata"; nbgrader/utils.py, determine_grade: stderr means no points.
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
c.ClearSolutions.code_stub = {"python": 'raise NotImplementedError("your code goes here; then run this cell again")'}
c.Execute.timeout = 600
"""


def write_course(folder: Path, lessons: Sequence[Lesson], exercises: Sequence[Exercise], seed: int) -> Path:
    """Write nbgrader's course folder: its configuration, and source/<lesson>/<lesson>.ipynb with solutions; return it.

    seed  what cases are drawn from, as in `labkit grade --seed`
    """
    write_atomic(folder / "nbgrader_config.py", CONFIG.encode())
    for lesson in lessons:
        notebook = learners_notebook(lesson)
        own = {e.tag: (e, cell_in(lesson, e)) for e in exercises if e.lesson == lesson.name}
        notebook["cells"] = [part for cell in notebook["cells"] for part in _with_tests(cell, own, seed)]
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        write_atomic(folder / "source" / lesson.name / f"{lesson.name}.ipynb", text.encode())
    return folder


def _with_tests(cell: dict[str, Any], exercises: dict[str, tuple[Exercise, str]], seed: int) -> list[dict[str, Any]]:
    """Return a cell; an exercise's with its solution and nbgrader's metadata, and the cell of its tests behind it."""
    found = next((exercises[tag] for tag in cell["metadata"].get("tags", ()) if tag in exercises), None)
    if found is None:
        return [cell]
    exercise, solution = found
    metadata = {**cell["metadata"], "nbgrader": _words(exercise.cell_id, solution=True)}
    answer = {**cell, "metadata": metadata, "source": solution.splitlines(keepends=True)}
    source = TESTS.format(id=exercise.id, entry=exercise.entry, seed=seed).splitlines(keepends=True)
    words = _words(f"{exercise.cell_id}-tests", grade=True, locked=True) | {"points": exercise.points}
    tests = {**cell, "id": f"{exercise.cell_id}-tests", "metadata": {"nbgrader": words}, "source": source}
    return [answer, tests]


def _words(grade_id: str, *, grade: bool = False, solution: bool = False, locked: bool = False) -> dict[str, object]:
    return {"grade_id": grade_id, "grade": grade, "solution": solution, "locked": locked, "task": False,
            "cell_type": "code", "schema_version": 3}  # fmt: skip
