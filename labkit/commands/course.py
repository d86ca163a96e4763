"""The option --course, which adds lessons of one's own to a command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labkit.course import CourseError, add_folders, lessons


def add_course_option(parser: ArgumentParser) -> None:
    """Add --course FOLDER, which may be given several times."""
    parser.add_argument(
        "--course",
        action="append",
        default=[],
        type=Path,
        metavar="FOLDER",
        help="add a lesson of your own: its folder lesson_NN_name, or a folder of such folders",
    )


def use_course(arguments: Namespace, solutions: bool = False) -> None:
    """Add the lessons that the option names, for this command and the processes that it starts.

    solutions   the command needs the solutions of all lessons

    Raises:
        CourseError: a folder holds no lesson; or this is a learner's lab, which has no solutions.
    """
    add_folders(arguments.course)
    if solutions and not all(lesson.text.is_file() for lesson in lessons()):
        raise CourseError("this command is for teachers: this lab was released to learners, without solutions")
