"""What `labkit grade` says of a folder: nothing to grade, other lessons, or a wrong folder."""

from pathlib import Path

import pytest

from labkit.cli import main
from tests.grading.hand_ins import answered, archive, code, graded, notebook, put

GOOD = answered()
# What there is to grade -> the files of a folder, the path that the command gets, and its words.
NOTHING_TO_GRADE = {
    "a hidden file": ("empty/.x", "empty", "there is no notebook (.ipynb)"),
    "a program": ("train.py", "train.py", "expected notebooks (.ipynb)"),
    "a scan": ("week/ada/1.pdf", "week", "The first one, ada, handed in 1.pdf"),
    "no such folder": ("", "nowhere", "nowhere; give a folder of notebooks"),
}


def grade_nothing(name: str, tmp_path: Path) -> int:
    """Grade what holds nothing to grade into grades.csv, and return the exit code."""
    file, path, _ = NOTHING_TO_GRADE[name]
    if file:
        put(tmp_path / file, "x = 1")
    return main(["grade", str(tmp_path / path), "--csv", str(tmp_path / "grades.csv")])


@pytest.mark.parametrize("name", NOTHING_TO_GRADE)
def test_nothing_to_grade_is_reported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade_nothing(name, tmp_path) == 2
    assert NOTHING_TO_GRADE[name][2] in capsys.readouterr().err


@pytest.mark.parametrize("name", NOTHING_TO_GRADE)
def test_of_nothing_to_grade_no_table_is_written(name: str, tmp_path: Path) -> None:
    grade_nothing(name, tmp_path)
    assert not (tmp_path / "grades.csv").exists()


def test_notebooks_of_other_lessons_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts: dict[str, str | bytes] = {
        "06_loss_scaling.ipynb": GOOD,
        "00_start.ipynb": notebook(code("pass", "start.smallest")),
        "07.ipynb": notebook(code("x = 1")),
    }
    members = {f"{who}/{name}": text for who in ("ada", "bob") for name, text in texts.items()}
    path = put(tmp_path / "class.zip", archive(members))
    graded(path, tmp_path, "--lesson", "06_loss_scaling")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ignored")]
    assert sorted(lines) == [
        "ignored, as it holds no exercise that is graded: ada, 07.ipynb",
        "ignored, as it holds no exercise that is graded: bob, 07.ipynb",
        "ignored: notebooks of other lessons, 2 in all",
    ]


def test_one_scan_beside_a_notebook_raises_no_doubt_about_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "class" / "ada.ipynb", GOOD)
    put(tmp_path / "class" / "bob.pdf", "")
    graded(tmp_path / "class", tmp_path)
    assert "right folder" not in capsys.readouterr().err


def test_a_folder_with_hardly_a_notebook_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "class"
    put(where / "ada.ipynb", GOOD)
    put(where / "bob.pdf", "")
    put(where / "train.py", "x = 1")
    (where / "report").mkdir()
    graded(where, tmp_path)
    assert "! 3 of 4 learners have no notebook that can be read" in capsys.readouterr().err
