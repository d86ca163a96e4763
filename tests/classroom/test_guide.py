"""The guide for teachers: its commands, lessons and exercises exist, and its example works."""

import re
import shlex
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cli import COMMANDS, main, parser_of
from labkit.course import COURSE, Lesson, notebook_of, solution_of, text_of
from labkit.grading import EXERCISES
from labkit.grading.exercises import exercises_of

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "teachers.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Return the words of each command in the guide, after `labkit`; continued lines are joined."""
    lines = re.sub(r"\\\n\s*", "", GUIDE).splitlines()
    return [
        shlex.split(line, comments=True)[1:] for line in lines if line.startswith("    labkit ")
    ]


def test_every_command_of_the_guide_is_parsed() -> None:
    assert commands()
    for name, *words in commands():
        parser_of(name).parse_args(words)
    assert set(re.findall(r"`labkit ([a-z]+)", GUIDE)) <= {*COMMANDS}


def test_every_option_of_the_guide_exists() -> None:
    parsers = map(parser_of, ("grade", "release", "exercises", "board", "classroom", "site"))
    known = {
        option
        for parser in parsers
        for action in parser._actions
        for option in action.option_strings
    }
    assert set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", GUIDE)) - {"--help"} <= known


def test_every_exercise_of_the_guide_exists() -> None:
    lessons = "|".join({id.split(".")[0] for id in EXERCISES})
    named = set(re.findall(rf"`((?:{lessons})\.\w+)`", GUIDE))
    assert named
    assert named <= set(EXERCISES)


# The guide's lesson of one's own: its text, and its exercises.
LESSON, LESSONS_EXERCISES = (block.split("```")[0] for block in GUIDE.split("```python\n")[1:3])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the guide's lesson, which is removed from the process after the test."""
    monkeypatch.setenv(COURSE, "")
    folder = tmp_path / "lesson_20_powers"
    folder.mkdir()
    (folder / "lesson.py").write_text(LESSON, encoding="utf-8")
    (folder / "exercises.py").write_text(LESSONS_EXERCISES, encoding="utf-8")
    (folder / "hints.toml").write_text(
        '"powers.floor" = ["the first", "the second", "the third"]\n', encoding="utf-8"
    )
    yield folder
    for name in [name for name in sys.modules if name.startswith("labkit_lessons.lesson_20")]:
        del sys.modules[name]
    package = sys.modules["labkit_lessons"]
    package.__path__ = [path for path in package.__path__ if path != str(tmp_path)]
    exercises_of.cache_clear()


def test_the_lesson_of_the_guide_is_listed(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exercises", "--course", str(own)]) == 0
    line = (
        "powers.floor,20_powers,The power below,my_floor,1,5,2,0,any number,one too high; one too"
        " low"
    )
    assert line in capsys.readouterr().out.splitlines()


def test_the_lesson_of_the_guide_is_graded(own: Path, tmp_path: Path) -> None:
    handed_in = tmp_path / "in" / "ada" / "20_powers.ipynb"
    handed_in.parent.mkdir(parents=True)
    handed_in.write_text(text_of(notebook_of(Lesson(own), solution_of)), encoding="utf-8")
    grades = tmp_path / "grades.csv"
    command = ["grade", str(handed_in.parents[1]), "--csv", str(grades), "--course", str(own)]
    assert main(command) == 0
    _, line = grades.read_text(encoding="utf-8").splitlines()
    assert line.startswith("ada,20_powers.ipynb,powers.floor,2,2,")


def test_the_lesson_of_the_guide_is_released_without_copies(own: Path, tmp_path: Path) -> None:
    (own / "__init__.py").write_text("from math import pi\n", encoding="utf-8")
    # Copies of the text, as editors and Jupyter leave them, must not be released.
    for copy in ("lesson.ipynb", "lesson.py~", "exercises_old.py", "solved.ipynb"):
        (own / copy).write_text(LESSON, encoding="utf-8")
    assert main(["release", str(tmp_path / "out"), "--lessons", "20", "--course", str(own)]) == 0
    with zipfile.ZipFile(next((tmp_path / "out" / "learners").glob("*.whl"))) as wheel:
        released = {name for name in wheel.namelist() if "20_powers" in name}
    place = "labkit_lessons/lesson_20_powers"
    assert released == {
        "labkit/notebooks/20_powers.ipynb",
        f"{place}/__init__.py",
        f"{place}/hints.toml",
        f"{place}/judge.pkl.gz",
    }


def test_a_mistake_that_equals_the_reference_is_named(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = LESSONS_EXERCISES.replace("my_floor(x) - 1", "my_floor(x)")
    assert text != LESSONS_EXERCISES
    (own / "exercises.py").write_text(text, encoding="utf-8")
    assert main(["exercises", "--course", str(own)]) == 1
    assert (
        "exercise powers.floor: the mistake 'one too low' equals the reference"
        in capsys.readouterr().err
    )
