"""The provenance of a record."""

import platform
from datetime import UTC, datetime, timedelta

import pytest
import torch

from labkit.records import device_name, now, versions


def test_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions() == {"python": platform.python_version(), "torch": torch.__version__}
    assert device_name(torch.device("cpu")) == f"CPU ({platform.machine()})"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some GPU {device.index}")
    assert device_name(torch.device("cuda", 1)) == "Some GPU 1"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(now())) < timedelta(seconds=10)
    assert now().endswith("+00:00")
