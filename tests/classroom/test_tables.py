"""A table is read as it was written: a guard against formulas is taken off again, and is nobody else's business."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.classroom.hub import Classroom
from labkit.classroom.marks import marks_of, notices, read_comments, read_roster, write_gradebook
from labkit.classroom.tables import read_table, write_table
from labkit.grading.results import GradeRow, guard, unguard, write

ID = "scaling.advance"
FORMULAS = ["=1+1", "+1", "-", "@handle", "\t=1", "\r=1", "'=1", "''-", "＝1"]
TEXT = st.one_of(st.text(max_size=8), st.sampled_from(FORMULAS), st.text("'=+-@\t\r\n,;\" a", max_size=5))


@settings(deadline=None)
@given(TEXT)
def test_a_guard_is_taken_off_and_nothing_that_is_guarded_is_a_formula(text: str) -> None:
    assert unguard(str(guard(text))) == text
    assert not str(guard(text)).startswith(tuple("=+-@\t\r"))


@settings(deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4, unique=True), st.data(), st.booleans())
def test_what_is_written_is_read(columns: list[str], data: st.DataObject, guarded: bool) -> None:
    if not columns[-1].strip() or not any(name.strip() for name in columns):
        columns = [*columns, "last"]
    rows = data.draw(st.lists(st.fixed_dictionaries(dict.fromkeys(columns, TEXT)), max_size=4))
    with TemporaryDirectory() as folder:
        write_table(Path(folder, "t.csv"), columns, rows, guarded=guarded)
        assert read_table(Path(folder, "t.csv"), guarded=guarded) == rows


def test_a_name_of_two_lines_is_not_passed_over_when_the_separator_is_looked_for(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", ["two\nlines"], [{"two\nlines": "a\tb"}])
    assert read_table(tmp_path / "t.csv") == [{"two\nlines": "a\tb"}]


@settings(deadline=None)
@given(TEXT, TEXT, TEXT)
def test_the_file_of_grades_restores_learners_and_reasons(student: str, file: str, reason: str) -> None:
    with TemporaryDirectory() as folder:
        write([GradeRow(student, file, ID, 3, 8, reason, 5)], Path(folder, "grades.csv"))
        (line,) = read_table(Path(folder, "grades.csv"), guarded=True)
    assert (line["student"], line["notebook"], line["reason"]) == (student, file, reason)


@settings(deadline=None, max_examples=30)
@given(st.lists(TEXT, min_size=1, max_size=3, unique=True), st.integers(1, 3))
def test_a_password_from_the_file_is_accepted_at_every_start(passwords: list[str], starts: int) -> None:
    names = tuple(f"learner{number:02}" for number in range(len(passwords) + 1))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hub" / "passwords.csv"
        rows = [{"learner": name, "password": word} for name, word in zip(names, passwords, strict=False)]
        write_table(path, ("learner", "password"), rows, guarded=True)
        room = Classroom(folder, names)
        made = [room.passwords() for _ in range(starts + 1)]
        assert all(each == made[0] for each in made)
        assert [made[0][name] for name in names[:-1]] == passwords
        written = path.read_text(encoding="utf-8-sig")
    assert f"{names[-1]},{made[0][names[-1]]}\n" in written.replace("\r\n", "\n"), "what was made needs no guard"


def test_a_schools_own_cells_come_back_as_they_were(tmp_path: Path) -> None:
    roster = tmp_path / "r.csv"
    cells = {"name": "ada", "Handle ": "@handle", "Note": "-", "old": " 3 ", "sum": "=A1", "quoted": "'-x"}
    write_table(roster, list(cells), [cells, dict.fromkeys(cells, "")])
    marks = marks_of([GradeRow("ada", "x.ipynb", ID, 3, 8, "")], {}, 0, {})
    write_gradebook(tmp_path / "out.csv", marks, read_roster(roster))
    ada, empty = read_table(tmp_path / "out.csv")
    assert {name: ada[name] for name in cells} == cells
    assert (ada[ID], ada["total"], empty["total"]) == ("3", "3", "")


def test_a_table_of_ours_for_the_class_is_guarded(tmp_path: Path) -> None:
    names = ["=cmd()", "'=1+1", "O'Neil"]
    marks = marks_of([GradeRow(name, "x.ipynb", ID, 3, 8, "") for name in names], {}, 0, {})
    write_gradebook(tmp_path / "out.csv", marks, None)
    assert {line["learner"] for line in read_table(tmp_path / "out.csv")} == {"'=cmd()", "''=1+1", "O'Neil"}
    assert {line["learner"] for line in read_table(tmp_path / "out.csv", guarded=True)} == {*names}


PAIRS = [("Ann", "ann"), ("Straße", "STRASSE"), ("Zoë", "Zoe\u0308"), ("=A", "'=A")]


def test_two_whose_names_hardly_differ_both_get_their_marks(tmp_path: Path) -> None:
    for one, other in PAIRS:
        write_table(tmp_path / "r.csv", ["name"], [{"name": one}, {"name": other}])
        lines = [{"student": name, "exercise": ID, "points": str(n), "comment": ""}
                 for n, name in enumerate((one, other), start=1)]  # fmt: skip
        write_table(tmp_path / "m.csv", list(lines[0]), lines)
        rows = [GradeRow(name, "x.ipynb", ID, 8, 8, "") for name in (one, other)]
        roster, said = read_roster(tmp_path / "r.csv"), read_comments(tmp_path / "m.csv")
        write_gradebook(tmp_path / "out.csv", marks_of(rows, {}, 0, said), roster)
        assert [line["total"] for line in read_table(tmp_path / "out.csv")] == ["1", "2"], (one, other)
        assert notices(roster, [one, other]) == []


def test_a_line_is_assigned_by_name_and_not_where_two_names_match(tmp_path: Path) -> None:
    write_table(tmp_path / "r.csv", ["name"], [{"name": "Ann"}, {"name": "bob"}])
    roster = read_roster(tmp_path / "r.csv")
    rows = [GradeRow(name, "x.ipynb", ID, points, 8, "") for points, name in enumerate(["Ann", "ann", "Bob", "BOB"])]
    write_gradebook(tmp_path / "out.csv", marks_of(rows, {}, 0, {}), roster)
    assert [line["total"] for line in read_table(tmp_path / "out.csv")] == ["0", ""]
    said = notices(roster, [row.student for row in rows])
    assert [line.split()[0] for line in said] == ["bob", "ann", "Bob", "BOB"]


def test_a_table_that_would_lose_something_is_refused_and_empty_columns_as_excel_leaves_them_are_none(
    tmp_path: Path,
) -> None:
    for text, says in (
        ("name,note,note\nada,1,2\n", "two columns named 'note'"),
        ("name,note\nada,fine, but late\n", "line 2: expected 2 cells"),
        (",,\nada,1,2\n", "its first line should name its columns"),
        ('name\n"' + "x" * 200_000, "is not a table"),
    ):
        (tmp_path / "r.csv").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=says):
            read_table(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("name;note;;\nada;x;;\n\nbob;;;\n", encoding="utf-8")
    assert read_table(tmp_path / "r.csv") == [{"name": "ada", "note": "x"}, {"name": "bob", "note": ""}]
