"""Differences of 16-bit numbers that are mostly rounding."""

import torch

from labkit.clinic.rounding import difference

# FP16 numbers from 64 to 128 lie 2^-4 apart
FIRST = torch.tensor([100.0, 100.0625, 100.125])


def test_a_difference_of_one_ulp_is_mostly_rounding() -> None:
    second = FIRST + 0.0625
    assert difference(FIRST, second, FIRST - second, torch.float16) == 2.0**-4


def test_a_difference_of_many_ulps_is_not_rounding() -> None:
    second = FIRST + 1
    assert difference(FIRST, second, FIRST - second, torch.float16) == 0


def test_a_difference_of_equal_tensors_is_exact() -> None:
    assert difference(FIRST, FIRST, FIRST - FIRST, torch.float16) == 0


def test_a_difference_with_nan_is_not_rounding() -> None:
    second = torch.tensor([100.0625, torch.nan, 100.1875])
    assert difference(FIRST, second, FIRST - second, torch.float16) == 0
