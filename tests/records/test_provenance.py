"""The provenance of a record."""

import platform
import re
from datetime import UTC, datetime

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


def test_another_device_is_not_called_a_cpu() -> None:
    assert device_name(torch.device("mps")) == "mps"


def test_now_is_the_time_in_utc_to_the_second() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    text = now()
    assert before <= datetime.fromisoformat(text) <= datetime.now(UTC)
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\+00:00", text)
