"""Where, when and with what: what a record says of its origin."""

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


def test_now_is_utc_to_the_second() -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)  # `now` leaves out the fraction
    told = datetime.fromisoformat(now())
    assert before <= told <= datetime.now(UTC)
    assert told.utcoffset() == timedelta(0)
    assert told.microsecond == 0
