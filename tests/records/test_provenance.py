"""What a record says of its origin and finds, and turns with a clock of ours."""

import platform
import time
from datetime import UTC, datetime, timedelta

import pytest
import torch

from labkit.instrument.report import from_plain
from labkit.records import device_name, now, versions
from labkit.records.findings import Finding, Status
from labkit.records.interleaved_timing import host_seconds, time_interleaved


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
