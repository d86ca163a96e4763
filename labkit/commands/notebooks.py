"""Commands on notebooks: lab, site, progress, restore."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import time
import webbrowser
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import labkit
from labkit.commands import CommandError, use_course
from labkit.course import (
    PACKAGE,
    Lesson,
    learners_notebook,
    lessons,
    lessons_folder,
    lessons_named,
    text_of,
)
from labkit.findings import counted
from labkit.machine.jupyter import with_lab_settings
from labkit.records import checkout, notebooks_folder, write_atomic
from labkit.records.handout import handout_of, is_older
from labkit.records.notebook_copies import copy_notebooks, version_of_copies

if TYPE_CHECKING:
    from labkit.site import LiveFiles

FIRST_LESSON = "00_start.ipynb"
# Hidden in JupyterLab's file browser of a checkout.
HIDDEN = (PACKAGE, "tests", "__pycache__", "*.pyc", "*.pyo", ".DS_Store", "*~")
# The folder into which lessons are copied by default.
LESSONS_FOLDER = "fp16-lab"


def lab(arguments: Namespace) -> int:
    """Run `labkit lab`: open the lessons in JupyterLab.

    JupyterLab replaces this process. On Windows, which cannot do that, this process waits for it.

    Returns:
        The exit status.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise ModuleNotFoundError("JupyterLab is not installed", name="jupyterlab")
    use_course(arguments)
    notebook = notebook_to_open(arguments.what)
    for line in handout_notes(notebook.parent, labkit.__version__):
        print(line)
    sys.stdout.flush()
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    browser = not arguments.no_browser and can_open_browser(is_root, sys.platform, os.environ)
    flags = lab_flags(notebook, is_root, browser, arguments.port) + shell_flags(
        os.environ, sys.stdout.isatty()
    )
    command = [sys.executable, "-m", "jupyterlab", *flags]
    environment = lab_environment(os.environ)
    if not browser:
        print(
            "No browser can be opened: open the address that JupyterLab prints below.", flush=True
        )
    if os.name != "nt":
        os.execve(command[0], command, environment)
    return subprocess.call(command, env=environment)


def notebook_to_open(what: Path | None) -> Path:
    """Return the notebook to open.

    Args:
        what: A notebook, or a folder into which the lessons are copied first. By default, the first
            lesson of a checkout; without a checkout, the folder `LESSONS_FOLDER`.

    Raises:
        FileNotFoundError: If the notebook does not exist.
    """
    if what is None:
        what = Path(LESSONS_FOLDER)
        if checkout() and not added_lessons():
            what = notebooks_folder() / FIRST_LESSON
    what = what.expanduser()
    if what.is_file() and what.suffix != ".ipynb":
        raise CommandError(f"expected a notebook (.ipynb) or a folder, got the file {what}")
    if what.suffix != ".ipynb":
        return _copy_lessons(what.resolve())
    if not what.is_file():
        raise FileNotFoundError(
            f"there is no notebook {what}; `labkit lab FOLDER` copies the lessons into a folder "
            "and opens the first"
        )
    return what.resolve()


def added_lessons() -> list[Lesson]:
    """Return the lessons that --course adds to the lab's own."""
    return [lesson for lesson in lessons() if lesson.folder.parent != lessons_folder()]


def _copy_lessons(folder: Path) -> Path:
    """Copy all lessons into a folder, and return the notebook of the first one there."""
    copied = copy_notebooks(notebooks_folder(), folder, labkit.__version__)
    with TemporaryDirectory() as scratch:
        for lesson in added_lessons():
            notebook = text_of(learners_notebook(lesson))
            write_atomic(Path(scratch, f"{lesson.name}.ipynb"), notebook.encode())
        copied += copy_notebooks(Path(scratch), folder, labkit.__version__)
    counts = Counter(each.status for each in copied)
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    print(f"Notebooks in {folder}: {summary}.")
    for each in copied:
        if each.status == "kept":
            print(f"  {each}")
    return folder / FIRST_LESSON


def handout_notes(folder: Path, version: str) -> list[str]:
    """Return lines about the handout of this lab, and about that of the notebooks if it differs.

    Args:
        folder: The folder with the notebooks.
        version: The version of this lab.
    """
    handout = handout_of(version)
    notebooks_version = version_of_copies(folder)
    notebooks_handout = handout_of(notebooks_version)
    notes = []
    if handout is not None:
        notes.append(f"This lab is {handout} (labkit {version}).")
    if is_older(version, notebooks_version):
        notes += [
            f"! The notebooks in {folder} are from a later one, {notebooks_handout} (labkit "
            f"{notebooks_version}).",
            "  New lessons and corrected checks are missing here: install the wheel of that "
            "handout as its README.txt",
            "  says, then run `labkit lab` again.",
        ]
    elif handout is None and notebooks_handout is not None:
        notes.append(
            f"The notebooks in {folder} are from {notebooks_handout}, and this lab, {version}, is "
            "no handout: its checks may be others."
        )
    return notes


