"""Verdicts on infinities, NaN, overflow, subnormal numbers, and results without elements."""

import math

import pytest
import torch
from torch import Tensor

from labkit import testing
from labkit.formats import FP16, Overflow, Rounding
from labkit.testing import VerdictKind, compare, matmul, sum_over
from tests.testing.test_compare import A, B, normal
from tests.testing.test_shapes import Shape


def operands_with_special_values() -> tuple[Tensor, Tensor]:
    """Return operands whose product is infinite in row 0, and NaN in rows 1 and 2."""
    a = A.float()
    a[0, 3] = math.inf
    a[1, 4] = math.nan
    a[2, 5] = math.inf
    a[2, 6] = -math.inf
    return a, B.float()


def test_equal_special_values_pass() -> None:
    a, b = operands_with_special_values()
    assert compare(a @ b, matmul(a, b))


@pytest.mark.parametrize(
    ("row", "value"), [(0, 1.0), (0, math.nan), (1, 1.0), (1, math.inf), (5, math.nan)]
)
def test_a_special_value_in_a_wrong_place_is_impossible(row: int, value: float) -> None:
    a, b = operands_with_special_values()
    wrong = a @ b
    wrong[row] = value
    verdict = compare(wrong, matmul(a, b))
    assert verdict.kind is VerdictKind.IMPOSSIBLE
    assert verdict.worst is not None
    assert verdict.worst.index[0] == row


ONES = torch.ones(2, 1).half()
# From 65520 on a sum rounds to infinity in FP16, whose largest number is 65504.
BELOW_OVERFLOW = matmul(torch.tensor([[65504.0, 15.9]]).half(), ONES)
BEYOND_OVERFLOW = matmul(torch.tensor([[65504.0, 20.0]]).half(), ONES)
LARGEST = torch.tensor([[65504.0]]).half()
INFINITY = torch.tensor([[math.inf]]).half()


@pytest.mark.parametrize(
    ("got", "operation", "kind"),
    [
        (LARGEST, BELOW_OVERFLOW, VerdictKind.EQUAL),
        (INFINITY, BELOW_OVERFLOW, VerdictKind.IMPOSSIBLE),
        (INFINITY, BEYOND_OVERFLOW, VerdictKind.EQUAL),
        (LARGEST, BEYOND_OVERFLOW, VerdictKind.IMPOSSIBLE),
    ],
    ids=["largest below", "infinity below", "infinity beyond", "largest beyond"],
)
def test_a_sum_overflows_where_rounding_does(
    got: Tensor, operation: testing.Operation, kind: VerdictKind
) -> None:
    assert compare(got, operation).kind is kind


def test_saturation_is_named() -> None:
    assert "saturates" in compare(LARGEST, BEYOND_OVERFLOW).suspects[0]


def test_saturation_may_be_allowed() -> None:
    assert compare(LARGEST, BEYOND_OVERFLOW, overflow=Overflow.SATURATE)


def small_operands() -> tuple[Tensor, Tensor]:
    """Return operands of FP16 whose product is subnormal there in many places."""
    return (normal(8, 4) * 2.0**-10).half(), (normal(4, 8, seed=3) * 2.0**-8).half()


def test_flushed_subnormals_are_named() -> None:
    a, b = small_operands()
    right = (a.float() @ b.float()).half()
    flushed = torch.where(right.abs() < FP16.smallest_normal, 0.0, right)
    verdict = compare(flushed, matmul(a, b))
    assert verdict.kind == VerdictKind.IMPOSSIBLE
    assert verdict.suspects == ("subnormal results flushed to zero",)


def test_subnormal_results_pass() -> None:
    a, b = small_operands()
    assert compare((a.float() @ b.float()).half(), matmul(a, b))


def test_a_result_cut_to_bf16_passes_only_if_it_is_allowed() -> None:
    bits = (A.float() @ B.float()).view(torch.int32)
    # BF16 is the first half of the bits of FP32.
    cut = (bits & -(1 << 16)).view(torch.float32).bfloat16()
    assert not compare(cut, matmul(A, B))
    assert compare(cut, matmul(A, B), rounding=Rounding.TOWARD_ZERO)


BIG = torch.full((1, 40), 6e4).half()


def test_elements_with_an_infinite_bound_are_reported() -> None:
    verdict = compare(INFINITY, matmul(BIG, BIG.T), accumulator=FP16)
    assert "1 element whose bound is infinite" in verdict.unjudged[0]


def test_a_sum_that_may_overflow_on_the_way_is_not_judged() -> None:
    """The sum is 0, but in some orders of its terms FP16 overflows."""
    signs = torch.tensor([[1.0, -1.0] * 20]).half()
    operation = matmul(BIG * signs, torch.ones(40, 1).half())
    verdict = compare(torch.ones(1, 1).half(), operation, accumulator=FP16)
    assert verdict.kind == VerdictKind.UNJUDGED
    assert not bool(verdict)


def test_a_result_without_elements_is_equal_and_reported() -> None:
    verdict = compare(torch.zeros(0, 3), matmul(torch.zeros(0, 4), torch.zeros(4, 3)))
    assert verdict.kind == VerdictKind.EQUAL
    assert verdict.unjudged == ("nothing: the result has no elements",)


def test_a_convolution_of_no_images_is_equal() -> None:
    operation = testing.convolution(torch.zeros(0, 3, 8, 8), torch.ones(4, 3, 3, 3))
    assert compare(torch.zeros(0, 4, 6, 6), operation).kind == VerdictKind.EQUAL


@pytest.mark.parametrize("accumulator", ["FP16", "BF16", "FP32"])
def test_a_mean_is_replayed_in_each_accumulator(accumulator: str) -> None:
    x = normal(64, 33)
    verdict = compare(x.mean(1), testing.mean(x, 1), accumulator=accumulator)
    assert verdict.explained
    assert verdict.reached is not None


def long_terms() -> Tensor:
    """Return a number of terms that is too large for a replay."""
    terms = torch.ones(1_000_001).half()
    terms[::3] = 0.1
    return terms


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_a_wrong_sum_of_no_terms_is_impossible(shape: Shape) -> None:
    operation = testing.sum_over(torch.zeros(shape), -1)
    assert testing.compare(torch.zeros(shape[:-1]), operation).kind is VerdictKind.EQUAL
    wrong = testing.compare(torch.ones(shape[:-1]), operation)
    assert wrong.kind is VerdictKind.IMPOSSIBLE
    assert "error needed         1; the bound is 0" in str(wrong)


def test_a_long_sum_is_not_replayed() -> None:
    terms = long_terms()
    # The number after the exact sum, so that the verdict is not "equal".
    got = torch.nextafter(terms.double().sum().float(), torch.tensor(math.inf))
    verdict = compare(got, sum_over(terms))
    assert "more than 1,000,000 terms are not replayed" in verdict.unjudged[0]


def test_a_wrong_long_sum_does_not_pass() -> None:
    terms = long_terms()
    assert not compare(terms.float().sum() * 1.2, sum_over(terms))
