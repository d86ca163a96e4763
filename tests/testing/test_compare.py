"""Verdicts on kernels: worked examples, 60 kernels with a fault, 60 without, and invalid input."""

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


each_pair_of_shapes = pytest.mark.parametrize(("shape_a", "shape_b"), SHAPES)
Shape = tuple[int, ...]


@each_pair_of_shapes
def test_shapes_are_those_of_torch(shape_a: Shape, shape_b: Shape) -> None:
    a = normal(*shape_a, seed=0)
    b = normal(*shape_b, seed=1)
    product = torch.matmul(a, b)
    operation = matmul(a, b)
    assert operation.value.shape == product.shape
    assert compare(product, operation)


@each_pair_of_shapes
def test_arrays_of_numpy_are_compared_like_tensors(shape_a: Shape, shape_b: Shape) -> None:
    a = normal(*shape_a, seed=0)
    b = normal(*shape_b, seed=1)
    assert compare(torch.matmul(a, b).numpy(), matmul(a.numpy(), b.numpy()))


@pytest.mark.parametrize(
    ("shape_a", "shape_b"), [pair for pair in SHAPES if 0 not in pair[0] + pair[1]]
)
def test_the_worst_element_is_named_by_its_index(shape_a: Shape, shape_b: Shape) -> None:
    a = normal(*shape_a, seed=0)
    b = normal(*shape_b, seed=1)
    product = torch.matmul(a, b)
    product.reshape(-1)[-1] += 1
    worst = compare(product, matmul(a, b)).worst
    assert worst is not None
    assert worst.index == tuple(size - 1 for size in product.shape)


X = normal(4, 30, 7)


@pytest.mark.parametrize(
    ("got", "operation"),
    [
        (torch.softmax(X, 0), softmax(X, 0)),
        (torch.softmax(X, 1), softmax(X, 1)),
        (X.amax((1, 2)), testing.amax(X, (1, 2))),
        (X.sum(), sum_over(X)),
        (X.sum((0, 2)), sum_over(X, (0, 2))),
        (X.mean(-1), testing.mean(X, -1)),
    ],
    ids=["softmax 0", "softmax 1", "amax", "sum of all", "sum", "mean"],
)
def test_dimensions_are_those_of_torch(got: Tensor, operation: testing.Operation) -> None:
    assert compare(got, operation)
    assert not compare(got + 1e-3, operation)


CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
SETTINGS = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
each_number_of_dimensions = pytest.mark.parametrize("dimensions", CONVOLUTIONS)


def images_and_weights(dimensions: int) -> tuple[Tensor, Tensor]:
    """Return two images of 6 channels, and the weights of 8 windows over 3 of them."""
    images = normal(2, 6, *[9] * dimensions)
    weights = normal(8, 3, *[3] * dimensions, seed=1)
    return images, weights


@each_number_of_dimensions
def test_convolutions_with_a_bias_are_those_of_torch(dimensions: int) -> None:
    x, weight = images_and_weights(dimensions)
    bias = normal(8, seed=2)
    got = CONVOLUTIONS[dimensions](x, weight, bias, **SETTINGS)
    assert compare(got, testing.convolution(x, weight, bias, **SETTINGS))


@each_number_of_dimensions
def test_convolutions_without_a_bias_are_those_of_torch(dimensions: int) -> None:
    x, weight = images_and_weights(dimensions)
    got = CONVOLUTIONS[dimensions](x, weight, None, **SETTINGS)
    verdict = compare(got, testing.convolution(x, weight, None, **SETTINGS))
    assert verdict.kind is VerdictKind.ROUNDING


