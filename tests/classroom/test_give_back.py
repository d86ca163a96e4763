"""What comes back to learners and teacher: pages, marks, the school's table."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.amp import ScalerState
from labkit.classroom.archives import unpack_archives
from labkit.classroom.marks import (
    TeacherComment,
    marks_of,
    notices,
    read_comments,
    read_roster,
    total,
    unused,
    write_gradebook,
)
from labkit.classroom.pages import feedback, report
from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.grading import EXERCISES, judge
from labkit.grading.grade import as_json
from labkit.grading.judge import answers_of, grading_cases
from labkit.grading.plan import attempts, due_time, late_days
from labkit.grading.results import GradeRow, best_of
from labkit.grading.submission import Submission, find
from tests.grading.hand_ins import ADVANCE, JOURNAL, NOTEBOOK, archive, code, notebook, put, solved

SEED = 5
WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"


def graded(student: str, exercise_id: str, answer: Callable[..., object]) -> GradeRow:
    """A row as grading makes it, without a process."""
    exercise = EXERCISES[exercise_id]
    grade = judge(grading_cases(exercise, SEED), answers_of(grading_cases(exercise, SEED), answer))
    return GradeRow(student, "06.ipynb", exercise_id, grade.points, grade.out_of, grade.reason, SEED, as_json(grade))


grown_too_late = next(m.answer for m in EXERCISES["scaling.advance"].mistakes if m.name == "grows one step late")


def undefined_name(*_: object) -> object:
    return torch_lightning.step()  # type: ignore[name-defined]  # noqa: F821


def right(id: str) -> Callable[..., object]:
    return EXERCISES[id].reference


@pytest.fixture(scope="module")
def rows() -> list[GradeRow]:
    zeros = "recipes.epsilon"
    return [
        graded("Zoë Müller", ID, grown_too_late),
        graded("Zoë Müller", zeros, right(zeros)),
        graded("ada", ID, right(ID)),
        graded("ada", zeros, undefined_name),
        graded("<b>bob</b>", ID, grown_too_late),
        graded("<b>bob</b>", zeros, lambda *_: "<script>alert(1)</script>"),
    ]


def test_a_feedback_page_has_the_counter_example_the_mistake_and_the_teachers_word(rows: list[GradeRow]) -> None:
    said = {("zoë müller", ID): TeacherComment(5.5, "Nearly <there>.")}
    marks = marks_of(rows[:2], {}, 0, said)
    text = feedback("Zoë Müller", marks, TeacherComment(None, "Good work.")).decode()
    assert "A known mistake (grows one step late)" in text
    assert "found_inf" in text
    assert "5.5 of 8 points, earned 3; set by your teacher" in text
    assert "Nearly &lt;there&gt;." in text
    assert "Good work." in text
    assert total(marks) == (5.5 + EXERCISES["recipes.epsilon"].points, 8 + EXERCISES["recipes.epsilon"].points)


def test_a_feedback_page_loads_nothing_and_runs_nothing(rows: list[GradeRow]) -> None:
    page = feedback("<b>bob</b>", marks_of(rows[4:], {}, 0, {}))
    assert set(re.findall(rb"<\s*(script|b|link|img)\b", page, re.I)) == set(), "each < of a learner is escaped"
    assert not re.search(rb"<[^>]*\b(src|href)\s*=", page, re.I)
    assert b"prefers-color-scheme: dark" in page
    assert b"@media print" in page


def test_of_a_hidden_check_a_learner_reads_the_name_and_the_points_alone() -> None:
    exercise = EXERCISES[ID]
    *others, last = exercise.checks
    secret = replace(exercise, checks=(*others, replace(last, hidden=True)))
    paper = grading_cases(secret, SEED)
    told = as_json(judge(paper, answers_of(paper, lambda *_: ScalerState(3.0))))["checks"]
    assert told[-1] == {"name": last.name, "points": 0, "out_of": last.points, "mark": "✗ fail", "rows": []}
    assert told[0]["rows"]


def test_the_class_page_counts_shares_mistakes_guesses_time_and_names(rows: list[GradeRow], tmp_path: Path) -> None:
    lines = [
        {"kind": "prediction", "id": "scaling.lost", "answer": "a guess", "when": "2026-01-01T10:00:00+00:00"},
        {"kind": "exercise", "id": ID, "answer": "x", "points": 3, "when": "2026-01-01T10:00:00+00:00"},
        {"kind": "exercise", "id": ID, "answer": "y", "points": 8, "when": "2026-01-01T10:07:00+00:00"},
        {"kind": "exercise", "id": ID, "answer": "z", "points": 8, "when": "2026-01-01T12:00:00+00:00"},
    ]
    journal = put(tmp_path / JOURNAL, "\n".join(json.dumps(line) for line in lines) + "\n")
    text = report(marks_of(rows, {}, 0, {}), [journal], ["carl handed nothing in"]).decode()
    assert "carl handed nothing in" in text
    advance = text.split(f"({ID})</td>")[1].split("</tr>")[0]
    assert "1 of 3 (33%)" in advance
    assert "7 (1 known)" in advance
    assert f"<td>2</td><td>grows one step late ({ID})</td><td>this is what comparing the tracker" in text
    assert "a guess" in text
    names = text.split("a name that was not defined</h2>")[1].split("<h2>")[0]
    assert "<td>ada</td>" in names
    assert "torch_lightning" in names
    assert "bob" not in names


def test_lateness_costs_by_the_day_begun_and_a_teachers_points_come_last(rows: list[GradeRow]) -> None:
    late = {("ada", "06.ipynb"): 2, ("Zoë Müller", "06.ipynb"): 11}
    said = {("zoë müller", "recipes.epsilon"): TeacherComment(1.0, "")}
    marks = {(mark.row.student, mark.row.exercise): mark.points for mark in marks_of(rows, late, 10, said)}
    assert marks["ada", ID] == pytest.approx(6.4)
    assert marks["Zoë Müller", ID] == 0, "never less than nothing"
    assert marks["Zoë Müller", "recipes.epsilon"] == 1.0


def test_a_wrong_line_of_a_teacher_is_reported_with_its_number(tmp_path: Path) -> None:
    for line, says in (
        ("ada;scaling.advance;many;", "line 2: 'many' is not a number of points"),
        ("ada;scaling.advanced;1;", "line 2: there is no exercise 'scaling.advanced'"),
        ("ada;;1;", "points from 0 on go to one exercise"),
        ("ada;scaling.advance;-1;", "points from 0 on go to one exercise"),
    ):
        with pytest.raises(ValueError, match=says):
            read_comments(put(tmp_path / "m.csv", f"student;exercise;points;comment\n{line}\n"))


def test_a_teachers_line_is_read_as_excel_writes_it_and_reported_without_a_match(
    rows: list[GradeRow], tmp_path: Path
) -> None:
    text = "student;exercise;points;comment\r\nZOË Müller;scaling.advance;4,5;fein\r\ncarl;;;wo?\r\n"
    said = read_comments(put(tmp_path / "m.csv", text.encode("utf-8-sig")))
    assert said["ZOË Müller", ID] == TeacherComment(4.5, "fein")
    assert [mark.points for mark in marks_of(rows[:1], {}, 0, said)] == [4.5]
    assert unused(said, rows) == ["no row for 'carl' : your comment is unused"]


def at(folder: Path, name: str, when: float) -> Submission:
    path = put(folder / name, WORK)
    os.utime(path, (when, when))
    return Submission(Path(name).parts[0], path.name, path)


def test_of_several_notebooks_the_last_in_time_counts_or_the_best_of_them(tmp_path: Path) -> None:
    due = due_time("2026-11-30")
    early, last, late = (at(tmp_path, f"ada/{n}.ipynb", due + h * 3600) for n, h in (("a", -30), ("b", -1), ("c", 25)))
    only_late = at(tmp_path, "bob/x.ipynb", due + 25 * 3600)
    everything = [early, last, late, only_late]
    assert attempts(everything, "last", due) == [[last, only_late]]
    assert attempts(everything, "last") == [[late, only_late]]
    assert attempts(everything, "best", due) == [[last, only_late], [early]]
    assert attempts(everything, None, due) == [everything]
    assert [late_days(one, due) for one in (early, last, late)] == [0, 0, 2]
    assert late_days(late, None) == 0


def test_the_best_row_of_each_exercise_counts() -> None:
    first = [GradeRow("ada", "b", ID, 3, 8, ""), GradeRow("ada", "b", "scaling.clip", 10, 10, "")]
    second = [GradeRow("ada", "a", ID, 8, 8, ""), GradeRow("ada", "a", "scaling.clip", 10, 10, "")]
    assert [(row.notebook, row.points) for row in best_of([first, second])] == [("a", 8), ("b", 10)]


CANVAS = '\ufeffStudent,ID,SIS Login ID,Section\nPoints Possible,,,\n"Müller, Zoë",77,zoe,1\n"Carl, C",78,carl,1\n'
MOODLE = "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Feedback comments\n"
MOODLE += "Participant 1234567,Zoë Müller,z@x.de,Submitted,,100.00,\n"


def of(student: str, rows: list[GradeRow]) -> list[GradeRow]:
    return [GradeRow(student, r.notebook, r.exercise, r.points, r.out_of, r.reason) for r in rows]


def test_canvas_gets_its_own_table_back_with_a_column_of_points(rows: list[GradeRow], tmp_path: Path) -> None:
    roster = read_roster(put(tmp_path / "r.csv", CANVAS))
    marks = marks_of(of("müllerzoë_77", rows[:2]), {}, 0, {})
    write_gradebook(tmp_path / "out.csv", marks, roster)
    possible, zoe, carl = read_table(tmp_path / "out.csv")
    assert (possible["06_loss_scaling"], zoe["06_loss_scaling"], carl["06_loss_scaling"]) == ("8", "3", "")
    assert (zoe["ID"], zoe["Student"]) == ("77", "Müller, Zoë")
    assert notices(roster, ["müllerzoë_77"]) == ["Carl, C handed nothing in"]


def test_moodle_gets_its_worksheet_back_in_its_own_scale(rows: list[GradeRow], tmp_path: Path) -> None:
    put(tmp_path / "r.csv", MOODLE)
    marks = marks_of(of("Zoë Müller_1234567", rows[:1]), {}, 0, {})
    write_gradebook(tmp_path / "out.csv", marks, read_roster(tmp_path / "r.csv"))
    (line,) = read_table(tmp_path / "out.csv")
    assert (line["Grade"], line["Feedback comments"]) == ("37.50", "3 of 8 points")
    assert list(line)[:3] == ["Identifier", "Full name", "Email address"]


def test_a_plain_roster_with_semicolons_is_found_by_any_cell_and_two_of_a_name_by_none(tmp_path: Path) -> None:
    text = "name;login\r\nZoe\u0308 Müller;zm\r\nAda;ada\r\nAda;ada2\r\n"
    roster = read_roster(put(tmp_path / "r.csv", text.encode("utf-8-sig")))
    said = ["Ada handed nothing in", "Ada is on 2 lines of the roster", "dan is on no line of the roster"]
    assert notices(roster, ["zoë müller", "Ada", "ADA2", "dan"]) == said
    with pytest.raises(ValueError, match="has no learners"):
        read_roster(put(tmp_path / "r.csv", "name\n"))


def test_archives_of_canvas_moodle_macos_and_learners_become_learners(tmp_path: Path) -> None:
    inner = archive({f"work/{NOTEBOOK}": WORK})
    canvas = put(tmp_path / "canvas.zip", archive({
        "muellerzoe_77_901_06_loss_scaling.ipynb": WORK, "carlc_LATE_78_902_06_loss_scaling-1.ipynb": WORK,
        "__MACOSX/._x.ipynb": b"", "../evil.ipynb": WORK,
    }))  # fmt: skip
    moodle = put(tmp_path / "moodle.zip", archive({
        f"Zoë Müller_1_assignsubmission_file_/{NOTEBOOK}": WORK,
        "Ada_2_assignsubmission_file_/all.zip": inner, "Eve_3_assignsubmission_file_/broken.zip": b"PK no",
    }))  # fmt: skip
    around = put(tmp_path / "class.zip", archive({"class/dan/x.ipynb": WORK, "class/fay.ipynb": WORK}))
    found = find(*unpack_archives([canvas, moodle, around], tmp_path / "out"))
    assert {(one.student, Path(one.notebook).name) for one in found} == {
        ("muellerzoe_77", NOTEBOOK), ("carlc_78", "06_loss_scaling-1.ipynb"),
        ("Zoë Müller_1", NOTEBOOK), ("Ada_2", NOTEBOOK), ("Eve_3", "broken"),
        ("dan", "x.ipynb"), ("fay", "fay.ipynb"), ("evil", "evil.ipynb"),
    }  # fmt: skip
    assert not list(tmp_path.glob("**/evil*"))
    refused = {one.student: one.problem for one in found if one.problem}
    assert "leads out of the archive" in refused["evil"]
    assert "cannot be unpacked" in refused["Eve_3"]
    carl = next(one for one in found if one.student == "carlc_78")
    assert late_days(carl, due_time("2026-12-24")) == 1, "Canvas says so"
    with pytest.raises(ValueError, match=r"x\.zip is not a readable zip archive"):
        unpack_archives([put(tmp_path / "x.zip", b"no")], tmp_path / "out")


def test_an_export_that_lies_beside_the_learners_folders_is_a_class_and_not_a_learner(tmp_path: Path) -> None:
    put(tmp_path / "class" / "dan" / "work.zip", archive({"a_1_2_b.ipynb": WORK}))
    put(tmp_path / "class" / "Moodle export.zip", archive({
        f"Course-9/Ada Ö_11_assignsubmission_file_/deep/er/{NOTEBOOK}": WORK,
        "Course-9/Bob_12_assignsubmission_file_/": b"",
    }))  # fmt: skip
    put(tmp_path / "class" / "fay.zip", archive({NOTEBOOK: WORK}))
    found = find(*unpack_archives([tmp_path / "class"], tmp_path / "out"))
    assert {one.student for one in found if one.path} == {"Ada Ö_11", "dan", "fay"}
    assert {one.student for one in found} == {"Ada Ö_11", "Bob_12", "dan", "fay"}


def test_an_archive_of_one_learner_names_no_other(tmp_path: Path) -> None:
    """What Moodle or Canvas gave to one learner is that learner's; who hands in beside it is not handed in for."""
    put(tmp_path / "class" / "Ada_11" / NOTEBOOK, WORK)
    put(tmp_path / "class" / "bob.zip", archive({
        f"Ada_11_assignsubmission_file_/{NOTEBOOK}": WORK,
        f"Eve_13_assignsubmission_file_/{NOTEBOOK}": WORK,
    }))  # fmt: skip
    put(tmp_path / "class" / "carl.zip", archive({f"Carl_12_assignsubmission_file_/{NOTEBOOK}": WORK}))
    found = find(*unpack_archives([tmp_path / "class"], tmp_path / "out"))
    assert sorted(one.student for one in found if one.path) == ["Ada_11", "carl"]
    (bob,) = [one for one in found if one.student == "bob"]
    assert "names Ada_11, who has a submission beside it" in bob.problem


