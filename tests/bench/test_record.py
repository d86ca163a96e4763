"""Records of benchmarks: their origin, their text, and what is left out."""

from dataclasses import replace

import pytest
import torch

from labkit.bench import ConvCase, ElementwiseCase, GemmCase, GemmRun, from_json, measure
from labkit.bench.cases import QUICK
from labkit.formats import BF16, FP16, FP32


@pytest.fixture(scope="module")
def record():
    return measure("layers", "cpu", extent=QUICK, rounds=1)


def test_a_record_says_where_and_when_it_was_measured(record):
    assert record.kind == "cpu"
    assert record.versions["torch"] == torch.__version__
    assert record.device
    assert record.date.endswith("+00:00")
    assert len(record.runs) == 9


def test_a_record_is_read_as_it_was_written(record):
    assert from_json(record.to_json()) == record


def test_a_record_of_all_kinds_of_cases_has_a_line_for_each(record):
    cases = (
        GemmCase(1, 2, 3, BF16, "TN", True, "something"),
        ConvCase(1, 2, 3, 4, 5, 1, FP16),
        ElementwiseCase("hardswish", 10, FP32),
    )
    runs = tuple(GemmRun(case, 0.5, 0.25, 1.0, 7, 0.0) for case in cases)
    other = replace(record, runs=runs, left_out=("a: b",))
    assert from_json(other.to_json()) == other
    assert len(other.to_json().splitlines()) == 1 + len(cases)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "labkit.run/1"}'])
def test_a_text_that_is_not_a_record_is_refused(text):
    with pytest.raises(ValueError, match="expected a record of a sweep"):
        from_json(text)


def test_an_unknown_sweep_is_refused():
    with pytest.raises(ValueError, match=r"expected a sweep of ceilings, size.*got 'sise'"):
        measure("sise", "cpu")


def test_a_record_names_the_cases_that_the_time_did_not_allow():
    record = measure("size", "cpu", extent=QUICK, seconds=0)
    assert record.runs == ()
    assert len(record.left_out) == 8
    assert record.left_out[0].endswith("the time was up")
