"""Histograms of exponents: a worked example, what must always hold, and numpy's frexp as the oracle."""

import math

import numpy as np
import pytest
import torch

from labkit.instrument import exponent_histogram, merge, shift


def test_worked_example() -> None:
    # 3 = 1.5 * 2^1, 1 = 2^0, 0.75 = 1.5 * 2^-1; one zero, one infinity, one NaN.
    h = exponent_histogram(torch.tensor([3.0, 1.0, -0.75, -0.0, float("-inf"), float("nan")]))
    assert (h.count(1, 1), h.count(0, 0), h.count(-1, -1)) == (1, 1, 1)
    assert (h.finite_non_zero, h.zeros, h.non_finite, h.total) == (3, 1, 2, 6)


def test_scaling_by_a_power_of_two_is_a_shift() -> None:
    values = torch.randn(1000) * 2.0**-20
    scaled, shifted = exponent_histogram(values * 2.0**13), shift(exponent_histogram(values), 13)
    assert [shifted.count(e, e) for e in range(-60, 20)] == [scaled.count(e, e) for e in range(-60, 20)]


def test_merging_is_counting_everything_at_once() -> None:
    a, b = torch.randn(100), torch.randn(50) * 1e-6
    together, merged = exponent_histogram(torch.cat([a, b])), merge([exponent_histogram(a), exponent_histogram(b)])
    assert np.array_equal(together.counts, merged.counts)
    moved = merge([shift(exponent_histogram(a), 5), exponent_histogram(b)])
    assert moved.total == 150
    assert moved.count(-149, -149) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_bit_pattern_against_frexp(dtype: torch.dtype) -> None:
    # All 2^16 patterns of the 16-bit types; for FP32 a seeded million, with all its subnormal exponents.
    if dtype == torch.float32:
        patterns = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), generator=torch.Generator().manual_seed(0))
        values = patterns.to(torch.int32).view(torch.float32)
        values = torch.cat([values, 2.0 ** torch.arange(-149, -120, dtype=torch.float32)])
    else:
        values = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    exact = values.double().numpy()
    magnitude = np.abs(exact[np.isfinite(exact) & (exact != 0)])
    exponents, counts = np.unique(np.frexp(magnitude)[1] - 1, return_counts=True)
    h = exponent_histogram(values)
    assert {int(e): h.count(int(e), int(e)) for e in exponents} == dict(
        zip(exponents.tolist(), counts.tolist(), strict=False)
    )
    assert h.finite_non_zero == len(magnitude)
    assert h.zeros == int((exact == 0).sum())
    assert h.non_finite == int((~np.isfinite(exact)).sum())


def test_bad_input_is_answered() -> None:
    with pytest.raises(TypeError, match="counts FP16, BF16 and FP32"):
        exponent_histogram(torch.zeros(3, dtype=torch.float64))
    for no_binades in (0.5, math.nan, math.inf):
        with pytest.raises(TypeError, match="whole binades"):
            shift(exponent_histogram(torch.ones(1)), no_binades)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one"):
        merge([])
    assert exponent_histogram(torch.empty(0)).total == 0
