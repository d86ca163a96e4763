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
from labkit.machine.jupyter import with_lab_settings
from labkit.records import checkout, notebooks_folder, write_atomic
from labkit.records.handout import handout_of, is_older
from labkit.records.notebook_copies import copy_notebooks, version_of_copies

if TYPE_CHECKING:
    from labkit.site import LiveFiles

FIRST_LESSON = "00_start.ipynb"
# in the checkout's file browser
HIDDEN = (PACKAGE, "tests", "__pycache__", "*.pyc", "*.pyo", ".DS_Store", "*~")
LESSONS_FOLDER = "fp16-lab"  # where lessons are copied to by default


def lab(arguments: Namespace) -> int:
    """Replace this process by JupyterLab; where the system cannot (Windows), start it and wait."""
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
    """Return the notebook to open; where PATH is a folder, the lessons are copied into it first.

    Raises:
        FileNotFoundError: a notebook is named that does not exist.
    """
    if what is None:
        what = (
            notebooks_folder() / FIRST_LESSON
            if checkout() and not added_lessons()
            else Path(LESSONS_FOLDER)
        )
    if what.is_file() and what.suffix != ".ipynb":
        raise CommandError(f"expected a notebook (.ipynb) or a folder, got the file {what}")
    if what.suffix != ".ipynb":
        return _copy_lessons(what.expanduser().resolve())
    if not what.is_file():
        raise FileNotFoundError(
            f"there is no notebook {what}; `labkit lab FOLDER` copies the lessons into a folder "
            "and opens the first"
        )
    return what.resolve()


def added_lessons() -> list[Lesson]:
    """Return the lessons outside the lab's own folder, added by --course."""
    return [lesson for lesson in lessons() if lesson.folder.parent != lessons_folder()]


def _copy_lessons(folder: Path) -> Path:
    copied = copy_notebooks(notebooks_folder(), folder, labkit.__version__)
    with TemporaryDirectory() as scratch:
        for lesson in added_lessons():
            write_atomic(
                Path(scratch, f"{lesson.name}.ipynb"), text_of(learners_notebook(lesson)).encode()
            )
        copied += copy_notebooks(Path(scratch), folder, labkit.__version__)
    counts = Counter(each.status for each in copied)
    print(
        f"Notebooks in {folder}: "
        f"{', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}."
    )
    for each in copied:
        if each.status == "kept":
            print(f"  {each}")
    return folder / FIRST_LESSON


def handout_notes(folder: Path, version: str) -> list[str]:
    """Return the lines about this lab's handout, and about another one that notebooks are from.

    Args:
        folder: the folder with the notebooks.
        version: the version of this lab.
    """
    own, theirs = handout_of(version), version_of_copies(folder)
    notes = [] if own is None else [f"This lab is {own} (labkit {version})."]
    if is_older(version, theirs):
        notes += [
            (
                f"! The notebooks in {folder} are from a later one, {handout_of(theirs)} (labkit "
                f"{theirs})."
            ),
            (
                "  New lessons and corrected checks are missing here: install the wheel of that "
                "handout as its README.txt"
            ),
            "  says, then run `labkit lab` again.",
        ]
    elif own is None and handout_of(theirs) is not None:
        notes.append(
            f"The notebooks in {folder} are from {handout_of(theirs)}, and this lab, {version}, is "
            "no handout: its checks may be others."
        )
    return notes


def can_open_browser(is_root: bool, platform: str, environment: Mapping[str, str]) -> bool:
    """Return whether a window can be opened: not as root (browsers refuse), nor without a screen.

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
    """Return JupyterLab's flags.

    Its file browser shows the checkout with labkit's code, but no solutions and tests.

    The address itself names the notebook, so the printed address opens it too.

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
    """Return JupyterLab's environment, whose PATH finds `labkit` and `python`.

    The lab may have been started by its full path, in an environment that is not activated.
    """
    programs = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    path = [*dict.fromkeys(programs), *filter(None, [environment.get("PATH")])]
    return with_lab_settings({**environment, "PATH": os.pathsep.join(path)})


