"""Results of a grading: the table of grades as it is written, and results beside the hand-ins."""

from pathlib import Path

import pytest

from labkit.grading.results import GradeRow, visible, write
from tests.grading.hand_ins import answered, graded, put
from tests.grading.odd_class import STEERING


def test_characters_that_steer_a_terminal_are_shown_as_escapes() -> None:
    assert visible(STEERING) == r"\x1b[2J\x00\u202e\u2066\u200f\u2028\x9b=1+1"


def test_the_order_of_rows_does_not_change_the_file(tmp_path: Path) -> None:
    rows = [
        GradeRow(student, "06.ipynb", exercise, 0, 10, "")
        for student in ("ada", "bob")
        for exercise in ("scaling.clip", "an.earlier", "another.earlier")
    ]
    for name, each in (("a.csv", rows), ("b.csv", rows[::-1])):
        write(each, tmp_path / name)
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_lone_surrogate_in_a_reason_is_written_as_an_escape(tmp_path: Path) -> None:
    path = tmp_path / "grades.csv"
    write(
        [GradeRow("=1+1", "06.ipynb", "scaling.clip", 0, 10, "it stopped with ValueError: \ud800")],
        path,
    )
    assert "ValueError: \\ud800" in path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one hand-in, which also is the folder of its results."""
    folder = tmp_path_factory.mktemp("class")
    put(folder / "ada.ipynb", answered())
    return folder


def learners(folder: Path, *options: str) -> set[str]:
    """Grade a folder into itself, and return the learners of the table."""
    return {learner for learner, _ in graded(folder, folder, *options)}


@pytest.fixture(scope="module")
def twice(folder: Path) -> list[set[str]]:
    """The learners of two gradings that write all results among the hand-ins."""
    options = ["--feedback", f"{folder / 'back'}", "--report", f"{folder / 'class.html'}"]
    options += ["--anonymous", f"{folder / 'shown'}"]
    return [learners(folder, *options) for _ in range(2)]


@pytest.fixture(scope="module")
def later(folder: Path, twice: list[set[str]]) -> set[str]:
    """The learners of a later grading, which names no page, after two learners saved pages."""
    put(folder / "bob.html", "<p>my work")
    put(folder / "cyd" / "feedback.html", (folder / "class.html").read_bytes())
    return learners(folder)


def test_results_that_the_command_names_are_no_hand_ins(twice: list[set[str]]) -> None:
    assert twice == [{"ada"}, {"ada"}]


def test_results_of_an_earlier_command_are_no_hand_ins(later: set[str]) -> None:
    assert later - {"bob", "cyd"} == {"ada"}


@pytest.mark.parametrize("learner", ["bob", "cyd"])
def test_a_page_that_a_learner_saved_is_a_hand_in(learner: str, later: set[str]) -> None:
    assert learner in later
