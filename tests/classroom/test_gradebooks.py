"""Gradebooks of schools: the table that comes in, and the one that goes back."""

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.classroom.marks import (
    marks_of,
    notices,
    read_comments,
    read_roster,
    write_gradebook,
)
from labkit.classroom.tables import read_table, write_table
from labkit.cli import main
from labkit.grading.results import GradeRow
from tests.grading.hand_ins import ADVANCE, NOTEBOOK, code, notebook, put, solved

WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"


def scaling_row(student: str, points: int) -> GradeRow:
    """Return the row of an exercise of eight points."""
    return GradeRow(student, NOTEBOOK, ID, points, 8, "")


def test_canvas_gets_its_own_table_back(rows: list[GradeRow], tmp_path: Path) -> None:
    canvas = (
        '\ufeffStudent,ID,SIS Login ID,Section\nPoints Possible,,,\n"Müller, Zoë",77,zoe,1\n'
        '"Carl, C",78,carl,1\n'
    )
    roster = read_roster(put(tmp_path / "r.csv", canvas))
    write_gradebook(
        tmp_path / "out.csv",
        marks_of([replace(rows[0], student="müllerzoë_77")], {}, 0, {}),
        roster,
    )
    possible, zoe, carl = read_table(tmp_path / "out.csv")
    assert possible["06_loss_scaling"] == "8"
    assert zoe["06_loss_scaling"] == "3"
    assert carl["06_loss_scaling"] == ""
    assert zoe["ID"] == "77"
    assert zoe["Student"] == "Müller, Zoë"
    assert notices(roster, ["müllerzoë_77"]) == ["Carl, C handed nothing in"]


def test_moodle_gets_its_own_table_back(rows: list[GradeRow], tmp_path: Path) -> None:
    moodle = "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Feedback comments\n"
    roster = read_roster(
        put(
            tmp_path / "r.csv",
            f"{moodle}Participant 1234567,Zoë Müller,z@x.de,Submitted,,100.00,\n",
        )
    )
    write_gradebook(
        tmp_path / "out.csv",
        marks_of([replace(rows[0], student="Zoë Müller_1234567")], {}, 0, {}),
        roster,
    )
    (line,) = read_table(tmp_path / "out.csv")
    assert line["Grade"] == "37.50", "in Moodle's own scale"
    assert line["Feedback comments"] == "3 of 8 points"
    assert list(line)[:3] == ["Identifier", "Full name", "Email address"]


@pytest.mark.parametrize("grade", ["A", "nan", "inf"])
def test_a_maximum_that_is_no_number_names_its_learner(grade: str, tmp_path: Path) -> None:
    text = f"Identifier,Full name,Grade,Maximum Grade\nParticipant 1,Zoë Müller,,{grade}\n"
    with pytest.raises(ValueError, match="the Maximum Grade of Zoë Müller is not a number"):
        read_roster(put(tmp_path / "r.csv", text))


def test_plain_roster_with_semicolons_is_found_by_any_cell(tmp_path: Path) -> None:
    text = "name;login\r\nZoe\u0308 Müller;zm\r\nAda;ada\r\nAda;ada2\r\n"
    roster = read_roster(put(tmp_path / "r.csv", text.encode("utf-8-sig")))
    expected = [
        "Ada handed nothing in",
        "Ada is on 2 lines of the roster",
        "dan is on no line of the roster",
    ]
    assert notices(roster, ["zoë müller", "Ada", "ADA2", "dan"]) == expected


def test_a_roster_without_learners_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no learners"):
        read_roster(put(tmp_path / "r.csv", "name\n"))


def test_a_schools_own_cells_come_back_as_they_were(tmp_path: Path) -> None:
    roster = tmp_path / "r.csv"
    cells = {
        "name": "ada",
        "Handle ": "@handle",
        "Note": "-",
        "old": " 3 ",
        "sum": "=A1",
        "quoted": "'-x",
    }
    write_table(roster, list(cells), [cells, dict.fromkeys(cells, "")])
    marks = marks_of([GradeRow("ada", "x.ipynb", ID, 3, 8, "")], {}, 0, {})
    write_gradebook(tmp_path / "out.csv", marks, read_roster(roster))
    ada, empty = read_table(tmp_path / "out.csv")
    assert {name: ada[name] for name in cells} == cells
    assert ada[ID] == "3"
    assert ada["total"] == "3"
    assert empty["total"] == ""


PAIRS = [("Ann", "ann"), ("Straße", "STRASSE"), ("Zoë", "Zoe\u0308"), ("=A", "'=A")]


def test_two_whose_names_hardly_differ_both_get_their_marks(tmp_path: Path) -> None:
    for one, other in PAIRS:
        write_table(tmp_path / "r.csv", ["name"], [{"name": one}, {"name": other}])
        lines = [
            {"student": name, "exercise": ID, "points": str(n), "comment": ""}
            for n, name in enumerate((one, other), start=1)
        ]
        write_table(tmp_path / "m.csv", list(lines[0]), lines)
        rows = [GradeRow(name, "x.ipynb", ID, 8, 8, "") for name in (one, other)]
        roster = read_roster(tmp_path / "r.csv")
        comments = read_comments(tmp_path / "m.csv")
        write_gradebook(tmp_path / "out.csv", marks_of(rows, {}, 0, comments), roster)
        assert [line["total"] for line in read_table(tmp_path / "out.csv")] == ["1", "2"], (
            one,
            other,
        )
        assert notices(roster, [one, other]) == []


