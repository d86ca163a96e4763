"""The fate of a tensor in FP16, told from its histogram, against rounding the tensor itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.formats import BF16, E4M3, E8M0, FP16
from labkit.instrument import exponent_histogram, fate, shift


def test_worked_example() -> None:
    h = exponent_histogram(torch.tensor([2.0**-26, 2.0**-24, 2.0**-15, 1.0, 65504.0, 65536.0, 0.0, float("inf")]))
    f = fate(h, FP16)
    assert (f.underflowed, f.subnormal, f.normal, f.overflowed) == (1 / 6, 2 / 6, 2 / 6, 1 / 6)
    f = fate(exponent_histogram(torch.zeros(5)), FP16)
    assert (f.underflowed, f.subnormal, f.normal, f.overflowed) == (0, 0, 0, 0)


def test_against_rounding_every_element() -> None:
    # Oracle: numpy's FP16. The values avoid the three slivers, whose width the next test measures.
    for log2_scale in (0, 7, 16, 24, 30):
        generator = torch.Generator().manual_seed(log2_scale)
        exponents = torch.randint(-45, 16, (20_000,), generator=generator).float()
        values = (1.25 + 0.5 * torch.rand(20_000, generator=generator)) * 2.0**exponents
        with np.errstate(over="ignore"):
            rounded = np.abs((values * 2.0**log2_scale).numpy().astype(np.float16).astype(np.float64))
        f = fate(shift(exponent_histogram(values), log2_scale), FP16)
        subnormal = (rounded > 0) & (rounded < float(np.finfo(np.float16).smallest_normal))
        expected = ((rounded == 0).mean(), subnormal.mean(), np.isinf(rounded).mean())
        assert (f.underflowed, f.subnormal, f.overflowed) == expected, log2_scale
        assert f.underflowed + f.subnormal + f.normal + f.overflowed == pytest.approx(1, abs=1e-12)


def test_the_three_slivers_are_as_stated() -> None:
    # Every FP32 number between the smallest and the largest of each sliver's binade: who is counted wrongly?
    def wrong(lowest: float, is_as_told: object) -> np.ndarray:
        first = np.float32(lowest).view(np.int32)
        values = np.arange(first, first + 2**23, dtype=np.int32).view(np.float32)
        with np.errstate(over="ignore"):
            return values[~is_as_told(np.abs(values.astype(np.float16)))]  # type: ignore[operator]

    assert wrong(2.0**-25, lambda r: r > 0).tolist() == [2.0**-25]
    assert wrong(2.0**-15, lambda r: r < 2.0**-14).min() == 2.0**-14 - 2.0**-25
    assert wrong(2.0**15, np.isfinite).min() == 65520


def test_other_formats_by_their_own_ranges() -> None:
    h = exponent_histogram(torch.tensor([2.0**-12, 2.0**-8, 1.0, 512.0]))
    assert fate(h, E4M3).underflowed == 0.25  # E4M3 ends at 2^-9, half of which survives
    assert fate(h, E4M3).overflowed == 0.25  # and at 448
    assert fate(h, BF16).normal == 1.0


def test_a_format_without_a_sign_or_a_zero_is_refused() -> None:
    positive, no_zero = replace(E8M0, name="positive", has_zero=True), replace(E8M0, name="all", signed=True)
    for format, missing in ((E8M0, "no sign and no zero"), (positive, "no sign"), (no_zero, "no zero")):
        with pytest.raises(ValueError, match=f"{format.name} has {missing}. Take a format"):
            fate(exponent_histogram(torch.ones(3)), format)
