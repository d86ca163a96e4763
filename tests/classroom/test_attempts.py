"""Which of several notebooks of a learner counts, and how late it is."""

import os
from pathlib import Path

import pytest

from labkit.grading.plan import attempts, due_time, late_days
from labkit.grading.results import GradeRow, best_of
from labkit.grading.submission import Submission
from tests.grading.hand_ins import ADVANCE, code, notebook, put

WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"


def at(folder: Path, name: str, when: float) -> Submission:
    path = put(folder / name, WORK)
    os.utime(path, (when, when))
    return Submission(Path(name).parts[0], path.name, path)


DUE = due_time("2026-11-30")


@pytest.fixture
def handed_in(tmp_path: Path) -> list[Submission]:
    """Three notebooks of Ada, the third after the deadline, and a late one of Bob."""
    hours = {"ada/a.ipynb": -30, "ada/b.ipynb": -1, "ada/c.ipynb": 25, "bob/x.ipynb": 25}
    return [at(tmp_path, name, DUE + late * 3600) for name, late in hours.items()]


def test_last_notebook_in_time_counts(handed_in: list[Submission]) -> None:
    _, last, _, only_late = handed_in
    assert attempts(handed_in, "last", DUE) == [[last, only_late]]


def test_last_notebook_counts_without_a_deadline(handed_in: list[Submission]) -> None:
    *_, late, only_late = handed_in
    assert attempts(handed_in, "last") == [[late, only_late]]


def test_each_notebook_in_time_is_tried_for_the_best(handed_in: list[Submission]) -> None:
    early, last, _, only_late = handed_in
    assert attempts(handed_in, "best", DUE) == [[last, only_late], [early]]


def test_all_notebooks_count_where_nothing_is_chosen(handed_in: list[Submission]) -> None:
    assert attempts(handed_in, None, DUE) == [handed_in]


def test_a_late_day_counts_once_begun(handed_in: list[Submission]) -> None:
    assert [late_days(one, DUE) for one in handed_in] == [0, 0, 2, 2]


def test_nothing_is_late_without_a_deadline(handed_in: list[Submission]) -> None:
    assert [late_days(one, None) for one in handed_in] == [0, 0, 0, 0]


def test_best_of_takes_the_best_row_of_each_exercise() -> None:
    first, second = (
        [
            GradeRow("ada", name, ID, points, 8, ""),
            GradeRow("ada", name, "scaling.clip", 10, 10, ""),
        ]
        for name, points in (("b", 3), ("a", 8))
    )
    assert [(row.notebook, row.points) for row in best_of([first, second])] == [("a", 8), ("b", 10)]
