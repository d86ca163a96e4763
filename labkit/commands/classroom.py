"""`labkit classroom`: a JupyterHub on loopback, with a server for each learner."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import zipfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from labkit.course import lessons_folder
from labkit.records import checkout


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--users", type=int, default=30, help="how many learners (default: 30)")
    parser.add_argument("--folder", type=Path, default=Path("/srv/fp16-classroom"), help="(default: %(default)s)")
    parser.add_argument("--lessons", nargs="+", default=[], metavar="LESSON", help="01, 06_loss_scaling (default: all)")
    parser.add_argument("--port", type=int, default=8000, help="on 127.0.0.1, with the next two (default: 8000)")
    parser.add_argument("--memory", type=int, default=1500, help="MiB for a learner (default: 1500)")
    parser.add_argument("--cores", type=float, default=1.0, help="of the CPU, for a learner (default: 1)")
    parser.add_argument("--idle", type=int, default=1800, help="seconds before a resting kernel ends (default: 1800)")


def run(arguments: Namespace) -> int:
    """Set up, and become JupyterHub."""
    from labkit.classroom.hub import Room, learners_named, set_up, walls

    if importlib.util.find_spec("jupyterhub") is None:
        raise ModuleNotFoundError("JupyterHub is not installed", name="jupyterhub")
    top = checkout()
    try:
        if top is None or not hasattr(os, "geteuid"):
            raise OSError("it takes a checkout of the lab, on Linux or macOS")
        if shutil.which("configurable-http-proxy") is None:
            raise FileNotFoundError("JupyterHub's proxy is missing: npm install -g configurable-http-proxy")
        folder = arguments.folder.resolve()
        room = Room(
            str(folder), learners_named(arguments.users), arguments.port, arguments.memory, arguments.cores,
            arguments.idle,
        )  # fmt: skip
        config = set_up(room)
        _hand_out(top, folder, arguments.lessons)
    except (OSError, ValueError) as error:
        print(f"labkit classroom: {error}", file=sys.stderr)
        return 2
    print(walls(room, [lessons_folder()]), flush=True)
    print(f"http://127.0.0.1:{room.port}  names and passwords: {folder / 'hub' / 'passwords.csv'}", flush=True)
    os.chdir(folder / "hub")
    return os.execv(sys.executable, [sys.executable, "-m", "jupyterhub", "-f", str(config)])


def _hand_out(top: Path, folder: Path, lessons: list[str]) -> None:
    """Put the learners' lab, without solutions, into lab/; one that is there stays, until it is deleted."""
    if (folder / "lab").is_dir():
        return
    from labkit.classroom.release import lessons_named, release
    from labkit.commands.release import bar

    learners, _ = release(top, folder / "hub" / "release", lessons_named(lessons), bar(sys.stderr), print)
    shutil.rmtree(folder / "lab.part", ignore_errors=True)
    with zipfile.ZipFile(next(learners.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "lab.part")
    os.rename(folder / "lab.part", folder / "lab")
