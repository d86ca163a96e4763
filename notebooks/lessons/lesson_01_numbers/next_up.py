"""Can you walk from one FP16 number to the next?

The point: read as integers, codes of positive numbers count upwards through binades, subnormals and into infinity;
negative ones count away from zero; and there are two zeros. IEEE 754-2019, 5.3.1 says the same.
Oracle in the tests: numpy's nextafter.
"""

from __future__ import annotations

from random import Random

import numpy as np

from labkit.formats import FP16, decode, next_up
from labkit.grading.difference import bits_of_code, show_number
from labkit.grading.exercise import Case, Check, Exercise, Rows, mistake, wrong

SIGN = 0x8000
INFINITY = 0x7C00


def reference(code: int) -> int:
    """Return the code of the next larger FP16 number.

    >>> hex(reference(0x3C00)), hex(reference(0x8000)), hex(reference(0x7C00))
    ('0x3c01', '0x1', '0x7c00')
    """
    if code == INFINITY:
        return code
    if code == SIGN:
        return 1
    return code - 1 if code & SIGN else code + 1


def _positive(random: Random) -> list[Case]:
    return [(0x3C00,), *((random.randrange(0x0002, 0x7BFF),) for _ in range(6))]


def _across(random: Random) -> list[Case]:
    """The last code of a binade, the last subnormal, and zero."""
    return [(0x3BFF,), (0x03FF,), (0x0000,), (0x0001,), *((random.randrange(2, 30) << 10 | 0x3FF,) for _ in range(3))]


def _negative(random: Random) -> list[Case]:
    """From one binade into the one nearer to zero, from normal to subnormal numbers, and from -2^-24 to -0."""
    ends = [(0xC000,), (0x8400,), (0x8002,), (0x8001,)]
    return [(0xBC00,), *ends, *((random.randrange(0x8002, 0xFC00),) for _ in range(6))]


def _edges(random: Random) -> list[Case]:
    """-0, the largest numbers of either sign, and both infinities."""
    return [(SIGN,), (0x7BFF,), (0x7BFE,), (INFINITY,), (SIGN | INFINITY,), (SIGN | 0x7BFF,)]


def _anything(random: Random) -> list[Case]:
    codes = [random.choice((0, SIGN)) | random.randrange(2, 0x7C00) for _ in range(30)]
    return [*_edges(random), *((code,) for code in codes)]


def _in_bits(code: int) -> Rows:
    after = reference(code)
    rows = (("that is", code), ("next is", after))
    return tuple((name, f"{bits_of_code(c)}  {show_number(float(decode(c, FP16)))}") for name, c in rows)


@mistake
def loses_the_carry(code: int) -> int:
    """This is what adding 1 to the significand field alone gives. Let it carry into the exponent: the next binade
    begins there."""
    if code & SIGN or code == INFINITY:
        return reference(code)
    return code & 0xFC00 | (code + 1) & 0x03FF


@mistake
def skips_the_subnormals(code: int) -> int:
    """This is what stepping from zero to the smallest normal number gives. 1,023 subnormal ones lie between."""
    magnitude = code & 0x7FFF
    return 0x0400 if magnitude < 0x0400 else reference(code)


# fmt: off
MISTAKES = (
    wrong("always adds 1", "this is what code + 1 gives for every code. For a negative number that is the next one "
          "down.", lambda code: code + 1),
    wrong("always subtracts 1", "this is what code - 1 gives. For a positive number that is the next one down.",
          lambda code: code - 1 if code and code not in (SIGN, INFINITY) else reference(code)),
    wrong("falls off minus zero", "this is what 0x8000 - 1 gives: 0x7FFF, a NaN. Minus zero is zero, and the next "
          "number is 2^-24.", lambda code: SIGN - 1 if code == SIGN else reference(code)),
    wrong("takes the zeros for two numbers", "this is what stepping from -0 to +0 gives. They are the same number: "
          "the next larger one is 2^-24.", lambda code: 0 if code == SIGN else reference(code)),
    wrong("stops at the largest number", "this is what stopping at 65504 gives. After it comes infinity.",
          lambda code: 0x7BFF if code == 0x7BFF else reference(code)),
    wrong("goes beyond infinity", "this is what 0x7C00 + 1 gives: 0x7C01, a NaN. Nothing is larger than infinity, so "
          "it stays.", lambda code: INFINITY + 1 if code == INFINITY else reference(code)),
    wrong("stays at minus infinity", "this is what leaving both infinities alone gives. Above -inf comes -65504.",
          lambda code: code if code == SIGN | INFINITY else reference(code)),
    loses_the_carry,
    skips_the_subnormals,
    wrong("returns the value", "this is the value of the next number. Its code was asked for.",
          lambda code: float(decode(reference(code), FP16))),
)
# fmt: on

EXERCISE = Exercise(
    id="numbers.next_up",
    title="The next number",
    entry="my_next_up",
    difficulty=2,
    minutes=6,
    reference=reference,
    checks=(
        Check("positive numbers", 1, _positive),
        Check("from one binade into the next, and out of zero", 1, _across),
        Check("negative numbers", 1, _negative),
        Check("-0, the largest number and the infinities", 2, _edges),
        Check("codes anywhere", 2, _anything),
    ),
    mistakes=MISTAKES,
    codes=True,
    withheld=(next_up, np.nextafter),
    aside=_in_bits,
)
