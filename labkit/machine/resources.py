"""The cores, memory and processor that this process may use, and the bytes that it has written.

Idea: on shared machines a process may use less than the hardware has, so a container's quotas are
read too.

Invariant: queries have no side effects, and an unknown value is None or empty.

Source: Linux: proc(5) (wchar of /proc/PID/io), cgroups(7); Windows: MEMORYSTATUSEX.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

# Control groups, which have a container's quotas.
CGROUP = Path("/sys/fs/cgroup")
# The files with limit and use, in bytes: of version 2, then of version 1.
MEMORY_QUOTAS = [
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
]


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return the number of cores for this process, by its affinity and its container's quota."""
    affinity = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        affinity = len(os.sched_getaffinity(0))
    # version 2 of cgroups has "quota period" in one file, version 1 a file for each
    quota = _first_numbers(cgroup / "cpu.max")
    if not quota:
        quota += _first_numbers(cgroup / "cpu" / "cpu.cfs_quota_us")
        quota += _first_numbers(cgroup / "cpu" / "cpu.cfs_period_us")
    if len(quota) == 2 and quota[0] > 0:
        return max(1, min(affinity, quota[0] // quota[1]))
    return affinity


def bytes_written(io: Path = Path("/proc/self/io")) -> int | None:
    """Return the bytes that this process has written by write(2) or writev(2); None if unknown.

    They go to files and to connections, as those of gloo. What send(2) sends is not counted.
    """
    try:
        return int(io.read_text(encoding="ascii").split("wchar: ")[1].split()[0])
    except (OSError, IndexError):
        return None


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int | None:
    """Return the bytes of memory that a new program could use, or None where unknown.

    On Linux, available memory or what a container's quota leaves; on macOS, installed memory; on
    Windows, free memory.
    """
    if sys.platform == "win32":
        return _windows_memory()
    try:
        fields = dict(
            line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line
        )
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return _installed_memory()
    for limit, used in MEMORY_QUOTAS:
        limits = _first_numbers(cgroup / limit)
        uses = _first_numbers(cgroup / used)
        if limits and uses:
            available = min(available, max(0, limits[0] - uses[0]))
    return available


def container_memory(cgroup: Path = CGROUP) -> int | None:
    """Return the memory limit of this process's container in bytes, or None without one."""
    for file, _ in MEMORY_QUOTAS:
        limits = _first_numbers(cgroup / file)
        # version 1 writes "none" as almost 2^63
        if limits and limits[0] < 2**60:
            return limits[0]
    return None


def cpuinfo() -> dict[str, str]:
    """Return the first processor's entries of /proc/cpuinfo; empty without such a file."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def cpu_name() -> str:
    """Return the CPU's model name, or else its architecture."""
    return (
        cpuinfo().get("model name") or _macos_name() or platform.processor() or platform.machine()
    )


def _first_numbers(path: Path) -> list[int]:
    """Return the integers in a small file; [] if it cannot be read or contains "max"."""
    try:
        return [int(word) for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


def _installed_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _windows_memory() -> int | None:
    """Call GlobalMemoryStatusEx.

    Source: Win32 API, MEMORYSTATUSEX: two DWORDs, then seven DWORDLONGs.
    """

    class MemoryStatus(ctypes.Structure):
        _fields_ = [("length", ctypes.c_uint32), ("load", ctypes.c_uint32)] + [
            (name, ctypes.c_uint64) for name in ("total", "available", "f1", "f2", "f3", "f4", "f5")
        ]

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    windll = getattr(ctypes, "windll", None)
    if windll is None or not windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.available)


def _macos_name() -> str | None:
    if sys.platform != "darwin":
        return None
    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
