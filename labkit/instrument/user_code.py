"""Places in the user's code: the line that called an operation, and the line that raised an error.

Idea: the innermost frame that is neither torch's nor the lab's is the user's. The faults of labkit.faults are written
as users write, and count as user code. A replay of a step and the counting of a tensor are the lab's own work.
"""

from __future__ import annotations

import copy
import traceback
from pathlib import Path
from typing import Any

import torch

LAB = Path(__file__).parents[1]
INTERNAL_FILES = tuple(
    str(LAB / "instrument" / f"{name}.py") for name in ("replay", "sample", "histogram", "probe")
)
LIBRARY_FILES = (
    "<",
    copy.__file__,
    str(Path(torch.__file__).parent),
    str(LAB / "instrument"),
    str(LAB / "modes"),
    str(LAB / "amp"),
    str(LAB / "frameworks"),
    *(str(LAB / "clinic" / f"{name}.py") for name in ("diagnose", "events")),
)


def line_of_user(frame: Any) -> str | None:
    """Return file:line of the innermost frame of the user's code; None if the lab itself runs the operation."""
    for summary, line in traceback.walk_stack(frame):
        file = summary.f_code.co_filename
        if file.startswith(INTERNAL_FILES):
            return None
        if not file.startswith(LIBRARY_FILES):
            return _place(file, line)
    return ""


def line_of_error(error: BaseException) -> str:
    """Return file:line of the innermost frame of the user's code in an error's traceback."""
    lines = [(file, line) for file, line, *_ in traceback.extract_tb(error.__traceback__)]
    users = [(file, line) for file, line in lines if not file.startswith(LIBRARY_FILES)]
    return _place(*users[-1]) if users else ""


def _place(file: str, line: int | None) -> str:
    return f"cell:{line}" if "ipykernel_" in file else f"{Path(file).name}:{line}"
