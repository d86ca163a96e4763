"""Verdicts on kernels: worked examples, 60 with a fault, 60 without, and invalid input."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit import testing
from labkit.formats import BF16, E4M3, FP16, FP32, Overflow, Rounding
from labkit.gemm import SEQUENTIAL_FP16, SPECS, accumulate, emulate
from labkit.testing import (
    VerdictKind,
    assert_explained,
    compare,
    layer_norm,
    matmul,
    rms_norm,
    softmax,
    sum_over,
)
from tests.testing import kernels
from tests.testing.kernels import (
    RIGHT,
    WRONG,
    Kernel,
    case,
    in_turn,
    norm,
    online,
    rescale,
    rms,
    slices,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return kernels.normal(seed, *shape)


A = normal(24, 200).half()
B = normal(200, 16, seed=1).half()
EXACT = A.double() @ B.double()


def verdict_on(kernel: Kernel) -> testing.Verdict:
    its = case(kernel.case)
    return compare(kernel.run(*its.arguments), its.operation, **its.settings)


def test_sixty_faulty_kernels_are_found() -> None:
    """57 at least is the aim; docs/testing.md has the numbers, which stand here."""
    assert len({kernel.name for kernel in WRONG}) == len(WRONG)
    assert len(WRONG) == 60
    assert len({kernel.name for kernel in RIGHT}) == 60
    assert all("#" in kernel.thread for kernel in WRONG)
    kinds = {kernel.name: verdict_on(kernel).kind for kernel in WRONG}
    assert [
        name for name, kind in kinds.items() if kind in (VerdictKind.EQUAL, VerdictKind.ROUNDING)
    ] == []
    assert sorted(name for name, kind in kinds.items() if kind is VerdictKind.LARGER) == [
        "mean of squares minus square of mean",
        "rounds FP32 sums toward zero",
    ]
    found = {kernel.name: verdict_on(kernel) for kernel in RIGHT}
    assert [f"{name}: {verdict}" for name, verdict in found.items() if not verdict] == []


@pytest.mark.slow
@pytest.mark.parametrize("draw", range(100, 600, 100))
def test_other_numbers_have_the_same_verdicts(draw: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = kernels.normal
    monkeypatch.setattr(kernels, "normal", lambda seed, *shape: usual(seed + draw, *shape))
    case.cache_clear()
    try:
        assert [kernel.name for kernel in WRONG if verdict_on(kernel)] == []
        assert [kernel.name for kernel in RIGHT if not verdict_on(kernel)] == []
    finally:
        case.cache_clear()


ALIKE = ", or operands that were rounded to FP16 first (the same numbers here)"
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
    # FP16 is the second suspect, unless a drawn operand is subnormal there, which depends on the
    # CPU.
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


def test_the_verdict_names_what_would_explain_it() -> None:
    found = {
        kernel.name: verdict_on(kernel).suspects[0] for kernel in WRONG if kernel.name in SUSPECTS
    }
    unlike = {
        name: (found[name], words)
        for name, words in SUSPECTS.items()
        if found[name].removesuffix(ALIKE) != words
    }
    assert unlike == {}


def test_a_worked_example_of_each_verdict() -> None:
    right = (A.float() @ B.float()).half()
    assert compare(EXACT.half(), matmul(A, B)).kind is VerdictKind.EQUAL
    assert compare(A.float() @ B.float(), matmul(A, B)).kind is VerdictKind.ROUNDING
    assert (
        compare(accumulate(A, B, None, SEQUENTIAL_FP16, FP16), matmul(A, B)).kind
        is VerdictKind.IMPOSSIBLE
    )
    # within the bound of every element, and the same everywhere
    wide = EXACT.float() * (1 + 2.0**-18)
    verdict = compare(wide, matmul(A, B))
    assert verdict.kind is VerdictKind.LARGER
    assert verdict.reached is not None
    assert verdict.share > 4 * verdict.reached or verdict.typical[0] > 2 * verdict.typical[1]
    assert compare(right, matmul(A, B))
    assert not verdict


def test_the_assertion_of_the_readme() -> None:
    assert_explained((A.float() @ B.float()).half(), A, B, out=FP16, accumulator="H100")
    with pytest.raises(testing.Unexplained, match="cannot be rounding") as raised:
        assert_explained(
            (A[:, :-8].float() @ B[:-8].float()).half(), A, B, out=FP16, accumulator="H100"
        )
    assert raised.value.verdict.suspects == ("the last 8 terms of each sum are missing",)
    assert assert_explained(torch.softmax(A.float(), 1), softmax(A)).explained
    scaled = (A.float() @ B.float() * 0.3 + 1).half()
    assert_explained(scaled, A, B, bias=torch.ones(16), scale=0.3)


SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 3)),
    ((4, 5), (5,)),
    ((2, 4, 5), (5, 3)),
    ((4, 5), (2, 5, 3)),
    ((7, 1, 4, 5), (2, 5, 3)),
    ((2, 0, 5), (5, 3)),
    ((2, 3, 0), (0, 4)),
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_shapes_are_those_of_torch(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (normal(*shape, seed=i) for i, shape in enumerate(shapes))
    product = torch.matmul(a, b)
    operation = matmul(a, b)
    assert operation.value.shape == product.shape
    assert compare(product, operation)
    assert compare(product.numpy(), matmul(a.numpy(), b.numpy()))
    if product.numel():
        product.reshape(-1)[-1] += 1
        found = compare(product, operation).worst
        assert found is not None
        assert found.index == tuple(size - 1 for size in product.shape)


def test_dimensions_are_those_of_torch() -> None:
    x = normal(4, 30, 7)
    for got, operation in (
        *((torch.softmax(x, dim), softmax(x, dim)) for dim in (0, 1)),
        (x.amax((1, 2)), testing.amax(x, (1, 2))),
        (x.sum(), sum_over(x)),
        (x.sum((0, 2)), sum_over(x, (0, 2))),
        (x.mean(-1), testing.mean(x, -1)),
    ):
        assert compare(got, operation)
        assert not compare(got + 1e-3, operation)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_convolutions_are_those_of_torch(dimensions: int) -> None:
    x = normal(2, 6, *[9] * dimensions)
    weight = normal(8, 3, *[3] * dimensions, seed=1)
    bias = normal(8, seed=2)
    conv = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[
        dimensions - 1
    ]
    how = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
    assert compare(conv(x, weight, bias, **how), testing.convolution(x, weight, bias, **how))
    verdict = compare(conv(x, weight, None, **how), testing.convolution(x, weight, None, **how))
    assert verdict.kind is VerdictKind.ROUNDING
    dropped = conv(x, torch.cat([weight[:, :2], weight[:, 2:] * 0], 1), None, **how)
    assert (
        compare(dropped, testing.convolution(x, weight, None, **how)).kind is VerdictKind.IMPOSSIBLE
    )


def test_special_values_are_compared_by_place_and_kind() -> None:
    a = A.float().clone()
    b = B.float()
    a[0, 3], a[1, 4], a[2, 5], a[2, 6] = math.inf, math.nan, math.inf, -math.inf
    got = a @ b
    assert compare(got, matmul(a, b))
    for row, value in ((0, 1.0), (0, math.nan), (1, 1.0), (1, math.inf), (5, math.nan)):
        wrong = got.clone()
        wrong[row] = value
        verdict = compare(wrong, matmul(a, b))
        assert verdict.kind is VerdictKind.IMPOSSIBLE, (row, value)
        assert verdict.worst is not None
        assert verdict.worst.index[0] == row


def test_overflow_of_a_large_sum_is_rounding() -> None:
    a = torch.tensor([[65504.0, 15.9, 0.0]]).half()
    b = torch.ones(3, 1).half()
    # 65519.9
    assert compare(torch.tensor([[math.inf]]).half(), matmul(a, b)).kind is VerdictKind.IMPOSSIBLE
    assert compare(torch.tensor([[65504.0]]).half(), matmul(a, b)).kind is VerdictKind.EQUAL
    a[0, 2] = 20.0
    assert compare(torch.tensor([[math.inf]]).half(), matmul(a, b)).kind is VerdictKind.EQUAL
    saturated = compare(torch.tensor([[65504.0]]).half(), matmul(a, b))
    assert saturated.kind is VerdictKind.IMPOSSIBLE
    assert "saturates" in saturated.suspects[0]
    assert compare(torch.tensor([[65504.0]]).half(), matmul(a, b), overflow=Overflow.SATURATE)


def test_flushed_subnormals_are_named() -> None:
    a = (normal(8, 4) * 2.0**-10).half()
    b = (normal(4, 8, seed=3) * 2.0**-8).half()
    right = a.float() @ b.float()
    flushed = torch.where(right.half().abs() < FP16.smallest_normal, 0.0, right).half()
    verdict = compare(flushed, matmul(a, b))
    assert verdict.kind == VerdictKind.IMPOSSIBLE
    assert verdict.suspects == ("subnormal results flushed to zero",)
    assert compare(right.half(), matmul(a, b))
    cut = ((A.float() @ B.float()).view(torch.int32) & -(1 << 16)).view(torch.float32).bfloat16()
    assert not compare(cut, matmul(A, B))
    assert compare(cut, matmul(A, B), rounding=Rounding.TOWARD_ZERO)


def test_what_cannot_be_judged_is_reported() -> None:
    big = torch.full((1, 40), 6e4).half()
    verdict = compare(torch.tensor([[math.inf]]).half(), matmul(big, big.T), accumulator=FP16)
    assert "1 elements whose bound is infinite" in verdict.unjudged[0]
    signs = torch.tensor([[1.0, -1.0] * 20]).half()  # the sum is 0, and may overflow on the way
    verdict = compare(
        torch.ones(1, 1).half(), matmul(big * signs, torch.ones(40, 1).half()), accumulator=FP16
    )
    assert verdict.kind == VerdictKind.UNJUDGED
    assert not bool(verdict)
    empty = compare(torch.zeros(0, 3), matmul(torch.zeros(0, 4), torch.zeros(4, 3)))
    assert empty.kind == VerdictKind.EQUAL
    assert empty.unjudged == ("nothing: the result has no elements",)
    long = torch.ones(1_000_001).half()
    long[::3] = 0.1
    verdict = compare(long.float().sum(), sum_over(long))
    assert (
        verdict.kind is VerdictKind.EQUAL
        or "more than 1,000,000 terms are not replayed" in verdict.unjudged[0]
    )
    assert not compare(long.float().sum() * 1.2, sum_over(long))


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (
            ValueError,
            r"b\[..., k, n\] with one k, got \[24, 200\] and \[24, 200\]",
            lambda: matmul(A, A),
        ),
        (
            ValueError,
            r"result of shape \[24, 16\], got \[16, 24\]",
            lambda: compare(EXACT.T, matmul(A, B)),
        ),
        (TypeError, "expected floats in a, got torch.int64", lambda: matmul(A.long(), B)),
        (
            TypeError,
            "float16, float32 or float64 in got, got int64",
            lambda: compare(np.arange(4), matmul(A, B)),
        ),
        (
            ValueError,
            "expected values of FP16",
            lambda: compare(EXACT.float(), matmul(A, B), out=FP16),
        ),
        (
            ValueError,
            "an accumulator of FP64.*H100",
            lambda: compare(EXACT.half(), matmul(A, B), accumulator="H1"),
        ),
        (
            ValueError,
            "FP16, BF16, FP32 or FP64, got E4M3",
            lambda: compare(EXACT.half(), matmul(A, B), accumulator=E4M3),
        ),
        (
            ValueError,
            "V100 Tensor Cores take FP16",
            lambda: compare(EXACT.half(), matmul(A.bfloat16(), B.bfloat16()), accumulator="V100"),
        ),
        (ValueError, "bias to broadcast", lambda: matmul(A, B, bias=torch.ones(7))),
        (ValueError, "two vectors", lambda: testing.dot(A, B)),
        (ValueError, "dim within the 2 dimensions", lambda: sum_over(A, 5)),
        (
            ValueError,
            "expected E4M3 values in a",
            lambda: matmul(A.float(), B.float(), operands=E4M3),
        ),
        (TypeError, "an operation alone", lambda: assert_explained(EXACT, matmul(A, B), B)),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(
    error: type[Exception], message: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", SPECS)
def test_a_gpu_s_name_is_its_instruction_for_the_operands(name: str) -> None:
    assert_explained(accumulate(A, B, None, SPECS[name], FP32), A, B, accumulator=name)
    # FP32 operands: FP32 units
    assert_explained(A.float() @ B.float(), A.float(), B.float(), accumulator=name)
    if name != "V100" and name != "T4":
        a = A.bfloat16()
        b = B.bfloat16()
        assert_explained(accumulate(a, b, None, SPECS[name], BF16), a, b, accumulator=name)


KINDS = (
    "normal",
    "positive",
    "rows of all sizes",
    "wide",
    "constant",
    "whole",
    "far from 0",
    "sparse",
)


def draw(random: np.random.Generator, kind: str, rows: int, columns: int) -> Tensor:
    shape = rows, columns
    x = random.standard_normal(shape)
    x = {
        "normal": x,
        "positive": np.abs(x),
        "rows of all sizes": x * np.exp(3 * random.standard_normal((rows, 1))),
        "wide": x * 2.0 ** random.integers(-8, 8, shape),
        "constant": np.full(shape, 0.1),
        "whole": random.integers(-3, 4, shape).astype(float),
        "far from 0": x + 100,
        "sparse": np.where(random.random(shape) < 0.95, 0.0, x),
    }[kind]
    return torch.from_numpy(x).float()


def in_some_order(random: np.random.Generator, a: Tensor, b: Tensor) -> Tensor:
    """FP32 sums of products in a random order of K: one by one, in slices, or along a tree."""
    places = torch.from_numpy(random.permutation(a.shape[1]))
    a = a[:, places]
    b = b[places]
    way = int(random.integers(3))
    if way == 0:
        return in_turn(a, b)
    return slices(a, b, int(random.integers(1, 65))) if way == 1 else slices(a, b, a.shape[1])


def suspected(seed: int, count: int) -> list[str]:
    """Return the verdicts on right results that are no rounding."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        terms, rows, columns = (
            int(random.choice([2, 3, 16, 64, 129, 500, 1024])),
            *map(int, random.integers(1, 40, 2)),
        )
        kind = str(random.choice(KINDS))
        dtype = (torch.float16, torch.bfloat16, torch.float32)[random.integers(3)]
        out = (torch.float32, dtype)[random.integers(2)]
        a = draw(random, kind, rows, terms).to(dtype)
        b = draw(random, kind, terms, columns).to(dtype)
        card = (
            str(random.choice(["A100", "H100"]))
            if dtype is not torch.float32 and random.random() < 0.3
            else ""
        )
        if card:
            got = emulate(
                a, b, None, SPECS[card].for_operands(BF16 if dtype is torch.bfloat16 else FP16)
            )
        else:
            got = in_some_order(random, a, b)
        verdicts = {
            f"product {card}": compare(got.to(out), matmul(a, b), accumulator=card or "FP32")
        }
        size = int(random.integers(16, 64))
        wide = a.float()
        others = {
            "softmax": (online(a, size, rescale), softmax(a)),
            "softmax, torch": (torch.softmax(wide, 1), softmax(a)),
            "layer norm": (norm(a), layer_norm(a)),
            "layer norm, torch": (F.layer_norm(wide, (terms,)), layer_norm(a)),
            "RMS norm": (rms(a), rms_norm(a)),
            "sum": (wide.sum(1), sum_over(a, 1)),
            "mean": (wide.mean(1), testing.mean(a, 1)),
        }
        name = str(random.choice(list(others)))
        verdicts[name] = compare(others[name][0].to(out), others[name][1])
        found += [
            f"{each}, {kind}, {dtype}: {verdict}"
            for each, verdict in verdicts.items()
            if not verdict
        ]
    return found


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 25), *(pytest.param(seed, 200, marks=pytest.mark.slow) for seed in range(1, 6))],
)
def test_random_right_results_are_not_suspected(seed: int, count: int) -> None:
    assert suspected(seed, count) == []
