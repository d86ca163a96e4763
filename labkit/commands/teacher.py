"""Commands for teachers: release, exercises, board, classroom."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from labkit.commands import CommandError, use_course
from labkit.course import lessons, lessons_folder, lessons_named
from labkit.records import checkout, write_atomic
from labkit.records.handout import handout_of


def release(arguments: Namespace) -> int:
    """Run `labkit release`: write the learners' lab and the teacher's, and what the options add.

    Returns:
        The exit status.
    """
    from labkit.classroom.gradescope import autograder
    from labkit.classroom.nbgrader import write_course
    from labkit.classroom.question_bank import as_gift, bank_questions
    from labkit.classroom.release import release as write_release
    from labkit.grading.exercises import exercises_of

    use_course(arguments, solutions=True)
    top = checkout()
    if top is None:
        raise CommandError("expected a checkout of the lab, but labkit was installed without one")
    try:
        chosen = lessons_named(arguments.lessons)
        learners, teacher = write_release(
            top,
            arguments.folder,
            chosen,
            progress_bar(sys.stderr),
            _print,
            guess_first=arguments.guess_first,
        )
        if arguments.nbgrader:
            listed = [exercise for lesson in chosen for exercise in exercises_of(lesson)]
            write_course(teacher / "nbgrader", chosen, listed, arguments.seed)
        if arguments.questions:
            write_atomic(arguments.questions, as_gift(bank_questions(chosen)).encode())
        if arguments.gradescope:
            whole = next(teacher.glob("*.whl"))
            constraints = (top / "constraints.txt").read_bytes()
            names = [lesson.name for lesson in chosen] if arguments.lessons else []
            archive = autograder(whole.name, whole.read_bytes(), constraints, names)
            write_atomic(arguments.gradescope, archive)
    except ValueError as error:
        raise CommandError(str(error)) from error
    wheel = next(learners.glob("*.whl"))
    print(
        f"{learners}: notebooks and a wheel without solutions, for the class: "
        f"{handout_of(wheel.name)}"
    )
    print(f"{teacher}: the whole lab, model answers and a table of exercises, for you")
    return 0


def exercises(arguments: Namespace) -> int:
    """Run `labkit exercises`: check the exercises of added lessons, and list all exercises.

    Returns:
        The exit status: 1 if an added lesson has a problem, which is printed in place of the list.
    """
    from labkit.classroom.model_answers import as_csv
    from labkit.grading import EXERCISES
    from labkit.grading.judge import problems

    use_course(arguments, solutions=True)
    added = [lesson for lesson in lessons() if lesson.folder.parent != lessons_folder()]
    all_problems = [problem for lesson in added for problem in problems(lesson)]
    if all_problems:
        _print("\n".join(all_problems))
        return 1
    text = as_csv(EXERCISES.values())
    if arguments.csv:
        write_atomic(arguments.csv, text.encode())
    else:
        sys.stdout.write(text)
    return 0


def board(arguments: Namespace) -> int:
    """Run `labkit board`: serve the board of a class until Ctrl+C.

    Returns:
        The exit status.
    """
    from labkit.classroom.board import serve

    if not arguments.folder.is_dir():
        raise CommandError(f"there is no folder {arguments.folder}")
    server = serve(arguments.folder, arguments.grades, arguments.address, arguments.port)
    if arguments.address != "127.0.0.1":
        _print(
            "Everyone who can reach this machine sees counts of predictions, and with --grades "
            "names and points."
        )
    print(f"http://{arguments.address}:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def classroom(arguments: Namespace) -> int:
    """Run `labkit classroom`: set up the folder, and replace this process by JupyterHub."""
    from labkit.classroom.hub import Classroom, describe_isolation, learners_named, set_up

    if importlib.util.find_spec("jupyterhub") is None:
        raise ModuleNotFoundError("JupyterHub is not installed", name="jupyterhub")
    top = checkout()
    folder = arguments.folder.resolve()
    if top is None or not hasattr(os, "geteuid"):
        raise CommandError("expected a checkout of the lab, on Linux or macOS")
    if shutil.which("configurable-http-proxy") is None:
        raise CommandError("JupyterHub's proxy is missing: npm install -g configurable-http-proxy")
    try:
        hub = Classroom(
            str(folder),
            learners_named(arguments.users),
            arguments.port,
            arguments.memory,
            arguments.cores,
            arguments.idle,
            guess_first=arguments.guess_first,
        )
        config = set_up(hub)
        _unpack_learners_lab(top, folder, arguments.lessons)
    except ValueError as error:
        raise CommandError(str(error)) from error
    print(describe_isolation(hub, [lessons_folder()]), flush=True)
    print(
        f"http://127.0.0.1:{hub.port}  names and passwords: {folder / 'hub' / 'passwords.csv'}",
        flush=True,
    )
    os.chdir(folder / "hub")
    return os.execv(sys.executable, [sys.executable, "-m", "jupyterhub", "-f", str(config)])


def _unpack_learners_lab(top: Path, folder: Path, names: list[str]) -> None:
    """Unpack the learners' lab, without solutions, into lab/; if there is one already, say so."""
    if (folder / "lab").is_dir():
        print(
            f"The learners' lab is the one in {folder / 'lab'}, with the lessons that it has. "
            "After a change of the lessons or of the lab, delete that folder and start again; "
            "learners' notebooks stay."
        )
        return
    from labkit.classroom.release import release as write_release

    learners, _ = write_release(
        top, folder / "hub" / "release", lessons_named(names), progress_bar(sys.stderr), print
    )
    # The folder lab/ exists only when it is complete.
    shutil.rmtree(folder / "lab.part", ignore_errors=True)
    with zipfile.ZipFile(next(learners.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "lab.part")
    os.rename(folder / "lab.part", folder / "lab")


def progress_bar(stream: TextIO, width: int = 30) -> Callable[[int, int, str], None]:
    """Return a function that shows how many exercises are done: `show(done, total, name)`.

    A terminal has one line, which is rewritten; another stream gets a line for each tenth. `name`
    is that of the current exercise; an empty name ends the line.

    Args:
        stream: The stream to write to.
        width: The length of the bar, in characters.

    >>> show = progress_bar(sys.stdout)
    >>> for done in range(8): show(done, 70, "scaling.clip")
    0 of 70 exercises
    7 of 70 exercises
    """
    last_tenth = -1

    def show(done: int, total: int, name: str) -> None:
        nonlocal last_tenth
        if not total:
            return
        counts = f"{done} of {total} exercises"
        is_last = not name
        tenth = 10 * done // total
        if stream.isatty():
            bar = "█" * (width * done // total)
            stream.write(f"\r{bar:<{width}} {counts}  {name:<24}")
            if is_last:
                stream.write("\n")
        elif tenth > last_tenth or is_last:
            last_tenth = tenth
            stream.write(f"{counts}\n")
        stream.flush()

    return show


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
