"""The roof is where copies and products say, with numbers that a person can check."""

import pytest

from labkit.bench import ElementwiseCase, GemmCase, GemmRun, Roofline, intensity, roofline
from labkit.formats import FP16, FP32, FP64


def timed(case, seconds):
    return GemmRun(case, seconds, seconds, seconds, 1, 0.0)


COPY = timed(ElementwiseCase("copy", 10**9, FP32), 8.0)  # 8 * 10^9 bytes in 8 s: 1 GB/s
LARGE = timed(GemmCase(1000, 1000, 1000, FP32), 0.2)  # 2 * 10^9 FLOP in 0.2 s: 10 GFLOP/s


def test_worked_example_of_a_roof():
    """1 GB/s and 10 GFLOP/s meet at 10 FLOP for each byte."""
    roof = roofline([COPY, LARGE])
    assert roof.bandwidth == 1e9
    assert roof.peak(FP32) == pytest.approx(1e10)
    assert roof.ridge(FP32) == pytest.approx(10)
    assert roof.ceiling(4, FP32) == pytest.approx(4e9)
    assert roof.ceiling(400, FP32) == pytest.approx(1e10)


def test_the_fastest_of_each_counts():
    slower = timed(ElementwiseCase("copy", 10**9, FP32), 80.0)
    small = timed(GemmCase(10, 10, 10, FP32), 1.0)
    half = timed(GemmCase(1000, 1000, 1000, FP16), 0.1)
    fused = timed(ElementwiseCase("hardswish", 10**9, FP32), 0.001)  # no copy: sets no ceiling
    roof = roofline([slower, COPY, small, LARGE, half, fused])
    assert roof == Roofline(1e9, {FP32: roof.peak(FP32), FP16: roof.peak(FP16)})
    assert (roof.peak(FP32), roof.peak(FP16)) == (pytest.approx(1e10), pytest.approx(2e10))


def test_a_run_is_measured_by_the_peak_and_by_its_own_ceiling():
    """With m rows, a product of FP32 n = k = 1000 does about m / 2 FLOP for each byte, as long as m is small."""
    roof = roofline([COPY, LARGE])
    one = GemmCase(1, 1000, 1000, FP32)
    assert intensity(one) == pytest.approx(0.5, rel=0.01)
    assert roof.bound(one) == "bandwidth"
    assert roof.bound(GemmCase(100, 1000, 1000, FP32)) == "compute"
    assert roof.of_ceiling(LARGE) == roof.of_ceiling(COPY) == 1.0
    assert roof.of_ceiling(timed(one, 0.008016)) == pytest.approx(0.5)  # 4,008,000 bytes at half the bandwidth
    fused = timed(ElementwiseCase("hardswish", 10**9, FP32), 16.0)
    assert roof.of_ceiling(fused) == 0.5, "its few operations need no Tensor Core: bytes are what counts"
    assert roof.bound(fused.case) == "bandwidth"


def test_what_was_not_measured_is_not_guessed():
    roof = roofline([COPY, LARGE])
    with pytest.raises(ValueError, match="no product of FP64 was measured for this roofline; it has FP32"):
        roof.ridge(FP64)
    for runs in ([COPY], [LARGE], []):
        with pytest.raises(ValueError, match="needs a copy and a product"):
            roofline(runs)
