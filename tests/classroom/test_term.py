"""A term as docs/teachers.md describes it: lessons, roster, extensions, appeal."""

import io
import os
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import pytest

from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.commands import grade as command
from labkit.grading import EXERCISES
from labkit.grading.digests import exercise_digest
from labkit.grading.plan import due_time
from tests.grading.cases import cells_of
from tests.grading.hand_ins import code, notebook, put

pytestmark = pytest.mark.slow

LESSONS = ("00_start", "01_numbers", "02_rounding", "06_loss_scaling")
DUE = due_time("2026-11-30T18:00")
DAY = 24 * 3600
CANVAS = (
    "Student,ID,SIS Login ID,Section,due,late_days\n"
    "Points Possible,,,,,\n"
    '"Lovelace, Ada",71,ada,1,,\n'
    '"Hopper, Grace",72,grace,1,2026-12-03T18:00,\n'
    '"Turing, Alan",73,alan,1,,2\n'
    '"Noether, Emmy",74,emmy,1,,\n'
)
LEARNERS = {
    "lovelaceada_71": 0.0,
    "hoppergrace_72": 2.5,
    "turingalan_73": 1.5,
    "noetheremmy_74": 0.5,
}


def solved(lesson: str, without: str = "") -> str:
    """Return the notebook of a lesson with all answers, or without one."""
    cells = [
        cell for cell in cells_of(lesson) if not without or f"exercise-{without}" not in cell.tags
    ]
    sources = [
        code(cell.source, id=cell.id) | {"metadata": {"tags": list(cell.tags)}} for cell in cells
    ]
    return notebook(*sources)


def hand_in(folder: Path, learner: str, lesson: str, text: str, days: float) -> None:
    """Write a notebook as Canvas names it, so many days late."""
    path = put(folder / f"{learner}_900_{lesson}.ipynb", text)
    os.utime(path, (DUE + days * DAY, DUE + days * DAY))


OUT_OF = {
    lesson: sum(e.points for e in EXERCISES.values() if e.lesson == lesson) for lesson in LESSONS
}
WHOLE = sum(OUT_OF.values())
ULP = EXERCISES["numbers.ulp"].points


@dataclass(frozen=True)
class Grading:
    """What a call of `labkit grade` printed and wrote.

    Attributes:
        printed: The lines on stderr.
        marks: The rows of the table of marks, without that of points possible.
        sums: Canvas's number of a learner -> the sum of the marks.
    """

    printed: list[str]
    marks: list[dict[str, str]]
    sums: dict[str, float]

    @property
    def progress(self) -> list[str]:
        return [line for line in self.printed if line.startswith("[")]


class Term:
    """The folder of a class: hand-ins, the gradebook of Canvas, and what grading writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.submissions = folder / "submissions"
        for learner, days in LEARNERS.items():
            without = "numbers.ulp" if learner.startswith("love") else ""
            for lesson in LESSONS:
                hand_in(self.submissions, learner, lesson, solved(lesson, without), days)
        put(folder / "gradebook.csv", CANVAS)

    def grade(self, *options: str) -> Grading:
        words = [
            *("grade", str(self.submissions), "--changed"),
            *("--csv", str(self.folder / "grades.csv")),
            *("--report", str(self.folder / "class.html")),
            *("--feedback", str(self.folder / "back")),
            *("--roster", str(self.folder / "gradebook.csv")),
            *("--gradebook", str(self.folder / "marks.csv")),
            *("--due", "2026-11-30T18:00", "--late", "10", "--late-cap", "50"),
        ]
        with redirect_stderr(io.StringIO()) as errors:
            assert main([*words, *options]) == 0
        _, *marks = read_table(self.folder / "marks.csv")
        columns = [next(name for name in marks[0] if name.startswith(each)) for each in LESSONS]
        sums = {row["ID"]: sum(float(row[name]) for name in columns) for row in marks}
        return Grading(errors.getvalue().splitlines(), marks, sums)

    def import_marks(self) -> None:
        """Replace the gradebook by the table of marks, whose columns Canvas has named.

        Canvas does not export the teacher's columns of deadlines, so the teacher adds them again.
        """
        deadlines = read_table(self.folder / "gradebook.csv")
        lines = read_table(self.folder / "marks.csv")
        for line, own in zip(lines, deadlines, strict=True):
            line |= {"due": own["due"], "late_days": own["late_days"]}
        head = [f"{name} (47{n})" if name in LESSONS else name for n, name in enumerate(lines[0])]
        rows = [",".join(f'"{cell}"' for cell in line.values()) for line in lines]
        put(self.folder / "gradebook.csv", "\n".join([",".join(head), *rows]) + "\n")


@pytest.fixture(scope="module")
def term(tmp_path_factory: pytest.TempPathFactory) -> Term:
    return Term(tmp_path_factory.mktemp("term"))


@pytest.fixture(scope="module")
def first(term: Term) -> Grading:
    """The first grading. Ada's notebook lacks one answer."""
    return term.grade()


