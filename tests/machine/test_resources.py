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


@pytest.fixture
def machine_of_64_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 64 cores, all of which this process may use."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.mark.usefixtures("machine_of_64_cores")
def test_without_a_quota_a_container_has_all_cores(tmp_path: Path) -> None:
    assert usable_cores(cgroup=tmp_path) == 64
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert usable_cores(cgroup=tmp_path) == 64


@pytest.mark.usefixtures("machine_of_64_cores")
@pytest.mark.parametrize(("quota", "cores"), [(50_000, 1), (250_000, 2), (9_900_000, 64)])
def test_a_quota_limits_the_cores_to_whole_ones(tmp_path: Path, quota: int, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    assert usable_cores(cgroup=tmp_path) == cores


@pytest.fixture
def first_version(tmp_path: Path) -> Path:
    """The folder of a container's quota in the first version of cgroups."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    return tmp_path / "cpu"


@pytest.mark.usefixtures("machine_of_64_cores")
def test_the_quota_of_the_first_version_of_cgroups_counts(first_version: Path) -> None:
    (first_version / "cpu.cfs_quota_us").write_text("300000\n")
    assert usable_cores(cgroup=first_version.parent) == 3


@pytest.mark.usefixtures("machine_of_64_cores")
def test_minus_one_is_not_a_quota_in_the_first_version(first_version: Path) -> None:
    (first_version / "cpu.cfs_quota_us").write_text("-1\n")
    assert usable_cores(cgroup=first_version.parent) == 64


reads_files = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows gives its memory by a system call, not by a file"
)


@reads_files
def test_without_meminfo_all_memory_counts_as_available(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_memory(tmp_path / "missing", tmp_path) == memory


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    """A file like /proc/meminfo, with 8,000,000 kB available."""
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       16000000 kB\nMemAvailable:    8000000 kB\n")
    return path


@reads_files
def test_available_memory_is_that_of_meminfo(meminfo: Path, tmp_path: Path) -> None:
    assert available_memory(meminfo, tmp_path) == 8_000_000 * 1024


@reads_files
def test_available_memory_is_what_the_container_has_left(meminfo: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 2}\n")
    assert available_memory(meminfo, tmp_path) == 2 * GIB - GIB // 2


@reads_files
def test_a_container_beyond_its_limit_has_no_memory_left(meminfo: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB + 4096}\n")
    assert available_memory(meminfo, tmp_path) == 0


# --- one count of cores ---


@pytest.fixture
def quota_of_one(
    machine_of_64_cores: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A container on this machine whose quota is one core."""
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(resources, "usable_cores", lambda: usable_cores(tmp_path))


@pytest.mark.usefixtures("quota_of_one")
def test_the_device_report_counts_the_cores_of_the_quota() -> None:
    assert device_report("cpu").cores == 1


@pytest.mark.usefixtures("quota_of_one")
def test_the_check_counts_the_cores_of_the_quota() -> None:
    assert check.threads().what.startswith("1 core; ")


@pytest.mark.usefixtures("quota_of_one")
def test_a_grid_starts_no_processes_on_one_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def too_many(count: int, **_: object) -> None:
        raise AssertionError(f"{count} processes on one core")

    monkeypatch.setattr(sys.modules["labkit.train.grid"], "ProcessPoolExecutor", too_many)
    task = replace(TASKS["digits"], steps=1)
    assert len(train_grid(task, [RECIPES["FP32"]], [0, 1], tmp_path, device="cpu")) == 2
