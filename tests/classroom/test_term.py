"""A term as docs/teachers.md describes it: lessons, roster, extensions, appeal."""

import os
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


@pytest.mark.slow
def test_a_term_goes_from_the_first_grading_to_the_last_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "submissions"
    for learner, days in LEARNERS.items():
        for lesson in LESSONS:
            without = "numbers.ulp" if learner.startswith("love") else ""
            hand_in(folder, learner, lesson, solved(lesson, without), days)
    put(tmp_path / "gradebook.csv", CANVAS)
    out_of = {
        lesson: sum(e.points for e in EXERCISES.values() if e.lesson == lesson)
        for lesson in LESSONS
    }
    whole = sum(out_of.values())
    ulp = EXERCISES["numbers.ulp"].points

    def grade(*options: str) -> list[str]:
        words = (
            f"grade {folder} --csv {tmp_path / 'grades.csv'} --changed --report "
            f"{tmp_path / 'class.html'}"
        )
        words += f" --feedback {tmp_path / 'back'} --roster {tmp_path / 'gradebook.csv'}"
        words += (
            f" --gradebook {tmp_path / 'marks.csv'} --due 2026-11-30T18:00 --late 10 --late-cap 50"
        )
        assert main([*words.split(), *options]) == 0
        return capsys.readouterr().err.splitlines()

    def sums() -> dict[str, float]:
        _, *lines = read_table(tmp_path / "marks.csv")
        columns = [next(name for name in lines[0] if name.startswith(lesson)) for lesson in LESSONS]
        return {line["ID"]: sum(float(line[name]) for name in columns) for line in lines}

    # the first grading: Grace has a later deadline, Alan two free days, of which each notebook
    # takes its own
    lines = grade()
    assert any(line.startswith("late: 2 of 4 learners by up to 2 days") for line in lines)
    first = sums()
    assert first["71"] == whole - ulp
    assert first["72"] == whole
    assert first["74"] == pytest.approx(0.9 * whole)
    assert "due" not in read_table(tmp_path / "marks.csv")[0]

    # an appeal: Ada's answer was in another cell; her notebook alone is graded again
    hand_in(folder, "lovelaceada_71", "01_numbers", solved("01_numbers"), 0)
    lines = grade("--student", "lovelaceada_71")
    assert [line for line in lines if line.startswith("[")] == [
        f"[1/1] lovelaceada_71: {whole} of {whole} in {', '.join(LESSONS)}"
    ]
    assert sums() == first | {"71": whole}

    # Canvas imported the table once, and names its columns; the next one fills the same
    lines = read_table(tmp_path / "marks.csv")
    head = [f"{name} (47{n})" if name in LESSONS else name for n, name in enumerate(lines[0])]
    table = [",".join(head), *(",".join(f'"{cell}"' for cell in line.values()) for line in lines)]
    put(tmp_path / "gradebook.csv", "\n".join(table) + "\n")
    grade()
    after = read_table(tmp_path / "marks.csv")[0]
    assert not set(LESSONS) & after.keys()

    # a changed exercise is graded again for all, and nothing else
    def digest_after_a_change(id: str, seed: int) -> str:
        digest = exercise_digest(id, seed)
        return f"{digest}x" if id == "numbers.ulp" else digest

    monkeypatch.setattr(command, "exercise_digest", digest_after_a_change)
    lines = grade()
    assert "graded again, as the exercise changed: numbers.ulp (rows: 4)" in lines
    progress = [line for line in lines if line.startswith("[")]
    assert len(progress) == 4
    assert all(f"{ulp} of {ulp} in 01_numbers" in line for line in progress)