def can_open_browser(is_root: bool, platform: str, environment: Mapping[str, str]) -> bool:
    """Return whether a browser window can be opened.

    Browsers refuse to run as root, and need a screen.

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
    """Return the flags of JupyterLab.

    The file browser shows the checkout without solutions and tests. The default address names the
    notebook, so the address that JupyterLab prints opens the notebook.

    Args:
        notebook: The notebook to open.
        is_root: Whether the process runs as root.
        browser: Whether to open a browser.
        port: The port of the server.

    >>> notebook = Path("/somewhere/my first.ipynb")
    >>> for flag in lab_flags(notebook, is_root=True, browser=False, port=8888): print(flag)
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
    flags = [
        f"--ServerApp.root_dir={top}",
        f"--ServerApp.port={port}",
        f"--LabApp.default_url={address}",
    ]
    if top == checkout():
        flags += [f"--ContentsManager.hide_globs={glob}" for glob in HIDDEN]
    if is_root:
        flags.append("--allow-root")
    if not browser:
        flags.append("--no-browser")
    return flags


def lab_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of JupyterLab, whose PATH has `labkit` and `python`.

    A user can start the lab by its full path, without activating its environment.
    """
    folders = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    if environment.get("PATH"):
        folders.append(environment["PATH"])
    path = os.pathsep.join(dict.fromkeys(folders))
    return with_lab_settings({**environment, "PATH": path})


def shell_flags(environment: Mapping[str, str], is_a_terminal: bool) -> list[str]:
    """Return the flag that makes JupyterLab's terminals open the user's shell.

    A server without a terminal, as in a container, would open a login shell, which resets PATH.

    >>> shell_flags({"SHELL": "/bin/zsh"}, is_a_terminal=False)
    ['--ServerApp.terminado_settings=shell_command=/bin/zsh']
    """
    if is_a_terminal or os.name == "nt":
        return []
    shell = environment.get("SHELL") or "sh"
    return [f"--ServerApp.terminado_settings=shell_command={shell}"]


def site(arguments: Namespace) -> int:
    """Run `labkit site`: write lessons as web pages, widgets as modules, or the playground.

    Returns:
        The exit status.
    """
    from labkit.site import (
        MARKER,
        SiteError,
        require_site_folder,
        write_modules,
        write_playground,
        write_site,
    )

    use_course(arguments)
    parts = (arguments.folder, arguments.widgets, arguments.playground)
    if parts == (None, None, None):
        raise CommandError(
            "expected a folder for the pages, --widgets FOLDER or --playground FILE, got none of "
            "them"
        )
    for_pages = {
        "--live": arguments.live,
        "--pyodide": arguments.pyodide,
        "--serve": arguments.serve,
        "--lessons": arguments.lessons,
    }
    without_folder = [option for option, value in for_pages.items() if value]
    if arguments.folder is None and without_folder:
        raise CommandError(f"{without_folder[0]} is for pages: expected a folder for them")
    if arguments.notebooks and arguments.lessons:
        raise CommandError("expected notebooks or --lessons, got both")
    if arguments.pyodide and not arguments.live:
        raise CommandError("--pyodide is for --live, which is missing")
    try:
        if arguments.widgets is not None:
            modules = write_modules(arguments.widgets)
            print(f"{len(modules)} modules, {_megabytes(modules):.1f} MB, in {arguments.widgets}.")
        if arguments.playground is not None:
            file = write_playground(arguments.playground)
            print(f"{file.stat().st_size / 1000:.0f} kB. Open {file} in a browser.")
        if arguments.folder is None:
            return 0
        writes_pages = arguments.notebooks or arguments.lessons or arguments.live
        if arguments.serve and not writes_pages and (arguments.folder / MARKER).is_file():
            return _serve(arguments.folder)
        require_site_folder(arguments.folder)
        pyodide = _pyodide(arguments) if arguments.live else None
        notebooks = _read(arguments.notebooks) if arguments.notebooks else _run(arguments.lessons)
        live = None if pyodide is None else _live(notebooks, pyodide)
        files = write_site(arguments.folder, notebooks, live)
    except (SiteError, ValueError) as error:
        raise CommandError(str(error)) from error
    index = arguments.folder / "index.html"
    print(f"{counted(len(files), 'file')}, {_megabytes(files):.1f} MB. Open {index} in a browser.")
    if live is not None:
        exercises = counted(len(live.forms), "exercise")
        print(
            f"The pages check {exercises}, from a web server only: "
            f"`labkit site {arguments.folder} --serve` is one for this computer."
        )
    return _serve(arguments.folder) if arguments.serve else 0


def _pyodide(arguments: Namespace) -> Mapping[str, bytes] | str | None:
    """Return the files of Pyodide, or its address.

    If neither an option nor npm has it, print a line on stderr and return None.
    """
    from labkit.site import PyodideError, pyodide_of_folder, pyodide_of_npm

    place = arguments.pyodide
    if place is not None and place.startswith(("https://", "http://")):
        return f"{place.rstrip('/')}/"
    if place is not None:
        return pyodide_of_folder(Path(place))
    try:
        return pyodide_of_npm()
    except PyodideError as error:
        print(f"{error}.\nThe pages are written without checks of exercises.", file=sys.stderr)
        return None


def _live(notebooks: Mapping[str, Any], pyodide: Mapping[str, bytes] | str) -> LiveFiles:
    """Return the files by which pages check exercises; print which exercises they cannot check."""
    from labkit.classroom.live import live_exercises, page_modules
    from labkit.site import LiveFiles

    chosen = [lesson for lesson in lessons() if lesson.name in notebooks]
    live = live_exercises(chosen)
    for id, reason in live.reasons.items():
        print(f"{id} stays in the lab: {reason}.")
    handed_out = {lesson.name: learners_notebook(lesson) for lesson in chosen}
    return LiveFiles(live.forms, handed_out, page_modules(), pyodide)


def _serve(folder: Path) -> int:
    """Serve a site on this computer until Ctrl+C."""
    from labkit.site import address_of, server_of

    with server_of(folder) as server:
        print(f"Open {address_of(server)} in a browser. Ctrl+C stops the server.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _megabytes(files: Sequence[Path]) -> float:
    return sum(file.stat().st_size for file in files) / 1e6


def _read(paths: Sequence[Path]) -> dict[str, Any]:
    """Return notebooks that were run already, by the name of their page.

    Raises:
        CommandError: If a notebook does not exist, or two have the same page.
    """
    from labkit.site import read_notebook

    for path in paths:
        if not path.is_file():
            raise CommandError(f"there is no notebook {path}")
    # Some file systems do not distinguish upper and lower case.
    pages = Counter(path.stem.casefold() for path in paths)
    for path in paths:
        page = path.stem.casefold()
        if page == "index" or pages[page] > 1:
            raise CommandError(
                f"each page needs a name of its own, and index.html lists them; rename {path}"
            )
    return {path.stem: read_notebook(path) for path in paths}


def _run(names: Sequence[str]) -> dict[str, Any]:
    """Run the lessons with these names or numbers, or all lessons, and add the glossary.

    Returns:
        The notebooks by name.
    """
    from labkit.site import read_notebook, run_notebook

    notebooks = {}
    for lesson in lessons_named(names):
        print(f"Running {lesson.name} ...", end=" ", flush=True)
        start = time.monotonic()
        notebooks[lesson.name] = run_notebook(learners_notebook(lesson))
        print(f"{time.monotonic() - start:.0f} s", flush=True)
    glossary = notebooks_folder() / "glossary.ipynb"
    if glossary.is_file():
        notebooks["glossary"] = read_notebook(glossary)
    return notebooks


def progress(arguments: Namespace) -> int:
    """Run `labkit progress`: print the solved exercises of each lesson in a folder."""
    from labkit.grading import progress as progress_of

    if not arguments.folder.is_dir():
        raise CommandError(f"there is no folder {arguments.folder}")
    print(progress_of(arguments.folder))
    return 0


def restore(arguments: Namespace) -> int:
    """Run `labkit restore`: list logged answers, print one, or write them into notebooks."""
    from labkit.grading.answer_log import best, logged_answers, restore_answers

    if not arguments.folder.is_dir():
        raise CommandError(f"there is no folder {arguments.folder}")
    if arguments.exercise is not None and arguments.write:
        raise CommandError("expected EXERCISE, whose answer is printed, or --write, got both")
    saved = logged_answers(arguments.folder)
    if arguments.exercise is not None:
        if arguments.exercise not in saved:
            raise CommandError(
                f"no saved answer to {arguments.exercise}; choose from {', '.join(saved) or 'none'}"
            )
        print(best(saved[arguments.exercise]).source)
    elif not saved:
        print(f"No answers are saved for the notebooks in {arguments.folder.resolve()}.")
    elif arguments.write:
        print("\n".join(restore_answers(arguments.folder)))
    else:
        for id, answers in saved.items():
            top = best(answers)
            print(
                f"{id:<26}{top.points} of {top.out_of} points  {top.when}  ({len(answers)} saved)"
            )
        print(
            "`labkit restore EXERCISE` prints an answer, `labkit restore --write` restores "
            f"{len(saved)} of them."
        )
    return 0
