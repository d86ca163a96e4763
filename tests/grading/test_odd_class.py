"""A class of about seventy hand-ins, right, odd and unreadable: rows, points, reasons, pages.

The command grades CLASS once, with all options of a teacher, and the tests read its table, its
pages and its output.
"""

import io
import subprocess
import unicodedata
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from labkit.classroom.tables import read_table, write_table
from labkit.grading import EXERCISES
from labkit.grading.submission import find, hard_linked
from tests.grading.hand_ins import (
    NOTEBOOK,
    Lines,
    everything,
    graded,
    points_for,
    points_of,
    put,
)
from tests.grading.odd_class import ALL, BROKEN, CLASS, ID


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write the work of the class."""
    folder = tmp_path_factory.mktemp("class")
    try:
        for name, hand_in in CLASS.items():
            hand_in.write(folder, name)
        yield folder
    finally:
        # It is nested too deeply for pytest and shutil to remove.
        subprocess.run(["rm", "-rf", folder / "deep"], check=True)


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grade the class with a roster, and a teacher's points and comments on three learners.

    Return the folder of the results.
    """
    out = tmp_path_factory.mktemp("out")
    names = [*CLASS, "nobody handed in"]
    write_table(
        out / "roster.csv",
        ["name", "Handle"],
        [{"name": name, "Handle": f"@{name}"} for name in names],
    )
    own = [
        ("Ada", ID, "3", "copied?"),
        ("'=HYPERLINK(1)", ID, "4", ""),
        ("starter", "", "", "Come!"),
    ]
    columns = ["student", "exercise", "points", "comment"]
    write_table(out / "mine.csv", columns, [dict(zip(columns, line, strict=True)) for line in own])
    options = [
        *everything(out),
        "--roster",
        str(out / "roster.csv"),
        "--manual",
        str(out / "mine.csv"),
    ]
    with redirect_stderr(io.StringIO()) as printed:
        graded(folder, out, *options, "--due", "2026-11-30")
    put(out / "printed.txt", printed.getvalue())
    return out


@pytest.fixture(scope="module")
def marks(out: Path) -> Lines:
    """The table of grades, by learner and exercise."""
    return {
        (line["student"], line["exercise"]): line
        for line in read_table(out / "grades.csv", guarded=True)
    }


@pytest.fixture(scope="module")
def printed(out: Path) -> str:
    """What the command prints for the teacher."""
    return (out / "printed.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def gradebook(out: Path) -> dict[str, dict[str, str]]:
    """The school's table with the points, by name."""
    return {line["name"]: line for line in read_table(out / "all.csv")}


@pytest.fixture(scope="module")
def class_page(out: Path) -> str:
    return (out / "class.html").read_text(encoding="utf-8")


def test_everybody_has_a_row_for_every_exercise(marks: Lines) -> None:
    assert set(marks) == {(name, id) for name in CLASS for id in ALL}


def test_every_row_has_a_reason(marks: Lines) -> None:
    assert [key for key, line in marks.items() if not line["reason"]] == []


def test_every_row_has_the_points_that_its_exercise_is_out_of(marks: Lines) -> None:
    out_of = {key: int(line["out_of"]) for key, line in marks.items()}
    assert out_of == {(name, id): EXERCISES[id].points for name, id in marks}


@pytest.mark.parametrize("name", CLASS)
def test_a_hand_in_earns_the_points_of_its_right_answers(name: str, marks: Lines) -> None:
    reason = marks[name, ID]["reason"]
    assert points_of(marks, name) == points_for(*CLASS[name].earns), reason


@pytest.mark.parametrize("name", [name for name, hand_in in CLASS.items() if hand_in.says])
def test_the_reason_says_what_became_of_a_hand_in(name: str, marks: Lines) -> None:
    reasons = {id: marks[name, id]["reason"] for id in CLASS[name].says}
    assert {id: says for id, says in CLASS[name].says.items() if says not in reasons[id]} == {}


@pytest.mark.parametrize("id", ALL)
def test_a_starter_has_no_other_reason_than_that_it_is_one(id: str, marks: Lines) -> None:
    assert marks["unsolved", id]["reason"] == "unsolved: the starter is still in place"


@pytest.mark.parametrize("name", BROKEN)
def test_code_that_cannot_be_run_is_the_reason_of_its_cell(name: str, marks: Lines) -> None:
    reason = marks[f"before {name}", ID]["reason"]
    assert "syntax error" in reason or "its cell stopped with" in reason


def test_notes_beside_the_lesson_are_passed_over(marks: Lines) -> None:
    assert {marks["Ada Lovelace", id]["notebook"] for id in ALL} == {NOTEBOOK}


def test_notes_without_the_lesson_are_the_notebook_of_the_rows(marks: Lines) -> None:
    assert {marks["notes", id]["notebook"] for id in ALL} == {"my notes.ipynb"}


def test_the_command_names_the_notes_that_it_ignores(printed: str) -> None:
    (line,) = [line for line in printed.splitlines() if "Ada Lovelace, my notes.ipynb" in line]
    assert "ignored, as" in line


def test_the_command_says_which_seed_repeats_the_grading(printed: str) -> None:
    assert "--seed 3 repeats it" in printed


def test_only_a_file_that_two_learners_share_is_reported(folder: Path) -> None:
    """Both keep their points, since a hard link does not show who made it."""
    (group,) = hard_linked(find([folder]))
    assert {(one.student, one.notebook) for one in group} >= {
        ("eve", "final.ipynb"),
        ("gus", "own.ipynb"),
    }
    assert {one.student for one in group} == {"eve", "gus"}


def test_no_reason_steers_a_terminal_or_the_reading_direction(marks: Lines) -> None:
    reasons = "".join(line["reason"] for line in marks.values())
    assert not [c for c in reasons if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")]


def test_the_schools_own_columns_stay_in_its_table(gradebook: dict[str, dict[str, str]]) -> None:
    handles = {name: line["Handle"] for name, line in gradebook.items()}
    assert handles == {name: f"@{name}" for name in (*CLASS, "nobody handed in")}


def test_the_schools_table_has_the_marks_or_the_teachers_points(
    gradebook: dict[str, dict[str, str]], marks: Lines
) -> None:
    earned = {name: marks[name, ID]["points"] for name in CLASS}
    own = {"Ada": "3", "=HYPERLINK(1)": "4", "nobody handed in": ""}
    assert {name: line[ID] for name, line in gradebook.items()} == earned | own


def test_who_handed_nothing_in_has_no_total(gradebook: dict[str, dict[str, str]]) -> None:
    assert gradebook["nobody handed in"]["total"] == ""


def test_everybody_gets_a_page(out: Path) -> None:
    pages = {path.name for path in (out / "back").iterdir()}
    assert len(pages) == len(CLASS)
    assert {"honest.html", "circle.html"} <= pages


def test_a_learners_page_has_the_teachers_comment(out: Path) -> None:
    assert "Come!" in (out / "back" / "starter.html").read_text(encoding="utf-8")


def test_the_page_of_the_class_names_who_handed_nothing_in(class_page: str) -> None:
    assert "nobody handed in handed nothing in" in class_page


def test_the_page_of_the_class_leaves_a_time_that_no_date_has_to_the_teacher(
    class_page: str,
) -> None:
    assert "check yourself whether it is late" in class_page
