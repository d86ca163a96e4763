"""What lesson 03b says: the six kernels, and its exercise against fractions and real accumulators."""

from fractions import Fraction

import numpy as np

from labkit.formats import FP16
from labkit.formats.text import round_fraction
from labkit.grading import EXERCISES, SIX, six_operands
from labkit.testing import Arithmetic, VerdictKind, compare, matmul, sum_error
from labkit.widgets import predictions
from tests.grading.cases import cases, reference


def test_the_six_kernels_are_as_the_lesson_says() -> None:
    a, b = six_operands()
    product = matmul(a, b)
    nearest = product.value.astype(np.float16).astype(np.float64)
    off = {name: np.abs(kernel(a, b).double().numpy() - nearest) for name, kernel in SIX.items()}
    largest, many = ({name: what(each) for name, each in off.items()} for what in (np.max, np.count_nonzero))
    assert min(SIX, key=lambda name: largest[name]) == "D"
    assert max(SIX, key=lambda name: largest[name]) in "BCF"
    assert round(largest["D"], 3) == 0.016
    assert {largest[name] for name in "ABCEF"} <= {0.5, 1.0, 2.0}
    assert 3000 <= many["D"] <= 3100
    assert all(10 < many[name] < 100 for name in "ABCEF")
    verdicts = {name: compare(kernel(a, b), product, accumulator="H100" if name == "F" else "FP32").kind
                for name, kernel in SIX.items()}  # fmt: skip
    assert [name for name, kind in verdicts.items() if kind is not VerdictKind.ROUNDING] == ["D"]
    assert verdicts["D"] is VerdictKind.IMPOSSIBLE


def test_the_numbers_of_the_predictions() -> None:
    rows = predictions()
    assert {"kernels.six", "kernels.bound"} <= set(rows)
    bound = float(sum_error(Arithmetic("FP32"), 4096, np.array(1000.0)))
    assert 0.2440 < bound < 0.2445
    assert rows["kernels.bound"].answer == "about 0.24"


def test_the_reference_is_the_formula_in_fractions() -> None:
    assert EXERCISES["kernels.allowed"].lesson == "03b_rounding_or_fault"
    for a, b, precision in cases("kernels.allowed"):
        products = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)]
        unit = Fraction(1, 2**precision)
        error = ((1 + unit) ** max(0, len(a) - 1) - 1) * sum(map(abs, products), Fraction(0))
        exact = sum(products, Fraction(0))
        ends = tuple(round_fraction(end, FP16) for end in (exact - error, exact + error))
        assert reference("kernels.allowed")(a, b, precision) == ends