def shell_flags(environment: Mapping[str, str], is_a_terminal: bool) -> list[str]:
    """Return the flag that makes JupyterLab's terminals open the usual shell.

    Where the server has no terminal of its own (a container, a hub) they would open a login shell,
    which resets PATH.

    >>> shell_flags({"SHELL": "/bin/zsh"}, is_a_terminal=False)
    ['--ServerApp.terminado_settings=shell_command=/bin/zsh']
    """
    if is_a_terminal or os.name == "nt":
        return []
    return [f"--ServerApp.terminado_settings=shell_command={environment.get('SHELL') or 'sh'}"]


def site(arguments: Namespace) -> int:
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
    try:
        if arguments.widgets is not None:
            modules = write_modules(arguments.widgets)
            print(f"{len(modules)} modules, {_megabytes(modules):.1f} MB, in {arguments.widgets}.")
        if arguments.playground is not None:
            file = write_playground(arguments.playground)
            print(f"{file.stat().st_size / 1000:.0f} kB. Open {file} in a browser.")
        if arguments.folder is None:
            return 0
        asked = arguments.notebooks or arguments.lessons or arguments.live
        if arguments.serve and not asked and (arguments.folder / MARKER).is_file():
            return _serve(arguments.folder)
        require_site_folder(arguments.folder)
        pyodide = _pyodide(arguments) if arguments.live else None
        notebooks = _read(arguments.notebooks) if arguments.notebooks else _run(arguments.lessons)
        live = None if pyodide is None else _live(notebooks, pyodide)
        files = write_site(arguments.folder, notebooks, live)
    except (SiteError, ValueError) as error:
        raise CommandError(str(error)) from error
    index = arguments.folder / "index.html"
    print(f"{len(files)} files, {_megabytes(files):.1f} MB. Open {index} in a browser.")
    if live is not None:
        print(
            f"{len(live.forms)} exercises are checked in pages, from a web server only: "
            f"`labkit site {arguments.folder} --serve` is one for this computer."
        )
    return _serve(arguments.folder) if arguments.serve else 0


def _pyodide(arguments: Namespace) -> Mapping[str, bytes] | str | None:
    """Return the files of Pyodide, or its address; None, with a line on stderr, if npm has none."""
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
    """Return what the pages need to check exercises, and print which exercises stay in the lab."""
    from labkit.classroom.live import live_exercises, page_modules
    from labkit.site import LiveFiles

    chosen = [lesson for lesson in lessons() if lesson.name in notebooks]
    found = live_exercises(chosen)
    for id, reason in found.reasons.items():
        print(f"{id} stays in the lab: {reason}.")
    handed_out = {lesson.name: learners_notebook(lesson) for lesson in chosen}
    return LiveFiles(found.forms, handed_out, page_modules(), pyodide)


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
    from labkit.site import read_notebook

    for path in paths:
        if not path.is_file():
            raise CommandError(f"there is no notebook {path}")
    pages = Counter(path.stem.casefold() for path in paths)
    for path in paths:
        if path.stem.casefold() == "index" or pages[path.stem.casefold()] > 1:
            raise CommandError(
                f"each page needs a name of its own, and index.html lists them; rename {path}"
            )
    return {path.stem: read_notebook(path) for path in paths}


def _run(names: Sequence[str]) -> dict[str, Any]:
    """Return the lessons that these names begin, each run in a kernel, and the glossary.

    Without names they are all lessons.
    """
    from labkit.site import read_notebook, run_notebook

    found = {}
    glossary = notebooks_folder() / "glossary.ipynb"
    for lesson in lessons_named(names):
        print(f"Running {lesson.name} ...", end=" ", flush=True)
        began = time.monotonic()
        found[lesson.name] = run_notebook(learners_notebook(lesson))
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    if glossary.is_file():
        found["glossary"] = read_notebook(glossary)
    return found


def progress(arguments: Namespace) -> int:
    from labkit.grading import progress as progress_of

    if not arguments.folder.is_dir():
        raise CommandError(f"there is no folder {arguments.folder}")
    print(progress_of(arguments.folder))
    return 0


def restore(arguments: Namespace) -> int:
    from labkit.grading.answer_log import best, logged_answers, restore_answers

    if not arguments.folder.is_dir():
        raise CommandError(f"there is no folder {arguments.folder}")
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
