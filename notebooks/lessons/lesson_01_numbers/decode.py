"""Can you read the sixteen bits of an FP16 number by hand?

The point: one formula for normal numbers, one for exponent field 0, and a last field that is no number at all.
Oracle in the tests: numpy's float16, on all 65,536 codes.
"""

from __future__ import annotations

import math
import struct
from random import Random

import numpy as np

from labkit.formats import FP16, decode
from labkit.grading.difference import bits_of_code
from labkit.grading.exercise import CASTS_TO_FP16, Case, Check, Exercise, mistake, wrong


def reference(code: int) -> float:
    """Return the value of an FP16 code: labkit.formats' own decoding.

    >>> reference(0x3C01), reference(0x0001) == 2.0**-24
    (1.0009765625, True)
    """
    return float(decode(code, FP16))


def _codes(random: Random, low: int, high: int, count: int) -> list[Case]:
    """Codes of either sign whose other fifteen bits lie in low <= bits < high."""
    return [(random.choice((0, 0x8000)) | random.randrange(low, high),) for _ in range(count)]


def _normal(random: Random) -> list[Case]:
    """1 and -2, then any: exponent field 1 to 30."""
    return [(0x3C00,), (0xC000,), (0x3E00,), *_codes(random, 0x0401, 0x7C00, 8)]


def _subnormal(random: Random) -> list[Case]:
    """Exponent field 0: both zeros, the smallest, the largest, and some between."""
    return [(0x0000,), (0x8000,), (0x0001,), (0x03FF,), (0x83FF,), *_codes(random, 0x0002, 0x03FF, 6)]


def _special(random: Random) -> list[Case]:
    """Exponent field 31."""
    return [(0x7C00,), (0xFC00,), (0x7E00,), (0x7FFF,), (0xFFFF,), *_codes(random, 0x7C01, 0x8000, 4)]


def _all_kinds(random: Random) -> list[Case]:
    edges: list[Case] = [(0x0400,), (0x7BFF,), (0xFBFF,), (0x8001,), (0xFC00,), (0x7C01,)]
    return edges + _codes(random, 0x0002, 0x7C00, 60)


def _by_hand(
    code: int,
    *,
    bias: int = 15,
    hidden: int = 1024,
    steps: int = 1024,
    lowest: int = -14,
    subnormals: bool = True,
    specials: str = "both",
) -> float:
    """Decode as on paper; every keyword is one thing that goes wrong on paper.

    >>> _by_hand(0x3C01) == reference(0x3C01)
    True
    """
    sign, exponent, significand = code >> 15, code >> 10 & 31, code & 1023
    direction = -1.0 if sign else 1.0
    if exponent == 31 and specials != "none":
        return _special_value(significand, direction, specials)
    if exponent == 0 and subnormals:
        return math.ldexp(direction * significand / steps, lowest)
    return math.ldexp(direction * (hidden + significand) / steps, exponent - bias)


def _special_value(significand: int, direction: float, specials: str) -> float:
    if significand and specials == "both":
        return math.nan
    return math.inf if specials == "unsigned" and not significand else direction * math.inf


@mistake
def swaps_infinity_and_NaN(code: int) -> float:
    """This is what swapping infinity and NaN gives. Infinity is the one with a significand of 0."""
    value = reference(code)
    return math.nan if math.isinf(value) else math.inf if math.isnan(value) else value


# fmt: off
MISTAKES = (
    wrong("forgets the hidden 1", "this is what forgetting the hidden 1 gives. A normal number is 1.F, and the 1 is "
          "not stored.", lambda code: _by_hand(code, hidden=0)),
    wrong("forgets subnormals", "this is what reading exponent field 0 like the others gives. There the hidden 1 is "
          "gone, so that zero can be written.", lambda code: _by_hand(code, subnormals=False)),
    wrong("subnormals one binade too low", "this is what 2^(0 - 15) gives for exponent field 0. It shares the "
          "exponent of field 1, which is -14.", lambda code: _by_hand(code, lowest=-15)),
    wrong("has a bias of 16", "this is what a bias of 16, half of 32, gives. It is 15: one less than half.",
          lambda code: _by_hand(code, bias=16)),
    wrong("has the bias of FP32", "this is what a bias of 127 gives, which is FP32's. With five exponent bits it is "
          "15.", lambda code: _by_hand(code, bias=127)),
    wrong("divides by 1023", "this is what dividing the significand by 1023, its largest value, gives. Ten bits make "
          "1024 steps.", lambda code: _by_hand(code, hidden=1023, steps=1023)),
    wrong("ignores the sign", "this is what leaving out the sign bit gives: it is the highest of the sixteen, code "
          ">> 15.", lambda code: abs(reference(code))),
    wrong("reads a signed integer", "this is what reading the code as a signed integer first gives. Integers work "
          "like that; here the sign bit changes the sign and nothing else.",
          lambda code: -reference(0x10000 - code) if code > 0x8000 else reference(code)),
    wrong("reads BF16", "this is what eight exponent bits and seven significand bits give. That is BF16; FP16 has "
          "five and ten.", lambda code: float(np.array(code << 16, np.uint32).view(np.float32))),
    wrong("knows no infinity", "this is what reading exponent field 31 like the others gives: numbers beyond 65504. "
          "It is kept for infinity and NaN.", lambda code: _by_hand(code, specials="none")),
    wrong("knows no NaN", "this is what taking all of exponent field 31 for infinity gives. With any significand bit "
          "set it is NaN.", lambda code: _by_hand(code, specials="infinity")),
    wrong("infinity without a sign", "this is what forgetting the sign of infinity gives: 0xFC00 is -inf.",
          lambda code: math.inf if code == 0xFC00 else reference(code)),
    swaps_infinity_and_NaN,
)
# fmt: on

EXERCISE = Exercise(
    id="numbers.decode",
    title="Sixteen bits, read by hand",
    entry="my_decode",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("normal numbers", 2, _normal),
        Check("zero and the subnormal numbers", 2, _subnormal),
        Check("infinities and NaN", 1, _special),
        Check("codes of every kind", 2, _all_kinds),
    ),
    mistakes=MISTAKES,
    two_zeros=True,
    codes=True,
    withheld=(decode, *CASTS_TO_FP16, struct.unpack),
    aside=lambda code: (("in bits", bits_of_code(code)),),
)
