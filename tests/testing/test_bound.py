"""The bound of a sum, against rational arithmetic: no right sum exceeds it, in any order.

Numbers are drawn to be ordinary, of all magnitudes, cancelling, or adversarial: ties at the end of
a large sum. Each sum is computed in the orders of `labkit.testing.orders`, by numpy and by torch,
and compared with a sum of fractions. The short version has some ten thousand sums, the one marked
slow a million.
"""

from collections.abc import Iterator
from decimal import Decimal, getcontext
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
from labkit.testing.bound import Floats
from labkit.testing.orders import sums

KINDS = ("ordinary", "wide", "cancelling", "positive", "ties")
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
CARDS = [
    (format, arithmetic(name, (format, format)))
    for name, formats in {
        "V100": (FP16,),
        "T4": (FP16,),
        "A100": (FP16, BF16, TF32),
        "Ada": (E4M3, E5M2),
        "H100": (FP16, BF16, TF32, E4M3, E5M2),
        "B200": (FP16, E4M3),
    }.items()
    for format in formats
]
ALL = [*IEEE, *CARDS]


def draw(
    kind: str, format: Format, terms: int, count: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return operands [terms, count] that the format represents."""
    shape = terms, count
    x, y = random.standard_normal((2, *shape))
    if kind == "wide":
        lowest = format.emin - format.significand_bits
        top = min(format.emax, 60)
        x, y = (
            np.ldexp(each, random.integers(max(lowest, -140), top // 2, shape)) for each in (x, y)
        )
    if kind == "positive":
        x = np.abs(x)
        y = np.abs(y)
    if kind == "cancelling":
        half = terms // 2
        x[half : 2 * half], y[half : 2 * half] = -x[:half], y[:half]
        x[: terms // 8] *= 2.0**-6
    if kind == "ties":  # one large term, and many of half its last place or a little more
        y[:] = 1.0
        x[:] = np.ldexp(
            1 + random.integers(0, 2, shape) * format.epsilon, -random.integers(8, 27, (1, count))
        )
        x[0] = 1 + random.integers(0, 4, count) * format.epsilon
        x *= random.choice([-1.0, 1.0], count)
    rounded = (np.asarray(round_to(each, format), np.float64) for each in (x, y))
    finite = (np.where(np.isfinite(each), each, 1.0) for each in rounded)
    x, y = (np.clip(each, -(2.0**60), 2.0**60) for each in finite)
    shuffled = random.permuted(np.arange(terms)[:, None].repeat(count, 1), axis=0)
    return np.take_along_axis(x, shuffled, 0), np.take_along_axis(y, shuffled, 0)


def found_sums(x: Floats, y: Floats, how: Arithmetic) -> Iterator[Floats]:
    yield from sums(x, y, how)
    if how == Arithmetic("FP32"):
        a, b = (torch.from_numpy(each.T.copy()).float() for each in (x, y))
        yield torch.bmm(a[:, None], b[:, :, None])[:, 0, 0].double().numpy()
        yield np.einsum("jk,jk->j", a.numpy(), b.numpy()).astype(np.float64)
        yield (a * b).sum(1).double().numpy()


def exceeded(
    format: Format, how: Arithmetic, terms: int, count: int, seed: int
) -> tuple[int, list[str]]:
    """Return the number of sums that were compared, and those beyond the bound."""
    compared = 0
    beyond = []
    for kind in KINDS:
        x, y = draw(
            kind, format, terms, count, np.random.default_rng([seed, terms, KINDS.index(kind)])
        )
        operation = matmul(np.float32(x.T[:, None]), np.float32(y.T[:, :, None]), operands=format)
        bound = operation.error(how)[:, 0, 0]
        exact = [
            sum((Fraction(p) * Fraction(q) for p, q in zip(*pair, strict=True)), Fraction(0))
            for pair in zip(x.T.tolist(), y.T.tolist(), strict=True)
        ]
        limits = [Fraction(each) if np.isfinite(each) else None for each in bound.tolist()]
        for order, found in enumerate(found_sums(x, y, how)):
            for j, value in enumerate(found.tolist()):
                if limits[j] is not None:
                    compared += 1
                    if not np.isfinite(value) or abs(Fraction(value) - exact[j]) > limits[j]:
                        beyond.append(
                            f"{kind} {order} {j}: {value!r}, {float(exact[j])!r} +- {bound[j]!r}"
                        )
    return compared, beyond


every_arithmetic = pytest.mark.parametrize(
    ("format", "how"), ALL, ids=[f"{f.name}, {how.name}" for f, how in ALL]
)


@every_arithmetic
def test_no_order_exceeds_the_bound(format: Format, how: Arithmetic) -> None:
    for terms in (1, 2, 7, 33):
        compared, beyond = exceeded(format, how, terms, 12, seed=0)
        assert beyond == []
        assert compared > 100


@pytest.mark.slow
@every_arithmetic
def test_no_order_exceeds_the_bound_in_a_million_sums(format: Format, how: Arithmetic) -> None:
    """20 arithmetics and more, at least 50,000 sums each."""
    compared, seed = 0, 1
    while compared < 50_000:
        for terms in (1, 2, 3, 5, 8, 13, 17, 40, 96):
            more, beyond = exceeded(format, how, terms, 100, seed)
            assert beyond == []
            compared += more
        seed += 1


@pytest.mark.parametrize("out", [FP16, BF16, FP32, E5M2, E4M3])
def test_what_is_stored_lies_between_the_rounded_ends(out: Format) -> None:
    """Subnormal results, overflow to infinity, NaN where the format has no infinity: none is a
    fault.
    """
    for format, how in [*IEEE[:5], CARDS[0], CARDS[6]]:
        for kind in KINDS:
            x, y = draw(kind, format, 19, 60, np.random.default_rng(5))
            scale = 2.0 ** np.random.default_rng(6).integers(-12, 12, 60)
            x = np.clip(
                np.asarray(round_to(x * scale, format), np.float64), -format.max, format.max
            )
            operation = matmul(
                np.float32(x.T[:, None]), np.float32(y.T[:, :, None]), operands=format
            )
            for found in sums(x, y, how):
                with np.errstate(over="ignore", invalid="ignore"):
                    got = np.float32(round_to(found, out))[:, None, None]
                    verdict = compare(got, operation, out=out, accumulator=how)
                assert verdict.kind is not VerdictKind.IMPOSSIBLE, (
                    str(verdict),
                    kind,
                    format.name,
                    how.name,
                )


def test_bound_is_reached() -> None:
    """A worked example: 1 and seven terms of 2^-24 (1 - 2^-23), one by one in FP32, each of which
    is lost.
    """
    tiny = np.float32(2.0**-24 * (1 - 2.0**-23))
    x = np.float32([1.0, *[tiny] * 7])
    got = np.float32(0)
    for term in x:
        got += term
    assert got == 1.0
    operation = matmul(x, np.ones(8, np.float32))
    lost = float(operation.value) - float(got)
    # seven terms of almost u are lost; the bound counts seven additions, and a product that might
    # be rounded
    assert 7 / 8 * 0.999 < lost / float(operation.error(Arithmetic("FP32"))) < 1
    # one block of an H100: 16 products, 25 bits behind the point; and a sum of a V100 that comes
    # near its bound
    ones = np.ones((1, 16), np.float16)
    how = arithmetic("H100", (FP16, FP16))
    bound = float(matmul(ones, ones.T).error(how)[0, 0])
    # K 2^-F S' + B (2^-r + 2^-24) S, with K = S = 16, F = 25, B = 2, r = 23
    assert bound == pytest.approx(16 * 2**-25 * 16 + 2 * (2**-23 + 2**-24) * 16, rel=1e-6)
    a = np.float16([[1.0, *[2.0**-12] * 3]])
    b = np.float16([[1.0, *[2.0**-11 * (1 - 2.0**-11)] * 3]]).T
    v100 = arithmetic("V100", (FP16, FP16))
    (got, *_), e = (
        sums(a.T.astype(np.float64), b.astype(np.float64), v100),
        matmul(a, b).error(v100)[0, 0],
    )
    assert got[0] == 1.0  # each small product is below 2^-23, and is cut
    assert 0.4 < 3 * 2.0**-23 * (1 - 2.0**-11) / float(e) < 1


def test_subnormal_operands_align_like_normal_ones() -> None:
    """In FP16 2^-24 counts with exponent -14: the block is cut 2^10 times coarser than the product
    tells.
    """
    a = np.float16([[2.0**-24, *[2.0**-24 * 3] * 3]])
    b = np.float16([[1024.0, *[1.0 + 2.0**-10] * 3]]).T
    how = arithmetic("V100", (FP16, FP16))
    operation = matmul(a, b)
    bound = operation.error(how)[0, 0]
    assert bound > 4 * 2.0**-23 * 2.0**-14 * 2**10
    for found in sums(a.T.astype(np.float64), b.astype(np.float64), how):
        assert abs(found[0] - operation.value[0, 0]) <= bound
    # a sum that may overflow cannot be bounded
    x = np.float16([[60_000.0, 60_000.0, -60_000.0]])
    operation = matmul(x, np.ones((3, 1), np.float16))
    assert np.isinf(operation.error(Arithmetic("FP16", FP16)))
    assert np.isfinite(operation.error(Arithmetic("FP32")))


def decimals(values: np.ndarray) -> list[Decimal]:
    return [Decimal(float(value)) for value in values]


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_norms_against_decimals_of_fifty_digits(spread: float) -> None:
    getcontext().prec = 50
    random = np.random.default_rng(4)
    x = np.float32(
        random.standard_normal((6, 37)) * spread + random.standard_normal((6, 1)) * spread
    )
    w, b = np.float32(random.standard_normal((2, 37)))
    a, weight, bias = map(torch.from_numpy, (x, w, b))
    results = {
        "softmax": (softmax(x), torch.softmax(a, 1)),
        "layer norm": (layer_norm(x, w, b), F.layer_norm(a, (37,), weight, bias)),
        "rms norm": (rms_norm(x, w), F.rms_norm(a, (37,), weight, 1e-6)),
    }
    for i, row in enumerate(x):
        numbers = decimals(row)
        weights = decimals(w)
        biases = decimals(b)
        parts = [(each - max(numbers)).exp() for each in numbers]
        mean = sum(numbers) / 37
        deviation = (
            sum((each - mean) ** 2 for each in numbers) / 37 + Decimal.from_float(1e-5)
        ).sqrt()
        root = (sum(each * each for each in numbers) / 37 + Decimal.from_float(1e-6)).sqrt()
        exact = {
            "softmax": [part / sum(parts) for part in parts],
            "layer norm": [
                (n - mean) / deviation * p + q
                for n, p, q in zip(numbers, weights, biases, strict=True)
            ],
            "rms norm": [n / root * p for n, p in zip(numbers, weights, strict=True)],
        }
        for name, (operation, got) in results.items():
            limits = decimals(operation.error(Arithmetic("FP32"))[i])
            values = decimals(operation.value[i])
            for right, value, limit, found in zip(
                exact[name], values, limits, decimals(got[i]), strict=True
            ):
                assert abs(value - right) <= limit * Decimal(2) ** -10
                assert abs(found - right) <= limit + Decimal(2) ** -24 * abs(right)
