"""Can you add up one block as a Tensor Core does, to the bit?

The point: products are exact and not normalised, every term is cut at the same place, the sum is exact, and only then
is it cut to FP32. Oracles in the tests: Python's decimal numbers for the sum, gfloat for the last rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from labkit.gemm import SPECS, accumulate, emulate, explain
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Floats = Sequence[float]
PRECISION = 24  # of FP32


def reference(a: Floats, b: Floats, c: float, fraction_bits: int) -> float:
    """Return c + a[0]*b[0] + a[1]*b[1] + ... as one block of a Tensor Core that keeps `fraction_bits`, in FP32.

    >>> reference([1.0] * 16, [2.0**-24] * 16, 1.0, 23), reference([1.0] * 16, [2.0**-24] * 16, 1.0, 24) > 1
    (1.0, True)
    """
    return explain(a, b, c, replace(SPECS["H100"], fraction_bits=fraction_bits)).result


def _exponent(x: float) -> int:
    return math.frexp(x)[1] - 1


def _terms(a: Floats, b: Floats, c: float) -> list[tuple[float, int]]:
    """Return (value, exponent before normalising) of every term."""
    products = [(x * y, _exponent(x) + _exponent(y)) for x, y in zip(a, b, strict=True)]
    return [*products, (c, _exponent(c))]


def _largest(terms: list[tuple[float, int]]) -> int:
    return max((exponent for value, exponent in terms if value), default=0)


def _to_fp32(total: int, unit: float) -> float:
    """Cut a whole number of units to FP32's precision."""
    spare = max(0, total.bit_length() - PRECISION)
    return math.ldexp(math.trunc(total / 2**spare), spare) * unit


def _block(
    a: Floats, b: Floats, c: float, fraction_bits: int, *,
    cut: Callable[[float], int] = math.trunc,
    largest: Callable[[list[tuple[float, int]]], int] = _largest,
    finish: Callable[[int, float], float] = _to_fp32,
) -> float:  # fmt: skip
    """Return the block's sum with one part of it done in another way; as it stands, done right."""
    terms = _terms(a, b, c)
    unit = 2.0 ** (largest(terms) - fraction_bits)
    return finish(sum(cut(value / unit) for value, _ in terms), unit)


def _whole(random: Random, count: int, low: int = 1024, high: int = 2048) -> list[float]:
    """FP16 numbers from 1 up to 2, times a sign."""
    return [random.choice((-1, 1)) * random.randrange(low, high) / 1024 for _ in range(count)]


def _exact(random: Random) -> list[Case]:
    """Few bits, all of them kept."""
    return [
        ([random.randrange(1, 32) / 8 for _ in range(n)], [random.randrange(1, 32) / 8 for _ in range(n)], 1.5, 23)
        for n in (4, 8)
    ]


def _small_beside_large(random: Random) -> list[Case]:
    """A large C, and products that lie on both sides of the last place kept."""
    cases: list[Case] = [([2.0**-12] * 16, [2.0**-12] * 16, 1.0, bits) for bits in (23, 24)]
    for bits in (23, 25):
        a = [abs(x) for x in _whole(random, 8)]
        b = [abs(x) * 2.0**-13 for x in _whole(random, 8)]
        cases.append((a, b, 512.0 + random.randrange(1, 512), bits))
    a, b = ([abs(x) * scale for x in _whole(random, 14)] for scale in (1.0, 2.0**-13))
    cases.append(([2.0, *a], [1.0, *b], 4.0 + random.randrange(1, 8) / 8, 23))  # C is the largest, by little
    return [*cases, ([32.0, *a], [32.0, *(1024 * x for x in b)], 1.0, 23)]  # a product is


def _signs(random: Random) -> list[Case]:
    """Negative terms that are cut: toward zero."""
    cases: list[Case] = []
    for bits in (23, 24):
        a = [-abs(x) for x in _whole(random, 8)]
        b = [abs(x) * 2.0**-13 for x in _whole(random, 8)]
        cases.append((a, b, 512.0 + random.randrange(1, 512), bits))
    return cases


