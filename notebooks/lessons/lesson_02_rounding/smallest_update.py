"""Can you find the smallest update that moves an FP16 weight?

The point: it is about half the spacing at the weight; where exactly half is enough depends on the weight's last bit.
The learner searches, and reads the rule off what comes out.
Oracle in the tests: labkit.formats.add, which is integer arithmetic.
"""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from labkit.formats import FP16, decode, next_down, next_up, ulp
from labkit.grading.difference import bits
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

UPDATES = np.arange(0x0001, 0x7800, dtype=np.uint16).view(np.float16)  # all from 2^-24 to just below 2^15


def reference(weight: np.float16) -> np.float16:
    """Return the smallest FP16 number above 0 that, added in FP16, changes the weight.

    >>> float(reference(np.float16(1.0))) == 2.0**-11 + 2.0**-21
    True
    """
    return _first(weight + UPDATES != weight)


def _first(moved: NDArray[np.bool_]) -> np.float16:
    return np.float16(UPDATES[int(np.argmax(moved))])


def _weights(codes: list[int]) -> list[Case]:
    return [(np.float16(value),) for value in decode(codes, FP16)]


def _with_last_bit(random: Random, last: int, count: int) -> list[Case]:
    """Normal weights below 2,048 whose last significand bit is this, and which are no powers of two."""
    return _weights([random.randrange(2, 26) << 10 | random.randrange(1, 511) << 1 | last for _ in range(count)])


def _powers_of_two(random: Random) -> list[Case]:
    return [(np.float16(1.0),), *((np.float16(2.0 ** random.randrange(-12, 11)),) for _ in range(3))]


def _subnormal(random: Random) -> list[Case]:
    return _weights([0x0001, random.randrange(2, 0x0400), random.randrange(2, 0x0400)])


def _anywhere(random: Random) -> list[Case]:
    return _weights([0x03FF, 0x0400, 0x0800, 0x67FE, 0x67FF, *(random.randrange(1, 26 << 10) for _ in range(12))])


def _relative(share: float, weight: np.float16) -> np.float16:
    return np.float16(float(weight) * share)


@mistake
def always_more_than_half(weight: np.float16) -> np.float16:
    """This is the first number above half the spacing. A weight whose last bit is 1 moves at exactly half: the even
    neighbour is the other one."""
    half = float(ulp(weight, FP16)) / 2
    return np.float16(next_up(half, FP16)) if half >= FP16.smallest_subnormal else reference(weight)


@mistake
def powers_of_two_only(weight: np.float16) -> np.float16:
    """This is what doubling the update until the weight moves gives: the smallest *power of two*. Try all FP16 numbers,
    one by one."""
    powers = np.float16(2.0) ** np.arange(-24, 16, dtype=np.float16)
    return np.float16(powers[int(np.argmax(weight + powers != weight))])


# fmt: off
MISTAKES = (
    wrong("half the spacing", "this is half the spacing, which moves a weight only if its last bit is 1. Half-way "
          "goes to the even neighbour, and that may be the weight itself.",
          lambda weight: np.float16(max(float(ulp(weight, FP16)) / 2, FP16.smallest_subnormal))),
    always_more_than_half,
    wrong("a whole spacing", "this is the spacing at the weight. It moves the weight for sure, and so does a little "
          "more than half.", lambda weight: np.float16(ulp(weight, FP16))),
    powers_of_two_only,
    wrong("the same for every weight", "this is the spacing between 1 and 2, whatever the weight.",
          lambda weight: np.float16(2.0**-10)),
    wrong("divides the weight by 1024", "this is the weight times 2^-10. Updates of half that size still arrive, and "
          "the limit grows in steps, not in proportion.", lambda weight: _relative(2.0**-10, weight)),
    wrong("divides the weight by 2048", "this is the weight divided by 2048, a rule of thumb. The limit jumps at "
          "powers of two and stays between.", lambda weight: _relative(2.0**-11, weight)),
    wrong("adds outside FP16", "this is what adding in FP32 or FP64 gives: there every update moves the weight. "
          "Round the sum to FP16 before you compare.", lambda weight: np.float16(FP16.smallest_subnormal)),
    wrong("forgets subnormals", "this is what half the spacing gives for small weights when it is rounded to FP16: "
          "0, and 0 moves nothing.",
          lambda weight: np.float16(0.0) if float(weight) < 2.0**-13 else reference(weight)),
    wrong("one too early", "this is the largest update that does *not* move the weight. The next one does.",
          lambda weight: np.float16(next_down(float(reference(weight)), FP16))),
    wrong("goes down", "this is the answer for weight - update. Below a power of two the spacing is half as wide, so "
          "less is enough there.", lambda weight: _first(weight - UPDATES != weight)),
)
# fmt: on

EXERCISE = Exercise(
    id="rounding.smallest_update",
    title="The smallest update that moves a weight",
    entry="my_smallest_update",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("weights whose last bit is 0", 2, lambda random: _with_last_bit(random, 0, 4)),
        Check("weights whose last bit is 1", 1, lambda random: _with_last_bit(random, 1, 4)),
        Check("powers of two", 1, _powers_of_two),
        Check("subnormal weights", 1, _subnormal),
        Check("a dozen weights anywhere", 1, _anywhere),
    ),
    mistakes=MISTAKES,
    provides={"np": np},
    aside=lambda weight: (("in bits", bits(weight)),),
)