@pytest.fixture(scope="module")
def appeal(term: Term, first: Grading) -> Grading:
    """The grading of Ada alone, who has handed in the missing answer, without a delay."""
    hand_in(term.submissions, "lovelaceada_71", "01_numbers", solved("01_numbers"), 0)
    return term.grade("--student", "lovelaceada_71")


@pytest.fixture(scope="module")
def imported(term: Term, appeal: Grading) -> Grading:
    """The grading after Canvas has imported the marks."""
    term.import_marks()
    return term.grade()


@pytest.fixture(scope="module")
def changed(term: Term, imported: Grading) -> Grading:
    """The grading after one exercise has changed."""

    def digest_after_a_change(id: str, seed: int) -> str:
        digest = exercise_digest(id, seed)
        return f"{digest}x" if id == "numbers.ulp" else digest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "exercise_digest", digest_after_a_change)
        return term.grade()


def test_first_grading_counts_who_is_late(first: Grading) -> None:
    """Grace has a later deadline."""
    late = [line for line in first.printed if line.startswith("late: ")]
    assert late
    assert late[0].startswith("late: 2 of 4 learners by up to 2 days")


def test_missing_answer_costs_its_points(first: Grading) -> None:
    assert first.sums["71"] == WHOLE - ULP


def test_extension_free_points(first: Grading) -> None:
    assert first.sums["72"] == WHOLE


def test_free_days_are_used_up_by_one_notebook(first: Grading) -> None:
    """Alan has two free days, and hands four notebooks in on the second day after the deadline."""
    free_points = OUT_OF[LESSONS[0]]
    assert first.sums["73"] == pytest.approx(free_points + 0.8 * (WHOLE - free_points))


def test_day_that_has_begun_costs_ten_percent(first: Grading) -> None:
    assert first.sums["74"] == pytest.approx(0.9 * WHOLE)


def test_table_of_marks_has_no_column_of_deadlines(first: Grading) -> None:
    assert "due" not in first.marks[0]


def test_appeal_grades_one_learner(appeal: Grading) -> None:
    assert appeal.progress == [f"[1/1] lovelaceada_71: {WHOLE} of {WHOLE} in {', '.join(LESSONS)}"]


def test_appeal_changes_no_other_marks(first: Grading, appeal: Grading) -> None:
    assert appeal.sums == first.sums | {"71": WHOLE}


def test_columns_that_canvas_has_named_are_filled(appeal: Grading, imported: Grading) -> None:
    assert not set(LESSONS) & imported.marks[0].keys()
    assert imported.sums == appeal.sums


def test_changed_exercise_is_graded_again_for_all(changed: Grading) -> None:
    assert "graded again, as the exercise changed: numbers.ulp (rows: 4)" in changed.printed


def test_only_the_changed_exercise_is_graded_again(changed: Grading) -> None:
    assert len(changed.progress) == 4
    assert all(f"{ULP} of {ULP} in 01_numbers" in line for line in changed.progress)
