"""Can you count how many numbers lie between one power of two and the next?

The point: the histogram that every picture of this lesson is made of. The exponent of |x|, and what has none.

Invariant: the numbers are FP32 numbers, so the logarithm that a learner may take is far from a whole number or exact.
Oracle in the tests: numpy.frexp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.instrument import exponent_histogram


def reference(values: Sequence[float]) -> dict[int, int]:
    """Return exponent -> how many numbers have 2^exponent <= |x| < 2^(exponent + 1).

    >>> reference([1.0, 1.5, -0.25, 0.0])
    {0: 2, -2: 1}
    """
    counts: dict[int, int] = {}
    for x in values:
        if x != 0 and math.isfinite(x):
            exponent = math.frexp(x)[1] - 1
            counts[exponent] = counts.get(exponent, 0) + 1
    return counts


def _number(random: Random, lowest: int = -30, highest: int = 20) -> float:
    return random.randrange(1025, 2047) / 1024 * 2.0 ** random.randrange(lowest, highest)


def _inside(random: Random) -> list[Case]:
    """No powers of two, many in one binade, some alone; FP32's ends; and equal numbers, of which each counts."""
    ends = [_number(random, at, at + 1) for at in (-149 + 10, -127, -126, 126, 127)]
    x = _number(random)
    return [*(([_number(random, -k, k) for _ in range(12)],) for k in (1, 3, 8)), (ends,), ([x, 3.0, x, x, -x, 3.0],)]


def _powers(random: Random) -> list[Case]:
    """Powers of two open a binade; the FP32 number before each ends the one below."""
    powers = [2.0**k for k in (*random.sample(range(-24, 16), 6), -29, -31)]  # of these two, log(x, 2) is rounded down
    return [(powers,), ([p * (1 - 2.0**-24) for p in powers],)]


def _signs(random: Random) -> list[Case]:
    found = [_number(random) for _ in range(8)]
    return [([-x for x in found],), ([x * random.choice((-1, 1)) for x in found] + [-(2.0**-20)],)]


def _without(random: Random) -> list[Case]:
    """Zeros of both signs, infinities and NaN are in no binade; of an empty list nothing is."""
    some = [_number(random) for _ in range(3)]
    return [([0.0, *some, -0.0],), ([math.inf, *some],), ([-math.inf, *some],), ([math.nan, *some],), ([],)]


def _count(exponents: Sequence[int]) -> dict[int, int]:
    return {e: list(exponents).count(e) for e in exponents}


def _finite(values: Sequence[float]) -> list[float]:
    return [x for x in values if x and math.isfinite(x)]


# fmt: off
MISTAKES = (
    wrong("takes frexp s exponent", "this is frexp's exponent as it is: frexp gives a fraction from 0.5 to 1. "
          "Subtract 1.", lambda values: _count([math.frexp(x)[1] for x in _finite(values)])),
    wrong("cuts the logarithm", "this is what int() makes of the logarithm: it cuts towards zero, so numbers below 1 "
          "land one too high. Take floor.", lambda values: _count([int(math.log2(abs(x))) for x in _finite(values)])),
    wrong("rounds the logarithm", "this is the power of two that is nearest. A binade goes from one power up to the "
          "next: round down.", lambda values: _count([round(math.log2(abs(x))) for x in _finite(values)])),
    wrong("closes binades above", "this puts a power of two into the binade that ends there. It opens one: 2^e <= "
          "|x|.", lambda values: _count([math.ceil(math.log2(abs(x))) - 1 for x in _finite(values)])),
    wrong("leaves negative numbers out", "this counts positive numbers only. A magnitude has no sign: take abs(x).",
          lambda values: reference([x for x in values if x > 0])),
    wrong("counts zeros", "this is frexp's exponent of 0, which is 0: zero lies in no binade. Leave it out.",
          lambda values: _count([math.frexp(x)[1] - 1 for x in values if math.isfinite(x)])),
    wrong("counts infinities", "this is frexp's exponent of inf and NaN, which means nothing. Leave out what "
          "math.isfinite denies.", lambda values: _count([math.frexp(x)[1] - 1 for x in values if x])),
    wrong("counts each binade once", "this says which binades are used. How many numbers are in each? Add 1 for "
          "every number.", lambda values: dict.fromkeys(reference(values), 1)),
)
# fmt: on

EXERCISE = Exercise(
    id="gradients.binades",
    title="Count by powers of two",
    entry="my_binades",
    difficulty=1,
    minutes=8,
    reference=reference,
    checks=(
        Check("numbers between two powers of two", 2, _inside),
        Check("a power of two opens its binade", 1, _powers),
        Check("a magnitude has no sign", 1, _signs),
        Check("zeros, infinities and NaN are in no binade", 1, _without),
    ),
    mistakes=MISTAKES,
    provides={"math": math},
    withheld=(exponent_histogram,),
)
