"""Which walls stand on this machine between a learner's code and the rest? They are tried, not believed.

Idea: a probe runs where a learner's code would run and tries everything that it shall not be able to: to read a
reference, another submission, the grades and the memory of the process that grades, to reach the network, to start
processes without end and to leave one behind. A wall stands where the probe failed.

Invariant: what is reported was tried a moment ago, on this machine, with the walls that are then used.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import secrets
import site
import socket
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import labkit
from labkit.course import lessons, lessons_folder
from labkit.grading import supervise
from labkit.grading.given.child import Question
from labkit.grading.given.keeper import Walls
from labkit.grading.given.wire import load
from labkit.grading.supervise import KEPT_VARIABLES, NotStarted, Runner, packed
from labkit.records import data_folder, system

OWN_USER = 61184  # the first of those that systemd sets aside for a moment's use; nobody's files are theirs
NAMES = {
    "references": "references out of sight",
    "submissions": "submissions out of sight",
    "grades": "grades out of reach",
    "memory": "the grader's memory closed",
    "network": "no network",
    "processes": "processes limited",
    "descendants": "all it starts is ended",
    "environment": "a clean environment",
}


def build(runner: Runner, private: Sequence[Path], output: Path) -> tuple[str, ...]:
    """Give a runner the best walls that this machine has; return those that stand, of NAMES.

    private   submissions, of which a learner's code shall read none
    output    the folder the grades are written into

    Raises:
        NotStarted: not even a process without walls answers.
    """
    for walls in _candidates():
        runner.walls = walls
        with contextlib.suppress(NotStarted):
            return _tried(runner, private, output)
    raise NotStarted("the grading process starts, and does not answer")


def describe(standing: Sequence[str]) -> str:
    """Return one line that says which walls stand, and which do not."""
    there = ", ".join(words for name, words in NAMES.items() if name in standing)
    missing = ", ".join(words for name, words in NAMES.items() if name not in standing)
    line = f"walls around the code of learners: {there or 'none'}."
    return line + (f" Missing here: {missing}; docker/grader has them all." if missing else "")


def _candidates() -> Iterator[Walls]:
    """Yield walls from the highest to none."""
    if supervise.FORKS:
        user = OWN_USER if os.geteuid() == 0 else None
        yield Walls(True, user, view())
        if user is not None:
            yield Walls(False, user)
    yield Walls()


def view() -> list[tuple[Path, bool]]:
    """Return the files that a learner's code sees: Python, its packages, the system's libraries, labkit and its data.

    Of the course it sees nothing: in the lessons' folders are references and known mistakes.
    """
    here = Path(labkit.__file__).parent
    paths = sysconfig.get_paths()
    libraries = [paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], site.getusersitepackages()]
    prefixes = [str(Path(prefix) / "lib") for prefix in (sys.base_prefix, sys.prefix)]
    systems = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache"]
    shown: list[Path] = []
    for path in map(Path, [*systems, *prefixes, *libraries, str(here), str(data_folder())]):
        if path.exists() and not any(path.is_relative_to(folder) for folder in shown):
            shown.append(path)
    inside = [folder for folder in _course() if any(folder.is_relative_to(path) for path in shown)]
    return [*((path, True) for path in shown), *((folder, False) for folder in inside)]


def _course() -> list[Path]:
    """Return the folders of the course that exist: the lab's own lessons, and each lesson that lies elsewhere."""
    own = lessons_folder().resolve()
    others = (lesson.folder.resolve() for lesson in lessons())
    return [own] * own.is_dir() + [folder for folder in others if not folder.is_relative_to(own)]


def _tried(runner: Runner, private: Sequence[Path], output: Path) -> tuple[str, ...]:
    """Run the probe; return the walls that it met."""
    name = f"probe{secrets.token_hex(4)}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = {
            "references": [str(path) for folder in _course() for path in (folder, *sorted(folder.rglob("*.py")))],
            "lessons": [lesson.folder.name for lesson in lessons()],
            "submissions": [os.path.realpath(path) for path in private],  # the probe stands in a folder of its own
            "output": str(output.resolve()), "memory": system.memory_paths(os.getpid()),
            "port": server.getsockname()[1], "name": name,
            "variables": [*KEPT_VARIABLES, "HOME", "TMPDIR", "USER", "CUDA_VISIBLE_DEVICES", "LABKIT_DATA", "LC_CTYPE"],
            "most": runner.limits.processes,
        }  # fmt: skip
        probe = Question("probe", [inspect.getsource(_probe)], "_probe", "_probe(given)", [[packed((given,))]])
        limits = replace(runner.limits, seconds=max(20.0, runner.limits.seconds))
        (reply,) = runner.run([probe], limits).values()
    answer = load(json.loads(reply.answers[0])[0]) if reply.answers else None
    if not isinstance(answer, list):
        raise NotStarted(f"the probe of the walls does not answer: {reply.note}{answer or ''}")
    return tuple(str(wall) for wall in answer) + (() if system.is_running(name) else ("descendants",))


def _probe(given: dict[str, Any]) -> list[str]:
    """Return the walls that stand, but for one. Its source runs as a learner's code does: it imports all it needs."""
    import colorsys  # not loaded so far: the library is there
    import contextlib
    import ctypes
    import importlib
    import os
    import socket
    import time
    from pathlib import Path

    from labkit.records import system

    assert colorsys
    stand = ["references", "submissions", "grades", "memory", "network", "processes", "environment"]

    def falls(wall: str) -> None:
        if wall in stand:
            stand.remove(wall)

    for wall in ("references", "submissions", "memory"):
        for path in given[wall]:
            with contextlib.suppress(OSError):
                if not os.path.isdir(path):
                    Path(path).open("rb").close()
                    falls(wall)
                elif os.listdir(path):  # an empty folder may stand in its place
                    falls(wall)
    for name in given["lessons"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(f"labkit_lessons.{name}.exercises")
            falls("references")
    with contextlib.suppress(OSError):
        place = Path(given["output"]) / given["name"]
        place.touch()
        falls("grades")
        place.unlink()
    with contextlib.suppress(OSError):
        os.listdir(given["output"])
        falls("grades")
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", given["port"]), 2).close()
        falls("network")
    if not 0 < system.process_limit() <= given["most"]:
        falls("processes")
    if any(name not in given["variables"] and not name.startswith(("PYTHON", "OMP_", "MKL_", "OPENBLAS_"))
           for name in os.environ):  # fmt: skip
        falls("environment")
    if hasattr(os, "fork") and os.fork() == 0:  # a process that nobody waits for, under a name to be found by
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, given["name"].encode(), 0, 0, 0)
            time.sleep(600)
        os._exit(0)
    time.sleep(0.1)
    return stand
