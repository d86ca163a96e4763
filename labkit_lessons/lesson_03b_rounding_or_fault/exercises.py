"""The exercise of lesson 03b: the results that rounding allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np

from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)


# --- kernels.allowed ---


def _numbers(random: Random, count: int, low: int = 1024) -> list[float]:
    """FP16 numbers from 1 up to 2, times a sign."""
    return [random.choice((-1, 1)) * random.randrange(low, 2048) / 1024 for _ in range(count)]


def _one(random: Random) -> list[Case]:
    """One product and none: nothing is added, so nothing but the end is rounded."""
    cases: list[Case] = [
        (_numbers(random, 1), _numbers(random, 1), precision) for precision in (11, 24)
    ]
    return [*cases, ([], [], 24)]


def _positive(random: Random) -> list[Case]:
    """Sums without cancellation, in an FP16 accumulator."""
    pairs = [(_numbers(random, count), _numbers(random, count)) for count in (2, 3, 5, 9)]
    return [([abs(x) for x in a], [abs(x) for x in b], 11) for a, b in pairs]


def _cancelling(random: Random) -> list[Case]:
    """Sums that nearly cancel, whose magnitude says nothing about their error."""
    cases: list[Case] = []
    for count, precision in ((3, 11), (6, 11), (4, 8), (8, 24)):
        a = _numbers(random, count)
        b = _numbers(random, count)
        cases.append(([*a, 2.0**-6, *[-x for x in a]], [*b, 1.5, *b], precision))
    return cases


def _fp32(random: Random) -> list[Case]:
    """Long sums in FP32: mostly one number, or two."""
    cases: list[Case] = [
        (_numbers(random, count), _numbers(random, count), 24) for count in (64, 300, 1000)
    ]
    # The exact sum is just below the middle of two FP16 numbers, and the error reaches beyond it.
    near = [
        ([1.0] * 7 + [2.0**-8, -gap], [1.0] * 6 + [0.5 + 2.0**-9, 1.0, 1.0], 24)
        for gap in (2.0**-20, 2.0**-16)
    ]
    return [
        *cases,
        *near,
        *(_beside_a_middle(random, sign) for sign in (1, -1)),
        _before_a_middle(random),
    ]


def _beside_a_middle(random: Random, sign: int) -> Case:
    """Return a sum with an end so near the middle of two FP16 numbers that FP32 rounds to it."""
    even = random.randrange(512, 600) * 2
    return [sign * even / 1024, sign * 2.0**-11, sign * 5 * 2.0**-12], [1.0, 1.0, 2.0**-13], 24


def _before_a_middle(random: Random) -> Case:
    """Return a sum with a lower end just below a middle, and above it if the sum is FP32."""
    even = random.randrange(880, 980) * 2
    return [even / 1024, 2.0**-11, 13 * 2.0**-12], [1.0, 1.0, 2.0**-14], 24


def _ends(random: Random) -> list[Case]:
    """Subnormal results, and sums around FP16's largest number."""
    tiny = [x * 2.0**-12 for x in _numbers(random, 6)]
    large = [256.0 * x for x in (1.0, 1.25)]
    return [
        (tiny, [x * 2.0**-11 for x in _numbers(random, 6)], 11),
        ([*large, 16.0], [128.0, 100.0, 8.0 * random.randrange(20, 60)], 11),
        ([256.0] * 2, [255.875, -0.125], 11),
        ([-256.0, -1.0], [255.875, 8.0], 11),
    ]


MAGNITUDES = "size = math.fsum(map(abs, products))"


def _in_any_precision(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same sums, and of one in a precision that no accumulator has."""

    def drawn(random: Random) -> list[Case]:
        cases = draw(random)
        a, b, _ = random.choice(cases)
        return [*cases, (a, b, random.choice((9, 10, 13, 14, 17, 19)))]

    return drawn


ALLOWED = Exercise(
    id="kernels.allowed",
    notes="""\
The point: the bound of a sum counts additions, takes magnitudes, and comes before the last
rounding, which is monotonic.

Invariant: products and sums are exact in FP64, so only the formula decides.
Oracle in the tests: fractions, and the accumulators of labkit.gemm, none of which leaves the
interval.""",
    checks=(
        Check("one product, or none", 1, _in_any_precision(_one)),
        Check("sums of positive products in an FP16 accumulator", 2, _in_any_precision(_positive)),
        Check("sums that cancel", 2, _in_any_precision(_cancelling)),
        Check("long sums in FP32", 1, _in_any_precision(_fp32)),
        Check("subnormal results, and those beyond 65504", 1, _in_any_precision(_ends)),
    ),
    mistakes=(
        wrong(
            "the magnitude of the sum",
            "this takes the magnitude of the sum. Where terms cancel, the sum is small "
            "and its error is not: take the sum of magnitudes.",
            replace=(MAGNITUDES, "size = abs(exact)"),
        ),
        wrong(
            "as many additions as products",
            "this counts K additions. K products need K - 1.",
            replace=("max(0, len(products) - 1)", "len(products)"),
        ),
        wrong(
            "a whole unit in the last place",
            "this takes 2^(1 - p), the spacing next to 1. Rounding to nearest is "
            "off by half of it.",
            replace=("2.0**-precision", "2.0 ** (1 - precision)"),
        ),
        wrong(
            "the usual error",
            "this grows with the square root of K relative to S, as errors usually do. A bound "
            "holds for the worst order, too.",
            replace=(
                "((1 + 2.0**-precision) ** max(0, len(products) - 1) - 1)",
                "2.0**-precision * math.sqrt(max(0, len(products) - 1))",
            ),
        ),
        wrong(
            "one rounding",
            "this allows for one rounding only. Every addition rounds.",
            replace=("max(0, len(products) - 1)", "1"),
        ),
        wrong(
            "no rounding at the end",
            "this gives the ends as they are. What is stored is a number of FP16: round both ends.",
            replace=(
                "float(np.float16(exact - error)), float(np.float16(exact + error))",
                "exact - error, exact + error",
            ),
        ),
        wrong(
            "rounds before it adds the bound",
            "this rounds the exact sum and then adds the bound. The bound comes "
            "first, the rounding last.",
            replace=(
                "float(np.float16(exact - error)), float(np.float16(exact + error))",
                "float(np.float16(exact)) - error, float(np.float16(exact)) + error",
            ),
        ),
        wrong(
            "rounds the ends twice",
            "this rounds the ends to FP32 and then to FP16. The first rounding can end in the "
            "middle of two FP16 numbers, and the second one then goes the wrong way. torch's "
            "half() of FP64 does this, np.float16 rounds once.",
            replace=(
                ("np.float16(exact - error)", "np.float16(np.float32(exact - error))"),
                ("np.float16(exact + error)", "np.float16(np.float32(exact + error))"),
            ),
        ),
        wrong(
            "rounds the sum to FP32",
            "this rounds the sum to FP32 before it takes the bound off. The bound is "
            "around the exact sum.",
            replace=(
                "exact = math.fsum(products)",
                "exact = float(np.float32(math.fsum(products)))",
            ),
        ),
        wrong(
            "only the exact result",
            "this allows the exact result only, rounded once. Another order of the "
            "additions may store another number.",
            replace=(" - 1) * size", " - 1) * 0"),
        ),
    ),
    provides={"np": np, "math": math},
)

EXERCISES = (ALLOWED,)
