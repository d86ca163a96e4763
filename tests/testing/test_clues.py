"""Verdicts that name a known fault."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import testing
from labkit.formats import BF16, TF32, Format, Rounding
from labkit.interop import round_tensor
from labkit.testing import (
    Operation,
    VerdictKind,
    assert_explained,
    compare,
    layer_norm,
    matmul,
    mean,
    rms_norm,
    softmax,
)
from tests.testing.kernels import norm, normal, rms

A = normal(40, 48, 1000).half()
B = normal(41, 1000, 64).half()
PRODUCT = A.float() @ B.float()
X = normal(42, 64, 512) * 2 + 3
W = normal(43, 512)
BIAS = normal(44, 512)


# ---- faults within the bound


def eps_outside_of_the_root() -> Tensor:
    """Return a layer norm with a fault whose results are within the bound of rounding."""
    return norm(X, W, BIAS, rstd=lambda v: 1 / (v.sqrt() + 1e-5))


def test_a_fault_within_the_bound_is_suspected() -> None:
    verdict = compare(eps_outside_of_the_root(), layer_norm(X, W, BIAS))
    assert verdict.kind is VerdictKind.SUSPECTED
    assert not verdict
    assert verdict.suspects == ("eps is added outside of the root",)


def test_a_suspected_fault_does_not_pass_the_assertion() -> None:
    with pytest.raises(testing.Unexplained, match="a known fault fits better"):
        assert_explained(eps_outside_of_the_root(), layer_norm(X, W, BIAS))


def test_a_verdict_says_how_much_better_the_fault_fits() -> None:
    """It is the ratio of the distances to both results, here computed by torch in FP64."""
    got = eps_outside_of_the_root()
    wide = X.double()
    right = F.layer_norm(wide, (512,), W.double(), BIAS.double())
    deviation = wide.var(1, keepdim=True, correction=0).sqrt()
    wrong = (wide - wide.mean(1, keepdim=True)) / (deviation + 1e-5) * W + BIAS
    times = ((got - right).square().mean() / (got - wrong).square().mean()).sqrt()
    verdict = compare(got, layer_norm(X, W, BIAS))
    assert verdict.rival is not None
    assert verdict.rival.times == pytest.approx(float(times), rel=0.1)
    rounded = f"{verdict.rival.times:.3g}"
    assert f"eps is added outside of the root; it fits {rounded} times better" in str(verdict)


@pytest.mark.parametrize(
    "got", [norm(X, W, BIAS), F.layer_norm(X, (512,), W, BIAS)], ids=["ours", "torch"]
)
def test_the_same_norm_without_the_fault_passes(got: Tensor) -> None:
    verdict = compare(got, layer_norm(X, W, BIAS))
    assert verdict.kind == VerdictKind.ROUNDING
    assert verdict.rival is None


def test_another_eps_is_named_in_fp32() -> None:
    verdict = compare(norm(X, W, BIAS, eps=1e-6), layer_norm(X, W, BIAS))
    assert verdict.kind == VerdictKind.SUSPECTED
    assert verdict.suspects == ("eps is 1e-06 instead of 1e-05",)


@pytest.mark.parametrize("share", [2.0**-10, 2.0**-12])
def test_a_small_last_term_that_is_missing_does_not_pass(share: float) -> None:
    a = A.clone()
    a[:, -1] *= share * 4
    verdict = compare(a[:, :-1].float() @ B[:-1].float(), matmul(a, B))
    assert not verdict
    assert verdict.suspects == ("the last term of each sum is missing",)


def test_a_result_that_is_the_fault_to_the_bit_does_not_pass() -> None:
    """Products of whole numbers are exact, also without the last term of each sum."""
    random = np.random.default_rng(0)
    a, b = (torch.tensor(random.integers(-60, 60, (n, 1024))).double() for n in (48, 64))
    a[:, -1] /= 256
    without_last = a[:, :-1] @ b[:, :-1].T
    verdict = compare(without_last, matmul(a.half(), b.half().T))
    assert verdict.kind is VerdictKind.LARGER
    assert verdict.suspects == ("the last term of each sum is missing",)


# ---- clues


def one_pass(x: Tensor, w: Tensor) -> Tensor:
    """Return a layer norm whose variance is the mean of squares minus the square of the mean."""
    centre = x.mean(1, keepdim=True)
    return (x - centre) * torch.rsqrt((x * x).mean(1, keepdim=True) - centre**2 + 1e-5) * w


def stale(share: float) -> Tensor:
    """Return the product with a share of its left half added to its right half."""
    left = PRODUCT[:, :32]
    right = PRODUCT[:, 32:]
    return torch.cat([left, right + share * left], 1).half()


FAR = normal(46, 64, 512) * 0.1 + 100
HALVES = [A[:, part].float() @ B[part].float() for part in (slice(0, 500), slice(500, 1000))]
BF_X = (normal(47, 64, 384) + 1).bfloat16()
BF_W = normal(48, 384).bfloat16()
SCALE = torch.rand(48, generator=torch.Generator().manual_seed(49)) + 0.5
SQUARE = A[:, :300] @ B[:300, :48]
# Fault -> a kernel that has it, what it should compute, and the first clue.
CLUES: dict[str, tuple[Callable[[], Tensor], Callable[[], Operation], str]] = {
    "FP16 partial sums": (
        lambda: HALVES[0].half() + HALVES[1].half(),
        lambda: matmul(A, B),
        "partial sums of 2 slices that are stored in FP16",
    ),
    "stale accumulator": (
        lambda: stale(0.001),
        lambda: matmul(A, B),
        "0.001 times the part before it was added: an accumulator that was not cleared, "
        "from index 32 of dimension 1 on",
    ),
    "variance in one pass": (
        lambda: one_pass(FAR, W),
        lambda: layer_norm(FAR, W),
        "the variance is the mean of squares minus the square of the mean: "
        "the errors have this size",
    ),
    "base 2": (
        lambda: torch.softmax(X * math.log(2), 1),
        lambda: softmax(X),
        "powers of 2 in place of e",
    ),
    "cast before the bias": (
        lambda: PRODUCT.bfloat16().float() + BIAS[:64],
        lambda: matmul(A, B, bias=BIAS[:64]),
        "the product is rounded to BF16 before the scale or the bias",
    ),
    "cast before the weight": (
        lambda: rms(BF_X).bfloat16() * BF_W,
        lambda: rms_norm(BF_X, BF_W),
        "the values are rounded to BF16 before the weight",
    ),
    "1 + weight": (
        lambda: rms(BF_X, 1 + BF_W.float()).bfloat16(),
        lambda: rms_norm(BF_X, BF_W),
        "1 is added to the weight",
    ),
    "transposed scale": (
        lambda: (SQUARE.float() * SCALE).half(),
        lambda: matmul(A[:, :300], B[:300, :48], scale=SCALE[:, None]),
        "the scale is applied along the other dimension",
    ),
    "eps missing": (
        lambda: norm(X * 0.05, eps=0.0).half(),
        lambda: layer_norm(X * 0.05),
        "eps is missing, or eps is 1e-08 instead of 1e-05, or eps is 1e-12 instead of 1e-05 "
        "(the same numbers here)",
    ),
}


@pytest.mark.parametrize("name", CLUES)
def test_the_first_clue_is_the_fault(name: str) -> None:
    run, operation, clue = CLUES[name]
    verdict = compare(run(), operation())
    assert not verdict
    assert verdict.suspects[0] == clue


@pytest.mark.parametrize("name", sorted(CLUES.keys() - {"stale accumulator"}))
def test_a_fault_has_one_clue(name: str) -> None:
    run, operation, _ = CLUES[name]
    assert len(compare(run(), operation()).suspects) == 1


def test_the_second_clue_of_a_stale_accumulator_says_where() -> None:
    clues = compare(stale(0.001), matmul(A, B)).suspects
    assert "only dimension 1, index 32 to 63" in clues[1]


def test_a_part_after_zeros_has_no_stale_accumulator() -> None:
    x = torch.cat([torch.zeros(24, 1000).half(), A[24:]])
    got = x.float() @ B.float()
    got[24:] += normal(45, 24, 64)
    clues = compare(got.half(), matmul(x, B)).suspects
    assert clues == ("a fault in a part: only dimension 0, index 24 to 47, is wrong",)


def test_one_wrong_element_among_exact_ones_has_no_clue() -> None:
    """Products of whole numbers are exact, so no other element has an error."""
    random = np.random.default_rng(0)
    a, b = (torch.tensor(random.integers(-6, 6, (64, 64))).half() for _ in range(2))
    got = a.double() @ b.double()
    got[5, 7] += 3.7
    verdict = compare(got, matmul(a, b))
    assert verdict.kind is VerdictKind.IMPOSSIBLE
    assert verdict.suspects == ()


# Operands that are too small for FP16, so that no clue names it.
SMALL_A = normal(50, 32, 300) * 2.0**-14
SMALL_B = normal(51, 300, 32)


@pytest.mark.parametrize(
    ("rounding", "clue"),
    [
        (Rounding.NEAREST_EVEN, "operands that were rounded to TF32 first"),
        (Rounding.TOWARD_ZERO, "operands that were cut to TF32 first"),
    ],
    ids=["rounded", "cut"],
)
def test_cut_and_rounded_operands_have_different_clues(rounding: Rounding, clue: str) -> None:
    got = round_tensor(SMALL_A, TF32, rounding) @ round_tensor(SMALL_B, TF32, rounding)
    assert compare(got, matmul(SMALL_A, SMALL_B)).suspects == (clue,)


@pytest.mark.parametrize("format", [TF32, BF16], ids=["TF32", "BF16"])
def test_operands_may_be_rounded_to_the_format_that_is_named(format: Format) -> None:
    got = round_tensor(SMALL_A, format) @ round_tensor(SMALL_B, format)
    assert compare(got, matmul(SMALL_A, SMALL_B, operands=format))


# ---- right results


def right_norms(random: np.random.Generator) -> dict[str, tuple[Tensor, Operation]]:
    """Return name -> a right result of random numbers, and its operation.

    Reciprocal roots are off by a factor of up to 1 + 2.5 * 2^-24, as those of a GPU may be.
    """
    rows = int(random.choice([1, 3, 40]))
    terms = int(random.choice([3, 64, 512, 1500]))
    dtype = (torch.float16, torch.bfloat16, torch.float32)[random.integers(3)]
    out = (dtype, torch.float32)[random.integers(2)]
    eps = float(random.choice([1e-3, 1e-5, 1e-6, 1e-12, 0.0]))
    size = float(random.choice([1e-2, 0.1, 1.0, 10.0]))
    middle = float(random.choice([0.0, 1.0]))
    seed = int(random.integers(2**31))
    x = ((normal(seed, rows, terms) + middle) * size).to(dtype)
    w = normal(seed + 1, terms)
    b = normal(seed + 2, terms)
    y = normal(seed + 3, terms, 40).to(dtype)
    off = 1 + float(random.uniform(-2.5, 2.5)) * 2.0**-24

    def rsqrt(values: Tensor) -> Tensor:
        return (torch.rsqrt(values.double() + eps) * off).float()

    wide = x.float()
    product = x.float() @ y.float()
    results = {
        "layer norm": (norm(x, w, b, rstd=rsqrt), layer_norm(x, w, b, eps)),
        "RMS norm": (rms(x, w, rstd=rsqrt), rms_norm(x, w, eps)),
        "softmax": (torch.softmax(wide, 1), softmax(x)),
        "mean times 1 / K": (wide.sum(1) * (1 / terms), mean(x, 1)),
        "bias": (product + b[0], matmul(x, y, bias=b[:1])),
        "scale and bias": (product * w[0] + b[0], matmul(x, y, scale=w[:1], bias=b[:1])),
    }
    return {name: (got.to(out), operation) for name, (got, operation) in results.items()}


@pytest.mark.parametrize(
    ("seed", "count"), [(0, 8), *(pytest.param(n, 60, marks=pytest.mark.slow) for n in (1, 2))]
)
def test_right_norms_and_epilogues_are_not_suspected(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(count):
        for name, (got, operation) in right_norms(random).items():
            verdict = compare(got, operation)
            assert verdict, f"{name}: {verdict}"


def test_mean_may_round_its_product_by_1_over_k() -> None:
    whole = torch.arange(600.0).reshape(40, 15)
    got = whole.sum(1) * (1 / 15)
    assert (got.double() != whole.double().mean(1)).any()
    assert compare(got, mean(whole, 1)).kind is VerdictKind.ROUNDING
