"""`labkit release`: write what a class gets, without solutions, and what its teacher keeps."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from labkit.records import checkout


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="where learners/ and teacher/ are written")
    parser.add_argument("--lessons", nargs="+", default=[], metavar="LESSON", help="01, 06_loss_scaling (default: all)")
    parser.add_argument("--nbgrader", action="store_true", help="write teacher/nbgrader too, a course folder for it")
    parser.add_argument("--seed", type=int, default=1, help="what nbgrader's tests draw cases from (default: 1)")


def run(arguments: Namespace) -> int:
    from labkit.classroom.nbgrader import write_course
    from labkit.classroom.release import lessons_named, release
    from labkit.grading import EXERCISES

    top = checkout()
    if top is None or not (top / "notebooks" / "source").is_dir():
        _say("labkit release takes a checkout of the lab: its notebooks/source holds the model answers")
        return 2
    try:
        lessons = lessons_named(top, arguments.lessons)
        learners, teacher = release(top, arguments.folder, lessons, _say)
        if arguments.nbgrader:
            exercises = [exercise for exercise in EXERCISES.values() if exercise.lesson in lessons]
            write_course(teacher / "nbgrader", top, lessons, exercises, arguments.seed)
    except (OSError, ValueError) as error:
        _say(f"labkit release: {error}")
        return 2
    print(f"{learners}: notebooks and a wheel without solutions, for the class")
    print(f"{teacher}: the whole lab, model answers and a table of exercises, for you")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
