"""Choice and test of the isolation that this machine provides.

A probe runs where learners' code will run. It tries to read references, other submissions, the
grades and the grader's memory, to reach the network and to leave a process behind; it also reads
the limit of processes and the names of the environment's variables. A protection holds where the
attempt fails. One that the system gives no means to test is reported as missing.

Invariant: what is reported has just been tested, on this machine, with the isolation that is then
used.
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

import labkit
from labkit.course import lessons, lessons_folder
from labkit.grading.sandbox import probe
from labkit.grading.sandbox import runner as sandbox_runner
from labkit.grading.sandbox.runner import ENVIRONMENT, NotStarted, Runner, packed
from labkit.grading.sandbox.supervisor import Isolation
from labkit.grading.sandbox.wire import load
from labkit.grading.sandbox.worker import Request
from labkit.records import data_folder

# The first id that systemd reserves for transient users: no file belongs to one.
FIRST_USER = 61184
NAMES = {
    "references": "references hidden",
    "submissions": "submissions hidden",
    "grades": "grades hidden",
    "memory": "the grader's memory protected",
    "network": "no network",
    "processes": "processes limited",
    "descendants": "all processes ended",
    "environment": "a clean environment",
}


def isolate(runner: Runner, private: Sequence[Path], output: Path) -> tuple[str, ...]:
    """Give a runner the strongest isolation that works here, and return what holds, of NAMES.

    Args:
        runner: The runner, which is not started yet.
        private: Submissions, which learners' code must not read.
        output: The folder of the grades.

    Raises:
        NotStarted: not even a process without isolation answers.
    """
    for isolation in _candidates():
        runner.isolation = isolation
        with contextlib.suppress(NotStarted):
            return _probed(runner, private, output)
    raise NotStarted("the sandbox starts, but does not answer")


def describe(holding: Sequence[str]) -> str:
    """Return one line that names the protections that hold, and those that are missing."""
    present = ", ".join(words for name, words in NAMES.items() if name in holding)
    missing = ", ".join(words for name, words in NAMES.items() if name not in holding)
    line = f"sandbox of learners' code: {present or 'limits only'}."
    if missing:
        line += f" Missing here: {missing}; docker/grader has them all."
    return line


def _candidates() -> Iterator[Isolation]:
    """Yield isolations from the strongest to none."""
    if sandbox_runner.FORKS:
        user = FIRST_USER if os.geteuid() == 0 else None
        yield Isolation(namespaces=True, user=user, view=view())
        if user is not None:
            yield Isolation(user=user)
    yield Isolation()


def view() -> list[tuple[Path, bool]]:
    """Return the files that learners' code sees: Python, packages, libraries, labkit and its data.

    The lessons' folders hold references and known mistakes, so they are hidden: an empty folder
    replaces each of them.

    Returns:
        Pairs of a path, and whether it is visible.
    """
    paths = sysconfig.get_paths()
    libraries = [
        paths["stdlib"],
        paths["platstdlib"],
        paths["purelib"],
        paths["platlib"],
        site.getusersitepackages(),
    ]
    prefixes = [str(Path(prefix) / "lib") for prefix in (sys.base_prefix, sys.prefix)]
    system = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/etc/ld.so.cache"]
    lab = [str(Path(labkit.__file__).parent), str(data_folder())]
    visible: list[Path] = []
    # Paths inside a visible folder need no entry of their own.
    for path in map(Path, [*system, *prefixes, *libraries, *lab]):
        if path.exists() and not any(path.is_relative_to(folder) for folder in visible):
            visible.append(path)
    hidden = [
        folder
        for folder in _course_folders()
        if any(folder.is_relative_to(path) for path in visible)
    ]
    return [*((path, True) for path in visible), *((folder, False) for folder in hidden)]


def _course_folders() -> list[Path]:
    """Return the course's existing folders: the lab's own lessons, and each lesson elsewhere."""
    lab_lessons = lessons_folder().resolve()
    lesson_folders = (lesson.folder.resolve() for lesson in lessons())
    folders = [folder for folder in lesson_folders if not folder.is_relative_to(lab_lessons)]
    if lab_lessons.is_dir():
        folders.insert(0, lab_lessons)
    return folders


def _probed(runner: Runner, private: Sequence[Path], output: Path) -> tuple[str, ...]:
    """Run the probe; return the protections that hold."""
    name = f"probe{secrets.token_hex(4)}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        paths = {
            "references": [
                str(path)
                for folder in _course_folders()
                for path in (folder, *sorted(folder.rglob("*.py")))
            ],
            "lessons": [lesson.folder.name for lesson in lessons()],
            # Absolute, because the probe has another working directory.
            "submissions": [os.path.realpath(path) for path in private],
            "output": str(output.resolve()),
            "memory": _memory_paths(os.getpid()),
            "port": server.getsockname()[1],
            "name": name,
            # Those that the server and the worker set.
            "variables": [
                *ENVIRONMENT,
                "HOME",
                "TMPDIR",
                "USER",
                "CUDA_VISIBLE_DEVICES",
                "LABKIT_DATA",
                "LC_CTYPE",
            ],
            "process_limit": runner.limits.processes,
        }
        program = [inspect.getsource(probe)]
        call = Request("probe", program, "protections", "protections(paths)", [[packed((paths,))]])
        limits = replace(runner.limits, seconds=max(20.0, runner.limits.seconds))
        (reply,) = runner.run([call], limits).values()
    answer: object = None
    if reply.answers:
        (content, *_) = json.loads(reply.answers[0])
        answer = load(content)
    if not isinstance(answer, list):
        raise NotStarted(f"the probe of the sandbox does not answer: {reply.note}{answer or ''}")
    holding = [str(protection) for protection in answer]
    # Without a file to try, the probe could not fail at it.
    if not paths["memory"]:
        holding.remove("memory")
    if _is_running(name) is False:
        holding.append("descendants")
    return tuple(holding)


def _is_running(name: str, proc: Path = Path("/proc")) -> bool | None:
    """Return whether a process of this name (at most 15 letters) is running.

    It is None where the system does not report the names of processes.
    """
    running = None
    for path in proc.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text(errors="replace").strip() == name:
                return True
            running = False
    return running


def _memory_paths(process: int) -> list[str]:
    """Return the files that expose a process's memory and environment.

    The list is empty where the system has no such files.
    """
    if not Path("/proc/self/mem").exists():
        return []
    return [f"/proc/{process}/{name}" for name in ("mem", "environ")]
