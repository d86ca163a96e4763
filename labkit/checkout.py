"""How is a checkout set up and checked without make? By `python -m labkit setup` and `test`, which make calls, too.

Idea: set-up is three steps, each with a stamp in .venv that says when it was last done; a step is repeated only where
pyproject.toml or constraints.txt is newer than its stamp. Only the standard library is needed to begin.

Invariant: torch is installed first and alone, and everything by constraints.txt: what comes after can ask for no other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.records.system import usable_cores

INSTALL = ("-m", "pip", "install", "--disable-pip-version-check", "--constraint", "constraints.txt")
# What the lab's distribution was called before: it would stay beside fp16-lab, with a package of the same name.
REMOVE_OLD_NAME = ("-m", "pip", "uninstall", "-qq", "--yes", "labkit")


@dataclass(frozen=True)
class Step:
    """One step of set-up: its stamp in .venv, what is said before it, and the commands of Python that do it."""

    stamp: str
    says: str
    commands: tuple[tuple[str, ...], ...]


STEPS = (
    Step(".created", "Making .venv", (("-m", "venv", ".venv"),)),
    Step(
        ".lab-ready",
        "Installing torch (the largest download; only once), JupyterLab and the lab",
        ((*INSTALL, "torch"), REMOVE_OLD_NAME, (*INSTALL, "--quiet", "--editable", ".[lab]")),
    ),
    Step(
        ".test-ready",
        "Installing what the tests need",
        ((*INSTALL, "--quiet", "--editable", ".[lab,test]"),),
    ),
)


def venv_python(folder: Path) -> Path:
    """Return the Python of a checkout's own environment."""
    return folder / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def missing_steps(folder: Path, test: bool) -> list[Step]:
    """Return the steps that are still to be done, in their order; the last one only where `test` asks for it."""
    newest = max((folder / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt"))
    steps = STEPS if test else STEPS[:-1]
    return [step for step in steps if not _done(folder / ".venv" / step.stamp, newest if step is not STEPS[0] else 0)]


def set_up(folder: Path, test: bool = False, python: str = sys.executable) -> int:
    """Do what is missing, and say what is done; return the exit status of the first step that fails, or 0."""
    for step in missing_steps(folder, test):
        print(step.says, flush=True)
        for command in () if step is STEPS[0] and venv_python(folder).exists() else step.commands:
            maker = python if step is STEPS[0] else str(venv_python(folder))
            status = subprocess.call([maker, *command], cwd=folder)
            if status:
                return status
        if step.stamp == ".lab-ready":
            shutil.rmtree(folder / "labkit.egg-info", ignore_errors=True)  # what setuptools wrote under the old name
        stamp = folder / ".venv" / step.stamp
        stamp.parent.mkdir(exist_ok=True)
        stamp.touch()
    return 0


def check_all(folder: Path, everything: bool, pytest_arguments: Sequence[str]) -> int:
    """Run ruff, mypy and pytest, all of them even where one fails; return the worst exit status.

    There is a process for each core, up to four. The programs that tests start import the lab many times, and may keep
    its bytecode even where the environment forbids it.
    """
    python = str(venv_python(folder)) if venv_python(folder).exists() else sys.executable
    processes = ("--numprocesses", str(max(2, min(4, usable_cores()))), "--dist", "loadfile", "--no-loadscope-reorder")
    chosen = () if everything else ("-m", "not slow")
    commands = (("ruff", "check", "."), ("mypy",), ("pytest", *processes, *chosen, *pytest_arguments))
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return max([abs(subprocess.call([python, "-m", *command], cwd=folder, env=environment)) for command in commands])


def _done(stamp: Path, newest: float) -> bool:
    return stamp.is_file() and stamp.stat().st_mtime >= newest
