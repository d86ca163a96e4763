"""How is the lab asked from a terminal? By subcommands, each a row: a line of help, its arguments, what it does.

Idea: what a subcommand needs is imported when it is asked for, so `labkit version` needs no torch, and a package that
is missing stops only who needs it, with a line that says how to get it.

Invariant: only the command line prints. Exit status 0 means well, 1 a bad answer, 2 a question it cannot answer.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass

import labkit
from labkit.course import CourseError


@dataclass(frozen=True)
class Subcommand:
    """One row of the command line: a line of help, the module with `run(arguments)`, and `add_arguments`."""

    help: str
    module: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status.

    >>> main(["version"]) == 0
    labkit ...
    True
    """
    width = max(map(len, SUBCOMMANDS)) + 2
    listed = "\n".join(f"  {name:<{width}}{row.help}" for name, row in SUBCOMMANDS.items())
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
        command = importlib.import_module(row.module)
        parser = ArgumentParser(prog=f"labkit {name}", description=row.help)
        if hasattr(command, "add_arguments"):
            command.add_arguments(parser)
        status = int(command.run(parser.parse_args(arguments)))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:  # a command that keeps something on the way says so itself
        print(f"\nlabkit {name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read us (`| head`) has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CourseError as error:
        print(f"labkit {name}: {error}", file=sys.stderr)
        return 2
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


SUBCOMMANDS: dict[str, Subcommand] = {
    "lab": Subcommand("open JupyterLab on a notebook, or on copies of all in a FOLDER", "labkit.commands.lab"),
    "setup": Subcommand("set a checkout up: .venv, torch, JupyterLab, the lab", "labkit.commands.setup"),
    "test": Subcommand("run a checkout's checks: ruff, mypy, pytest", "labkit.commands.test"),
    "doctor": Subcommand("say what is ready on this machine, and what to do where it is not", "labkit.commands.doctor"),
    "explain": Subcommand("find out what an error message of mixed precision means", "labkit.commands.explain"),
    "diagnose": Subcommand(
        "say what is wrong with a training script, by a few of its steps", "labkit.commands.diagnose"
    ),
    "device": Subcommand("say what this machine has for low precision, and what that means", "labkit.commands.device"),
    "gpu": Subcommand("run every check and recording that needs a GPU", "labkit.commands.gpu"),
    "grade": Subcommand("grade a folder of submitted notebooks, and give back", "labkit.commands.grade"),
    "release": Subcommand("write what a class gets, and what its teacher keeps", "labkit.commands.release"),
    "exercises": Subcommand("list all exercises: points, minutes, checks, known mistakes", "labkit.commands.exercises"),
    "board": Subcommand("show a class what it predicts, as it commits, and who leads", "labkit.commands.board"),
    "classroom": Subcommand("start a JupyterHub for a class on this machine", "labkit.commands.classroom"),
    "progress": Subcommand("say what is solved in all lessons, and what comes next", "labkit.commands.progress"),
    "restore": Subcommand("list the answers that were kept, and bring them back", "labkit.commands.restore"),
    "race": Subcommand("train a task under several recipes and seeds, each run on record", "labkit.commands.race"),
    "html": Subcommand("write notebooks as pages that need no network, formulas and all", "labkit.commands.html"),
    "watch": Subcommand("run a training script, and report what its numbers do", "labkit.commands.watch"),
    "version": Subcommand("print the version", "labkit.commands.version"),
}
