"""The least error before the final rounding that explains a result."""

import numpy as np
import pytest

from labkit.formats import BF16, FP16, Format, Rounding, round_to, ulp
from labkit.testing import compare, matmul

DIRECTIONS = [rounding for rounding in Rounding if rounding is not Rounding.STOCHASTIC]


def need_of(exact: float, got: float, out: Format, rounding: Rounding) -> float:
    """Return the need of a kernel that returned `got` for a product that is exactly `exact`."""
    product = matmul(np.float32([[exact]]), np.float32([[1.0]]))
    worst = compare(np.float32([[got]]), product, out=out, rounding=rounding).worst
    assert worst is not None
    return worst.need


@pytest.mark.parametrize("rounding", DIRECTIONS)
@pytest.mark.parametrize("got", [16.0, 3.03125, -16.0, -3.03125, 2.0**-24])
@pytest.mark.parametrize("ulps", [0.7, 1.3, -0.7, -1.3])
def test_the_result_is_explained_from_the_error_needed_on(
    rounding: Rounding, got: float, ulps: float
) -> None:
    exact = float(np.float32(got + ulps * float(ulp(got, FP16))))
    if float(round_to(exact, FP16, rounding)) == got:
        pytest.skip("this result is right")
    need = need_of(exact, got, FP16, rounding)
    toward = np.sign(got - exact)
    too_little, enough = exact + toward * need * 0.999, exact + toward * need * 1.001
    assert float(round_to(too_little, FP16, rounding)) != got
    assert float(round_to(enough, FP16, rounding)) == got


def test_a_result_above_a_power_of_two_needs_more_than_the_bound() -> None:
    """15.955 is rounded to 15.9375; below 16 the numbers are half as far apart as above it."""
    product = matmul(np.float32([[15.955]]), np.float32([[1.0]]))
    verdict = compare(np.float32([[16.0]]), product, out=BF16)
    assert verdict.worst is not None
    assert verdict.worst.need > verdict.worst.bound
