"""Set-up and checks of a checkout: `python -m labkit setup` and `test`, which the Makefile calls.

Idea: set-up has three steps. A stamp, an empty file in .venv, has the time at which a step was
done. A step is repeated only if pyproject.toml or constraints.txt is newer than its stamp. This
module needs only the standard library, so that the first step can run before anything is installed.

Invariant: torch is installed first and by itself, and every package with constraints.txt, so that
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
    """Step of set-up.

    Attributes:
        stamp: name of its stamp in .venv.
        message: printed when it begins.
        commands: arguments of Python, one tuple for each command.
    """

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
    missing = []
    for step in steps:
        stamp = folder / ".venv" / step.stamp
        is_done = stamp.is_file()
        # the first step, which makes the virtual environment, does not depend on these files
        if is_done and step is not STEPS[0]:
            is_done = stamp.stat().st_mtime >= newest
        if not is_done:
            missing.append(step)
    return missing


def set_up(folder: Path, test: bool = False, python: str = sys.executable) -> int:
    """Do the missing steps, and print their messages.

    Args:
        folder: the checkout.
        test: also install what the tests need.
        python: the interpreter that makes .venv.

    Returns:
        The exit status of the first command that fails, or 0.
    """
    for step in missing_steps(folder, test):
        print(step.message, flush=True)
        interpreter = str(venv_python(folder))
        commands = step.commands
        if step is STEPS[0]:
            interpreter = python
            # a virtual environment that someone else has made is used as it is
            if venv_python(folder).exists():
                commands = ()
        for command in commands:
            options = torch_options() if command[-1] == "torch" else []
            status = subprocess.call([interpreter, *command, *options], cwd=folder)
            if status:
                return status
        stamp = folder / ".venv" / step.stamp
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    return 0


def torch_options() -> list[str]:
    """Return pip's options that choose a build of torch, from the environment's TORCH_OPTIONS."""
    return shlex.split(os.environ.get("TORCH_OPTIONS", ""))


def check_all(folder: Path, everything: bool, pytest_arguments: Sequence[str]) -> int:
    """Run ruff, codespell, mypy, the checks of the JavaScript, and pytest, even if one fails.

    Args:
        folder: the checkout.
        everything: also run the tests marked `slow`.
        pytest_arguments: further arguments of pytest.

    Returns:
        The worst exit status.
    """
    python = sys.executable
    if venv_python(folder).exists():
        python = str(venv_python(folder))
    # pytest runs in two to four processes, one for each core
    processes = (
        "--numprocesses",
        str(max(2, min(4, usable_cores()))),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    )
    selection = () if everything else ("-m", "not slow")
    commands = (
        ("ruff", "format", "--check", "."),
        ("ruff", "check", "."),
        ("codespell_lib",),
        ("mypy",),
        ("tests.javascript",),
        ("pytest", *processes, *selection, *pytest_arguments),
    )
    # Tests start many programs that import the lab, so write bytecode even if the environment
    # forbids it.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    worst = 0
    for command in commands:
        status = subprocess.call([python, "-m", *command], cwd=folder, env=environment)
        # the status of a killed process is negative
        worst = max(worst, abs(status))
    return worst
