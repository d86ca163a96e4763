"""Tables in CSV: guards against formulas, separators, and refusals."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.classroom.marks import (
    marks_of,
    read_comments,
    write_gradebook,
)
from labkit.classroom.tables import read_table, write_table
from labkit.grading.results import GradeRow, guard, unguard
from tests.grading.hand_ins import ADVANCE, code, notebook, put

WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"


FORMULAS = ["=1+1", "+1", "-", "@handle", "\t=1", "\r=1", "'=1", "''-", "＝1"]
TEXT = st.one_of(
    st.text(max_size=8), st.sampled_from(FORMULAS), st.text("'=+-@\t\r\n,;\" a", max_size=5)
)


@settings(deadline=None)
@given(TEXT)
def test_guarded_text_is_not_a_formula(text: str) -> None:
    assert unguard(str(guard(text))) == text
    # spreadsheets take the full-width signs, too
    assert not str(guard(text)).startswith(tuple("=+-@\t\r＝＋－＠"))


@settings(deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4, unique=True),
    st.data(),
    st.booleans(),
)
def test_what_is_written_is_read(columns: list[str], data: st.DataObject, guarded: bool) -> None:
    if not columns[-1].strip() or not any(name.strip() for name in columns):
        columns = [*columns, "last"]
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(columns, TEXT)), max_size=4))
    with TemporaryDirectory() as folder:
        write_table(Path(folder, "t.csv"), columns, rows, guarded=guarded)
        assert read_table(Path(folder, "t.csv"), guarded=guarded) == rows


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_separator_is_that_of_the_first_line(tmp_path: Path, end: str) -> None:
    table = tmp_path / "points.csv"
    table.write_bytes(end.join(["name;points", "Ann, B.;1,5", "Bob, C.;2,5", ""]).encode())
    assert read_table(table) == [
        {"name": "Ann, B.", "points": "1,5"},
        {"name": "Bob, C.", "points": "2,5"},
    ]


def test_a_table_of_ours_for_the_class_is_guarded(tmp_path: Path) -> None:
    names = ["=cmd()", "'=1+1", "O'Neil"]
    marks = marks_of([GradeRow(name, "x.ipynb", ID, 3, 8, "") for name in names], {}, 0, {})
    write_gradebook(tmp_path / "out.csv", marks, None)
    assert {line["learner"] for line in read_table(tmp_path / "out.csv")} == {
        "'=cmd()",
        "''=1+1",
        "O'Neil",
    }
    assert {line["learner"] for line in read_table(tmp_path / "out.csv", guarded=True)} == {*names}


def test_table_that_would_lose_something_is_refused(tmp_path: Path) -> None:
    for text, says in (
        ("name,note,note\nada,1,2\n", "two columns named 'note'"),
        ("name,note\nada,fine, but late\n", "line 2: expected 2 cells"),
        ("\n\n", "is empty: its first line should name its columns"),
        (",,\nada,1,2\n", "line 1: expected names of columns, got empty cells"),
        ('name\n"' + "x" * 200_000, "is not a table"),
        ('name,note\nada,fine\nbob,"late\ncarl,\n', "the cells from line 3 on cannot be read"),
    ):
        (tmp_path / "r.csv").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=says):
            read_table(tmp_path / "r.csv")


def test_a_line_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    text = 'student,exercise,points,comment\n\nada,,,"two\nlines"\nbob,no.such,,\n'
    with pytest.raises(ValueError, match=r"line 5: the exercise 'no\.such' does not exist"):
        read_comments(put(tmp_path / "m.csv", text))


def test_a_tab_in_a_cell_is_not_taken_for_the_separator(tmp_path: Path) -> None:
    write_table(tmp_path / "r.csv", ["two\nlines"], [{"two\nlines": "a\tb"}])
    assert read_table(tmp_path / "r.csv") == [{"two\nlines": "a\tb"}]


def test_empty_columns_at_the_end_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("name;note;;\nada;x;;\n\nbob;;;\n", encoding="utf-8")
    assert read_table(tmp_path / "r.csv") == [
        {"name": "ada", "note": "x"},
        {"name": "bob", "note": ""},
    ]
