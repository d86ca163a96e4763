"""How is the lab asked from a terminal? By subcommands, each a row: a line of help, its arguments, what it does.

Idea: what a subcommand needs is imported when it is asked for, so `labkit version` needs no torch, and a package that
is missing stops only who needs it, with a line that says how to get it.

Invariant: only the command line prints. Exit status 0 means well, 1 a bad answer, 2 a question it cannot answer.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import webbrowser
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import labkit
from labkit.checkout import check_all, set_up
from labkit.records import checkout, notebooks_folder
from labkit.records.lessons import hand_out

FIRST_LESSON = "00_start.ipynb"
LESSONS_FOLDER = "fp16-lab"  # where lessons are copied to when nothing else is said


@dataclass(frozen=True)
class Subcommand:
    """One row of the command line; the callables import what they need when they are called."""

    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status.

    >>> main(["version"]) == 0
    labkit ...
    True
    """
    listed = "\n".join(f"  {name:<9}{row.help}" for name, row in SUBCOMMANDS.items())
    parser = ArgumentParser(
        prog="labkit",
        description="A teaching lab for mixed-precision (FP16) training.",
        epilog=f"commands:\n{listed}\n\n`labkit COMMAND --help` says more about one of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"labkit {labkit.__version__}")
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="one of those below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.command is None:
        parser.print_help()
        return 2
    if asked.command not in SUBCOMMANDS:
        near = difflib.get_close_matches(asked.command, SUBCOMMANDS, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        parser.error(f"there is no command {asked.command!r}.{guess} There are: {', '.join(SUBCOMMANDS)}.")
    return _run(asked.command, asked.rest)


def _run(name: str, arguments: Sequence[str]) -> int:
    row = SUBCOMMANDS[name]
    try:
        parser = ArgumentParser(prog=f"labkit {name}", description=row.help)
        row.add_arguments(parser)
        return row.run(parser.parse_args(arguments))
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.split(".")[0] == "labkit":
            raise  # a fault of ours: show all of it
        print(_how_to_get(name, missing.name), file=sys.stderr)
        return 2


def _how_to_get(command: str, package: str) -> str:
    return (
        f"labkit {command} needs the package {package}, which {sys.executable} does not have. In the lab's checkout, "
        "run `make setup`, or `pip install -e .` in an environment that has torch already."
    )


def _version(_: Namespace) -> int:
    print(f"labkit {labkit.__version__} on Python {sys.version.split()[0]}")
    return 0


def _add_setup_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--test", action="store_true", help="also what the tests need")


def _setup(arguments: Namespace) -> int:
    return set_up(_require_checkout(), test=arguments.test)


def _add_test_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="the slow proofs, too")
    parser.add_argument("--pytest", default="", help='more arguments for pytest: --pytest="-k autocast"')


def _test(arguments: Namespace) -> int:
    folder = _require_checkout()
    return set_up(folder, test=True) or check_all(folder, arguments.all, shlex.split(arguments.pytest))


def _require_checkout() -> Path:
    folder = checkout()
    if folder is None:
        raise SystemExit("This is for a checkout of the lab, and labkit was installed without one. Run it in a clone.")
    return folder


def _doctor(_: Namespace) -> int:
    from labkit.clinic import check_machine

    report = check_machine()
    print(report)
    return 0 if report.healthy else 1


def _device(_: Namespace) -> int:
    from labkit.bench import device_report

    print(device_report())
    return 0


def _add_gpu_arguments(parser: ArgumentParser) -> None:
    from labkit import gpu

    gpu.add_arguments(parser)


def _gpu(arguments: Namespace) -> int:
    from labkit import gpu

    return gpu.run(arguments)


def _add_grade_arguments(parser: ArgumentParser) -> None:
    from labkit.grading import cli as grading

    grading.add_arguments(parser)


def _grade(arguments: Namespace) -> int:
    from labkit.grading import cli as grading

    return grading.run(arguments)


def _add_restore_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("exercise", nargs="?", help="print the best answer to this one, scaling.advance for instance")
    parser.add_argument("--folder", type=Path, default=Path(), help="the folder of the notebooks (default: this one)")
    parser.add_argument("--write", action="store_true", help="bring answers back into cells that hold the starter")


def _restore(arguments: Namespace) -> int:
    from labkit.grading.kept import best, bring_back, kept_answers

    kept = kept_answers(arguments.folder)
    if arguments.exercise is not None:
        if arguments.exercise not in kept:
            print(f"no answer to {arguments.exercise} is kept; there are: {', '.join(kept) or 'none'}", file=sys.stderr)
            return 2
        print(best(kept[arguments.exercise]).source)
    elif arguments.write:
        print("\n".join(bring_back(arguments.folder)) or "No answers are kept for this folder.")
    else:
        for id, answers in kept.items():
            top = best(answers)
            print(f"{id:<26}{top.points} of {top.out_of} points  {top.when}  ({len(answers)} kept)")
        print(f"`labkit restore EXERCISE` prints an answer, `labkit restore --write` brings {len(kept)} back.")
    return 0


def _progress(arguments: Namespace) -> int:
    from labkit.grading import progress

    print(progress(arguments.folder))
    return 0


def _add_folder_argument(parser: ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="of the notebooks (default: this one)")


def _add_race_arguments(parser: ArgumentParser) -> None:
    from labkit.train import race_cli

    race_cli.add_arguments(parser)


def _race(arguments: Namespace) -> int:
    from labkit.train import race_cli

    return race_cli.run(arguments)


def _add_html_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="+", type=Path, help="notebooks; each page is written beside its notebook")


