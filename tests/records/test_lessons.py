"""Are notebooks handed out, and is a learner's work kept when newer ones come? By hand, in a folder of its own."""

import json
from pathlib import Path

import pytest

from labkit.records.lessons import HANDED_OUT, hand_out


@pytest.fixture
def lessons(tmp_path: Path) -> Path:
    source = tmp_path / "package"
    source.mkdir()
    for name in ("00_start", "01_numbers", "02_rounding"):
        (source / f"{name}.ipynb").write_text(f"{name} as of 1.0")
    (source / "build.py").write_text("not for learners")
    return source


def what(copied) -> dict[str, str]:
    return {each.name.split("_")[0]: each.what for each in copied}


def test_worked_example_a_newer_version_comes_while_a_learner_is_half_way(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mein Übungsordner"
    assert what(hand_out(lessons, mine, "1.0")) == {"00": "new", "01": "new", "02": "new"}
    assert not (mine / "build.py").exists()
    (mine / "01_numbers.ipynb").write_text("my work")
    for name in ("01_numbers", "02_rounding"):
        (lessons / f"{name}.ipynb").write_text(f"{name} as of 1.1")

    copied = hand_out(lessons, mine, "1.1")
    assert what(copied) == {"00": "the same", "01": "kept", "02": "replaced"}
    assert str(copied[1]) == "01_numbers.ipynb: kept; the newer one is 01_numbers-1.1.ipynb"
    assert (mine / "01_numbers.ipynb").read_text() == "my work"
    assert (mine / "01_numbers-1.1.ipynb").read_text() == "01_numbers as of 1.1"
    assert (mine / "02_rounding.ipynb").read_text() == "02_rounding as of 1.1"


def test_a_newer_notebook_is_put_beside_once_and_work_in_it_is_kept_too(lessons: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    hand_out(lessons, mine, "1.0")
    (mine / "01_numbers.ipynb").write_text("my work")
    (kept,) = [each for each in hand_out(lessons, mine, "1.0") if each.what == "kept"]
    assert kept.newer is None, "nothing newer came"
    (lessons / "01_numbers.ipynb").write_text("1.1")
    hand_out(lessons, mine, "1.1")
    (mine / "01_numbers-1.1.ipynb").write_text("my work in the newer one")
    hand_out(lessons, mine, "1.1")
    (lessons / "01_numbers.ipynb").write_text("1.1 again, built from another commit")
    hand_out(lessons, mine, "1.1")
    assert {path.name: path.read_text() for path in mine.glob("01*")} == {
        "01_numbers.ipynb": "my work",
        "01_numbers-1.1.ipynb": "my work in the newer one",
        "01_numbers-1.1-2.ipynb": "1.1 again, built from another commit",
    }


def test_without_a_list_that_can_be_read_everything_different_counts_as_work(lessons: Path, tmp_path: Path):
    for number, listed in enumerate((None, "", "[]", '{"01_numbers.ipynb": 7}')):
        mine = tmp_path / f"mine {number}"
        mine.mkdir()
        (mine / "01_numbers.ipynb").write_text("from somewhere")
        if listed is not None:
            (mine / HANDED_OUT).write_text(listed)
        assert what(hand_out(lessons, mine, "1.1")) == {"00": "new", "01": "kept", "02": "new"}, listed
        assert (mine / "01_numbers.ipynb").read_text() == "from somewhere"
        assert len(json.loads((mine / HANDED_OUT).read_text())) == 3
