"""Can you say how far FP16's numbers stand apart?

The point: the spacing follows from the binade alone, doubles with every power of two, and stops shrinking at 2^-14.
Oracle in the tests: numpy's `spacing` on float16.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np

from labkit.formats import FP16, decode, ulp
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong


def reference(x: float) -> float:
    """Return the spacing of FP16's numbers at x: labkit.formats' own.

    >>> reference(1.0) == 2.0**-10, reference(-1000.0)
    (True, 0.5)
    """
    return float(ulp(x, FP16))


def _values(codes: list[int]) -> list[Case]:
    return [(float(value),) for value in decode(codes, FP16)]


def _at_powers_of_two(random: Random) -> list[Case]:
    return [(1.0,), (0.5,), (1024.0,), *((2.0 ** random.randrange(-13, 16),) for _ in range(4))]


def _between(random: Random) -> list[Case]:
    """Above and below 1, where a logarithm changes its sign."""
    codes = [random.randrange(start + 1, start + 0x0400) for start in (0x3C00, 0x3800, 0x2C00, 0x5000, 0x7800)]
    return _values(codes)


def _small(random: Random) -> list[Case]:
    """Zero, the smallest normal number and subnormal ones."""
    return _values([0x0000, 0x8000, 0x0400, 0x0001, *(random.randrange(0x0002, 0x0400) for _ in range(4))])


def _anything(random: Random) -> list[Case]:
    return _values([random.choice((0, 0x8000)) | random.randrange(0x7C00) for _ in range(40)] + [0x7BFF, 0x8001])


def _by_hand(x: float, *, above: int = 0, floor: int = -14, bits: int = 10) -> float:
    """Return 2^(exponent - bits); every keyword is one thing that goes wrong.

    >>> _by_hand(1.5) == reference(1.5)
    True
    """
    exponent = math.frexp(x)[1] - 1 + above if x else floor
    return math.ldexp(1.0, max(exponent, floor) - bits)


@mistake
def forgets_the_sign(x: float) -> float:
    """This is what the logarithm of a negative number gives. Take abs(x) first."""
    return _by_hand(x) if x >= 0 else math.log2(x)  # raises, as the learner's would


# fmt: off
MISTAKES = (
    wrong("the same everywhere", "this is the spacing between 1 and 2, called epsilon. It doubles with every power "
          "of two.", lambda x: 2.0**-10),
    wrong("proportional to x", "this is x times 2^-10. The spacing does not grow with x smoothly: it stays, then "
          "doubles at the next power of two.", lambda x: abs(x) * 2.0**-10),
    wrong("one binade too high", "this is twice the spacing. math.frexp, for instance, gives an exponent that is one "
          "higher than that of 1.F x 2^e.", lambda x: _by_hand(x, above=1)),
    wrong("counts the hidden bit", "this is half the spacing: what counting the hidden bit gives. Ten bits are "
          "stored behind the point.", lambda x: _by_hand(x, bits=11)),
    wrong("forgets subnormals", "this is what letting the exponent fall below -14 gives. From there down to zero the "
          "spacing stays 2^-24.", lambda x: _by_hand(x, floor=-40)),
    wrong("stops one binade too low", "this is what a lowest exponent of 0 - 15 gives. Exponent field 0 shares that "
          "of field 1, which is -14.", lambda x: _by_hand(x, floor=-15)),
    forgets_the_sign,
    wrong("truncates the logarithm", "this is what int(log2(x)) gives. Below 1 the logarithm is negative, and int "
          "cuts towards zero: floor it.",
          lambda x: 2.0 ** (max(int(math.log2(abs(x))), -14) - 10) if x else reference(x)),
    wrong("rounds the logarithm up", "this is what rounding the logarithm up gives. It is right at powers of two, "
          "and one too high between.",
          lambda x: 2.0 ** (max(math.ceil(math.log2(abs(x))), -14) - 10) if x else reference(x)),
)
# fmt: on

EXERCISE = Exercise(
    id="numbers.ulp",
    title="How far apart?",
    entry="my_ulp",
    difficulty=1,
    minutes=5,
    reference=reference,
    checks=(
        Check("at powers of two", 1, _at_powers_of_two),
        Check("between them", 1, _between),
        Check("below zero", 1, lambda random: _values([0xBC00, *(random.randrange(0x8800, 0xFC00) for _ in range(5))])),
        Check("subnormal numbers and zero", 1, _small),
        Check("anywhere", 1, _anything),
    ),
    mistakes=MISTAKES,
    withheld=(ulp, np.spacing),
)
