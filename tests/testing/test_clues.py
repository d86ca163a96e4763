"""Clues to known faults, zeros of either sign, and settings of torch's operations."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import testing
from labkit.formats import BF16, TF32, Rounding
from labkit.interop import round_tensor
from labkit.testing import (
    Operation,
    VerdictKind,
    amax,
    assert_explained,
    compare,
    convolution,
    layer_norm,
    matmul,
    mean,
    rms_norm,
    softmax,
    sum_over,
)
from tests.testing.kernels import norm, normal, rms

A = normal(40, 48, 1000).half()
B = normal(41, 1000, 64).half()
PRODUCT = A.float() @ B.float()
X = normal(42, 64, 512) * 2 + 3
W = normal(43, 512)
BIAS = normal(44, 512)


# ---- faults within the bound


def test_a_fault_that_fits_39_times_better_does_not_pass() -> None:
    got = norm(X, W, BIAS, rstd=lambda v: 1 / (v.sqrt() + 1e-5))
    verdict = compare(got, layer_norm(X, W, BIAS))
    assert verdict.kind is VerdictKind.SUSPECTED
    assert not verdict
    assert verdict.suspects == ("eps is added outside of the root",)
    # both distances by torch, in FP64
    wide = X.double()
    right = F.layer_norm(X.double(), (512,), W.double(), BIAS.double())
    deviation = wide.var(1, keepdim=True, correction=0).sqrt()
    wrong = (wide - wide.mean(1, keepdim=True)) / (deviation + 1e-5) * W + BIAS
    times = ((got - right).square().mean() / (got - wrong).square().mean()).sqrt()
    assert verdict.rival is not None
    assert verdict.rival.times == pytest.approx(float(times), rel=0.1)
    assert "eps is added outside of the root; it fits 3" in str(verdict)
    with pytest.raises(testing.Unexplained, match="a known fault fits better"):
        assert_explained(got, layer_norm(X, W, BIAS))


def test_the_same_norm_without_the_fault_passes() -> None:
    for got in (norm(X, W, BIAS), F.layer_norm(X, (512,), W, BIAS)):
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


# ---- clues


def one_pass(x: Tensor, w: Tensor) -> Tensor:
    centre = x.mean(1, keepdim=True)
    return (x - centre) * torch.rsqrt((x * x).mean(1, keepdim=True) - centre**2 + 1e-5) * w


def stale(share: float) -> Tensor:
    """The right half still holds a share of the left one."""
    return torch.cat([PRODUCT[:, :32], PRODUCT[:, 32:] + share * PRODUCT[:, :32]], 1).half()


FAR = normal(46, 64, 512) * 0.1 + 100
HALVES = [A[:, part].float() @ B[part].float() for part in (slice(0, 500), slice(500, 1000))]
BF_X = (normal(47, 64, 384) + 1).bfloat16()
BF_W = normal(48, 384).bfloat16()
SCALE = torch.rand(48, generator=torch.Generator().manual_seed(49)) + 0.5
SQUARE = A[:, :300] @ B[:300, :48]

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


def test_clues_that_exclude_each_other_are_not_given_together() -> None:
    for name, (run, operation, _) in CLUES.items():
        clues = compare(run(), operation()).suspects
        assert len(clues) == 1 or name == "stale accumulator", clues
    # the second clue of a stale accumulator says where
    assert "only dimension 1, index 32 to 63" in compare(stale(0.001), matmul(A, B)).suspects[1]


def test_cut_and_rounded_operands_have_different_clues() -> None:
    # FP16 has no numbers as small
    a = normal(50, 32, 300) * 2.0**-14
    b = normal(51, 300, 32)
    rounded = round_tensor(a, TF32) @ round_tensor(b, TF32)
    assert compare(rounded, matmul(a, b)).suspects == ("operands that were rounded to TF32 first",)
    cut = [round_tensor(each, TF32, Rounding.TOWARD_ZERO) for each in (a, b)]
    assert compare(cut[0] @ cut[1], matmul(a, b)).suspects == (
        "operands that were cut to TF32 first",
    )
    assert compare(rounded, matmul(a, b, operands=TF32))
    narrow = a.bfloat16().float() @ b.bfloat16().float()
    assert compare(narrow, matmul(a, b, operands=BF16))


# ---- right results


def right_norms(random: np.random.Generator) -> dict[str, tuple[Tensor, Operation]]:
    """Right results whose functions are off by up to 2.5 u in one direction."""
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
    found = {
        "layer norm": (norm(x, w, b, rstd=rsqrt), layer_norm(x, w, b, eps)),
        "RMS norm": (rms(x, w, rstd=rsqrt), rms_norm(x, w, eps)),
        "softmax": (torch.softmax(wide, 1), softmax(x)),
        "mean times 1 / K": (wide.sum(1) * (1 / terms), mean(x, 1)),
        "bias": (product + b[0], matmul(x, y, bias=b[:1])),
        "scale and bias": (product * w[0] + b[0], matmul(x, y, scale=w[:1], bias=b[:1])),
    }
    return {name: (got.to(out), operation) for name, (got, operation) in found.items()}


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


# ---- the sign of zero


def test_zeros_of_the_other_sign_are_counted_and_pass() -> None:
    small = torch.full((1, 1), 2.0**-15).half()
    # -2^-30 is -0 in FP16
    operation = matmul(-small, small)
    other = compare(torch.zeros(1, 1).half(), operation)
    same = compare(-torch.zeros(1, 1).half(), operation)
    assert other.kind == VerdictKind.EQUAL
    assert other.zeros == 1
    assert same.zeros == 0
    assert "not judged: 1 zero has the other sign" in str(other)
    assert "other sign" not in str(same)
    two = torch.tensor([[-1.0, -0.0], [-2.0, -0.0]])
    assert compare(torch.zeros(2), amax(two, 1)).zeros == 2
    assert compare(torch.amax(two, 1), amax(two, 1)).zeros == 0
    # with other differences, too
    got = PRODUCT.half()
    got[0, 0] += 1
    assert compare(got, matmul(A, B)).zeros == 0


def test_zeros_of_sums_that_cancel_have_either_sign() -> None:
    terms = torch.tensor([[1.0, -1.0]])
    for got in (torch.zeros(1), -torch.zeros(1)):
        assert compare(got, sum_over(terms, 1)).zeros == 0


# ---- settings


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": "same"},
        {"padding": "valid"},
        {"padding": "same", "dilation": 2},
        {"padding": (1, 2), "stride": (2, 1), "dilation": [1, 2]},
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("window", [(3, 3), (4, 2)])
def test_convolutions_take_the_padding_of_torch(
    settings: dict[str, object], window: tuple[int, int]
) -> None:
    x = normal(52, 2, 3, 9, 8)
    w = normal(53, 4, 3, *window)
    got = F.conv2d(x, w, **settings)
    operation = convolution(x, w, **settings)
    assert compare(got, operation)
    got[-1, -1, -1, -1] += 0.01
    assert not compare(got, operation)


def test_reductions_have_the_shapes_of_torch() -> None:
    for x, dim in ((torch.zeros(3, 0), 1), (torch.zeros(2, 0, 3), 1), (torch.zeros(()), 0)):
        assert compare(torch.softmax(x, dim), softmax(x, dim)).kind is VerdictKind.EQUAL
        assert compare(torch.sum(x, dim), sum_over(x, dim)).kind is VerdictKind.EQUAL
    x = normal(54, 3, 4)
    assert compare(torch.mean(x, ()), mean(x, ()))
    assert softmax(x, -2).value.shape == x.shape


def test_formats_are_named_by_dtypes_and_names() -> None:
    got = (A.float() @ B.float()).half()
    assert compare(got, matmul(A, B), accumulator=torch.float32, out="FP16")
    assert assert_explained(got, A, B, out="fp16").explained


X2 = torch.ones(3, 4)
IMAGE = torch.ones(1, 3, 8, 8)
FILTERS = torch.ones(4, 3, 3, 3)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "dim within the 2 dimensions of x, got 7", lambda: softmax(X2, dim=7)),
        (ValueError, r"dim: expected each dimension once, got \(0, 0\)", lambda: mean(X2, (0, 0))),
        (ValueError, "each dimension once", lambda: sum_over(X2, (1, -1))),
        (TypeError, "dim: expected an int, got 'a'", lambda: sum_over(X2, "a")),
        (ValueError, "a number or more to normalize", lambda: layer_norm(torch.zeros(3, 0))),
        (ValueError, "eps: expected a number from 0 on", lambda: rms_norm(X2, eps=-1.0)),
        (
            ValueError,
            "'same' or 'valid', got 'full'",
            lambda: convolution(IMAGE, FILTERS, padding="full"),
        ),
        (
            ValueError,
            r"with stride \[2, 2\], got 'same'",
            lambda: convolution(IMAGE, FILTERS, padding="same", stride=2),
        ),
        (
            ValueError,
            "padding: expected a number from 0 on, or 2 of them",
            lambda: convolution(IMAGE, FILTERS, padding=(1, 1, 1)),
        ),
        (
            ValueError,
            "stride: expected a number from 1 on",
            lambda: convolution(IMAGE, FILTERS, stride=0),
        ),
        (
            TypeError,
            "padding: expected an int or a Sequence, got 1.5",
            lambda: convolution(IMAGE, FILTERS, padding=1.5),
        ),
        (
            ValueError,
            "a window that fits the padded image",
            lambda: convolution(IMAGE, FILTERS, dilation=9),
        ),
        (
            ValueError,
            r"bias of shape \[4\].*got \[3\]",
            lambda: convolution(IMAGE, FILTERS, torch.ones(3)),
        ),
        (TypeError, "groups: expected an int", lambda: convolution(IMAGE, FILTERS, groups="a")),
    ],
)
def test_settings_are_refused_with_what_was_expected(
    error: type[Exception], message: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error, match=message):
        call()
