"""Deadlines of a class and of single learners, the cost of lateness, and notices about it."""

import os
from pathlib import Path

import pytest

from labkit.classroom.lateness import Extension, Rules, extensions_in, lateness, words
from labkit.classroom.marks import TeacherComment, marks_of, read_roster
from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.grading.plan import due_time
from labkit.grading.results import GradeRow
from labkit.grading.submission import Submission
from tests.grading.hand_ins import NOTEBOOK, notebook, put, solved

DUE = due_time("2026-11-30T18:00")
DAY = 24 * 3600
ID = "scaling.advance"


def at(folder: Path, student: str, days: float, name: str = NOTEBOOK) -> Submission:
    """Return a notebook that is so many days late."""
    path = put(folder / student / name, "{}")
    os.utime(path, (DUE + days * DAY, DUE + days * DAY))
    return Submission(student, name, path)


def row(student: str, points: int = 8) -> GradeRow:
    return GradeRow(student, NOTEBOOK, ID, points, 8, "")


def test_grace_forgives_minutes_and_not_more(tmp_path: Path) -> None:
    rules = Rules(DUE, 10, grace=900)
    minutes = {"in time": -5, "ten late": 10, "twenty late": 20}
    ones = [at(tmp_path, name, late / 1440) for name, late in minutes.items()]
    assert [rules.days(one) for one in ones] == [0, 0, 1]


def test_a_cap_limits_what_lateness_takes() -> None:
    late = {("ada", NOTEBOOK): 9}
    assert [m.points for m in marks_of([row("ada")], late, 10, {}, 50)] == [4.0]
    assert [m.points for m in marks_of([row("ada")], late, 10, {})] == [0.8]


def test_an_extension_and_free_days_are_one_learners(tmp_path: Path) -> None:
    table = "name,due,late_days\nada,2026-12-02T18:00,\nbob,,3\ncarl,,\n"
    roster = read_roster(put(tmp_path / "r.csv", table))
    extensions = extensions_in(roster, ["ada", "bob", "carl"])
    assert extensions == {"ada": Extension(DUE + 2 * DAY), "bob": Extension(None, 3)}
    ones = [
        at(tmp_path, "ada", 2.5),
        at(tmp_path, "bob", 1.5),
        at(tmp_path, "bob", 1.6, "01_numbers.ipynb"),
        at(tmp_path, "carl", 2.5),
    ]
    assert lateness(ones, Rules(DUE, 10, extensions=extensions)) == {
        ("ada", NOTEBOOK): 1,
        ("bob", NOTEBOOK): 0,
        ("bob", "01_numbers.ipynb"): 1,
        ("carl", NOTEBOOK): 3,
    }


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("tomorrow,", "due: expected a date such as 2026-12-01, got 'tomorrow'"),
        (",many", "late_days: expected a whole number of 0 or more, got 'many'"),
        (",-3", "late_days: expected a whole number of 0 or more, got '-3'"),
    ],
)
def test_an_extension_that_cannot_be_read_names_its_cell(
    cells: str, says: str, tmp_path: Path
) -> None:
    roster = read_roster(put(tmp_path / "r.csv", f"name,due,late_days\nada,{cells}\n"))
    with pytest.raises(ValueError, match=f"the roster's line of ada, {says}"):
        extensions_in(roster, ["ada"])


def test_the_screen_says_what_lateness_takes_from_the_class(tmp_path: Path) -> None:
    names = {"ada": 56, "bob": 1, "carl": -1}
    ones = [at(tmp_path, name, days - 0.5) for name, days in names.items()]
    rules = Rules(DUE, 10)
    rows = [row(name) for name in names]
    kept = {("bob", ID): TeacherComment(8.0, "")}
    marks = marks_of(rows, lateness(ones, rules), 10, kept)
    lines = words(ones, marks, rules)
    assert lines == ["late: 2 of 3 learners by up to 56 days, which takes 8 of 8 points"]


def test_without_a_deadline_nothing_is_said_of_lateness(tmp_path: Path) -> None:
    ones = [at(tmp_path, "ada", 56)]
    assert words(ones, marks_of([row("ada")], {}, 10, {}), Rules()) == []


def test_the_screen_says_what_one_learners_deadline_takes(tmp_path: Path) -> None:
    rules = Rules(percent=10, extensions={"ada": Extension(DUE)})
    ones = [at(tmp_path, "ada", 1.5), at(tmp_path, "bob", 2.5)]
    marks = marks_of([row("ada"), row("bob")], lateness(ones, rules), 10, {})
    lines = words(ones, marks, rules)
    assert lines == ["late: 1 of 2 learners by up to 2 days, which takes 1.6 of 8 points"]


def test_a_class_that_is_late_as_a_whole_is_doubted(tmp_path: Path) -> None:
    ones = [at(tmp_path, name, 3) for name in ("ada", "bob")]
    rules = Rules(DUE, 10)
    marks = marks_of([row("ada"), row("bob")], lateness(ones, rules), 10, {})
    text = " ".join(words(ones, marks, rules))
    assert "all learners are late: is --due right?" in text
    assert "all notebooks have the time 2026-12-03 18:00:00, as after a copy" in text


def test_one_late_learner_alone_is_not_doubted(tmp_path: Path) -> None:
    ones = [at(tmp_path, "ada", 3)]
    rules = Rules(DUE, 10)
    (line,) = words(ones, marks_of([row("ada")], lateness(ones, rules), 10, {}), rules)
    assert line.startswith("late: 1 of 1 learner by up to 3 days")


def test_the_command_counts_late_days(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, days in (("ada", 1.5), ("bob", -1)):
        path = put(tmp_path / "class" / name / NOTEBOOK, notebook(*solved()))
        os.utime(path, (DUE + days * DAY, DUE + days * DAY))
    command = ["grade", str(tmp_path / "class"), "--csv", str(tmp_path / "g.csv")]
    command += ["--due", "2026-11-30T18:00", "--late", "30", "--late-cap", "50"]
    assert main(command) == 0
    printed = capsys.readouterr().err
    assert "[1/2]" in printed
    assert "ada: 50 of 50 in 06_loss_scaling" in printed
    assert "late: 1 of 2 learners by up to 2 days, which takes 25 of 50 points" in printed
    counted = {line["student"]: line["late_days"] for line in read_table(tmp_path / "g.csv")}
    assert counted == {"ada": "2", "bob": "0"}


def test_a_cap_above_100_percent_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "class" / "ada" / NOTEBOOK, notebook(*solved()))
    command = ["grade", str(tmp_path / "class"), "--csv", str(tmp_path / "g.csv")]
    command += ["--due", "2026-11-30T18:00", "--late", "30", "--late-cap", "101"]
    assert main(command) == 2
    assert "--late-cap" in capsys.readouterr().err
    assert not (tmp_path / "g.csv").exists()


@pytest.mark.parametrize("day", ["2026-11-30", "20261130", "2026-W49-1"])
def test_a_day_in_each_form_of_iso_8601_ends_at_midnight(day: str) -> None:
    assert due_time(day) == due_time("2026-11-30T23:59:59")