@each_number_of_dimensions
def test_a_convolution_without_a_channel_is_impossible(dimensions: int) -> None:
    x, weight = images_and_weights(dimensions)
    without_channel = torch.cat([weight[:, :2], weight[:, 2:] * 0], 1)
    got = CONVOLUTIONS[dimensions](x, without_channel, None, **SETTINGS)
    verdict = compare(got, testing.convolution(x, weight, None, **SETTINGS))
    assert verdict.kind is VerdictKind.IMPOSSIBLE


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
            "an accumulator of FP16, BF16, FP32, FP64, V100.*H100",
            lambda: compare(EXACT.half(), matmul(A, B), accumulator="H1"),
        ),
        (
            ValueError,
            "FP16, BF16, FP32, FP64, got E4M3",
            lambda: compare(EXACT.half(), matmul(A, B), accumulator=E4M3),
        ),
        (
            ValueError,
            "V100 Tensor Cores take FP16",
            lambda: compare(EXACT.half(), matmul(A.bfloat16(), B.bfloat16()), accumulator="V100"),
        ),
        (ValueError, "bias to broadcast", lambda: matmul(A, B, bias=torch.ones(7))),
        (ValueError, "two vectors", lambda: testing.dot(A, B)),
        (
            ValueError,
            r"one channel or more, got \[4, 0, 3\]",
            lambda: testing.convolution(torch.zeros(1, 0, 8), torch.zeros(4, 0, 3)),
        ),
        (
            ValueError,
            r"one channel or more, got \[0, 3, 3\]",
            lambda: testing.convolution(torch.zeros(1, 3, 8), torch.zeros(0, 3, 3)),
        ),
        (ValueError, "dim within the 2 dimensions", lambda: sum_over(A, 5)),
        (
            ValueError,
            "expected E4M3 values in a",
            lambda: matmul(A.float(), B.float(), operands=E4M3),
        ),
        (TypeError, "expected a dense tensor for a, got", lambda: matmul(A.to_sparse(), B)),
        (TypeError, "an operation alone", lambda: assert_explained(EXACT, matmul(A, B), B)),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(
    error: type[Exception], message: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", SPECS)
def test_a_gpus_name_is_its_instruction_for_fp16(name: str) -> None:
    assert_explained(accumulate(A, B, None, SPECS[name], FP32), A, B, accumulator=name)


@pytest.mark.parametrize("name", SPECS)
def test_a_gpus_name_is_its_fp32_units_for_fp32(name: str) -> None:
    assert_explained(A.float() @ B.float(), A.float(), B.float(), accumulator=name)


# The Tensor Cores of a V100 and a T4 do not take BF16.
@pytest.mark.parametrize("name", [name for name in SPECS if name not in ("V100", "T4")])
def test_a_gpus_name_is_its_instruction_for_bf16(name: str) -> None:
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
    """Return numbers [rows, columns] of one of KINDS."""
    shape = rows, columns
    x = random.standard_normal(shape)
    by_kind = {
        "normal": x,
        "positive": np.abs(x),
        "rows of all sizes": x * np.exp(3 * random.standard_normal((rows, 1))),
        "wide": x * 2.0 ** random.integers(-8, 8, shape),
        "constant": np.full(shape, 0.1),
        "whole": random.integers(-3, 4, shape).astype(float),
        "far from 0": x + 100,
        "sparse": np.where(random.random(shape) < 0.95, 0.0, x),
    }
    return torch.from_numpy(by_kind[kind]).float()


def in_some_order(random: np.random.Generator, a: Tensor, b: Tensor) -> Tensor:
    """Return FP32 sums of products in a random order: one by one, in slices, or along a tree."""
    places = torch.from_numpy(random.permutation(a.shape[1]))
    a = a[:, places]
    b = b[places]
    way = random.choice(["one by one", "slices", "tree"])
    if way == "one by one":
        return in_turn(a, b)
    if way == "slices":
        return slices(a, b, int(random.integers(1, 65)))
    return slices(a, b, a.shape[1])


def verdict_on_product(
    random: np.random.Generator, a: Tensor, b: Tensor, out: torch.dtype
) -> testing.Verdict:
    """Return the verdict on a right product, sometimes of a card's Tensor Cores."""
    if a.dtype is not torch.float32 and random.random() < 0.3:
        card = str(random.choice(["A100", "H100"]))
        operands = BF16 if a.dtype is torch.bfloat16 else FP16
        got = emulate(a, b, None, SPECS[card].for_operands(operands))
        return compare(got.to(out), matmul(a, b), accumulator=card)
    return compare(in_some_order(random, a, b).to(out), matmul(a, b), accumulator="FP32")


def verdict_on_reduction(
    random: np.random.Generator, a: Tensor, out: torch.dtype
) -> testing.Verdict:
    """Return the verdict on a right softmax, norm, sum or mean along the rows."""
    block = int(random.integers(16, 64))
    wide = a.float()
    results = {
        "softmax": (online(a, block, rescale), softmax(a)),
        "softmax, torch": (torch.softmax(wide, 1), softmax(a)),
        "layer norm": (norm(a), layer_norm(a)),
        "layer norm, torch": (F.layer_norm(wide, (a.shape[1],)), layer_norm(a)),
        "RMS norm": (rms(a), rms_norm(a)),
        "sum": (wide.sum(1), sum_over(a, 1)),
        "mean": (wide.mean(1), testing.mean(a, 1)),
    }
    got, operation = results[str(random.choice(list(results)))]
    return compare(got.to(out), operation)


def suspected(seed: int, count: int) -> list[str]:
    """Return the verdicts on random right results that call them no rounding."""
    random = np.random.default_rng(seed)
    refused = []
    for _ in range(count):
        terms = int(random.choice([2, 3, 16, 64, 129, 500, 1024]))
        rows = int(random.integers(1, 40))
        columns = int(random.integers(1, 40))
        kind = str(random.choice(KINDS))
        dtype = (torch.float16, torch.bfloat16, torch.float32)[random.integers(3)]
        out = (torch.float32, dtype)[random.integers(2)]
        a = draw(random, kind, rows, terms).to(dtype)
        b = draw(random, kind, terms, columns).to(dtype)
        verdicts = [verdict_on_product(random, a, b, out), verdict_on_reduction(random, a, out)]
        refused += [f"{kind}, {dtype}: {verdict}" for verdict in verdicts if not verdict]
    return refused


@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 25), *(pytest.param(seed, 200, marks=pytest.mark.slow) for seed in range(1, 6))],
)
def test_random_right_results_are_not_suspected(seed: int, count: int) -> None:
    assert suspected(seed, count) == []
