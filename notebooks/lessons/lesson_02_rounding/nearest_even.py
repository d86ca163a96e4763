"""Can you round a real number to FP16?

The point: find the spacing, round to a whole number of spacings, half-way to the even one; then mind both ends.
Oracle in the tests: numpy's float16, which rounds a float64 once.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from random import Random

import numpy as np

from labkit.formats import FP16, Rounding, decode, encode, round_to, ulp
from labkit.grading.difference import bits, show_number
from labkit.grading.exercise import CASTS_TO_FP16, Case, Check, Exercise, Rows, mistake, wrong


def reference(x: float) -> float:
    """Return x rounded to FP16, nearest even: labkit.formats' own rounding.

    >>> reference(0.1), reference(1 + 2.0**-11), reference(65520.0)
    (0.0999755859375, 1.0, inf)
    """
    return float(round_to(x, FP16))


def _code(random: Random, low: int, high: int) -> int:
    return random.randrange(low, high)


def _beside(code: int, part: float, sign: int = 1) -> Case:
    """The number that lies `part` of a spacing above the number of this code; both signs."""
    value = float(decode(code, FP16))
    return (sign * (value + part * float(ulp(value, FP16))),)


def _nearer(random: Random) -> list[Case]:
    """Between two numbers, and clearly nearer to one of them."""
    parts = (0.2, 0.8, 0.4, 0.7, 0.3, 0.9)
    return [(0.1,), *(_beside(_code(random, 0x1000, 0x7000), part, random.choice((-1, 1))) for part in parts)]


def _half_way(random: Random) -> list[Case]:
    """Half-way above an even and above an odd significand, of either sign."""
    codes = [_code(random, 0x1000, 0x7000) & ~1 | odd for odd in (0, 1, 0, 1)]
    return [(1 + 2.0**-11,), *(_beside(code, 0.5, sign) for code, sign in zip(codes, (1, 1, -1, -1), strict=True))]


def _small(random: Random) -> list[Case]:
    """Zero, half of the smallest number and a bit more, and subnormal numbers."""
    codes = [_code(random, 2, 0x0300) & ~1 | odd for odd in (0, 1)]
    between = [_beside(_code(random, 2, 0x03F0), part, sign) for part, sign in ((0.3, 1), (0.8, -1), (0.6, 1))]
    ends = [
        (-(2.0**-25),),
        (-(2.0**-25) * 1.01,),
        (5e-324,),
        (-1e-300,),
        (2.0**-14 - 2.0**-25,),
        (2.0**-14 - 2.0**-26,),
    ]
    return [(0.0,), (-0.0,), (2.0**-25,), (2.0**-25 * 1.01,), *ends, *(_beside(code, 0.5) for code in codes), *between]


def _large(random: Random) -> list[Case]:
    """Up to 65520 belongs to 65504; from there on it is infinity, and so is infinity itself."""
    ends = [(65504.0,), (65519.9,), (65520.0,), (-65519.0,), (-65520.0,), (random.uniform(7e4, 1e5),), (-1e6,)]
    return [*ends, (1e308,), (math.inf,), (-math.inf,)]


def _just_beside_half_way(random: Random) -> list[Case]:
    """2^-30 of a spacing off half-way: a rounding to FP32 on the way hides that."""
    return [
        _beside(_code(random, 0x1000, 0x7000) & ~1 | odd, 0.5 + side * 2.0**-30, sign)
        for odd in (0, 1)
        for side in (-1, 1)
        for sign in (-1, 1)
    ]


def _half_up(ratio: float) -> float:
    return math.floor(ratio + 0.5)


def _half_away(ratio: float) -> float:
    return math.copysign(math.floor(abs(ratio) + 0.5), ratio)


def _half_to_zero(ratio: float) -> float:
    return math.copysign(math.ceil(abs(ratio) - 0.5), ratio)


def _by_hand(
    x: float,
    *,
    whole: Callable[[float], float] = round,
    lowest: int = -14,
    bits: int = 10,
    limit: float = 65520.0,
    beyond: float = math.inf,
) -> float:
    """Round as on paper; every keyword is one thing that goes wrong on paper.

    >>> _by_hand(0.1) == reference(0.1)
    True
    """
    if abs(x) >= limit:
        return math.copysign(beyond, x)
    exponent = max(math.frexp(x)[1] - 1, lowest) if x else lowest
    spacing = math.ldexp(1.0, exponent - bits)
    return float(whole(x / spacing) * spacing)


def _neighbours(x: float) -> Rows:
    modes = (("below it", Rounding.TOWARD_NEGATIVE), ("above it", Rounding.TOWARD_POSITIVE))
    ends = ((name, float(round_to(x, FP16, mode))) for name, mode in modes)
    return tuple((name, f"{bits(value)}  {show_number(value, 9)}") for name, value in ends)


@mistake
def half_way_to_the_odd_one(x: float) -> float:
    """This is what rounding half-way cases to the odd neighbour gives. They should go to the even one, whose last bit
    is 0."""
    toward = reference(x)
    other = float(round_to(x, FP16, Rounding.TOWARD_NEGATIVE if toward > x else Rounding.TOWARD_POSITIVE))
    tie = math.isfinite(toward) and toward != x and abs(toward - x) == abs(other - x)
    return other if tie and int(encode(toward, FP16)) % 2 == 0 else toward


@mistake
def rounds_twice(x: float) -> float:
    """This is what rounding to FP32 first gives: it moves numbers onto the half-way point, and the second rounding
    takes them the wrong way. Round once."""
    with np.errstate(over="ignore"):
        return reference(float(np.float32(x)))


# fmt: off
MISTAKES = (
    wrong("truncates", "this is what cutting off gives (int does that). The result should be the *nearer* neighbour.",
          lambda x: _by_hand(x, whole=math.trunc)),
    wrong("rounds down", "this is what rounding down gives: always to the lower neighbour, even where the upper one "
          "is nearer.", lambda x: _by_hand(x, whole=math.floor)),
    wrong("half way away from zero", "this is what rounding half-way cases away from zero gives, as taught at "
          "school. IEEE 754 takes the even one.", lambda x: _by_hand(x, whole=_half_away)),
    wrong("half way up", "this is what floor(x + 0.5) gives: half-way cases go up. They should go to the even one.",
          lambda x: _by_hand(x, whole=_half_up)),
    wrong("half way towards zero", "this is what rounding half-way cases towards zero gives. They should go to the "
          "even one.", lambda x: _by_hand(x, whole=_half_to_zero)),
    half_way_to_the_odd_one,
    wrong("forgets subnormals", "this is what a spacing that shrinks for ever gives. Below 2^-14 it stays 2^-24.",
          lambda x: _by_hand(x, lowest=-40)),
    wrong("flushes subnormals", "this is what putting 0 for everything below 2^-14 gives. Some hardware does; FP16 "
          "goes on to 2^-24.", lambda x: reference(x) if abs(x) >= 2.0**-14 else 0.0),
    wrong("keeps ten bits", "this is what a spacing twice too wide gives: ten significant bits. FP16 has eleven, one "
          "of them hidden.", lambda x: _by_hand(x, bits=9)),
    wrong("never overflows", "this is what rounding without an upper end gives. FP16 ends at 65504; from 65520 on it "
          "is infinity.", lambda x: _by_hand(x, limit=math.inf)),
    wrong("saturates", "this is what stopping at 65504 gives. Some conversions of FP8 do; FP16 goes to infinity.",
          lambda x: _by_hand(x, beyond=65504.0)),
    wrong("overflows at 65504", "this is what infinity for everything above 65504 gives. Up to 65520, half a spacing "
          "further, 65504 is the nearest.", lambda x: _by_hand(x, limit=65504.0000001)),
    wrong("loses the sign of infinity", "this is what +inf on both sides gives. Below -65520 it is -inf.",
          lambda x: math.inf if abs(x) >= 65520 else reference(x)),
    rounds_twice,
)
# fmt: on

EXERCISE = Exercise(
    id="rounding.nearest_even",
    title="Round to FP16",
    entry="my_round",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("to the nearer of two neighbours", 2, _nearer),
        Check("half-way to the even one", 2, _half_way),
        Check("among the subnormal numbers", 1, _small),
        Check("at the upper end", 1, _large),
        Check("a hair's breadth beside half-way", 1, _just_beside_half_way),
    ),
    mistakes=MISTAKES,
    withheld=(round_to, encode, *CASTS_TO_FP16, struct.pack),
    aside=_neighbours,
)
