"""The guide for teachers: its commands, lessons and exercises exist, and its example works."""

import re
import shlex
import sys
import zipfile
from pathlib import Path

import pytest

from labkit.cli import COMMANDS, main, parser_of
from labkit.course import COURSE, Lesson, notebook_of, solution_of, text_of
from labkit.grading import EXERCISES
from labkit.grading.exercises import _all, exercises_of

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


def test_the_lesson_of_the_guide_is_graded_released_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(COURSE, "")
    text, exercises = (block.split("```")[0] for block in GUIDE.split("```python\n")[1:3])
    folder = tmp_path / "lesson_20_powers"
    folder.mkdir()
    (folder / "lesson.py").write_text(text, encoding="utf-8")
    (folder / "exercises.py").write_text(exercises, encoding="utf-8")
    (folder / "hints.toml").write_text(
        '"powers.floor" = ["the first", "the second", "the third"]\n', encoding="utf-8"
    )
    assert main(["exercises", "--course", str(folder)]) == 0
    assert (
        "powers.floor,20_powers,The power below,my_floor,1,5,2,0,any number,one too high; one "
        "too low" in (capsys.readouterr().out.splitlines())
    )
    handed_in = tmp_path / "in" / "ada" / "20_powers.ipynb"
    handed_in.parent.mkdir(parents=True)
    handed_in.write_text(text_of(notebook_of(Lesson(folder), solution_of)), encoding="utf-8")
    grades = tmp_path / "grades.csv"
    assert (
        main(["grade", str(handed_in.parents[1]), "--csv", str(grades), "--course", str(folder)])
        == 0
    )
    assert (
        grades.read_text(encoding="utf-8")
        .splitlines()[1]
        .startswith("ada,20_powers.ipynb,powers.floor,2,2,")
    )
    (folder / "__init__.py").write_text("from math import pi\n", encoding="utf-8")
    # Copies of the text, as editors and Jupyter leave them, must not be released.
    for copy in ("lesson.ipynb", "lesson.py~", "exercises_old.py", "solved.ipynb"):
        (folder / copy).write_text(text, encoding="utf-8")
    assert main(["release", str(tmp_path / "out"), "--lessons", "20", "--course", str(folder)]) == 0
    with zipfile.ZipFile(next((tmp_path / "out" / "learners").glob("*.whl"))) as wheel:
        own = {name for name in wheel.namelist() if "20_powers" in name}
    place = "labkit_lessons/lesson_20_powers"
    assert own == {
        "labkit/notebooks/20_powers.ipynb",
        f"{place}/__init__.py",
        f"{place}/hints.toml",
        f"{place}/judge.pkl.gz",
    }
    (folder / "exercises.py").write_text(
        exercises.replace("my_floor(x) - 1", "my_floor(x)"), encoding="utf-8"
    )
    for cached in (exercises_of, _all):
        cached.cache_clear()
    del sys.modules["labkit_lessons.lesson_20_powers.exercises"]
    assert main(["exercises", "--course", str(folder)]) == 1
    assert (
        "exercise powers.floor: the mistake 'one too low' equals the reference"
        in capsys.readouterr().err
    )