def test_grade_gives_everything_back_and_then_runs_what_changed_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A whole grading with a teacher's word; then once more, with one notebook changed."""
    folder = tmp_path / "Übung 6"
    put(folder / "Zoë" / NOTEBOOK, notebook(*solved()))
    put(folder / "Émile" / NOTEBOOK, notebook(code(ADVANCE, ID), code("1/0")))
    (folder / "leer").mkdir()
    put(tmp_path / "m.csv", "student,exercise,points,comment\nZoë,scaling.clip,7,late\n")
    words = ["grade", str(folder), "--csv", str(tmp_path / "g.csv"), "--changed", "--manual", str(tmp_path / "m.csv")]
    words += ["--feedback", str(tmp_path / "back")]
    assert main([*words, "--seed", "3"]) == 0
    capsys.readouterr()
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == ["Zoë.html", "leer.html", "Émile.html"]
    assert "7 of 10 points, earned 10; set by your teacher" in (tmp_path / "back" / "Zoë.html").read_text("utf-8")
    before = read_table(tmp_path / "g.csv")

    put(folder / "Émile" / NOTEBOOK, notebook(*solved()))
    assert main(words) == 0
    told = capsys.readouterr().err
    assert "[1/1] Émile: 50 of 50" in told
    after = read_table(tmp_path / "g.csv")
    assert [row for row in after if row["student"] != "Émile"] == [row for row in before if row["student"] != "Émile"]
    assert "7 of 10 points, earned 10; set by your teacher" in (tmp_path / "back" / "Zoë.html").read_text("utf-8")


def test_unreadable_input_is_reported_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["grade", str(tmp_path), "--csv", str(tmp_path / "g.csv")]
    for more, says in ((["--late", "10"], "needs --due"), (["--roster", str(tmp_path / "none.csv")], "none.csv")):
        assert main([*words, *more]) == 2
        assert says in capsys.readouterr().err
