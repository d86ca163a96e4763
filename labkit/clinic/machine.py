"""What has this machine, really? Cores, memory and speed, as a program inside a container or a notebook gets them.

Idea: what the hardware has and what this process may use differ on shared machines, so quotas are read too; and how
many threads are best is not in any file, so it is timed.

Invariant: nothing is changed. A thread count set for a measurement is put back; a number nobody can tell is None.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # control groups, where a container's quotas stand (Linux: cgroups(7))
MEMORY_QUOTAS = [  # limit and use, in bytes: version 2, then version 1
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
]


def _first_numbers(path: Path) -> list[int]:
    """Return the numbers at the start of a small file; none where it cannot be read or says "max"."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return [int(word) for word in words] if all(word.lstrip("-").isdigit() for word in words) else []


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return how many cores this process may use: its affinity, or its container's quota where that is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _first_numbers(cgroup / "cpu.max") or [  # version 2: "quota period"; version 1 has a file for each
        *_first_numbers(cgroup / "cpu" / "cpu.cfs_quota_us"),
        *_first_numbers(cgroup / "cpu" / "cpu.cfs_period_us"),
    ]
    if len(quota) == 2 and quota[0] > 0:
        return max(1, min(affinity, quota[0] // quota[1]))
    return affinity


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int | None:
    """Return the bytes of memory a new program could have, or None where the system does not say.

    Linux tells what is available, and a container's quota may be less. macOS and Windows tell what is built in or free.
    """
    if sys.platform == "win32":
        return _windows_memory()
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return _built_in_memory()
    for limit, used in MEMORY_QUOTAS:
        limits, uses = _first_numbers(cgroup / limit), _first_numbers(cgroup / used)
        if limits and uses:
            available = min(available, max(0, limits[0] - uses[0]))
    return available


def _built_in_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _windows_memory() -> int | None:
    """Ask GlobalMemoryStatusEx. (Source: Win32 API, MEMORYSTATUSEX: two DWORDs, then seven DWORDLONGs.)"""

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
            (name, ctypes.c_uint64) for name in ("total", "available", "f1", "f2", "f3", "f4", "f5")
        ]

    status = Status(length=ctypes.sizeof(Status))
    windll = getattr(ctypes, "windll", None)
    if windll is None or not windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.available)


def seconds_per_tiny_step(threads: int, budget: float = 0.15) -> float:
    """Time one forward and backward pass of a two-layer convolution on 8 images of 48 x 48, in seconds.

    Runs for about `budget` seconds, and at least once. Returns the fastest pass: what else the machine does only adds.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
        images = torch.ones(8, 1, 48, 48)
        model(images).mean().backward()  # the first pass also sets up
        fastest, end = float("inf"), time.perf_counter() + budget
        while fastest == float("inf") or time.perf_counter() < end:
            start = time.perf_counter()
            model(images).mean().backward()
            fastest = min(fastest, time.perf_counter() - start)
        return fastest
    finally:
        torch.set_num_threads(before)
