"""Places in the user's code: the line that called an operation, and the line that raised an error.

Idea: the innermost frame that is neither torch's nor the lab's is the user's. The folder
of a file decides, so a new module of the lab needs no entry. Some of its modules are
written as users write, and count as user code: the known faults, the networks and tasks of
trainings. The lessons are a package of their own. A replay of a step and the counting of a tensor
are the lab's own work.
"""

from __future__ import annotations

import copy
import os
import traceback
from pathlib import Path
from typing import Any

import torch

LAB = Path(__file__).parents[1]
INSTRUMENT = f"{LAB / 'instrument'}{os.sep}"
INTERNAL_FILES = tuple(
    str(LAB / "instrument" / f"{name}.py") for name in ("replay", "sample", "histogram", "probe")
)
WRITTEN_AS_USERS_WRITE = tuple(
    str(LAB.joinpath(*parts))
    for parts in (
        ("faults",),
        ("train", "networks.py"),
        ("train", "tasks.py"),
    )
)
PACKAGES = f"{os.sep}site-packages{os.sep}"
STANDARD_LIBRARY = str(Path(os.__file__).parent)
# "<": code without a file, such as the methods that dataclasses generate
LIBRARIES = ("<", copy.__file__, str(Path(torch.__file__).parent), f"{LAB}{os.sep}")


def is_library(file: str) -> bool:
    """Return whether a file is torch's or the lab's, and not written as users write."""
    return file.startswith(LIBRARIES) and not file.startswith(WRITTEN_AS_USERS_WRITE)


def line_of_user(frame: Any) -> str | None:
    """Return file:line of the innermost frame of the user's code.

    It is None if the lab itself runs the operation.
    """
    for summary, line in traceback.walk_stack(frame):
        file = summary.f_code.co_filename
        if file.startswith(INTERNAL_FILES):
            return None
        if not is_library(file) and not _is_standard(file):
            return _place_of_library(summary, file, line)
    return ""


def _place_of_library(frame: Any, file: str, line: int | None) -> str:
    """Return a place; one in an installed package with the user's line that led there.

    The package's own path identifies the file; a line of a library alone is not a place that a user
    can change.
    """
    if PACKAGES not in file:
        return _place(file, line)
    inside = f"{file.partition(PACKAGES)[2]}:{line}"
    for above, own_line in traceback.walk_stack(frame):
        own = above.f_code.co_filename
        if PACKAGES not in own and not is_library(own) and not _is_standard(own):
            return f"{inside} (called at {_place(own, own_line)})"
    return inside


def _is_standard(file: str) -> bool:
    """Return whether a file is one of Python's own library."""
    return file.startswith((STANDARD_LIBRARY, "<frozen")) and PACKAGES not in file


def line_of_error(error: BaseException) -> str:
    """Return file:line of the innermost frame of the user's code in an error's traceback."""
    lines = [(file, line) for file, line, *_ in traceback.extract_tb(error.__traceback__)]
    users = [
        (file, line) for file, line in lines if not is_library(file) and not _is_standard(file)
    ]
    if not users:
        return ""
    file, line = users[-1]
    own = [place for place in users if PACKAGES not in place[0]]
    if PACKAGES not in file or not own:
        return _place(file, line)
    return f"{file.partition(PACKAGES)[2]}:{line} (called at {_place(*own[-1])})"


def _place(file: str, line: int | None) -> str:
    return f"cell:{line}" if "ipykernel_" in file else f"{Path(file).name}:{line}"
