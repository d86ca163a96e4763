"""Processes that this one starts, and their end.

Idea: a background program leads its own process group, so that all of its processes can be killed.

Source: setsid(2), killpg(3), prctl(2); Windows: taskkill.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

PARENT_DEATH_SIGNAL = 1  # an option of prctl


def start_group(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command as the leader of a new process group; `options` are those of subprocess.Popen.

    Raises:
        OSError: the command cannot be started.
    """
    return subprocess.Popen(list(command), start_new_session=True, **options)


def kill_group(leader: subprocess.Popen[Any]) -> None:
    """Kill all processes of a group that `start_group` started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(leader.pid, signal.SIGKILL)
        else:  # Windows
            subprocess.run(
                ["taskkill", "/F", "/T", "/PID", str(leader.pid)], capture_output=True, check=False
            )


def die_with_parent() -> None:
    """Have this process killed when its parent ends; on Linux only."""
    if sys.platform == "linux":
        prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def prctl(option: int, value: int) -> int:
    """Set an option of this process that takes one number; return 0, or -1 where Linux refuses it."""
    return int(_library().prctl(option, ctypes.c_ulong(value), 0, 0, 0))


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
