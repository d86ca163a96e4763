"""The processes that a process started, on Linux: what they use, and their end.

Invariant: after `adopt_orphans`, `kill_children` ends every descendant, also those whose parent has
ended.

Source: proc(5), prctl(2).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from labkit.processes import prctl

# An option of prctl.
SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of all descendants whose parent has ended."""
    prctl(SUBREAPER, 1)


def descendants() -> list[int]:
    """Return the ids of all descendants of this process; none where unknown."""
    found: list[int] = []
    pending = _children()
    while pending:
        process = pending.pop()
        if process > 0:
            found.append(process)
            with contextlib.suppress(OSError):
                for thread in Path(f"/proc/{process}/task").iterdir():
                    pending += map(int, (thread / "children").read_text().split())
    return found


def memory_of(process: int) -> int:
    """Return a process's proportional set size in bytes: shared pages are divided.

    It is 0 for a process that has ended. Source: proc(5).
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        return int(rollup.split("\nPss:")[1].split()[0]) << 10
    # a protected process: memory without shared pages
    with contextlib.suppress(OSError, IndexError, ValueError):
        resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    return 0


def kill_children(seconds: float = 5.0) -> None:
    """Kill all children until none remain; after `adopt_orphans`, all descendants."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process and its ended children, in seconds.

    It is 0.0 for a process that has ended. Source: proc(5).
    """
    with contextlib.suppress(OSError):
        after_name = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        # utime, stime, cutime, cstime
        return sum(map(int, after_name[11:15])) / os.sysconf("SC_CLK_TCK")
    # By the clock of the process, whose id is that of clock_getcpuclockid(3).
    with contextlib.suppress(OSError):
        return time.clock_gettime((~process << 3) | 2)
    return 0.0


def queued_seconds(process: int) -> float:
    """Return how long a process was ready to run while others had the processor, in seconds.

    It is 0.0 where the system does not report it. Source: proc(5).
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{process}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def _children() -> list[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        # the first process of a namespace can kill all others at once
        return [-1] if os.getpid() == 1 else []
    return [int(word) for word in text.split()]
