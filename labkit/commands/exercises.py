"""`labkit exercises`: a table of all exercises, with points, minutes, checks and known mistakes."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from labkit.commands.course import add_course_option, use_course
from labkit.course import lessons, lessons_folder
from labkit.records import write_atomic


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--csv", type=Path, help="where to write it (default: to the terminal)")
    add_course_option(parser)


def run(arguments: Namespace) -> int:
    from labkit.classroom.model_answers import as_csv
    from labkit.grading import EXERCISES
    from labkit.grading.proof import problems

    use_course(arguments, solutions=True)
    added = [lesson for lesson in lessons() if lesson.folder.parent != lessons_folder()]
    if faults := [fault for lesson in added for fault in problems(lesson)]:
        print("\n".join(faults), file=sys.stderr)
        return 1
    text = as_csv(EXERCISES.values())
    try:
        write_atomic(arguments.csv, text.encode()) if arguments.csv else sys.stdout.write(text)
    except OSError as error:
        print(f"labkit exercises: {error}", file=sys.stderr)
        return 2
    return 0
