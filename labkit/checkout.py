"""Set-up and checks of a checkout: `python -m labkit setup` and `test`, which make calls, too.

Idea: set-up has three steps, each with a stamp in .venv that holds its time. A step is repeated
only if pyproject.toml or constraints.txt is newer than its stamp. The first step needs only the
standard library.

Invariant: torch is installed first and by itself, and every package by constraints.txt, so that
later packages do not replace torch.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.machine.resources import usable_cores

INSTALL = ("-m", "pip", "install", "--disable-pip-version-check", "--constraint", "constraints.txt")


@dataclass(frozen=True)
class SetupStep:
    """Step of set-up: its stamp in .venv, its message, and its Python commands."""

    stamp: str
    message: str
    commands: tuple[tuple[str, ...], ...]


STEPS = (
    SetupStep(".created", "Making .venv", (("-m", "venv", ".venv"),)),
    SetupStep(
        ".lab-ready",
        "Installing torch (the largest download; only once), JupyterLab and the lab",
        ((*INSTALL, "torch"), (*INSTALL, "--quiet", "--editable", ".[lab]")),
    ),
    SetupStep(
        ".test-ready",
        "Installing the packages of the tests, and compiling their simulated GPU",
        ((*INSTALL, "--quiet", "--editable", ".[lab,test]"), ("tests/gpu/simulated/build.py",)),
    ),
)


def venv_python(folder: Path) -> Path:
    """Return the Python of a checkout's virtual environment."""
    return folder / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def missing_steps(folder: Path, test: bool) -> list[SetupStep]:
    """Return the steps to do, in order; the last one only with `test`."""
    newest = max((folder / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    steps = STEPS if test else STEPS[:-1]
    return [
        step
        for step in steps
        if not _done(folder / ".venv" / step.stamp, newest if step is not STEPS[0] else 0)
    ]


def set_up(folder: Path, test: bool = False, python: str = sys.executable) -> int:
    """Do the missing steps and print their messages.

    Return the exit status of the first failure, or 0.
    """
    for step in missing_steps(folder, test):
        print(step.message, flush=True)
        for command in () if step is STEPS[0] and venv_python(folder).exists() else step.commands:
            interpreter = python if step is STEPS[0] else str(venv_python(folder))
            options = torch_options() if command[-1] == "torch" else []
            status = subprocess.call([interpreter, *command, *options], cwd=folder)
            if status:
                return status
        stamp = folder / ".venv" / step.stamp
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    return 0


def torch_options() -> list[str]:
    """Return pip's options that choose a build of torch: the environment's TORCH_OPTIONS."""
    return shlex.split(os.environ.get("TORCH_OPTIONS", ""))


def check_all(folder: Path, everything: bool, pytest_arguments: Sequence[str]) -> int:
    """Run all checks, the others too where one fails; return the worst exit status.

    They are ruff, codespell, mypy, those of the JavaScript, and pytest.

    pytest uses a process for each core, up to four. Programs that tests start import the lab many
    times, so bytecode is written even where the environment forbids it.
    """
    python = str(venv_python(folder)) if venv_python(folder).exists() else sys.executable
    processes = (
        "--numprocesses",
        str(max(2, min(4, usable_cores()))),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    )
    chosen = () if everything else ("-m", "not slow")
    commands = (
        ("ruff", "format", "--check", "."),
        ("ruff", "check", "."),
        ("codespell_lib",),
        ("mypy",),
        ("tests.javascript",),
        ("pytest", *processes, *chosen, *pytest_arguments),
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return max(
        [
            abs(subprocess.call([python, "-m", *command], cwd=folder, env=environment))
            for command in commands
        ]
    )


def _done(stamp: Path, newest: float) -> bool:
    return stamp.is_file() and stamp.stat().st_mtime >= newest
