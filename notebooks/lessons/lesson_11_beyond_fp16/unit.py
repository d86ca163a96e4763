"""Which powers of two does unit scaling take?

The point: nobody has to search for a scale. A weight's follows from its layer's shape, a gradient's from the shape and
one number for the whole network.
"""

from __future__ import annotations

import math
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Exponents = tuple[int, int]
SIZES = (9, 27, 64, 100, 144, 256, 784, 1000, 1024, 3000, 4096)  # the log2 of no root is near a half


def reference(fan_in: int, width: int, size: float) -> Exponents:
    """Return k of a weight's factor 2^k, nearest to sqrt(fan_in), and of a gradient's, nearest to sqrt(width) / size.

    >>> reference(64, 1024, 0.25)
    (3, 7)
    """
    return round(math.log2(math.sqrt(fan_in))), round(math.log2(math.sqrt(width) / size))


def _layer(random: Random, fan_in: int, width: int, log2_size: int) -> Case:
    """Return a call whose gradient's exponent lies clearly nearer to one whole number than to the next."""
    off = random.choice((-1, 1)) * random.uniform(0.05, 0.4)
    root = round(math.log2(width) / 2) + off  # as if the width's root were this
    return fan_in, width, math.sqrt(width) / 2.0 ** (root - log2_size)


def _square(random: Random) -> list[Case]:
    return [_layer(random, n, n, 0) for n in (*random.sample(SIZES, 5), 1, 3, 65536)]


def _shapes(random: Random) -> list[Case]:
    """Layers that are wider than what comes in, or narrower."""
    pairs = [random.sample(SIZES, 2) for _ in range(3)] + [[784, 100], [64, 3000], [144, 9]]
    return [_layer(random, fan_in, width, random.randrange(-3, 4)) for fan_in, width in pairs]


def _losses(random: Random) -> list[Case]:
    """A loss that was divided by much, or multiplied."""
    return [_layer(random, 1000, 64, log2) for log2 in (-20, -8, -1, 1, 8)]


@mistake
def rounds_down(fan_in: int, width: int, size: float) -> Exponents:
    """This is what rounding down gives. The nearest whole number is asked."""
    return math.floor(math.log2(math.sqrt(fan_in))), math.floor(math.log2(math.sqrt(width) / size))


@mistake
def turned_round(fan_in: int, width: int, size: float) -> Exponents:
    """This is what one divides by. Asked is what a number is multiplied by, to come to size 1."""
    weight, gradient = reference(fan_in, width, size)
    return -weight, -gradient


@mistake
def the_factors_themselves(fan_in: int, width: int, size: float) -> tuple[float, float]:
    """This is 2^k. Asked is k."""
    weight, gradient = reference(fan_in, width, size)
    return 2.0**weight, 2.0**gradient


# fmt: off
MISTAKES = (
    wrong("forgets the root", "this is what fan_in and width give without their roots. Sums of n random numbers grow "
          "as the root of n.", lambda fan_in, width, size: (round(math.log2(fan_in)), round(math.log2(width / size)))),
    rounds_down,
    wrong("multiplies by the size", "this is what sqrt(width) times `size` gives. A gradient that is small needs a "
          "large factor: divide.", lambda fan_in, width, size: reference(fan_in, width, 1 / size)),
    wrong("forgets the size", "this is what the shape alone gives. How large the loss's gradient is, the shape does "
          "not know.", lambda fan_in, width, size: reference(fan_in, width, 1.0)),
    wrong("exchanges the shapes", "this is what the width gives for the weight, and fan_in for the gradient. It is "
          "the other way round.", lambda fan_in, width, size: reference(width, fan_in, size)),
    turned_round,
    the_factors_themselves,
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.unit",
    title="Factors that nobody has to search for",
    entry="my_unit_exponents",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("layers as wide as what comes in", 1, _square),
        Check("layers of other shapes", 2, _shapes),
        Check("losses of any size", 1, _losses),
    ),
    mistakes=MISTAKES,
)