def test_a_line_is_assigned_by_an_unambiguous_name(tmp_path: Path) -> None:
    write_table(tmp_path / "r.csv", ["name"], [{"name": "Ann"}, {"name": "bob"}])
    roster = read_roster(tmp_path / "r.csv")
    rows = [
        GradeRow(name, "x.ipynb", ID, points, 8, "")
        for points, name in enumerate(["Ann", "ann", "Bob", "BOB"])
    ]
    write_gradebook(tmp_path / "out.csv", marks_of(rows, {}, 0, {}), roster)
    assert [line["total"] for line in read_table(tmp_path / "out.csv")] == ["0", ""]
    lines = notices(roster, [row.student for row in rows])
    assert [line.split()[0] for line in lines] == ["bob", "ann", "Bob", "BOB"]


CANVAS = (
    "Student,ID,SIS Login ID,Section,01_numbers (4712),FP16 lab (4711),due\n"
    "Points Possible,,,,26,16,\n"
    '"Müller, Zoë",77,zoe,1,,,\n"Carl, C",78,carl,1,,,\n'
)


def canvas_table(roster: Path, out: Path) -> list[dict[str, str]]:
    """Write a gradebook of two exercises of Zoë, and return its lines of her and of Carl."""
    rows = [
        GradeRow("müllerzoë_77", "01_numbers.ipynb", "numbers.bytes", 3, 3, ""),
        scaling_row("müllerzoë_77", 5),
    ]
    write_gradebook(out, marks_of(rows, {}, 0, {}), read_roster(roster))
    _, zoe, carl = read_table(out)
    return [zoe, carl]


def test_canvas_gets_points_in_the_columns_that_it_has(tmp_path: Path) -> None:
    zoe, carl = canvas_table(put(tmp_path / "r.csv", CANVAS), tmp_path / "out.csv")
    assert zoe["01_numbers (4712)"] == "3"
    assert carl["01_numbers (4712)"] == ""
    assert "01_numbers" not in zoe


def test_a_lesson_that_canvas_has_no_column_for_gets_one(tmp_path: Path) -> None:
    zoe, _ = canvas_table(put(tmp_path / "r.csv", CANVAS), tmp_path / "out.csv")
    assert zoe["06_loss_scaling"] == "5"


def test_a_gradebook_has_no_column_of_deadlines(tmp_path: Path) -> None:
    zoe, _ = canvas_table(put(tmp_path / "r.csv", CANVAS), tmp_path / "out.csv")
    assert "due" not in zoe


def test_a_gradebook_that_canvas_exported_once_more_is_matched(tmp_path: Path) -> None:
    first = canvas_table(put(tmp_path / "r.csv", CANVAS), tmp_path / "first.csv")
    assert canvas_table(tmp_path / "first.csv", tmp_path / "second.csv") == first


def test_a_column_of_the_teachers_gets_the_sum_alone(tmp_path: Path) -> None:
    roster = read_roster(put(tmp_path / "r.csv", CANVAS))
    marks = marks_of([scaling_row("müllerzoë_77", 5)], {}, 0, {})
    write_gradebook(tmp_path / "out.csv", marks, roster, "FP16 lab (4711)")
    possible, zoe, carl = read_table(tmp_path / "out.csv")
    assert zoe["FP16 lab (4711)"] == "10", "5 of 8, of 16 points"
    assert zoe["01_numbers (4712)"] == ""
    assert possible["FP16 lab (4711)"] == "16"
    assert carl["FP16 lab (4711)"] == ""
    assert "06_loss_scaling" not in zoe


def test_a_column_that_the_roster_lacks_is_refused(tmp_path: Path) -> None:
    roster = read_roster(put(tmp_path / "r.csv", CANVAS))
    marks = marks_of([scaling_row("müllerzoë_77", 5)], {}, 0, {})
    with pytest.raises(ValueError, match="the roster has no column 'FP16 lab' for --column"):
        write_gradebook(tmp_path / "out.csv", marks, roster, "FP16 lab")


def test_blanks_around_the_name_of_a_column_make_no_new_one(tmp_path: Path) -> None:
    roster = read_roster(put(tmp_path / "r.csv", "name,Total\nada,\n"))
    write_gradebook(
        tmp_path / "out.csv", marks_of([scaling_row("ada", 5)], {}, 0, {}), roster, " Total "
    )
    assert read_table(tmp_path / "out.csv") == [{"name": "ada", "Total": "5"}]


def test_a_column_without_a_roster_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "class" / "ada" / NOTEBOOK, notebook(*solved()))
    table = tmp_path / "g.csv"
    assert main(["grade", str(tmp_path / "class"), "--csv", str(table), "--column", "x"]) == 2
    assert "--roster" in capsys.readouterr().err
    assert not table.exists()


@pytest.mark.parametrize("column", ["ID", "Student", "FP16 lab"])
def test_a_column_is_refused_before_anything_runs(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "class" / "zoe" / NOTEBOOK, notebook(*solved()))
    files = ["--csv", str(tmp_path / "g.csv"), "--gradebook", str(tmp_path / "out.csv")]
    roster = ["--roster", str(put(tmp_path / "r.csv", CANVAS)), "--column", column]
    assert main(["grade", str(tmp_path / "class"), *files, *roster]) == 2
    assert "--column" in capsys.readouterr().err
    assert not (tmp_path / "g.csv").exists()
