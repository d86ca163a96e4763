"""The provenance of a record."""

import platform
from datetime import UTC, datetime, timedelta

import pytest
import torch

from labkit.records import device_name, now, versions


def test_versions_are_those_of_python_and_torch() -> None:
    assert versions() == {"python": platform.python_version(), "torch": torch.__version__}


def test_a_cpu_is_named_by_its_architecture() -> None:
    assert device_name(torch.device("cpu")) == f"CPU ({platform.machine()})"


def test_a_gpu_is_named_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some GPU {device.index}")
    assert device_name(torch.device("cuda", 1)) == "Some GPU 1"


def test_now_is_the_time_in_utc() -> None:
    assert abs(datetime.now(UTC) - datetime.fromisoformat(now())) < timedelta(seconds=10)
    assert now().endswith("+00:00")
