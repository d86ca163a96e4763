"""Zeros of the other sign, which a verdict counts and accepts."""

import pytest
import torch

from labkit.testing import Operation, VerdictKind, amax, compare, matmul, sum_over
from tests.testing.test_clues import PRODUCT, A, B


def product_of_minus_zero() -> Operation:
    """Return a product of -2^-30, which is -0 in FP16."""
    small = torch.full((1, 1), 2.0**-15).half()
    return matmul(-small, small)


def test_a_zero_of_the_other_sign_is_reported_and_passes() -> None:
    verdict = compare(torch.zeros(1, 1).half(), product_of_minus_zero())
    assert verdict.kind == VerdictKind.EQUAL
    assert verdict.zeros == 1
    assert "not judged: 1 zero has the other sign" in str(verdict)


def test_a_zero_of_the_same_sign_is_not_reported() -> None:
    verdict = compare(-torch.zeros(1, 1).half(), product_of_minus_zero())
    assert verdict.zeros == 0
    assert "other sign" not in str(verdict)


def test_zeros_of_the_other_sign_are_counted() -> None:
    x = torch.tensor([[-1.0, -0.0], [-2.0, -0.0]])
    assert compare(torch.zeros(2), amax(x, 1)).zeros == 2
    assert compare(torch.amax(x, 1), amax(x, 1)).zeros == 0


def test_other_differences_are_not_counted_as_zeros() -> None:
    got = PRODUCT.half()
    got[0, 0] += 1
    assert compare(got, matmul(A, B)).zeros == 0


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_the_zero_of_a_sum_that_cancels_has_either_sign(zero: float) -> None:
    terms = torch.tensor([[1.0, -1.0]])
    assert compare(torch.tensor([zero]), sum_over(terms, 1)).zeros == 0
