"""What a record says of its origin, and what a check finds."""

import platform
from datetime import UTC, datetime, timedelta

import pytest
import torch

from labkit.instrument.report import from_plain
from labkit.records import device_name, now, versions
from labkit.records.findings import Finding, Status


def test_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions() == {"python": platform.python_version(), "torch": torch.__version__}
    assert device_name(torch.device("cpu")) == f"CPU ({platform.machine()})"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Some GPU {device.index}")
    assert device_name(torch.device("cuda", 1)) == "Some GPU 1"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(now())) < timedelta(seconds=10)
    assert now().endswith("+00:00")


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
