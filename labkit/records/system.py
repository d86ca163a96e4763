"""Operating system queries (cores, memory, limits, drivers) and process groups.

Idea: on shared machines a process may use less than the hardware has, so a container's quotas are read too. A
background program leads its own process group, so that all of its processes can be killed.

Invariant: queries have no side effects, and an unknown value is None, 0 or empty.

Source: Linux: proc(5), cgroups(7), setrlimit(2), setsid(2); Windows: MEMORYSTATUSEX, taskkill.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CGROUP = Path("/sys/fs/cgroup")  # control groups: a container's quotas
MEMORY_QUOTAS = [  # limit and use, in bytes: version 2, then version 1
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
]
# NVRM version: NVIDIA UNIX ... Kernel Module  580.95.05 ...
DRIVER = Path("/proc/driver/nvidia/version")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Return the number of cores that this process may use: its affinity, or its container's quota if that is less."""
    affinity = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _first_numbers(
        cgroup / "cpu.max"
    ) or [  # version 2: "quota period"; version 1 has a file for each
        *_first_numbers(cgroup / "cpu" / "cpu.cfs_quota_us"),
        *_first_numbers(cgroup / "cpu" / "cpu.cfs_period_us"),
    ]
    if len(quota) == 2 and quota[0] > 0:
        return max(1, min(affinity, quota[0] // quota[1]))
    return affinity


def bytes_written(io: Path = Path("/proc/self/io")) -> int | None:
    """Return the bytes that this process has written to files and connections; None where unknown."""
    try:
        return int(io.read_text(encoding="ascii").split("wchar: ")[1].split()[0])
    except (OSError, IndexError):
        return None


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = CGROUP) -> int | None:
    """Return the bytes of memory that a new program could use, or None where unknown.

    On Linux, available memory or what a container's quota leaves; on macOS, installed memory; on Windows, free memory.
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
        limits, uses = _first_numbers(cgroup / limit), _first_numbers(cgroup / used)
        if limits and uses:
            available = min(available, max(0, limits[0] - uses[0]))
    return available


def container_memory(cgroup: Path = CGROUP) -> int | None:
    """Return the memory limit of this process's container in bytes, or None without one."""
    limits = [_first_numbers(cgroup / limit) for limit, _ in MEMORY_QUOTAS]
    # version 1 writes "none" as 2^63
    return next((each[0] for each in limits if each and each[0] < 2**60), None)


def server_prefix(proc: Path = Path("/proc")) -> Path | None:
    """Return the environment prefix of the Jupyter server that started this kernel; None where unknown.

    JPY_PARENT_PID is the server's process id, and its command line begins with its Python.
    """
    try:
        words = (proc / os.environ["JPY_PARENT_PID"] / "cmdline").read_bytes().split(b"\0")
    except (OSError, KeyError):
        return None
    python = Path(os.fsdecode(words[0]))
    return python.parents[1] if python.is_absolute() and "python" in python.name else None


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


def gpu_driver() -> str | None:
    """Return the version of NVIDIA's driver from nvidia-smi or the kernel module; None where unknown."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        pass
    try:
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[0] if found else None


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


def import_error(module: str, seconds: float = 120.0) -> str:
    """Import a module in a new process; return its error in one line, or ""."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the import took longer than {seconds:.0f} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"Python exited with status {done.returncode} and no message"


def is_running(name: str) -> bool:
    """Return whether a process of this name (at most 15 letters) is running; False where unknown."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text(errors="replace").strip() == name:
                return True
    return False


def memory_paths(process: int) -> list[str]:
    """Return the files that expose a process's memory and environment; none where the system has no such files."""
    return (
        [f"/proc/{process}/{name}" for name in ("mem", "environ")]
        if Path("/proc/self/mem").exists()
        else []
    )


def process_limit() -> int:
    """Return the limit of processes for this user; 0 where there is none (root) or it is unknown."""
    with contextlib.suppress(ImportError, AttributeError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        return 0 if limit == resource.RLIM_INFINITY or os.getuid() == 0 else limit
    return 0


def address_space() -> int:
    """Return the bytes of address space that this process uses; 0 where unknown."""
    numbers = _first_numbers(Path("/proc/self/statm"))
    return numbers[0] * os.sysconf("SC_PAGE_SIZE") if numbers else 0


def resident_memory() -> int:
    """Return the resident bytes of this process; 0 where unknown."""
    numbers = _first_numbers(Path("/proc/self/statm"))
    return numbers[1] * os.sysconf("SC_PAGE_SIZE") if numbers else 0


def limit_process(space: int, seconds: float, processes: int) -> None:
    """Limit this process's resources and disable core dumps; limits that the system lacks are skipped.

    space      bytes of address space, and of each file
    seconds    of CPU time
    processes  of this process's user; 0 for no limit
    """
    with contextlib.suppress(ImportError):
        import resource

        limits = {"CORE": 0, "FSIZE": space, "CPU": int(seconds), "AS": space, "NOFILE": 256}
        for name, limit in (limits | ({"NPROC": processes} if processes else {})).items():
            with contextlib.suppress(AttributeError, OSError, ValueError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def _first_numbers(path: Path) -> list[int]:
    """Return the integers in a small file; none where it cannot be read or contains "max"."""
    try:
        words = path.read_text().split()
    except OSError:
        return []
    return (
        [int(word) for word in words] if all(word.lstrip("-").isdigit() for word in words) else []
    )


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
