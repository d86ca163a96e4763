"""Which line of the user's code was it? The innermost that is neither torch's, nor of the lab that looks on."""

from __future__ import annotations

import copy
import traceback
from pathlib import Path
from typing import Any

import torch

LAB = Path(__file__).parents[1]
LOOKING = ("against_fp32", "counted_casts", "culprit", "replay", "sample", "histogram", "updates")
AT_WORK = tuple(str(LAB / "instrument" / f"{name}.py") for name in LOOKING)
NOBODYS = ("<", copy.__file__, str(Path(torch.__file__).parent), *(str(LAB / name) for name in ("instrument", "modes")))
NOBODYS += tuple(str(LAB / "clinic" / f"{name}.py") for name in ("diagnose", "lines", "listen", "operations", "script"))


def user_line(frame: Any) -> str | None:
    """Return file:line of the innermost code that is the user's; None where the lab itself was at work."""
    for summary, line in traceback.walk_stack(frame):
        file = summary.f_code.co_filename
        if file.startswith(AT_WORK):
            return None
        if not file.startswith(NOBODYS):
            return f"{Path(file).name}:{line}"
    return ""


def line_of(error: BaseException) -> str:
    """Return file:line of the user's code that an error came through last."""
    lines = [(file, line) for file, line, *_ in traceback.extract_tb(error.__traceback__)]
    users = [(file, line) for file, line in lines if not file.startswith(NOBODYS)]
    return f"{Path(users[-1][0]).name}:{users[-1][1]}" if users else ""
