"""Findings: the old names of two fields warn, and those that version 0.2 saved are read."""

import pytest

from labkit.instrument.report import from_plain
from labkit.records.findings import Finding, Status


def test_the_old_names_of_fields_answer_with_a_warning() -> None:
    found = Finding("disk", Status.BAD, "it is full", "delete something")
    with pytest.warns(DeprecationWarning, match="use Finding.what"):
        assert found.says == "it is full"
    with pytest.warns(DeprecationWarning, match="use Finding.remedy"):
        assert found.repair == "delete something"


def test_a_finding_of_version_0_2_is_read_with_its_repair() -> None:
    old = {"what": "clipped while scaled", "layer": "", "step": 3, "says": "too long", "line": "train.py:12"}
    (found,) = from_plain({"model": "Net", "steps": 4, "findings": [old]}).findings
    assert (found.name, found.status, found.what, found.where) == (
        "clipped while scaled", Status.BAD, "too long", "train.py:12",
    )  # fmt: skip
    assert "unscale_" in found.remedy
