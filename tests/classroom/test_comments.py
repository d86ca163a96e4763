"""Comments and points that a teacher sets in a table."""

from pathlib import Path

import pytest

from labkit.classroom.marks import (
    TeacherComment,
    marks_of,
    read_comments,
    unused,
)
from labkit.grading.results import GradeRow
from tests.grading.hand_ins import ADVANCE, code, notebook, put

WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"


COMMENTS = "student;exercise;points;comment\r\n"


@pytest.fixture
def excel_comments(tmp_path: Path) -> dict[tuple[str, str], TeacherComment]:
    """Two comments as Excel writes them: a BOM, semicolons, and a comma in a number."""
    text = f"{COMMENTS}ZOË Müller;scaling.advance;4,5;fein\r\ncarl;;;wo?\r\n"
    return read_comments(put(tmp_path / "m.csv", text.encode("utf-8-sig")))


def test_line_of_a_teacher_is_read_as_excel_writes_it(
    excel_comments: dict[tuple[str, str], TeacherComment],
) -> None:
    assert excel_comments["ZOË Müller", ID] == TeacherComment(4.5, "fein")


def test_a_comment_is_for_its_learner_in_other_capitals(
    rows: list[GradeRow], excel_comments: dict[tuple[str, str], TeacherComment]
) -> None:
    assert [mark.points for mark in marks_of(rows[:1], {}, 0, excel_comments)] == [4.5]


def test_a_comment_for_nobody_is_reported(
    rows: list[GradeRow], excel_comments: dict[tuple[str, str], TeacherComment]
) -> None:
    assert unused(excel_comments, rows) == ["no row for 'carl': your comment is unused"]


def test_a_wrong_line_of_a_teacher_is_refused(tmp_path: Path) -> None:
    for line, says in (
        ("ada;scaling.advance;many;", "line 2: 'many' is not a number of points"),
        ("ada;scaling.advanced;1;", "line 2: the exercise 'scaling.advanced' does not exist"),
        ("ada;;1;", "expected an exercise for 1 points, got none"),
        ("ada;scaling.advance;-1;", "expected points from 0 on, got -1"),
        ("ada;scaling.advance;1;\nada;scaling.advance;2;", "line 3: 'ada' has an earlier line"),
        ("ada;;;a\nada;;;b", "line 3: 'ada' has an earlier line for all work"),
    ):
        with pytest.raises(ValueError, match=says):
            read_comments(put(tmp_path / "m.csv", f"{COMMENTS}{line}\n"))


def test_the_most_exact_of_two_comments_counts() -> None:
    rows = [GradeRow("Ann", "x.ipynb", ID, 8, 8, "")]
    for names in (("Ann", "ann"), ("ann", "Ann")):
        comments = {(name, ID): TeacherComment(1.0, name) for name in names}
        assert [mark.comment for mark in marks_of(rows, {}, 0, comments)] == [
            TeacherComment(1.0, "Ann")
        ]
        assert unused(comments, rows) == [
            f"another line is for the row of 'ann' {ID}: your comment is unused"
        ]