def _not_normalised(random: Random) -> list[Case]:
    """A product of 2 or more counts with the exponent that its operands' exponents add up to."""
    cases: list[Case] = []
    for bits in (23, 24):
        tiny = 2.0 ** -(bits // 2), 2.0 ** -(bits - bits // 2)
        big = random.randrange(1536, 2000) / 1024
        cases.append(([big] + [tiny[0]] * 3, [1.5] + [tiny[1]] * 3, 0.5, bits))
    return cases


def _long_sums(random: Random) -> list[Case]:
    """Sums of more bits than FP32 holds: cut, not rounded."""
    cases: list[Case] = []
    for sign in (1, -1):
        a, b = [sign * abs(x) for x in _whole(random, 15, 1536)], [abs(x) for x in _whole(random, 15, 1536)]
        cases.append(([*a, sign * 2.0**-11], [*b, 2.0**-11 * 1.75], 0.0, 25))
    return cases


def _zeros(random: Random) -> list[Case]:
    """Terms of 0, whose other operand is large; a C of 0 beside small products; and nothing but zeros."""
    a, b = ([abs(x) * 2.0**-12 for x in _whole(random, 4)] for _ in range(2))
    return [
        ([0.0, *a, 1024.0], [1024.0, *b, -0.0], 2.0**-20, 23),
        (a, b, 0.0, 23),
        (a[:2] + [x * -1 for x in a[:2]], b[:2] * 2, 0.0, 24),  # terms that cancel
        ([0.0] * 4, [*b[:2], 0.0, -0.0], 0.0, 23),
    ]


def _anything(random: Random) -> list[Case]:
    return [
        ([x * 2.0 ** random.randrange(-6, 6) for x in _whole(random, n)],
         [x * 2.0 ** random.randrange(-6, 6) for x in _whole(random, n)],
         float(np.float32(random.gauss(0, 50))), bits)
        for n, bits in ((4, 23), (8, 24), (16, 25), (16, 23), (16, 24))
    ]  # fmt: skip


def _nearest_result(total: int, unit: float) -> float:
    return float(np.float32(total * unit))


@mistake
def adds_in_FP32_one_by_one(a: Floats, b: Floats, c: float, fraction_bits: int) -> float:
    """This is a loop in FP32, one rounding for each addition. A Tensor Core cuts all terms first, then adds exactly."""
    total = np.float32(c)
    for x, y in zip(a, b, strict=True):
        total = np.float32(total + np.float32(x * y))
    return float(total)


# fmt: off
MISTAKES = (
    adds_in_FP32_one_by_one,
    wrong("cuts nothing", "this is the exact sum, cut to FP32 at its end. Each term loses what lies behind "
          "`fraction_bits` first.", lambda a, b, c, fraction_bits: _block(a, b, c, 48, cut=round)),
    wrong("rounds the terms", "this is what rounding the aligned terms gives. They are cut: what lies behind the "
          "last place is dropped.", lambda a, b, c, fraction_bits: _block(a, b, c, fraction_bits, cut=round)),
    wrong("cuts downwards", "this is what `floor`, or `//`, gives: negative terms go the wrong way. `math.trunc` "
          "cuts toward zero.", lambda a, b, c, fraction_bits: _block(a, b, c, fraction_bits, cut=math.floor)),
    wrong("normalises the products", "this is what the exponent of the product itself gives. 1.5 * 1.5 counts with "
          "exponent 0: those of its operands, added up.",
          lambda a, b, c, fraction_bits: _block(
              a, b, c, fraction_bits, largest=lambda terms: _largest([(value, _exponent(value)) for value, _ in terms])
          )),
    wrong("leaves C out of the alignment", "this is what aligning to the largest product gives. C is a term like the "
          "others.",
          lambda a, b, c, fraction_bits: _block(a, b, c, fraction_bits, largest=lambda terms: _largest(terms[:-1]))),
    wrong("aligns to C", "this is what aligning everything to C gives. The largest exponent decides, whoever has it.",
          lambda a, b, c, fraction_bits: _block(a, b, c, fraction_bits, largest=lambda terms: terms[-1][1])),
    wrong("counts the leading bit", "this is one bit too few: `fraction_bits` stand behind the point, the leading "
          "bit comes on top.", lambda a, b, c, fraction_bits: _block(a, b, c, fraction_bits - 1)),
    wrong("rounds the result", "this is what rounding the sum to the nearest FP32 number gives. It is cut, too.",
          lambda a, b, c, fraction_bits: _block(a, b, c, fraction_bits, finish=_nearest_result)),
    wrong("leaves the sum too long", "this is the sum before it becomes FP32: it has more than 24 significant bits.",
          lambda a, b, c, fraction_bits: _block(a, b, c, fraction_bits, finish=lambda total, unit: total * unit)),
)
# fmt: on

EXERCISE = Exercise(
    id="tensor.block",
    title="One block of a Tensor Core",
    entry="my_block",
    difficulty=3,
    minutes=15,
    reference=reference,
    checks=(
        Check("sums of which nothing is cut, and terms of 0", 1, lambda random: _exact(random) + _zeros(random)),
        Check("small terms beside a large one", 2, _small_beside_large),
        Check("negative terms are cut toward zero", 1, _signs),
        Check("products are not normalised", 2, _not_normalised),
        Check("the sum is cut to FP32, not rounded", 1, _long_sums),
        Check("any block, to the bit", 2, _anything),
    ),
    mistakes=MISTAKES,
    provides={"math": math, "np": np},
    withheld=(explain, emulate, accumulate),
)
