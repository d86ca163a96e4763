"""Pages, marks and tables for learners and teacher, read back as they were written."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.amp import ScalerState
from labkit.classroom.archives import unpack_archives
from labkit.classroom.class_pages import feedback, report
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
from labkit.classroom.tables import read_table, write_table
from labkit.cli import main
from labkit.grading import EXERCISES, judge
from labkit.grading.grade import as_json
from labkit.grading.judge import answers_of, grading_cases
from labkit.grading.plan import attempts, due_time, late_days
from labkit.grading.results import GradeRow, best_of, guard, unguard
from labkit.grading.submission import Submission, find
from tests.grading.hand_ins import ADVANCE, JOURNAL, NOTEBOOK, archive, code, notebook, put, solved

SEED = 5
WORK = notebook(code(ADVANCE, "scaling.advance"))
ID = "scaling.advance"


def graded(student: str, exercise_id: str, answer: Callable[..., object]) -> GradeRow:
    """Return a row as grading makes it, without a process."""
    exercise = EXERCISES[exercise_id]
    grade = judge(grading_cases(exercise, SEED), answers_of(grading_cases(exercise, SEED), answer))
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


grown_too_late = next(
    m.answer for m in EXERCISES["scaling.advance"].mistakes if m.name == "grows one step late"
)


@pytest.fixture(scope="module")
def rows() -> list[GradeRow]:
    zeros = "recipes.epsilon"
    return [
        graded("Zoë Müller", ID, grown_too_late),
        graded("Zoë Müller", zeros, EXERCISES[zeros].reference),
        graded("ada", ID, EXERCISES[ID].reference),
        # A name that is not defined, on purpose.
        graded("ada", zeros, lambda *_: torch_lightning.step()),  # noqa: F821
        graded("<b>bob</b>", ID, grown_too_late),
        graded("<b>bob</b>", zeros, lambda *_: "<script>alert(1)</script>"),
    ]


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
    case_set = grading_cases(secret, SEED)
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


@pytest.fixture
def unpacked(tmp_path: Path) -> list[Submission]:
    """What is found in an archive of Canvas, one of Moodle and one of a teacher.

    One file leads out of its archive, and one archive in an archive is damaged.
    """
    inner = archive({f"work/{NOTEBOOK}": WORK})
    canvas = put(
        tmp_path / "canvas.zip",
        archive(
            {
                "muellerzoe_77_901_06_loss_scaling.ipynb": WORK,
                "carlc_LATE_78_902_06_loss_scaling-1.ipynb": WORK,
                "__MACOSX/._x.ipynb": b"",
                "../evil.ipynb": WORK,
            }
        ),
    )
    moodle = put(
        tmp_path / "moodle.zip",
        archive(
            {
                f"Zoë Müller_1_assignsubmission_file_/{NOTEBOOK}": WORK,
                "Ada_2_assignsubmission_file_/all.zip": inner,
                "Eve_3_assignsubmission_file_/broken.zip": b"PK no",
            }
        ),
    )
    around = put(
        tmp_path / "class.zip", archive({"class/dan/x.ipynb": WORK, "class/fay.ipynb": WORK})
    )
    return find(*unpack_archives([canvas, moodle, around], tmp_path / "out"))


def test_archives_of_each_platform_become_learners(unpacked: list[Submission]) -> None:
    assert {(one.student, Path(one.notebook).name) for one in unpacked} == {
        ("muellerzoe_77", NOTEBOOK),
        ("carlc_78", "06_loss_scaling-1.ipynb"),
        ("Zoë Müller_1", NOTEBOOK),
        ("Ada_2", NOTEBOOK),
        ("Eve_3", "broken"),
        ("dan", "x.ipynb"),
        ("fay", "fay.ipynb"),
        ("evil", "evil.ipynb"),
    }


def test_a_file_that_leads_out_of_its_archive_is_not_written(
    unpacked: list[Submission], tmp_path: Path
) -> None:
    (evil,) = [one for one in unpacked if one.student == "evil"]
    assert "leads out of the archive" in evil.problem
    assert not list(tmp_path.glob("**/evil*"))


def test_a_damaged_archive_in_an_archive_is_reported(unpacked: list[Submission]) -> None:
    (eve,) = [one for one in unpacked if one.student == "Eve_3"]
    assert "cannot be unpacked" in eve.problem


def test_what_canvas_calls_late_is_late(unpacked: list[Submission]) -> None:
    (carl,) = [one for one in unpacked if one.student == "carlc_78"]
    assert late_days(carl, due_time("2999-12-24")) == 1


def test_a_named_archive_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.zip is not a readable zip archive"):
        unpack_archives([put(tmp_path / "x.zip", b"no")], tmp_path / "out")


def test_an_archive_of_one_learner_names_no_other(tmp_path: Path) -> None:
    """An archive in a learner's folder, or named after a learner, belongs to that learner.

    One beside the learners' folders is a class, unless it names a learner who has a submission
    beside it.
    """
    put(
        tmp_path / "class" / "Moodle export.zip",
        archive(
            {
                f"Course-9/Ada Ö_12_assignsubmission_file_/deep/er/{NOTEBOOK}": WORK,
                "Course-9/Bob_13_assignsubmission_file_/": b"",
            }
        ),
    )
    put(tmp_path / "class" / "dan" / "work.zip", archive({"a_1_2_b.ipynb": WORK}))
    put(tmp_path / "class" / "Ada_11" / NOTEBOOK, WORK)
    put(
        tmp_path / "class" / "bob.zip",
        archive(
            {
                f"Ada_11_assignsubmission_file_/{NOTEBOOK}": WORK,
                f"Eve_13_assignsubmission_file_/{NOTEBOOK}": WORK,
            }
        ),
    )
    put(
        tmp_path / "class" / "carl.zip",
        archive({f"Carl_12_assignsubmission_file_/{NOTEBOOK}": WORK}),
    )
    found = find(*unpack_archives([tmp_path / "class"], tmp_path / "out"))
    students = sorted(one.student for one in found if one.path)
    assert students == ["Ada Ö_12", "Ada_11", "carl", "dan"]
    assert {one.student for one in found if not one.path} == {"Bob_13", "bob"}
    (bob,) = [one for one in found if one.student == "bob"]
    assert "names Ada_11, who has a submission beside it" in bob.problem


def test_an_unreadable_archive_named_like_an_export_is_reported(tmp_path: Path) -> None:
    """Its name without .zip is one of Blackboard's, of a learner with a submission beside it."""
    name = "lab_ada_attempt_2026-11-27-10-15-30"
    put(tmp_path / "class" / f"{name}.zip", b"PK no")
    put(tmp_path / "class" / "ada" / NOTEBOOK, WORK)
    found = find(*unpack_archives([tmp_path / "class"], tmp_path / "out"))
    assert {one.student for one in found} == {"ada"}
    (problem,) = [one.problem for one in found if one.problem]
    assert "cannot be unpacked" in problem


