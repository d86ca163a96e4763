"""Findings of a check, under their names and former names."""

import pytest

from labkit import clinic, instrument, machine
from labkit.findings import CheckReport, Finding, Status
from labkit.instrument.report import from_plain


def test_the_report_of_a_check_is_report_in_machine_and_clinic() -> None:
    assert machine.Report is clinic.Report
    assert clinic.Report is CheckReport


def test_the_report_of_an_instrument_is_one_of_a_check() -> None:
    assert issubclass(instrument.Report, CheckReport)


def test_a_report_of_version_0_2_is_read() -> None:
    old = {
        "what": "clipped while scaled",
        "layer": "",
        "step": 3,
        "says": "too long",
        "line": "train.py:12",
    }
    (found,) = from_plain({"model": "Net", "steps": 4, "findings": [old]}).findings
    assert found.name == "clipped while scaled"
    assert found.status == Status.BAD
    assert found.what == "too long"
    assert found.where == "train.py:12"
    assert "unscale_" in found.remedy


@pytest.mark.parametrize(
    ("count", "summary"), [(0, "Nothing was checked."), (1, "All well."), (3, "All 3 well.")]
)
def test_a_report_without_problems_has_a_summary(count: int, summary: str) -> None:
    assert CheckReport((Finding("disk", Status.OK, "free"),) * count).summary == summary
