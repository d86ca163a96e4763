"""`labkit lab`: open JupyterLab on a notebook, or on copies of all lessons in a folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import webbrowser
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import labkit
from labkit.commands.course import add_course_option, use_course
from labkit.course import Lesson, learners_notebook, lessons, lessons_folder, text_of
from labkit.records import checkout, notebooks_folder, write_atomic
from labkit.records.notebook_copies import copy_notebooks

FIRST_LESSON = "00_start.ipynb"
HIDDEN = ("lessons", "tests", "__pycache__", "*.pyc", "*.pyo", ".DS_Store", "*~")  # in the checkout's file browser
LESSONS_FOLDER = "fp16-lab"  # where lessons are copied to when nothing else is said


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        type=Path,
        help="a notebook to open, or a folder that the notebooks are copied into (default: the checkout's own, "
        f"or {LESSONS_FOLDER}/ where the lab was installed without one)",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    add_course_option(parser)
    parser.add_argument("--port", type=int, default=8888, help="first port to try (default: 8888)")


def run(arguments: Namespace) -> int:
    """Become JupyterLab; where the system cannot replace a process (Windows), start it and wait."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise ModuleNotFoundError("JupyterLab is not installed", name="jupyterlab")
    use_course(arguments)
    try:
        notebook = notebook_to_open(arguments.what)
    except OSError as error:
        print(error, file=sys.stderr)
        return 2
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    browser = not arguments.no_browser and can_open_browser(is_root, sys.platform, os.environ)
    flags = lab_flags(notebook, is_root, browser, arguments.port) + shell_flags(os.environ, sys.stdout.isatty())
    command, environment = [sys.executable, "-m", "jupyterlab", *flags], lab_environment(os.environ)
    if not browser:
        print("No browser is opened from here: open the address that JupyterLab prints below.", flush=True)
    if os.name != "nt":
        os.execve(command[0], command, environment)
    return subprocess.call(command, env=environment)


def notebook_to_open(what: Path | None) -> Path:
    """Return the notebook that is asked for; where that is a folder, the lessons are copied into it first.

    Raises:
        FileNotFoundError: it is meant to be a notebook, and there is none.
    """
    if what is None:
        what = notebooks_folder() / FIRST_LESSON if checkout() and not further_lessons() else Path(LESSONS_FOLDER)
    if what.suffix != ".ipynb":
        return _handed_out(what.expanduser().resolve())
    if not what.is_file():
        raise FileNotFoundError(
            f"There is no notebook at {what}. `labkit lab FOLDER` copies the lessons into a folder and opens the first."
        )
    return what.resolve()


def further_lessons() -> list[Lesson]:
    """Return the lessons that do not lie in the lab's own folder, by --course."""
    return [lesson for lesson in lessons() if lesson.folder.parent != lessons_folder()]


def _handed_out(folder: Path) -> Path:
    copied = copy_notebooks(notebooks_folder(), folder, labkit.__version__)
    with TemporaryDirectory() as scratch:
        for lesson in further_lessons():
            write_atomic(Path(scratch, f"{lesson.name}.ipynb"), text_of(learners_notebook(lesson)).encode())
        copied += copy_notebooks(Path(scratch), folder, labkit.__version__)
    counts = Counter(each.what for each in copied)
    print(f"Notebooks in {folder}: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}.")
    for each in copied:
        if each.what == "kept":
            print(f"  {each}")
    return folder / FIRST_LESSON


def can_open_browser(is_root: bool, platform: str, environment: Mapping[str, str]) -> bool:
    """Say whether a window can be opened: not as root (browsers refuse), nor without a screen.

    >>> can_open_browser(False, "linux", {"SSH_CONNECTION": "..."})
    False
    """
    screen = "DISPLAY" in environment or "WAYLAND_DISPLAY" in environment
    if is_root or (not screen and (platform == "linux" or "SSH_CONNECTION" in environment)):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def lab_flags(notebook: Path, is_root: bool, browser: bool, port: int) -> list[str]:
    """Return JupyterLab's flags. Its file browser shows the checkout with labkit's code, but no solutions and tests.

    The notebook is in the address itself, so the address that is printed opens it as well as a browser does.

    >>> for flag in lab_flags(Path("/somewhere/my first.ipynb"), is_root=True, browser=False, port=8888): print(flag)
    --ServerApp.root_dir=/somewhere
    --ServerApp.port=8888
    --LabApp.default_url=/lab/tree/my%20first.ipynb
    --allow-root
    --no-browser
    """
    top = checkout()
    if top is None or not notebook.is_relative_to(top):
        top = notebook.parent
    address = f"/lab/tree/{quote(notebook.relative_to(top).as_posix())}"
    flags = [f"--ServerApp.root_dir={top}", f"--ServerApp.port={port}", f"--LabApp.default_url={address}"]
    if top == checkout():
        flags += [f"--ContentsManager.hide_globs={glob}" for glob in HIDDEN]
    return flags + ["--allow-root"] * is_root + ["--no-browser"] * (not browser)


def lab_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for JupyterLab, its terminals and kernels: one in which `labkit` and `python` are found.

    The lab may have been started by its full path, without "activating" anything.
    """
    programs = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    path = [*dict.fromkeys(programs), *filter(None, [environment.get("PATH")])]
    return {**environment, "PATH": os.pathsep.join(path)}


def shell_flags(environment: Mapping[str, str], is_a_terminal: bool) -> list[str]:
    """Return the flag that has JupyterLab's terminals open the usual shell.

    Where the server has no terminal of its own (a container, a hub) they would open a login shell, which forgets PATH.

    >>> shell_flags({"SHELL": "/bin/zsh"}, is_a_terminal=False)
    ['--ServerApp.terminado_settings=shell_command=/bin/zsh']
    """
    if is_a_terminal or os.name == "nt":
        return []
    return [f"--ServerApp.terminado_settings=shell_command={environment.get('SHELL') or 'sh'}"]