def test_a_second_grading_runs_only_what_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Grade a class with points that its teacher set, and again after one notebook changed."""
    folder = tmp_path / "Übung 6"
    put(folder / "Zoë" / NOTEBOOK, notebook(*solved()))
    put(folder / "Émile" / NOTEBOOK, notebook(code(ADVANCE, ID), code("1/0")))
    (folder / "leer").mkdir()
    put(tmp_path / "m.csv", "student,exercise,points,comment\nZoë,scaling.clip,7,late\n")
    words = [
        "grade",
        str(folder),
        "--csv",
        str(tmp_path / "g.csv"),
        "--changed",
        "--manual",
        str(tmp_path / "m.csv"),
    ]
    words += ["--feedback", str(tmp_path / "back")]
    assert main([*words, "--seed", "3"]) == 0
    capsys.readouterr()
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == [
        "Zoë.html",
        "leer.html",
        "Émile.html",
    ]
    assert "7 of 10 points, earned 10; set by your teacher" in (
        tmp_path / "back" / "Zoë.html"
    ).read_text("utf-8")
    before = read_table(tmp_path / "g.csv")
    put(folder / "Émile" / NOTEBOOK, notebook(*solved()))
    assert main(words) == 0
    printed = capsys.readouterr().err
    assert "[1/1] Émile: 50 of 50" in printed
    after = read_table(tmp_path / "g.csv")
    assert [row for row in after if row["student"] != "Émile"] == [
        row for row in before if row["student"] != "Émile"
    ]
    assert "7 of 10 points, earned 10; set by your teacher" in (
        tmp_path / "back" / "Zoë.html"
    ).read_text("utf-8")


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


# --- tables: a guard against formulas is taken off again ---

FORMULAS = ["=1+1", "+1", "-", "@handle", "\t=1", "\r=1", "'=1", "''-", "＝1"]
TEXT = st.one_of(
    st.text(max_size=8), st.sampled_from(FORMULAS), st.text("'=+-@\t\r\n,;\" a", max_size=5)
)


@settings(deadline=None)
@given(TEXT)
def test_guarded_text_is_not_a_formula(text: str) -> None:
    assert unguard(str(guard(text))) == text
    assert not str(guard(text)).startswith(tuple("=+-@\t\r"))


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


def test_table_that_would_lose_something_is_refused(tmp_path: Path) -> None:
    for text, says in (
        ("name,note,note\nada,1,2\n", "two columns named 'note'"),
        ("name,note\nada,fine, but late\n", "line 2: expected 2 cells"),
        (",,\nada,1,2\n", "its first line should name its columns"),
        ('name\n"' + "x" * 200_000, "is not a table"),
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
