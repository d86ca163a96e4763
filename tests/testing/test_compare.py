"""Verdicts on kernels: worked examples, 60 kernels with a fault, and 60 without."""

import pytest
import torch
from torch import Tensor

from labkit import testing
from labkit.formats import FP16
from labkit.gemm import SEQUENTIAL_FP16, accumulate
from labkit.testing import VerdictKind, assert_explained, compare, matmul, softmax
from tests.testing import kernels
from tests.testing.kernels import RIGHT, WRONG, Kernel, case


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normally distributed FP32 numbers of a shape."""
    return kernels.normal(seed, *shape)


A = normal(24, 200).half()
B = normal(200, 16, seed=1).half()
EXACT = A.double() @ B.double()


def verdict_on(kernel: Kernel) -> testing.Verdict:
    """Return the verdict on a kernel's result of its case."""
    task = case(kernel.case)
    return compare(kernel.run(*task.arguments), task.operation, **task.settings)


@pytest.mark.parametrize("group", [WRONG, RIGHT], ids=["wrong", "right"])
def test_there_are_sixty_kernels_of_each_kind(group: tuple[Kernel, ...]) -> None:
    """docs/testing.md states these numbers."""
    assert len(group) == 60
    assert len({kernel.name for kernel in group}) == 60


def test_each_faulty_kernel_names_a_thread() -> None:
    assert [kernel.name for kernel in WRONG if "#" not in kernel.thread] == []


@pytest.fixture(scope="module")
def kinds() -> dict[str, VerdictKind]:
    """Name of each faulty kernel -> the kind of the verdict on it."""
    return {kernel.name: verdict_on(kernel).kind for kernel in WRONG}


def test_no_faulty_kernel_passes(kinds: dict[str, VerdictKind]) -> None:
    passing = (VerdictKind.EQUAL, VerdictKind.ROUNDING)
    assert [name for name, kind in kinds.items() if kind in passing] == []


def test_two_faulty_kernels_are_larger_than_rounding(kinds: dict[str, VerdictKind]) -> None:
    """Their differences are within the bound, but larger than rounding typically is."""
    assert {name for name, kind in kinds.items() if kind is VerdictKind.LARGER} == {
        "mean of squares minus square of mean",
        "rounds FP32 sums toward zero",
    }


@pytest.mark.parametrize("kernel", RIGHT, ids=lambda kernel: kernel.name)
def test_a_right_kernel_passes(kernel: Kernel) -> None:
    verdict = verdict_on(kernel)
    assert verdict, str(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(100, 600, 100))
def test_other_numbers_have_the_same_verdicts(draw: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kernel, on numbers of other seeds."""
    usual = kernels.normal
    monkeypatch.setattr(kernels, "normal", lambda seed, *shape: usual(seed + draw, *shape))
    case.cache_clear()
    try:
        assert [kernel.name for kernel in WRONG if verdict_on(kernel)] == []
        assert [kernel.name for kernel in RIGHT if not verdict_on(kernel)] == []
    finally:
        case.cache_clear()


# A second suspect that gives the same numbers as rounding to TF32, unless a drawn operand is
# subnormal in FP16, which depends on the CPU.
ALIKE = ", or operands that were rounded to FP16 first (the same numbers here)"
# Name of a faulty kernel -> its first suspect.
SUSPECTS = {
    "drops the last term": "the last term of each sum is missing",
    "drops K behind the last full tile": (
        "the last 52, behind the last full tile of 64, terms of each sum are missing"
    ),
    "FP16 accumulator": "sums in FP16 instead of FP32: the errors have this size",
    "BF16 partial sums": "partial sums of 64 terms that are added up in BF16",
    "cuts the result to BF16": "rounding toward zero at the end",
    "rounds FP32 sums toward zero": (
        "additions that round toward zero in FP32: the errors have this size"
    ),
    "TF32 where FP32 was promised": "operands that were rounded to TF32 first",
    "split-K: an empty slice adds its old accumulator": (
        "an offset: 0.25 was added to the exact result"
    ),
    "TF32 operands cut, not rounded": "operands that were cut to TF32 first",
    "bias is not added": "the bias is missing",
    "bias in every slice of K": "the bias was added twice",
    "eps outside of the root": "eps is added outside of the root",
    "variance divided by n - 1": "the variance is divided by n - 1",
}


@pytest.mark.parametrize("name", SUSPECTS)
def test_the_first_suspect_is_the_kernels_fault(name: str) -> None:
    (kernel,) = [kernel for kernel in WRONG if kernel.name == name]
    suspect = verdict_on(kernel).suspects[0]
    assert suspect.removesuffix(ALIKE) == SUSPECTS[name]


def test_worked_example_the_exact_result_is_equal() -> None:
    verdict = compare(EXACT.half(), matmul(A, B))
    assert verdict.kind is VerdictKind.EQUAL
    assert verdict


def test_worked_example_sums_in_fp32_are_rounding() -> None:
    verdict = compare(A.float() @ B.float(), matmul(A, B))
    assert verdict.kind is VerdictKind.ROUNDING
    assert verdict


def test_worked_example_sums_in_fp32_stored_in_fp16_pass() -> None:
    assert compare((A.float() @ B.float()).half(), matmul(A, B))


def test_worked_example_sums_in_fp16_are_impossible() -> None:
    got = accumulate(A, B, None, SEQUENTIAL_FP16, FP16)
    assert compare(got, matmul(A, B)).kind is VerdictKind.IMPOSSIBLE


def test_worked_example_a_common_factor_is_larger_than_rounding() -> None:
    """Every element is within its bound, but all are too large by the same factor."""
    verdict = compare(EXACT.float() * (1 + 2.0**-18), matmul(A, B))
    assert verdict.kind is VerdictKind.LARGER
    assert not verdict
    assert verdict.reached is not None
    is_beyond_replays = verdict.share > 4 * verdict.reached
    is_beyond_typical = verdict.typical[0] > 2 * verdict.typical[1]
    assert is_beyond_replays or is_beyond_typical


def test_the_assertion_passes_a_right_product() -> None:
    assert_explained((A.float() @ B.float()).half(), A, B, out=FP16, accumulator="H100")


def test_the_assertion_raises_with_the_verdict() -> None:
    got = (A[:, :-8].float() @ B[:-8].float()).half()
    with pytest.raises(testing.Unexplained, match="cannot be rounding") as raised:
        assert_explained(got, A, B, out=FP16, accumulator="H100")
    assert raised.value.verdict.suspects == ("the last 8 terms of each sum are missing",)


def test_the_assertion_returns_the_verdict_on_an_operation() -> None:
    assert assert_explained(torch.softmax(A.float(), 1), softmax(A)).explained


def test_the_assertion_takes_a_scale_and_a_bias() -> None:
    scaled = (A.float() @ B.float() * 0.3 + 1).half()
    assert_explained(scaled, A, B, bias=torch.ones(16), scale=0.3)
