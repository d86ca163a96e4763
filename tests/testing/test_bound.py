"""The error bound of `labkit.testing`: no sum computed in the right arithmetic exceeds it.

Operands are drawn of five kinds: ordinary, of all magnitudes, positive, cancelling, and with ties
at the end of a large sum. Each sum is computed in the orders of `labkit.testing.orders`, in FP32
also by numpy and torch, and compared with a sum of fractions. The quick tests compare about thirty
thousand sums, the slow one a million.
"""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, Rounding, round_to
from labkit.testing import (
    Arithmetic,
    VerdictKind,
    arithmetic,
    compare,
    layer_norm,
    matmul,
    rms_norm,
    softmax,
)
from labkit.testing.bound import Floats, sum_error, unit_roundoff
from labkit.testing.orders import sums

# Kinds of operands: see `draw`.
KINDS = ("ordinary", "wide", "cancelling", "positive", "ties")
# Formats of operands, and the arithmetic of their sums.
IEEE = [
    (FP32, Arithmetic("FP32")),
    (FP16, Arithmetic("FP32")),
    (FP16, Arithmetic("FP16", FP16)),
    (BF16, Arithmetic("FP32")),
    (BF16, Arithmetic("BF16", BF16)),
    (FP16, Arithmetic("FP32 cut", FP32, Rounding.TOWARD_ZERO)),
    (FP16, Arithmetic("FP16 cut", FP16, Rounding.TOWARD_ZERO)),
    (FP32, Arithmetic("TF32 operands", FP32, operands=TF32)),
]
FORMATS_OF_CARDS = {
    "V100": (FP16,),
    "T4": (FP16,),
    "A100": (FP16, BF16, TF32),
    "Ada": (E4M3, E5M2),
    "H100": (FP16, BF16, TF32, E4M3, E5M2),
    "B200": (FP16, E4M3),
}
CARDS = [
    (format, arithmetic(name, (format, format)))
    for name, formats in FORMATS_OF_CARDS.items()
    for format in formats
]
ALL = [*IEEE, *CARDS]


