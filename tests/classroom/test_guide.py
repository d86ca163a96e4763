"""Does the guide for teachers say what is so? Its commands, lessons and exercises exist, and its example works."""

from __future__ import annotations

import importlib
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from labkit.cli import SUBCOMMANDS
from labkit.grading import EXERCISES, judge
from labkit.grading.judge import answers_of, visible_paper

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "teachers.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """The commands of the guide, the lines of each joined."""
    lines = re.sub(r"\\\n\s*", "", GUIDE).splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("    labkit ")]


def test_every_command_is_taken_as_it_stands() -> None:
    assert len(commands()) >= 3
    for name, *words in commands():
        parser = ArgumentParser(exit_on_error=False)
        importlib.import_module(SUBCOMMANDS[name].module).add_arguments(parser)
        parser.parse_args(words)


def test_every_option_and_command_that_is_named_exists() -> None:
    for name in re.findall(r"`labkit ([a-z]+)", GUIDE):
        assert name in SUBCOMMANDS
    parsers = {}
    for name in ("grade", "release", "exercises", "board", "classroom"):
        parsers[name] = ArgumentParser()
        importlib.import_module(SUBCOMMANDS[name].module).add_arguments(parsers[name])
    known = {option for parser in parsers.values() for action in parser._actions for option in action.option_strings}
    assert set(re.findall(r"(?<![\w-])--[a-z]+", GUIDE)) - {"--help"} <= known


def test_every_exercise_that_is_named_exists() -> None:
    words = "|".join({id.split(".")[0] for id in EXERCISES})
    named = set(re.findall(rf"`((?:{words})\.\w+)`", GUIDE))
    assert named
    assert named - {"numbers.floor"} <= set(EXERCISES)


def test_the_exercise_of_twenty_lines_works() -> None:
    source = GUIDE.split("```python\n")[1].split("```")[0]
    assert len([line for line in source.splitlines() if line.strip()]) <= 20
    module: dict[str, Any] = {"__name__": "numbers_floor"}
    exec(source, module)
    exercise = module["EXERCISE"]
    paper = visible_paper(exercise)
    assert judge(paper, answers_of(paper, exercise.reference)).points == exercise.points
    grade = judge(paper, answers_of(paper, exercise.mistakes[0].answer))
    assert (grade.points, grade.mistake) == (0, exercise.mistakes[0])