def _html(arguments: Namespace) -> int:
    from labkit.export import to_html

    try:
        for notebook in arguments.notebooks:
            print(to_html(notebook))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _add_lab_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        type=Path,
        help="a notebook to open, or a folder that the notebooks are copied into (default: the checkout's own, "
        f"or {LESSONS_FOLDER}/ where the lab was installed without one)",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    parser.add_argument("--port", type=int, default=8888, help="first port to try (default: 8888)")


def _lab(arguments: Namespace) -> int:
    """Become JupyterLab; where the system cannot replace a process (Windows), start it and wait."""
    if importlib.util.find_spec("jupyterlab") is None:
        print(_how_to_get("lab", "jupyterlab"), file=sys.stderr)
        return 2
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
        what = notebooks_folder() / FIRST_LESSON if checkout() else Path(LESSONS_FOLDER)
    if what.suffix != ".ipynb":
        return _handed_out(what.expanduser().resolve())
    if not what.is_file():
        raise FileNotFoundError(
            f"There is no notebook at {what}. `labkit lab FOLDER` copies the lessons into a folder and opens the first."
        )
    return what.resolve()


def _handed_out(folder: Path) -> Path:
    copied = hand_out(notebooks_folder(), folder, labkit.__version__)
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
    """Return JupyterLab's flags. Its file browser shows the whole checkout: labkit's code is there to be read, too.

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


def _nothing(_: ArgumentParser) -> None:
    """Add no arguments."""


SUBCOMMANDS: dict[str, Subcommand] = {
    "lab": Subcommand("open JupyterLab on a notebook, or on copies of all in a FOLDER", _add_lab_arguments, _lab),
    "setup": Subcommand("set a checkout up: .venv, torch, JupyterLab, the lab", _add_setup_arguments, _setup),
    "test": Subcommand("run a checkout's checks: ruff, mypy, pytest", _add_test_arguments, _test),
    "doctor": Subcommand("say what is ready on this machine, and what to do where it is not", _nothing, _doctor),
    "device": Subcommand("say what this machine has for low precision, and what that means", _nothing, _device),
    "gpu": Subcommand("run every check and recording that needs a GPU", _add_gpu_arguments, _gpu),
    "grade": Subcommand("grade a folder of submitted notebooks into a table", _add_grade_arguments, _grade),
    "progress": Subcommand("say what is solved in all lessons, and what comes next", _add_folder_argument, _progress),
    "restore": Subcommand("list the answers that were kept, and bring them back", _add_restore_arguments, _restore),
    "race": Subcommand("train a task under several recipes and seeds, each run on record", _add_race_arguments, _race),
    "html": Subcommand("write notebooks as pages that need no network, formulas and all", _add_html_arguments, _html),
    "version": Subcommand("print the version", _nothing, _version),
}
