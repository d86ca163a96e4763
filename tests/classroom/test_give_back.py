"""Feedback pages, the class page, and a second grading of a class."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from labkit.amp import ScalerState
from labkit.classroom.class_pages import feedback, report
from labkit.classroom.marks import (
    TeacherComment,
    marks_of,
    total,
)
from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.grading import EXERCISES, judge
from labkit.grading.grade import as_json
from labkit.grading.judge import answers_of, grading_cases
from labkit.grading.results import GradeRow
from tests.grading.hand_ins import ADVANCE, JOURNAL, NOTEBOOK, code, notebook, put, solved

WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"

SAID = {("zoë müller", ID): TeacherComment(5.5, "Nearly <there>.")}


def test_feedback_page_has_the_mistake_and_the_comments(rows: list[GradeRow]) -> None:
    marks = marks_of(rows[:2], {}, 0, SAID)
    text = feedback("Zoë Müller", marks, TeacherComment(None, "Good work.")).decode()
    assert "A known mistake (grows one step late)" in text
    assert "found_inf" in text
    assert "5.5 of 8 points, earned 3; set by your teacher" in text
    assert "Nearly &lt;there&gt;." in text
    assert "Good work." in text


def test_the_total_takes_the_points_that_a_teacher_set(rows: list[GradeRow]) -> None:
    epsilon = EXERCISES["recipes.epsilon"].points
    assert total(marks_of(rows[:2], {}, 0, SAID)) == (5.5 + epsilon, 8 + epsilon)


@pytest.fixture
def page_of_markup(rows: list[GradeRow]) -> bytes:
    """The feedback page of a learner whose name is HTML."""
    return feedback("<b>bob</b>", marks_of(rows[4:], {}, 0, {}))


def test_feedback_page_escapes_what_a_learner_wrote(page_of_markup: bytes) -> None:
    assert b"&lt;b&gt;bob&lt;/b&gt;" in page_of_markup
    assert re.findall(rb"<\s*(script|b|link|img)\b", page_of_markup, re.I) == []


def test_feedback_page_loads_nothing(page_of_markup: bytes) -> None:
    assert not re.search(rb"<[^>]*\b(src|href)\s*=", page_of_markup, re.I)


def test_feedback_page_is_for_a_dark_screen_and_for_paper(page_of_markup: bytes) -> None:
    assert b"prefers-color-scheme: dark" in page_of_markup
    assert b"@media print" in page_of_markup


def test_learner_reads_only_name_and_points_of_a_hidden_check() -> None:
    exercise = EXERCISES[ID]
    *others, last = exercise.checks
    secret = replace(exercise, checks=(*others, replace(last, hidden=True)))
    case_set = grading_cases(secret, 5)
    checks = as_json(judge(case_set, answers_of(case_set, lambda *_: ScalerState(3.0))))["checks"]
    assert checks[-1] == {
        "name": last.name,
        "points": 0,
        "out_of": last.points,
        "mark": "✗ fail",
        "rows": [],
    }
    assert checks[0]["rows"]


@pytest.fixture
def class_page(rows: list[GradeRow], tmp_path: Path) -> str:
    """The page of a class of which one learner's journal is known, and a remark."""
    lines = [
        {
            "kind": "prediction",
            "id": "scaling.lost",
            "answer": "a guess",
            "when": "2026-01-01T10:00:00+00:00",
        },
        {
            "kind": "exercise",
            "id": ID,
            "answer": "x",
            "points": 3,
            "when": "2026-01-01T10:00:00+00:00",
        },
        {
            "kind": "exercise",
            "id": ID,
            "answer": "y",
            "points": 8,
            "when": "2026-01-01T10:07:00+00:00",
        },
        {
            "kind": "exercise",
            "id": ID,
            "answer": "z",
            "points": 8,
            "when": "2026-01-01T12:00:00+00:00",
        },
    ]
    journal = put(tmp_path / JOURNAL, "\n".join(json.dumps(line) for line in lines) + "\n")
    return report(marks_of(rows, {}, 0, {}), [journal], ["carl handed nothing in"]).decode()


def test_the_class_page_has_the_remarks(class_page: str) -> None:
    assert "carl handed nothing in" in class_page


def test_the_class_page_counts_who_solved_an_exercise(class_page: str) -> None:
    assert "1 of 3 (33%)" in class_page.split(f"({ID})</td>")[1].split("</tr>")[0]


def test_minutes_end_with_the_first_best_check(class_page: str) -> None:
    assert "7 (1 known)" in class_page.split(f"({ID})</td>")[1].split("</tr>")[0]


