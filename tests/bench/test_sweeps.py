"""Sweeps of benchmarks: the cases of each, on a CPU and on a GPU."""

import pytest

from labkit import bench
from labkit.bench.cases import output_format
from labkit.formats import FP16, FP32, FP64
from labkit.machine.device import GENERATIONS

DEVICES = [
    bench.DeviceReport("cpu", "a CPU", 0, 2),
    bench.DeviceReport("cuda", "an old GPU", 0, 2),
] + [bench.DeviceReport("cuda", row.name, 0, 100, row.capabilities[0], row) for row in GENERATIONS]
each_device = pytest.mark.parametrize("report", DEVICES, ids=lambda report: report.name)


@each_device
def test_sweep_has_each_case_once(report):
    for sweep in bench.sweeps(report).values():
        assert sweep.cases, sweep.name
        assert len(set(sweep.cases)) == len(sweep.cases), sweep.name


@pytest.mark.parametrize("report", DEVICES[1:], ids=lambda report: report.name)
def test_sweep_of_a_gpu_has_formats_of_its_tensor_cores(report):
    for sweep in bench.sweeps(report).values():
        # A GPU without Tensor Cores computes in these, too.
        formats = {case.format for case in sweep.cases} - {FP64, FP32, FP16}
        assert {format.name for format in formats} <= set(report.tensor_cores), sweep.name


def test_alignment_changes_one_side_at_a_time():
    cases = [case for case in bench.sweeps(DEVICES[0])["alignment"].cases if case.format is FP32]
    base = max(case.k for case in cases)
    sides = set(range(base - 7, base + 1))
    assert base % 8 == 0
    assert {case.k for case in cases} == sides
    assert {case.n for case in cases} == sides
    for case in cases:
        assert case.m == base
        assert base in (case.k, case.n)


def test_accumulation_is_timed_reduced_and_in_full():
    hopper = next(report for report in DEVICES if report.name == "Hopper")
    cases = bench.sweeps(hopper)["accumulation"].cases
    assert {output_format(case.format).name for case in cases} == {"FP16", "BF16"}
    assert sum(case.reduced for case in cases) * 2 == len(cases)
