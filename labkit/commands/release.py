"""`labkit release`: write what a class gets, without solutions, and what its teacher keeps."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from labkit.commands.course import add_course_option, use_course
from labkit.records import checkout


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="where learners/ and teacher/ are written")
    parser.add_argument("--lessons", nargs="+", default=[], metavar="LESSON", help="01, 06_loss_scaling (default: all)")
    parser.add_argument("--nbgrader", action="store_true", help="write teacher/nbgrader too, a course folder for it")
    parser.add_argument("--seed", type=int, default=1, help="what nbgrader's tests draw cases from (default: 1)")
    add_course_option(parser)


def run(arguments: Namespace) -> int:
    from labkit.classroom.nbgrader import write_course
    from labkit.classroom.release import lessons_named, release
    from labkit.grading.exercises import exercises_of

    use_course(arguments, solutions=True)
    top = checkout()
    if top is None:
        _say("labkit release takes a checkout of the lab, and this lab was installed without one")
        return 2
    try:
        lessons = lessons_named(arguments.lessons)
        learners, teacher = release(top, arguments.folder, lessons, bar(sys.stderr), _say)
        if arguments.nbgrader:
            exercises = [exercise for lesson in lessons for exercise in exercises_of(lesson)]
            write_course(teacher / "nbgrader", lessons, exercises, arguments.seed)
    except (OSError, ValueError) as error:
        _say(f"labkit release: {error}")
        return 2
    print(f"{learners}: notebooks and a wheel without solutions, for the class")
    print(f"{teacher}: the whole lab, model answers and a table of exercises, for you")
    return 0


def bar(stream: TextIO, width: int = 30) -> Callable[[int, int, str], None]:
    """Return a progress bar: one line that is written anew in a terminal, a line for each tenth elsewhere."""
    tenth = -1

    def show(done: int, total: int, name: str) -> None:
        nonlocal tenth
        if not total:
            return
        filled = "█" * (width * done // total)
        if stream.isatty():
            stream.write(f"\r{filled:<{width}} {done} of {total} exercises  {name:<24}" + ("" if name else "\n"))
        elif 10 * done // total > tenth or not name:
            tenth = 10 * done // total
            stream.write(f"{done} of {total} exercises\n")
        stream.flush()

    return show


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