def test_the_class_page_counts_known_mistakes(class_page: str) -> None:
    assert (
        f"<td>2</td><td>grows one step late ({ID})</td><td>this is what comparing the tracker"
        in class_page
    )


def test_the_class_page_has_the_predictions(class_page: str) -> None:
    assert "a guess" in class_page


def test_the_class_page_lists_undefined_names(class_page: str) -> None:
    names = class_page.split("a name that was not defined</h2>")[1].split("<h2>")[0]
    assert "<td>ada</td>" in names
    assert "torch_lightning" in names
    assert "bob" not in names


def test_class_page_without_journals_says_so_once(rows: list[GradeRow]) -> None:
    text = report(marks_of(rows, {}, 0, {}), []).decode()
    assert text.count("No journal was handed in") == 1
    assert "<td>unknown</td>" in text


def test_every_table_of_the_class_page_can_scroll(class_page: str) -> None:
    text = class_page
    assert text.count('<div class="scroll" tabindex="0"><table>') == text.count("<table>") > 1


def test_lateness_costs_by_the_day_begun(rows: list[GradeRow]) -> None:
    late = {("ada", "06.ipynb"): 2, ("Zoë Müller", "06.ipynb"): 11}
    comments = {("zoë müller", "recipes.epsilon"): TeacherComment(1.0, "")}
    marks = {
        (mark.row.student, mark.row.exercise): mark.points
        for mark in marks_of(rows, late, 10, comments)
    }
    assert marks["ada", ID] == pytest.approx(6.4)
    assert marks["Zoë Müller", ID] == 0, "never less than nothing"
    assert marks["Zoë Müller", "recipes.epsilon"] == 1.0


@dataclass(frozen=True)
class Gradings:
    """Two gradings of a class.

    Attributes:
        before: The rows of the first one.
        after: The rows of the second one.
        first_pages: The names of the feedback pages of the first one.
        printed: What the second one printed.
        page_of_zoe: Zoë's feedback page after the second one.
    """

    before: list[dict[str, str]]
    after: list[dict[str, str]]
    first_pages: set[str]
    printed: str
    page_of_zoe: str


@pytest.fixture
def two_gradings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Gradings:
    """A class graded with points that its teacher set, and again after one notebook changed."""
    folder = tmp_path / "Übung 6"
    put(folder / "Zoë" / NOTEBOOK, notebook(*solved()))
    put(folder / "Émile" / NOTEBOOK, notebook(code(ADVANCE, ID), code("1/0")))
    (folder / "leer").mkdir()
    put(tmp_path / "m.csv", "student,exercise,points,comment\nZoë,scaling.clip,7,late\n")
    words = [
        *("grade", str(folder), "--changed"),
        *("--csv", str(tmp_path / "g.csv")),
        *("--manual", str(tmp_path / "m.csv")),
        *("--feedback", str(tmp_path / "back")),
    ]
    assert main([*words, "--seed", "3"]) == 0
    capsys.readouterr()
    before = read_table(tmp_path / "g.csv")
    first_pages = {path.name for path in (tmp_path / "back").iterdir()}
    put(folder / "Émile" / NOTEBOOK, notebook(*solved()))
    assert main(words) == 0
    printed = capsys.readouterr().err
    page = (tmp_path / "back" / "Zoë.html").read_text("utf-8")
    return Gradings(before, read_table(tmp_path / "g.csv"), first_pages, printed, page)


def test_each_folder_has_a_feedback_page(two_gradings: Gradings) -> None:
    assert two_gradings.first_pages == {"Zoë.html", "leer.html", "Émile.html"}


def test_a_second_grading_runs_only_what_changed(two_gradings: Gradings) -> None:
    assert "[1/1] Émile: 50 of 50" in two_gradings.printed


def test_a_second_grading_keeps_the_rows_of_others(two_gradings: Gradings) -> None:
    before, after = (
        [row for row in rows if row["student"] != "Émile"]
        for rows in (two_gradings.before, two_gradings.after)
    )
    assert before
    assert after == before


def test_a_second_grading_keeps_the_points_of_the_teacher(two_gradings: Gradings) -> None:
    assert "7 of 10 points, earned 10; set by your teacher" in two_gradings.page_of_zoe


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--late", "10"], "needs --due"), (["--roster", "none.csv"], "none.csv")],
)
def test_a_wrong_option_stops_a_grading_before_it_starts(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "class" / "ada" / NOTEBOOK, WORK)
    words = ["grade", str(tmp_path / "class"), "--csv", str(tmp_path / "g.csv")]
    assert main([*words, *options]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "g.csv").exists()
