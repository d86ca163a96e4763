"""Cores and memory of a container, and one count of cores everywhere."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.amp import RECIPES
from labkit.bench import device_report
from labkit.machine import check, resources
from labkit.machine.resources import available_memory, usable_cores
from labkit.train import TASKS, train_grid

GIB = 2**30


def test_a_quota_of_the_container_counts_where_it_is_less(tmp_path: Path) -> None:
    free = usable_cores(cgroup=tmp_path)
    older = tmp_path / "older kernels"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(cgroup=tmp_path) == free
    (tmp_path / "cpu.max").write_text("50000 100000\n")  # half a core: still one thread
    assert usable_cores(cgroup=tmp_path) == 1
    (older / "cpu").mkdir(parents=True)
    (older / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for quota, cores in (("-1", free), ("100000", 1)):  # -1: no limit
        (older / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        assert usable_cores(cgroup=older) == cores


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows is asked by a system call, not by a file"
)
def test_memory_is_the_available_one_within_the_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert available_memory(meminfo, tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf(
        "SC_PAGE_SIZE"
    )
    meminfo.write_text("MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n")
    assert available_memory(meminfo, tmp_path) == 8_000_000 * 1024
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 2}\n")
    assert available_memory(meminfo, tmp_path) == 2 * GIB - GIB // 2


# --- one count of cores ---


@pytest.fixture
def quota_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a container whose quota is one core, whatever the machine has."""
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(resources, "usable_cores", lambda: usable_cores(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.mark.usefixtures("quota_of_one")
def test_device_report_check_and_compare_count_the_same_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert device_report("cpu").cores == 1
    assert check.threads().what.startswith("1 core; ")

    def too_many(count: int, **_: object) -> None:
        raise AssertionError(f"{count} processes on one core")

    monkeypatch.setattr(sys.modules["labkit.train.grid"], "ProcessPoolExecutor", too_many)
    task = replace(TASKS["digits"], steps=1)
    assert len(train_grid(task, [RECIPES["FP32"]], [0, 1], tmp_path, device="cpu")) == 2
