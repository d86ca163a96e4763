"""Where, when and with what: what a record says of its origin, and that one room says it."""

import platform
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

import labkit
from labkit.records import device_name, now, versions

HOUSE = Path(labkit.__file__).parent


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


@pytest.mark.parametrize("call", ["datetime.now(", "platform.python_version(", "os.replace(", "os.fsync("])
def test_no_other_room_dates_a_record_names_versions_or_writes_aside(call: str) -> None:
    rooms = {path.relative_to(HOUSE).parts[0] for path in HOUSE.rglob("*.py") if call in path.read_text("utf-8")}
    assert rooms == {"records"}
