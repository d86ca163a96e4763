"""Can you find where an FP16 accumulator stops counting?

The point: a running sum grows until one more product is no more than half its spacing; from there on every further
product is swallowed, and more data change nothing.
Oracles in the tests: numpy's float16 running sum, and gfloat's rounding.
"""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np

from labkit.gemm import accumulate
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Answer = tuple[int, float]


def reference(a: float, b: float) -> Answer:
    """Return (how many products a*b are counted before one changes nothing, the sum at which it stands still).

    >>> reference(1.0, 1.0)
    (2048, 2048.0)
    """
    return _count(a * b)


@cache
def _count(product: float) -> Answer:
    k, total = 0, np.float16(0)
    with np.errstate(over="ignore"):
        while (longer := np.float16(float(total) + product)) != total:
            k, total = k + 1, longer
    return k, float(total)


def _powers(random: Random) -> list[Case]:
    exponents = random.sample(range(-6, 3), 3)
    return [(1.0, 1.0), *((2.0**e, 1.0) for e in exponents), (2.0**-3, 2.0**3)]


def _number(random: Random) -> float:
    return random.randrange(1025, 2048) / 1024


def _others(random: Random) -> list[Case]:
    """Products of 11 bits, and one of them negative."""
    return [(_number(random), 1.0), (-_number(random), 2.0), (3.0, 1.0)]


def _long_products(random: Random) -> list[Case]:
    """Products of up to 22 bits, for which it makes a difference that they are not rounded before they are added."""
    found: list[Case] = []
    while len(found) < 3:
        a, b = _number(random), _number(random)
        if _count(a * b) != _count(float(np.float16(a * b))):
            found.append((a, b))
    return found


def _tiny(random: Random) -> list[Case]:
    """Products that round to 0, or that FP16 holds as subnormals."""
    return [(2.0**-13, 2.0**-12), (2.0**-14, 2.0**-14), (2.0**-12, 2.0**-11 * 1.5), (2.0**-10, 2.0**-10), (0.0, 5.0)]


def _huge(random: Random) -> list[Case]:
    """Products of more than half the last spacing: the sum grows until it is inf, at once or after some thousand."""
    return [(4.0, 8.0), (16.0 + random.randrange(1, 9) / 8, 1.0), (-256.0, 200.0 + random.randrange(9)), (256.0, 256.0)]


@mistake
def always_2048(a: float, b: float) -> Answer:
    """This is 2048 of them whatever they are. That is the answer for powers of two; others go on past it."""
    with np.errstate(over="ignore"):
        return 2048, float(np.float16(2048 * a * b))


@mistake
def counts_the_lost_one(a: float, b: float) -> Answer:
    """This is one too many: the product that changed nothing was not counted."""
    k, total = reference(a, b)
    return k + 1, total


@mistake
def the_exact_total(a: float, b: float) -> Answer:
    """This is k * a * b. The accumulator rounded after each addition, and stands elsewhere."""
    k, _ = reference(a, b)
    return k, k * a * b


@mistake
def rounds_the_products_first(a: float, b: float) -> Answer:
    """This is what rounding a * b to FP16 before adding gives. The product is exact; only the sum is rounded."""
    with np.errstate(over="ignore"):
        return _count(float(np.float16(a * b)))


@mistake
def a_whole_spacing(a: float, b: float) -> Answer:
    """This is what stopping below a whole spacing gives. Down to half a spacing the sum is still rounded up."""
    k, total = 0, np.float16(0)
    with np.errstate(all="ignore"):
        while abs(a * b) >= float(np.spacing(abs(total))):
            k, total = k + 1, np.float16(float(total) + a * b)
    return k, float(total)


# fmt: off
MISTAKES = (
    always_2048,
    counts_the_lost_one,
    the_exact_total,
    rounds_the_products_first,
    wrong("waits for 65504", "this is where FP16 ends. The accumulator stands still long before, where its spacing "
          "is too wide.", lambda a, b: (int(65504 / abs(a * b)) if a * b else 0, float(np.copysign(65504, a * b)))),
    a_whole_spacing,
)
# fmt: on

EXERCISE = Exercise(
    id="tensor.standstill",
    title="Where an FP16 accumulator stops",
    entry="my_standstill",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("powers of two", 1, _powers),
        Check("other products, and those that end at inf", 1, lambda random: _others(random) + _huge(random)),
        Check("products longer than FP16: added first, rounded once", 2, _long_products),
        Check("tiny products", 1, _tiny),
    ),
    mistakes=MISTAKES,
    provides={"np": np},
    withheld=(accumulate,),
)
