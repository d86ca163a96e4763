"""Lesson 03b, and the page of the documentation, against what the package prints."""

import re
from fractions import Fraction

import numpy as np
import pytest

from labkit.formats import FP16
from labkit.formats.text import round_fraction
from labkit.grading import EXERCISES
from labkit.testing import Arithmetic, VerdictKind, compare, matmul, sum_error
from labkit.testing.vectors import check, known_mistakes, vectors
from labkit.widgets import predictions
from labkit_lessons.lesson_03b_rounding_or_fault import SIX, six_operands
from tests.grading.cases import cases, reference
from tests.testing.test_tolerance_command import ROOT


def outputs_on_the_page() -> list[str]:
    """Return the outputs that docs/testing.md shows: a verdict, and broken rules."""
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    return re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)


def test_the_page_shows_the_verdict_that_is_printed() -> None:
    a, b = six_operands()
    assert outputs_on_the_page()[0] == f"{compare(SIX['D'](a, b), matmul(a, b))}\n"


def test_the_page_shows_the_broken_rules_that_are_printed() -> None:
    table = vectors("NVFP4")
    messages = check({**table, **known_mistakes(table)["scale rounded up"]})
    assert outputs_on_the_page()[1].splitlines() == messages


@pytest.fixture(scope="module")
def distances() -> dict[str, np.ndarray]:
    """Name of each of the six kernels -> distances of its results from the nearest FP16 numbers."""
    a, b = six_operands()
    nearest = matmul(a, b).value.astype(np.float16).astype(np.float64)
    return {name: np.abs(kernel(a, b).double().numpy() - nearest) for name, kernel in SIX.items()}


def test_the_faulty_kernel_has_the_smallest_largest_distance(
    distances: dict[str, np.ndarray],
) -> None:
    largest = {name: values.max() for name, values in distances.items()}
    assert min(SIX, key=largest.get) == "D"
    assert max(SIX, key=largest.get) in "BCF"
    assert round(largest["D"], 3) == 0.016


def test_the_largest_distance_of_a_right_kernel_is_one_step(
    distances: dict[str, np.ndarray],
) -> None:
    """A step of FP16 is 0.5, 1 or 2, depending on the size of the result."""
    assert {distances[name].max() for name in "ABCEF"} <= {0.5, 1.0, 2.0}


def test_the_faulty_kernel_has_the_most_distances(distances: dict[str, np.ndarray]) -> None:
    assert 3000 <= np.count_nonzero(distances["D"]) <= 3100
    for name in "ABCEF":
        assert 10 < np.count_nonzero(distances[name]) < 100, name


@pytest.mark.parametrize("name", SIX)
def test_only_the_faulty_kernel_of_six_is_impossible(name: str) -> None:
    a, b = six_operands()
    accumulator = "H100" if name == "F" else "FP32"
    verdict = compare(SIX[name](a, b), matmul(a, b), accumulator=accumulator)
    expected = VerdictKind.IMPOSSIBLE if name == "D" else VerdictKind.ROUNDING
    assert verdict.kind is expected


def test_the_lesson_has_two_predictions() -> None:
    assert {"kernels.six", "kernels.bound"} <= set(predictions())


def test_the_answer_of_the_prediction_is_the_bound() -> None:
    bound = float(sum_error(Arithmetic("FP32"), 4096, np.array(1000.0)))
    assert 0.2440 < bound < 0.2445
    assert predictions()["kernels.bound"].answer == "about 0.24"


def test_the_exercise_is_in_the_lesson() -> None:
    assert EXERCISES["kernels.allowed"].lesson == "03b_rounding_or_fault"


def test_the_reference_is_the_formula_in_fractions() -> None:
    for a, b, precision in cases("kernels.allowed"):
        products = [Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)]
        magnitude = sum((abs(product) for product in products), Fraction(0))
        unit = Fraction(1, 2**precision)
        error = ((1 + unit) ** max(0, len(a) - 1) - 1) * magnitude
        exact = sum(products, Fraction(0))
        lowest = round_fraction(exact - error, FP16)
        highest = round_fraction(exact + error, FP16)
        assert reference("kernels.allowed")(a, b, precision) == (lowest, highest)
