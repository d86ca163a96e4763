"""Limits of what processes take, and what this process takes before them.

Invariant: a query has no side effect, and an unknown value is 0.

Source: setrlimit(2), proc(5), cgroups(7).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def process_limit() -> int:
    """Return the limit of processes for this user.

    It is 0 where there is no limit (root) or where it is unknown.
    """
    with contextlib.suppress(ImportError, AttributeError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        return 0 if limit == resource.RLIM_INFINITY or os.getuid() == 0 else limit
    return 0


def address_space() -> int:
    """Return the bytes of address space that this process uses; 0 where unknown."""
    return _pages(0)


def resident_memory() -> int:
    """Return the resident bytes of this process; 0 where unknown."""
    return _pages(1)


def limit_process(space: int, seconds: float, processes: int) -> None:
    """Limit this process's resources and disable core dumps.

    Limits that the system lacks are skipped.

    Args:
        space: Bytes of address space, and of each file.
        seconds: CPU time.
        processes: Number of processes of this process's user; 0 for no limit.
    """
    with contextlib.suppress(ImportError):
        import resource

        limits = {"CORE": 0, "FSIZE": space, "CPU": int(seconds), "AS": space, "NOFILE": 256}
        if processes:
            limits["NPROC"] = processes
        for name, limit in limits.items():
            with contextlib.suppress(AttributeError, OSError, ValueError):
                resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))


def create_control_group(
    name: str, memory: int, cores: float | None = None, root: Path = Path("/sys/fs/cgroup")
) -> list[Path]:
    """Create a control group with limits, and return its process files.

    A process that writes its id into these files joins the group.

    Args:
        name: The name of the group.
        memory: Bytes of memory for all processes of the group together.
        cores: CPU cores, also fractions; None for all.
        root: Where control groups are mounted.

    Raises:
        OSError: the system has no control groups, or this user may not create any.

    Source: cgroups(7), both versions.
    """
    # Microseconds: the kernel's default period, of which a quota is a share.
    period = 100_000
    # Version 2 of control groups.
    if (root / "cgroup.controllers").is_file():
        group = root / name
        # From the root to the group's own parent: a controller passes from each to the next.
        for folder in reversed(Path(name).parents):
            parent = root / folder
            parent.mkdir(exist_ok=True)
            (parent / "cgroup.subtree_control").write_text(
                "+memory +cpu" if cores is not None else "+memory"
            )
        limits: dict[Path, dict[str, object]] = {group: {"memory.max": memory}}
        if cores is not None:
            limits[group]["cpu.max"] = f"{int(cores * period)} {period}"
    else:
        limits = {root / "memory" / name: {"memory.limit_in_bytes": memory}}
        if cores is not None:
            limits[root / "cpu" / name] = {
                "cpu.cfs_period_us": period,
                "cpu.cfs_quota_us": int(cores * period),
            }
    for group, values in limits.items():
        group.mkdir(parents=True, exist_ok=True)
        for file, value in values.items():
            (group / file).write_text(str(value))
    return [group / "cgroup.procs" for group in limits]


def remove_empty_groups(name: str, root: Path = Path("/sys/fs/cgroup")) -> None:
    """Remove the control groups of this name, in both versions, unless a process uses them."""
    for group in (root / name, root / "memory" / name, root / "cpu" / name):
        with contextlib.suppress(OSError):
            group.rmdir()


def remove_groups_of_the_dead(root: Path = Path("/sys/fs/cgroup")) -> None:
    """Remove the control groups of killed gradings: their names end in a dead process's id."""
    for kind in ("labkit", "memory/labkit"):
        for group in (root / kind).glob("grading-*"):
            if not Path("/proc", group.name.removeprefix("grading-")).exists():
                remove_empty_groups(f"labkit/{group.name}", root)


def killed_for_memory(events: str) -> int:
    r"""Return how many processes of a control group were killed for memory.

    >>> killed_for_memory("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    3
    """
    counts = dict(line.split()[:2] for line in events.splitlines() if len(line.split()) > 1)
    return int(counts.get("oom_kill", 0))


def _pages(field: int) -> int:
    """Return the bytes of a field of this process's statm; 0 where the system has no such file."""
    with contextlib.suppress(OSError):
        pages = Path("/proc/self/statm").read_text().split()[field]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0
