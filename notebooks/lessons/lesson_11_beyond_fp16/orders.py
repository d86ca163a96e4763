"""Can you add the same numbers in two orders?

The point: FP32 rounds after each addition, so the order is part of the result; a GPU chooses it by a batch's shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

import numpy as np

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Sums = tuple[float, float]


def reference(numbers: list[float]) -> Sums:
    """Return the sum one after another, and that of the first half plus that of the rest, FP32 after each addition.

    >>> reference([2.0**24, 1.0, 1.0, 1.0])
    (16777216.0, 16777218.0)
    """
    half = len(numbers) // 2
    return _in_turn(numbers), float(np.float32(_in_turn(numbers[:half]) + _in_turn(numbers[half:])))


def _in_turn(numbers: Iterable[float]) -> float:
    total = 0.0
    for x in numbers:
        total = float(np.float32(total + x))
    return total


def _numbers(random: Random, count: int, spread: int) -> list[float]:
    return [float(np.float32(random.uniform(-1, 1) * 2.0 ** random.randrange(spread))) for _ in range(count)]


def _odd(random: Random) -> list[Case]:
    """An odd number of numbers: the rest is one longer; in the first, two small ones there make up for each other."""
    large = 2.0 ** random.randrange(10, 40)
    return [([large, large * 2.0**-24, large * 2.0**-24],), *((_numbers(random, count, 16),) for count in (41, 99))]


def _swallowed(random: Random) -> list[Case]:
    """A large number first: what follows in turn is swallowed, the second half is not."""
    large = 2.0 ** random.randrange(25, 40)
    lists: list[list[float]] = [
        [large, *[large * 2.0**-25] * 63],
        [-large, *_numbers(random, 39, 2)],
        [],
        _numbers(random, 1, 2),
        [large, 1.0],
    ]
    return [(numbers,) for numbers in lists]


@mistake
def adds_in_FP64(numbers: list[float]) -> Sums:
    """This is what Python's own floats give: FP64 rounds so finely that both orders are nearly equal. Round to FP32
    after each addition."""
    half = len(numbers) // 2
    return sum(numbers), sum(numbers[:half]) + sum(numbers[half:])


@mistake
def rounds_at_the_end(numbers: list[float]) -> Sums:
    """This is what rounding to FP32 once at the end gives. FP32 rounds after each addition."""
    once = float(np.float32(math.fsum(numbers)))
    return once, once


@mistake
def adds_in_FP16(numbers: list[float]) -> Sums:
    """This is what FP16 gives; asked is FP32."""
    with np.errstate(over="ignore", invalid="ignore"):
        totals = [np.float16(0)] * 3
        for i, x in enumerate(numbers):
            for at in (0, 1 if i < len(numbers) // 2 else 2):
                totals[at] = np.float16(totals[at] + np.float16(x))
        return float(totals[0]), float(totals[1] + totals[2])


@mistake
def forgets_the_last_rounding(numbers: list[float]) -> Sums:
    """This is what adding the two halves in FP64 gives. That addition rounds, too."""
    half = len(numbers) // 2
    return _in_turn(numbers), _in_turn(numbers[:half]) + _in_turn(numbers[half:])


@mistake
def gives_the_longer_half_first(numbers: list[float]) -> Sums:
    """This is what a first half that is one longer gives. Of an odd number, the rest is the longer one."""
    half = (len(numbers) + 1) // 2
    return _in_turn(numbers), float(np.float32(_in_turn(numbers[:half]) + _in_turn(numbers[half:])))


# fmt: off
MISTAKES = (
    adds_in_FP64,
    rounds_at_the_end,
    adds_in_FP16,
    wrong("takes every second", "this is what two sums of every second number give. The second order cuts the list "
          "in the middle.",
          lambda numbers: (_in_turn(numbers), float(np.float32(_in_turn(numbers[::2]) + _in_turn(numbers[1::2]))))),
    wrong("goes on with the first half", "this is what adding the second half onto the first gives: that is one "
          "after another again. Begin it at 0.", lambda numbers: (_in_turn(numbers), _in_turn(numbers))),
    forgets_the_last_rounding,
    wrong("sorts first", "this is what sorting by magnitude first gives: it may be more exact, and is another order.",
          lambda numbers: reference(sorted(numbers, key=abs))),
    gives_the_longer_half_first,
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.orders",
    title="The same numbers in two orders",
    entry="my_two_sums",
    difficulty=2,
    minutes=7,
    reference=reference,
    checks=(
        Check("numbers of one size", 1, lambda random: [(_numbers(random, count, 1),) for count in (64, 100, 200)]),
        Check("numbers of all sizes", 1, lambda random: [(_numbers(random, 40, 24),) for _ in range(3)]),
        Check("an odd number of them", 2, _odd),
        Check("small numbers after a large one", 1, _swallowed),
    ),
    mistakes=MISTAKES,
    provides={"np": np},
)
