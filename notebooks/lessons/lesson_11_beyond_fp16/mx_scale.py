"""Can you choose the scale of a block?

The point: a block's scale is a power of two, and it is read off the largest magnitude. Rounded up, nothing saturates.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

LEAST = -127  # the smallest exponent of E8M0


def reference(block: list[float], top: float) -> int:
    """Return the least exponent k, from -127 on, at which no number of the block is above top * 2^k in magnitude.

    >>> reference([12.0, -3.0], top=6.0), reference([-12.5], top=6.0), reference([0.0], top=6.0)
    (1, 2, -127)
    """
    largest, k = _largest(block), LEAST
    while largest > top * 2.0**k:
        k += 1
    return k


def _largest(block: list[float]) -> float:
    return max(abs(x) for x in block)


def _block(random: Random, largest: float) -> list[float]:
    """Return eight FP32 numbers below a magnitude, and that one itself, somewhere among them."""
    block = [random.choice((-1, 1)) * random.uniform(0, 0.2) * abs(largest) for _ in range(8)]
    block.insert(random.randrange(9), largest)
    return [float(np.float32(x)) for x in block]


def _random(random: Random, sign: int) -> list[Case]:
    """Blocks of any size; the last two reach FP32's end, and come near its smallest numbers."""
    exponents = [random.randrange(-60, 60) for _ in range(4)]
    tops = (6.0, 448.0, 57344.0, 6.0, 6.0, 448.0)
    exponents += [127, random.randrange(-118, -112)]
    largest = [sign * random.uniform(1.01, 1.99) * 2.0**exponent for exponent in exponents]
    return [(_block(random, x), top) for x, top in zip(largest, tops, strict=True)]


def _positive(random: Random) -> list[Case]:
    """The largest is positive; one case has a significand between 1.5 and 1.75, where the tops differ."""
    return [*_random(random, 1), (_block(random, random.uniform(1.55, 1.7) * 2.0**5), 448.0), *_others(random)]


def _others(random: Random) -> list[Case]:
    """One number alone; a long block, the largest at its end; and other formats' largest numbers."""
    long = [*_block(random, 3.0)] * 5
    return [
        ([float(random.randrange(500, 999))], 448.0),
        ([*long, 77.0], 6.0),
        (long, 28.0),
        (long, 7.5),
        (long, 240.0),
    ]


def _at_the_limit(random: Random) -> list[Case]:
    """Exactly top times a power of two, and the number after it."""
    limits = [(top, top * 2.0 ** random.randrange(-40, 40)) for top in (6.0, 448.0, 57344.0)]
    return [(_block(random, x), top) for top, at in limits for x in (at, _after(at))]


def _after(x: float) -> float:
    """Return the next FP32 number."""
    return float(np.nextafter(np.float32(x), np.float32(np.inf)))


def _nothing(random: Random) -> list[Case]:
    """Blocks that any scale holds: zeros, and numbers far below the smallest scale, up to it and beyond."""
    ends = [([-x], 6.0) for x in (6 * 2.0**-127, _after(6 * 2.0**-127))]
    return [([0.0] * 4, 6.0), ([-0.0, 2.0**-149], 6.0), (_block(random, 2.0**-140), 448.0), *ends]


@mistake
def rounds_down(block: list[float], top: float) -> int:
    """This is floor(log2 largest) - floor(log2 top), as OCP's text has it: the largest number may saturate. Here it
    must not."""
    largest = _largest(block)
    return max(LEAST, math.frexp(largest)[1] - math.frexp(top)[1]) if largest else LEAST


@mistake
def goes_one_too_far(block: list[float], top: float) -> int:
    """This is what going on while the largest is at or above top x 2^k gives: a number that fits exactly needs no
    larger scale."""
    largest, k = _largest(block), LEAST
    while largest >= top * 2.0**k:
        k += 1
    return k


@mistake
def rounds_the_logarithm(block: list[float], top: float) -> int:
    """This is what rounding log2(largest / top) to the nearest whole number gives: half of the blocks saturate."""
    largest = _largest(block)
    return max(LEAST, round(math.log2(largest / top))) if largest else LEAST


@mistake
def has_no_end(block: list[float], top: float) -> int:
    """This is what an exponent without an end gives: a scale has 8 bits, and ends at 2^-127."""
    largest, k = _largest(block), -400
    while largest > top * 2.0**k:
        k += 1
    return k


# fmt: off
MISTAKES = (
    rounds_down,
    goes_one_too_far,
    wrong("forgets the sign", "this is what max(block) gives: a large negative number saturates too. Take "
          "magnitudes.", lambda block, top: reference([max(0.0, *block, 0.0)], top)),
    wrong("takes the mean", "this is what the mean magnitude gives: the largest number saturates.",
          lambda block, top: reference([math.fsum(map(abs, block)) / len(block)], top)),
    wrong("forgets the top", "this is what bringing the largest below 1 gives. The elements reach up to top, and "
          "most of their range is left unused.", lambda block, top: reference(block, 1.0)),
    rounds_the_logarithm,
    has_no_end,
    wrong("turned round", "this is the exponent that numbers are multiplied by. Asked is the scale, by which they "
          "are divided.", lambda block, top: -reference(block, top)),
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.mx_scale",
    title="Choose the scale of a block",
    entry="my_exponent",
    difficulty=1,
    minutes=7,
    reference=reference,
    checks=(
        Check("blocks whose largest number is positive", 1, _positive),
        Check("blocks whose largest number is negative", 1, lambda random: _random(random, -1)),
        Check("a largest number that just fits, and the next one", 2, _at_the_limit),
        Check("blocks of zeros, and of next to nothing", 1, _nothing),
    ),
    mistakes=MISTAKES,
)
