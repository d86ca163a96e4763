"""The least error before the final rounding that explains a result."""

from itertools import product

import numpy as np
import pytest

from labkit.formats import BF16, FP16, Format, Rounding, round_to, ulp
from labkit.testing import compare, matmul

DIRECTIONS = [rounding for rounding in Rounding if rounding is not Rounding.STOCHASTIC]
# Powers of two, other numbers, and the smallest subnormal number.
NUMBERS = (16.0, 3.03125, -16.0, -3.03125, 2.0**-24)


def need_of(exact: float, got: float, out: Format, rounding: Rounding) -> float:
    """Return the need of a kernel that returned `got` for a product that is exactly `exact`."""
    product = matmul(np.float32([[exact]]), np.float32([[1.0]]))
    worst = compare(np.float32([[got]]), product, out=out, rounding=rounding).worst
    assert worst is not None
    return worst.need


def differing() -> list[tuple[Rounding, float, float]]:
    """Return exact values beside numbers of FP16 that they are not rounded to."""
    cases = []
    for rounding, got, ulps in product(DIRECTIONS, NUMBERS, (0.7, 1.3, -0.7, -1.3)):
        exact = float(np.float32(got + ulps * float(ulp(got, FP16))))
        if float(round_to(exact, FP16, rounding)) != got:
            cases.append((rounding, got, exact))
    return cases


@pytest.mark.parametrize(("rounding", "got", "exact"), differing())
def test_the_result_is_explained_from_the_error_needed_on(
    rounding: Rounding, got: float, exact: float
) -> None:
    need = need_of(exact, got, FP16, rounding)
    toward = np.sign(got - exact)
    assert float(round_to(exact + toward * need * 0.999, FP16, rounding)) != got
    assert float(round_to(exact + toward * need * 1.001, FP16, rounding)) == got


def test_a_result_above_a_power_of_two_needs_more_than_the_bound() -> None:
    """15.955 is rounded to 15.9375; below 16 the numbers are half as far apart as above it."""
    product = matmul(np.float32([[15.955]]), np.float32([[1.0]]))
    verdict = compare(np.float32([[16.0]]), product, out=BF16)
    assert verdict.worst is not None
    assert verdict.worst.need > verdict.worst.bound
