"""The probe of the sandbox: it tries what learners' code must not be able to do.

The source of this module runs in the sandbox, as an answer does, so it imports nothing from beside
it but what all answers may import. A protection holds where the attempt fails.
"""

import contextlib
import ctypes
import importlib
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from labkit.grading.sandbox.limits import process_limit

# In linux/prctl.h.
PR_SET_NAME = 15
# Libraries set variables that begin with these.
OF_LIBRARIES = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_")


def protections(paths: dict[str, Any]) -> list[str]:
    """Return the protections that hold, except "descendants", which the grader sees from outside.

    Args:
        paths: The files, folders and other things that are tried; `isolation` fills it.

    Raises:
        ImportError: a module of Python's library is not visible.
    """
    # Nothing has loaded this module so far: the import fails if the library is not visible.
    importlib.import_module("colorsys")
    lessons = paths["lessons"]
    attempts = {
        "references": any(map(_is_readable, paths["references"]))
        or any(map(_is_importable, lessons)),
        "submissions": any(map(_is_readable, paths["submissions"])),
        "grades": _is_writable(paths["output"], paths["name"]) or _is_listed(paths["output"]),
        "memory": any(map(_is_readable, paths["memory"])),
        "network": _is_reached(paths["port"]),
        # 0: unlimited, or unknown
        "processes": not 0 < process_limit() <= paths["process_limit"],
        "environment": any(
            name not in paths["variables"] and not name.startswith(OF_LIBRARIES)
            for name in os.environ
        ),
    }
    if sys.platform == "linux":
        _leave_a_process_behind(paths["name"])
    return [name for name, succeeded in attempts.items() if not succeeded]


def _is_readable(path: str) -> bool:
    """Return whether a file can be opened; a folder, whether it shows what is in it."""
    try:
        if os.path.isdir(path):
            # An empty folder replaces a hidden one.
            return bool(os.listdir(path))
        Path(path).open("rb").close()
    except OSError:
        return False
    return True


def _is_importable(lesson: str) -> bool:
    try:
        importlib.import_module(f"labkit_lessons.{lesson}.exercises")
    except ImportError:
        return False
    return True


def _is_writable(folder: str, name: str) -> bool:
    """Return whether a file of this name can be made in a folder; it is deleted again."""
    trace = Path(folder) / name
    try:
        trace.touch()
    except OSError:
        return False
    with contextlib.suppress(OSError):
        trace.unlink()
    return True


def _is_listed(folder: str) -> bool:
    try:
        os.listdir(folder)
    except OSError:
        return False
    return True


def _is_reached(port: int) -> bool:
    """Return whether this machine's own address answers at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError:
        return False
    return True


def _leave_a_process_behind(name: str) -> None:
    """Start a process without a parent; the grader looks for its name in /proc."""
    named, has_name = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
                os.write(has_name, b"1")
                time.sleep(600)
        finally:
            # Whatever fails, no child may continue in the worker's code.
            os._exit(0)
    os.close(has_name)
    # This returns once the process has its name, or at once if it could not be started.
    os.read(named, 1)
    os.close(named)
