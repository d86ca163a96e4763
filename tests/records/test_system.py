"""What the system gives a process, what a record says of its origin and finds, and turns with a clock of ours."""

import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from labkit.amp import RECIPES
from labkit.bench import device_report
from labkit.instrument.report import from_plain
from labkit.machine import check
from labkit.records import device_name, now, system, versions
from labkit.records.findings import Finding, Status
from labkit.records.interleaved_timing import host_seconds, time_interleaved
from labkit.records.system import available_memory, kill_group, start_group, usable_cores
from labkit.train import TASKS, train_grid
from tests.slowness import slowness

GIB = 2**30


def test_a_quota_of_the_container_counts_where_it_is_less(tmp_path: Path) -> None:
    free, older = usable_cores(cgroup=tmp_path), tmp_path / "older kernels"
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
def test_memory_is_what_is_available_and_no_more_than_the_container_s(tmp_path: Path) -> None:
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
    monkeypatch.setattr(system, "usable_cores", lambda: usable_cores(tmp_path))
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


# --- processes ---


def test_the_end_of_a_group_is_the_end_of_all_in_it() -> None:
    """The pipe is closed only when the last that holds it has ended: here a process that the command started."""
    waits = "print('here', flush=True); import time; time.sleep(600)"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waits!r}])"
    leader = start_group([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True)
    assert leader.stdout.readline() == "here\n"
    kill_group(leader)
    assert leader.communicate(timeout=60 * slowness())[0] == ""
    assert leader.returncode != 0
    kill_group(leader)  # where nothing is left, nothing happens


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits, or none")
def test_a_limit_counts_from_what_the_process_has_now() -> None:
    program = """
import resource
from labkit.records.system import address_space, limit_process
limit_process(address_space() + (1 << 28), 60.5, processes=0)
print(len(bytearray(1 << 27)), resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_CORE)[0])
try:
    bytearray(1 << 29)
except MemoryError:
    print("no more")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{1 << 27} 60 0", "no more"]


def test_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions() == {"python": platform.python_version(), "torch": torch.__version__}
    assert device_name(torch.device("cpu")) == f"CPU ({platform.machine()})"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some GPU {device.index}")
    assert device_name(torch.device("cuda", 1)) == "Some GPU 1"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(now())) < timedelta(seconds=10)
    assert now().endswith("+00:00")


def test_ways_take_turns_and_each_tells_its_own_seconds() -> None:
    order: list[str] = []

    def way(name: str, seconds: list[float]):
        def call() -> float:
            order.append(name)
            return seconds[order.count(name) - 1]

        return call

    told = time_interleaved({"a": way("a", [3.0, 1.0]), "b": way("b", [5.0, 2.0])}, 2)
    assert told == {"a": [3.0, 1.0], "b": [5.0, 2.0]}
    assert order == ["a", "b", "a", "b"], "a machine that slows down slows both"


def test_seconds_of_a_call_are_those_of_a_group_that_the_device_has_done(monkeypatch) -> None:
    """Four calls of a second each, and a device that needs two more until it is done."""
    now = [0.0]

    def passes(seconds: float):
        return lambda: now.__setitem__(0, now[0] + seconds)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert host_seconds(passes(1.0), calls=4, wait=passes(2.0)) == (4 + 2) / 4


def test_the_old_names_of_a_findings_fields_answer_with_a_warning_and_those_of_version_0_2_are_read() -> (
    None
):
    found = Finding("disk", Status.BAD, "it is full", "delete something")
    with pytest.warns(DeprecationWarning, match="use Finding.what"):
        assert found.says == "it is full"
    with pytest.warns(DeprecationWarning, match="use Finding.remedy"):
        assert found.repair == "delete something"
    old = {
        "what": "clipped while scaled",
        "layer": "",
        "step": 3,
        "says": "too long",
        "line": "train.py:12",
    }
    (found,) = from_plain({"model": "Net", "steps": 4, "findings": [old]}).findings
    assert (found.name, found.status, found.what, found.where) == (
        "clipped while scaled",
        Status.BAD,
        "too long",
        "train.py:12",
    )
    assert "unscale_" in found.remedy
