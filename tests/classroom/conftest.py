"""Rows of a grading that several files use."""

from collections.abc import Callable

import pytest

from labkit.grading import EXERCISES, judge
from labkit.grading.grade import as_json
from labkit.grading.judge import answers_of, grading_cases
from labkit.grading.results import GradeRow

SEED = 5
ID = "scaling.advance"


def graded(student: str, exercise_id: str, answer: Callable[..., object]) -> GradeRow:
    """Return a row as grading makes it, without a process."""
    exercise = EXERCISES[exercise_id]
    cases = grading_cases(exercise, SEED)
    grade = judge(cases, answers_of(cases, answer))
    return GradeRow(
        student,
        "06.ipynb",
        exercise_id,
        grade.points,
        grade.out_of,
        grade.reason,
        SEED,
        as_json(grade),
    )


GROWN_TOO_LATE = next(m.answer for m in EXERCISES[ID].mistakes if m.name == "grows one step late")


@pytest.fixture(scope="module")
def rows() -> list[GradeRow]:
    zeros = "recipes.epsilon"
    return [
        graded("Zoë Müller", ID, GROWN_TOO_LATE),
        graded("Zoë Müller", zeros, EXERCISES[zeros].reference),
        graded("ada", ID, EXERCISES[ID].reference),
        # A name that is not defined, on purpose.
        graded("ada", zeros, lambda *_: torch_lightning.step()),  # noqa: F821
        graded("<b>bob</b>", ID, GROWN_TOO_LATE),
        graded("<b>bob</b>", zeros, lambda *_: "<script>alert(1)</script>"),
    ]
