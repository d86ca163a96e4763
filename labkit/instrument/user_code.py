"""Places in the user's code: the line that called an operation, and the line that raised an error.

Idea: the innermost frame that belongs neither to torch nor to the lab is the user's. The folder of
a file decides, so a new module of the lab needs no entry. Some modules of the lab count as user
code, because they are trainings: the known faults, and the networks and tasks of `labkit.train`.
The lessons are a package of their own, and count as user code, too. An operation of a replay, or
one that counts a tensor, has no line of the user at all.
"""

from __future__ import annotations

import copy
import os
import traceback
from pathlib import Path
from types import FrameType

import torch

LAB = Path(__file__).parents[1]
INSTRUMENT = f"{LAB / 'instrument'}{os.sep}"
# modules whose operations have no line of the user
INTERNAL_FILES = tuple(
    str(LAB / "instrument" / f"{name}.py") for name in ("replay", "sample", "histogram", "probe")
)
# parts of the lab that count as user code
USER_CODE_OF_LAB = (
    f"{LAB / 'faults'}{os.sep}",
    str(LAB / "train" / "networks.py"),
    str(LAB / "train" / "tasks.py"),
)
# folders of installed packages; the second is that of Debian and Colab
PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
# Names of code without a file that a user typed: into Python, code.interact or a doctest.
TYPED = ("<stdin>", "<python-input-", "<console>", "<input>", "<doctest ")
# "<": other code without a file, such as the methods that dataclasses generate. A `deepcopy` of a
# model calls torch from the module `copy`.
LIBRARIES = ("<", copy.__file__, f"{Path(torch.__file__).parent}{os.sep}", f"{LAB}{os.sep}")


def is_library(file: str) -> bool:
    """Return whether a file belongs to torch or the lab, and does not count as user code."""
    return file.startswith(LIBRARIES) and not file.startswith((*USER_CODE_OF_LAB, *TYPED))


def line_of_user(frame: FrameType) -> str | None:
    """Return file:line of the innermost frame of the user's code, or "" if there is none.

    It is None if the lab itself runs the operation.
    """
    for each, line in traceback.walk_stack(frame):
        file = each.f_code.co_filename
        if file.startswith(INTERNAL_FILES):
            return None
        if is_library(file) or _is_standard(file):
            continue
        if not _path_in_package(file):
            return _place(file, line)
        # a user cannot change the line of an installed package, so add the line that called it
        for outer, own_line in traceback.walk_stack(each):
            own_file = outer.f_code.co_filename
            if _is_own(own_file):
                return _place_in_package(file, line, _place(own_file, own_line))
        return _place_in_package(file, line, "")
    return ""


def line_of_error(error: BaseException) -> str:
    """Return file:line of the innermost frame of the user's code in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(each.filename, each.lineno) for each in frames]
    users = [place for place in places if not is_library(place[0]) and not _is_standard(place[0])]
    if not users:
        return ""
    file, line = users[-1]
    own = [place for place in users if _is_own(place[0])]
    if not _path_in_package(file) or not own:
        return _place(file, line)
    own_file, own_line = own[-1]
    return _place_in_package(file, line, _place(own_file, own_line))


def _is_standard(file: str) -> bool:
    """Return whether a file is one of Python's own library."""
    return file.startswith(STANDARD_LIBRARY) and not _path_in_package(file)


def _is_own(file: str) -> bool:
    """Return whether a file belongs to the user, and not to an installed package."""
    return not (_path_in_package(file) or is_library(file) or _is_standard(file))


def _path_in_package(file: str) -> str:
    """Return the path of a file below the folder of installed packages, or "" for another file."""
    for folder in PACKAGES:
        _, _, path = file.partition(folder)
        if path:
            return path
    return ""


def _place(file: str, line: int | None) -> str:
    # the file of a notebook's cell has a random name
    if "ipykernel_" in file:
        return f"cell:{line}"
    return f"{in_utf8(Path(file).name)}:{line}"


def _place_in_package(file: str, line: int | None, caller: str) -> str:
    """Return a place in an installed package, by its path in there, and the line that called it."""
    inside = f"{in_utf8(_path_in_package(file))}:{line}"
    return f"{inside} (called at {caller})" if caller else inside


def in_utf8(name: str) -> str:
    """Return the name of a file, with escapes for bytes that are not UTF-8."""
    return name.encode(errors="backslashreplace").decode()
