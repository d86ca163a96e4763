"""Commands of the terminal: functions from parsed arguments to an exit status.

labkit.commands.table lists them with their arguments, and labkit.cli runs them.
"""

from __future__ import annotations

from argparse import Namespace

from labkit.course import CourseError, add_folders, lessons


class CommandError(Exception):
    """A command cannot run.

    The command line prints the message and ends with a status, 2 for a wrong call.
    """

    def __init__(self, message: str, status: int = 2) -> None:
        super().__init__(message)
        self.status = status


def use_course(arguments: Namespace, solutions: bool = False) -> None:
    """Add the lessons of the option --course, for this command and the processes that it starts.

    Args:
        arguments: the parsed arguments of the command.
        solutions: whether the command needs the solutions of all lessons.

    Raises:
        CourseError: a folder holds no lesson; or this is a learner's lab, which has no solutions.
    """
    add_folders(arguments.course)
    if solutions and not all(lesson.text.is_file() for lesson in lessons()):
        raise CourseError(
            "this command is for teachers: this lab was released to learners, without solutions"
        )