def draw(
    kind: str, format: Format, terms: int, count: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the operands of `count` sums of products, [terms, count] each.

    Args:
        kind: One of KINDS.
        format: A format that represents all operands.
        terms: Products of each sum.
        count: How many sums.
        random: The source of the numbers.
    """
    shape = terms, count
    x, y = random.standard_normal((2, *shape))
    if kind == "wide":
        lowest = max(format.emin - format.significand_bits, -140)
        # The exponents of both operands add up: half of the largest leaves their product finite.
        highest = min(format.emax, 60) // 2
        x = np.ldexp(x, random.integers(lowest, highest, shape))
        y = np.ldexp(y, random.integers(lowest, highest, shape))
    if kind == "positive":
        x = np.abs(x)
        y = np.abs(y)
    if kind == "cancelling":
        # The second half is minus the first one, of which an eighth of the terms is then shrunk,
        # so that the sum is not zero.
        half = terms // 2
        x[half : 2 * half] = -x[:half]
        y[half : 2 * half] = y[:half]
        x[: terms // 8] *= 2.0**-6
    if kind == "ties":
        # One large term, and many of half its last place or a little more.
        exponents = -random.integers(8, 27, (1, count))
        y[:] = 1.0
        x[:] = np.ldexp(1 + random.integers(0, 2, shape) * format.epsilon, exponents)
        x[0] = 1 + random.integers(0, 4, count) * format.epsilon
        x *= random.choice([-1.0, 1.0], count)
    places = random.permuted(np.arange(terms)[:, None].repeat(count, 1), axis=0)
    return (
        np.take_along_axis(represented(x, format), places, 0),
        np.take_along_axis(represented(y, format), places, 0),
    )


def represented(values: Floats, format: Format) -> Floats:
    """Return values rounded to a format, with 1 for what is not finite, and within 2^60.

    Products of two such numbers are finite in FP32.
    """
    rounded = np.asarray(round_to(values, format), np.float64)
    finite = np.where(np.isfinite(rounded), rounded, 1.0)
    return np.clip(finite, -(2.0**60), 2.0**60)


def computed_sums(x: Floats, y: Floats, how: Arithmetic) -> Iterator[Floats]:
    """Yield the sums in several orders, [count] each; those of FP32 by torch and numpy, too."""
    yield from sums(x, y, how)
    if how == Arithmetic("FP32"):
        a = torch.from_numpy(x.T.copy()).float()
        b = torch.from_numpy(y.T.copy()).float()
        yield torch.bmm(a[:, None], b[:, :, None])[:, 0, 0].double().numpy()
        yield np.einsum("jk,jk->j", a.numpy(), b.numpy()).astype(np.float64)
        yield (a * b).sum(1).double().numpy()


def exact_sums(x: Floats, y: Floats) -> list[Fraction]:
    """Return the sums of products along the first dimension, without rounding."""
    results = []
    for x_terms, y_terms in zip(x.T.tolist(), y.T.tolist(), strict=True):
        total = Fraction(0)
        for p, q in zip(x_terms, y_terms, strict=True):
            total += Fraction(p) * Fraction(q)
        results.append(total)
    return results


def sums_beyond_the_bound(
    format: Format, how: Arithmetic, terms: int, count: int, seed: int
) -> tuple[int, list[str]]:
    """Return the number of sums that were compared, and a description of each beyond its bound."""
    compared = 0
    beyond = []
    for kind in KINDS:
        random = np.random.default_rng([seed, terms, KINDS.index(kind)])
        x, y = draw(kind, format, terms, count, random)
        operation = matmul(np.float32(x.T[:, None]), np.float32(y.T[:, :, None]), operands=format)
        bounds = operation.error(how)[:, 0, 0].tolist()
        exact = exact_sums(x, y)
        for order, results in enumerate(computed_sums(x, y, how)):
            for j, value in enumerate(results.tolist()):
                if not np.isfinite(bounds[j]):
                    continue
                compared += 1
                if not np.isfinite(value) or abs(Fraction(value) - exact[j]) > Fraction(bounds[j]):
                    expected = f"{float(exact[j])!r} +- {bounds[j]!r}"
                    beyond.append(f"{kind} {order} {j}: {value!r}, {expected}")
    return compared, beyond


every_arithmetic = pytest.mark.parametrize(
    ("format", "how"), ALL, ids=[f"{f.name}, {how.name}" for f, how in ALL]
)


@every_arithmetic
@pytest.mark.parametrize("terms", [1, 2, 7, 33])
def test_no_order_exceeds_the_bound(format: Format, how: Arithmetic, terms: int) -> None:
    compared, beyond = sums_beyond_the_bound(format, how, terms, 12, seed=0)
    assert beyond == []
    # Each has four orders or more, and all of these sums have a finite bound.
    assert compared >= 4 * len(KINDS) * 12


@pytest.mark.slow
@every_arithmetic
def test_no_order_exceeds_the_bound_in_a_million_sums(format: Format, how: Arithmetic) -> None:
    """At least 50,000 sums of each of the arithmetics, of which there are more than twenty."""
    compared = 0
    seed = 1
    while compared < 50_000:
        for terms in (1, 2, 3, 5, 8, 13, 17, 40, 96):
            more, beyond = sums_beyond_the_bound(format, how, terms, 100, seed)
            assert beyond == []
            compared += more
        seed += 1


# The first five of IEEE, which cut nothing, and two of Tensor Cores.
STORING = [*IEEE[:5], CARDS[0], CARDS[6]]


@pytest.mark.parametrize("out", [FP16, BF16, FP32, E5M2, E4M3])
@pytest.mark.parametrize(
    ("format", "how"), STORING, ids=[f"{format.name}, {how.name}" for format, how in STORING]
)
def test_a_right_sum_rounded_to_a_format_is_not_a_fault(
    format: Format, how: Arithmetic, out: Format
) -> None:
    """Results are subnormal, overflow to infinity, or are NaN in a format without infinity."""
    for kind in KINDS:
        x, y = draw(kind, format, 19, 60, np.random.default_rng(5))
        scale = 2.0 ** np.random.default_rng(6).integers(-12, 12, 60)
        x = np.asarray(round_to(x * scale, format), np.float64).clip(-format.max, format.max)
        operation = matmul(np.float32(x.T[:, None]), np.float32(y.T[:, :, None]), operands=format)
        for result in sums(x, y, how):
            with np.errstate(over="ignore", invalid="ignore"):
                stored = np.float32(round_to(result, out))[:, None, None]
                verdict = compare(stored, operation, out=out, accumulator=how)
            assert verdict.kind is not VerdictKind.IMPOSSIBLE, f"{kind}: {verdict}"


def test_a_sum_whose_small_terms_are_lost_nears_the_bound() -> None:
    """1 and seven terms of 2^-24 (1 - 2^-23), added one by one in FP32: each small one is lost."""
    tiny = np.float32(2.0**-24 * (1 - 2.0**-23))
    x = np.float32([1.0, *[tiny] * 7])
    total = np.float32(0)
    for term in x:
        total += term
    assert total == 1.0
    operation = matmul(x, np.ones(8, np.float32))
    error = float(operation.value) - float(total)
    # Seven terms of almost 2^-24 are lost. The bound counts seven additions, and a product that
    # might be rounded.
    assert 7 / 8 * 0.999 < error / float(operation.error(Arithmetic("FP32"))) < 1


def test_the_bound_of_one_block_of_an_h100() -> None:
    """It adds 16 products with 25 bits behind the point of the largest."""
    ones = np.ones((1, 16), np.float16)
    how = arithmetic("H100", (FP16, FP16))
    bound = float(matmul(ones, ones.T).error(how)[0, 0])
    # K 2^-F S' + B (2^-r + 2^-24) S, with K = S = S' = 16, F = 25, B = 2, r = 23
    assert bound == pytest.approx(16 * 2**-25 * 16 + 2 * (2**-23 + 2**-24) * 16, rel=1e-6)


def test_the_bound_of_a_long_sum_has_terms_of_higher_order() -> None:
    # (1 + u)^(K - 1) - 1 is 6.4, and its first order (K - 1) u is 2.0; no term underflows
    bound = float(sum_error(Arithmetic("FP16", FP16), 4096, 1.0, grid=1.0))
    assert bound == pytest.approx((1 + 2.0**-11) ** 4095 - 1, rel=1e-9)


def test_the_bound_of_rounded_operands_has_a_term_of_second_order() -> None:
    # both factors of a product may lose w: (1 + w)^2 - 1
    how = Arithmetic("TF32 operands", FP32, operands=TF32)
    assert float(sum_error(how, 1, 1.0)) == pytest.approx((1 + 2.0**-10) ** 2 - 1, rel=1e-9)


def test_the_bound_of_a_sum_of_rounded_operands_has_the_product_of_both_errors() -> None:
    how = Arithmetic("FP16, TF32 operands", FP16, operands=TF32)
    bound = float(sum_error(how, 4096, 1.0, grid=1.0))
    of_operands = (1 + 2.0**-10) ** 2
    of_additions = (1 + 2.0**-11) ** 4095
    assert bound == pytest.approx(of_operands * of_additions - 1, rel=1e-9)


def test_the_bound_of_many_blocks_of_an_h100_grows_with_their_number() -> None:
    # K 2^-F + B (2^-r + 2^-24), times (1 + 2^-24)^B, with K = 2^24, F = 25, B = 2^21, r = 23
    bound = float(sum_error(arithmetic("H100", (FP16, FP16)), 2**24, 1.0))
    first_order = 2.0**24 * 2.0**-25 + 2.0**21 * (2.0**-23 + 2.0**-24)
    assert bound == pytest.approx(first_order * (1 + 2.0**-24) ** 2**21, rel=1e-6)


def test_the_bound_of_many_blocks_with_fp16_results_grows_with_their_number() -> None:
    of_fp32 = arithmetic("H100", (FP16, FP16))
    assert of_fp32.spec is not None
    how = replace(of_fp32, format=FP16, spec=replace(of_fp32.spec, result=FP16))
    # as above, with r = 11, and a growth of each block by 2^-11; K = 2^13 and B = 2^10
    bound = float(sum_error(how, 2**13, 1.0))
    first_order = 2.0**13 * 2.0**-25 + 2.0**10 * (2.0**-11 + 2.0**-24)
    growth = ((1 + 2.0**-11) * (1 + 2.0**-24)) ** 2**10
    assert bound == pytest.approx(first_order * growth, rel=1e-4)


def test_a_sum_of_a_v100_nears_its_bound() -> None:
    """Each of three small products is below 2^-23, and is cut."""
    a = np.float16([[1.0, *[2.0**-12] * 3]])
    b = np.float16([[1.0, *[2.0**-11 * (1 - 2.0**-11)] * 3]]).T
    how = arithmetic("V100", (FP16, FP16))
    first_order = next(iter(sums(a.T.astype(np.float64), b.astype(np.float64), how)))
    assert first_order[0] == 1.0
    bound = float(matmul(a, b).error(how)[0, 0])
    assert 0.4 < 3 * 2.0**-23 * (1 - 2.0**-11) / bound < 1


@pytest.fixture
def subnormal_operands() -> tuple[np.ndarray, np.ndarray]:
    """A row and a column of FP16; the numbers of the row are subnormal."""
    a = np.float16([[2.0**-24, *[2.0**-24 * 3] * 3]])
    b = np.float16([[1024.0, *[1.0 + 2.0**-10] * 3]]).T
    return a, b


def test_subnormal_operands_have_the_exponent_of_normal_ones(
    subnormal_operands: tuple[np.ndarray, np.ndarray],
) -> None:
    """A V100 takes 2^-24 with exponent -14: it cuts 2^10 times more than the product's own does."""
    bound = matmul(*subnormal_operands).error(arithmetic("V100", (FP16, FP16)))[0, 0]
    assert bound > 4 * 2.0**-23 * 2.0**-14 * 2**10


def test_sums_of_subnormal_operands_do_not_exceed_the_bound(
    subnormal_operands: tuple[np.ndarray, np.ndarray],
) -> None:
    a, b = subnormal_operands
    how = arithmetic("V100", (FP16, FP16))
    operation = matmul(a, b)
    bound = operation.error(how)[0, 0]
    for result in sums(a.T.astype(np.float64), b.astype(np.float64), how):
        assert abs(result[0] - operation.value[0, 0]) <= bound


def test_a_sum_that_may_overflow_has_an_infinite_bound() -> None:
    x = np.float16([[60_000.0, 60_000.0, -60_000.0]])
    operation = matmul(x, np.ones((3, 1), np.float16))
    assert np.isinf(operation.error(Arithmetic("FP16", FP16)))
    assert np.isfinite(operation.error(Arithmetic("FP32")))


@pytest.mark.parametrize("rounding", [Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY])
def test_to_nearest_the_unit_roundoff_is_half_an_ulp(rounding: Rounding) -> None:
    tie = 1 + 2.0**-11
    assert unit_roundoff(FP16, rounding) == 2.0**-11
    assert abs(float(round_to(tie, FP16, rounding)) - tie) == 2.0**-11


@pytest.mark.parametrize("terms", [10, 10**9])
def test_a_bound_of_a_number_is_a_number(terms: int) -> None:
    of_number = sum_error(Arithmetic("FP16", FP16), terms, 1.0)
    of_array = sum_error(Arithmetic("FP16", FP16), terms, np.array([1.0]))
    assert float(of_number) == of_array[0]


def decimals(values: np.ndarray) -> list[Decimal]:
    """Return the exact values of floats."""
    return [Decimal(float(value)) for value in values]


def softmax_in_decimals(x: list[Decimal], _: object, __: object) -> list[Decimal]:
    """Return the softmax of a row."""
    parts = [(value - max(x)).exp() for value in x]
    total = sum(parts)
    return [part / total for part in parts]


def layer_norm_in_decimals(
    x: list[Decimal], weights: list[Decimal], biases: list[Decimal]
) -> list[Decimal]:
    """Return the layer norm of a row, with an epsilon of 1e-5."""
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    deviation = (variance + Decimal.from_float(1e-5)).sqrt()
    return [
        (value - mean) / deviation * weight + bias
        for value, weight, bias in zip(x, weights, biases, strict=True)
    ]


def rms_norm_in_decimals(x: list[Decimal], weights: list[Decimal], _: object) -> list[Decimal]:
    """Return the RMS norm of a row, with an epsilon of 1e-6."""
    mean_square = sum(value * value for value in x) / len(x)
    root = (mean_square + Decimal.from_float(1e-6)).sqrt()
    return [value / root * weight for value, weight in zip(x, weights, strict=True)]


# Name -> the operation of x, weights and biases; torch's result; and each row in decimals.
NORMS = {
    "softmax": (
        lambda x, w, b: softmax(x),
        lambda x, w, b: torch.softmax(x, 1),
        softmax_in_decimals,
    ),
    "layer norm": (
        layer_norm,
        lambda x, w, b: F.layer_norm(x, (37,), w, b),
        layer_norm_in_decimals,
    ),
    "rms norm": (
        lambda x, w, b: rms_norm(x, w),
        lambda x, w, b: F.rms_norm(x, (37,), w, 1e-6),
        rms_norm_in_decimals,
    ),
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_norms_against_decimals_of_fifty_digits(spread: float, name: str) -> None:
    make_operation, by_torch, in_decimals = NORMS[name]
    random = np.random.default_rng(4)
    rows = random.standard_normal((6, 37)) + random.standard_normal((6, 1))
    x = np.float32(rows * spread)
    w, b = np.float32(random.standard_normal((2, 37)))
    operation = make_operation(x, w, b)
    errors = operation.error(Arithmetic("FP32"))
    results = by_torch(torch.from_numpy(x), torch.from_numpy(w), torch.from_numpy(b))
    with localcontext(prec=50):
        for i, row in enumerate(x):
            columns = zip(
                in_decimals(decimals(row), decimals(w), decimals(b)),
                decimals(operation.value[i]),
                decimals(errors[i]),
                decimals(results[i].numpy()),
                strict=True,
            )
            for exact, value, limit, result in columns:
                # The operation's own value is in FP64: far nearer than the bound of FP32.
                assert abs(value - exact) <= limit * Decimal(2) ** -10
                assert abs(result - exact) <= limit + Decimal(2) ** -24 * abs(exact)


@pytest.mark.parametrize("counts", [{"terms": -1}, {"terms": 4, "extra": -1}])
def test_a_negative_count_is_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected 0 or more, got -1"):
        sum_error(Arithmetic("FP16", FP16), size=1.0, **counts)
