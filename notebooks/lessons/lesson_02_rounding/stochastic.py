"""Can you round so that the mean is right?

The point: go up with the probability that is the part of the spacing already covered. The random number is given, so
the answer is exact. Numbers of either sign go *up*, towards +inf, so that one rule serves both.
"""

from __future__ import annotations

import math
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong


def reference(x: float, spacing: float, random: float) -> float:
    """Return the neighbour of x among the multiples of spacing: the upper one if random is below x's part of the way.

    >>> reference(2.25, 1.0, random=0.2), reference(2.25, 1.0, random=0.25), reference(-0.25, 1.0, random=0.7)
    (3.0, 2.0, 0.0)
    """
    lower, part = _split(x, spacing)
    return lower + spacing * (random < part)


def _split(x: float, spacing: float) -> tuple[float, float]:
    """Return the multiple of spacing at or below x, and how far x is on its way to the next, 0 to 1."""
    lower = math.floor(x / spacing) * spacing
    return lower, (x - lower) / spacing


def _number(random: Random, sign: int, eighths: int) -> tuple[float, float]:
    """Return a number that is some eighths above a multiple of its spacing, and the spacing."""
    spacing = 2.0 ** random.randrange(-24, -2)
    return sign * (random.randrange(1024, 2048) * spacing) + eighths / 8 * spacing, spacing


def _cases(random: Random, sign: int) -> list[Case]:
    """Random numbers just below and just above the part, and far from it; a quarter is no half."""
    pairs = ((2, 0.1), (2, 0.3), (2, 0.6), (6, 0.1), (6, 0.4), (6, 0.7), (6, 0.8), (5, 0.99), (1, 0.01))
    shaken = [(eighths, part + random.uniform(0, 0.009)) for eighths, part in pairs]
    wide = [(sign * 13.0, 8.0, part) for part in (0.1, 0.37, 0.38, 0.62, 0.63, 0.9)]
    below = 2.0 ** random.randrange(-24, -2)  # a spacing, of which x is less than one
    return [
        *((*_number(random, sign, eighths), part) for eighths, part in shaken),
        *wide,
        *((sign * 0.375 * below, below, part) for part in (0.1, 0.5, 0.9)),
    ]


def _exact(random: Random) -> list[Case]:
    """A number of the format stays, even if the random number is 0; and so do multiples of 5, but not 7."""
    drawn = [(*_number(random, sign, 0), part) for sign, part in ((1, 0.0), (1, 0.9), (-1, 0.0), (1, 0.3))]
    fives = [(x, 5.0, part) for x in (15.0, 7.0, -7.0) for part in (0.2, 0.5, 0.8)]
    return [*drawn, (0.0, 0.25, 0.0), (-24.0, 8.0, 0.0), *fives]


def _many(random: Random) -> list[Case]:
    """A hundred random numbers for each, 0.005 apart from one another: the share that goes up is the part, exactly."""
    numbers = [_number(random, sign, random.randrange(1, 8)) for sign in (1, -1)]
    return [(*number, (2 * i + 1) / 200) for number in numbers for i in range(100)]


@mistake
def tosses_a_coin(x: float, spacing: float, random: float) -> float:
    """This is what up or down with probability 1/2 gives. The nearer neighbour has to be taken more often."""
    lower, part = _split(x, spacing)
    return lower + spacing * (part > 0 and random < 0.5)


@mistake
def turned_round(x: float, spacing: float, random: float) -> float:
    """This is what going up where random is *above* the part gives: the farther neighbour is taken more often."""
    lower, part = _split(x, spacing)
    return lower + spacing * (random >= part)


@mistake
def truncates(x: float, spacing: float, random: float) -> float:
    """This is what int(x / spacing) gives: below zero it cuts upwards, and the part becomes negative. Take
    math.floor."""
    lower = int(x / spacing) * spacing
    return lower + spacing * (random < (x - lower) / spacing)


@mistake
def forgets_to_divide_by_the_spacing(x: float, spacing: float, random: float) -> float:
    """This is what comparing random with x - lower gives. That is a length; divide it by the spacing."""
    lower, part = _split(x, spacing)
    return lower + spacing * (random < part * spacing)


@mistake
def moves_what_is_exact(x: float, spacing: float, random: float) -> float:
    """This is what random <= part gives: with random = 0 a number that needs no rounding moves. Take <."""
    lower, part = _split(x, spacing)
    return lower + spacing * (random <= part)


# fmt: off
MISTAKES = (
    wrong("rounds to nearest", "this is round to nearest: the random number changes nothing, and small updates are "
          "swallowed again.", lambda x, spacing, random: round(x / spacing) * spacing),
    tosses_a_coin,
    turned_round,
    wrong("from the other end", "this is what floor(x / spacing + random) gives: right in the mean, but it goes up "
          "for large random numbers. Here it is up where random is below the part.",
          lambda x, spacing, random: math.floor(x / spacing + random) * spacing),
    truncates,
    wrong("away from zero", "this is what rounding |x| and putting the sign back gives: right in the mean, but below "
          "zero it goes down where up was asked.",
          lambda x, spacing, random: math.copysign(reference(abs(x), spacing, random), x)),
    forgets_to_divide_by_the_spacing,
    moves_what_is_exact,
    wrong("adds noise then rounds to nearest", "this is what round(x / spacing + random) gives: half a spacing too "
          "high in the mean.", lambda x, spacing, random: round(x / spacing + random) * spacing),
    wrong("counts spacings", "this is how many spacings the result is. Multiply by the spacing.",
          lambda x, spacing, random: reference(x, spacing, random) / spacing),
)
# fmt: on

EXERCISE = Exercise(
    id="rounding.stochastic",
    title="Round by chance",
    entry="my_stochastic",
    difficulty=2,
    minutes=6,
    reference=reference,
    checks=(
        Check("positive numbers", 2, lambda random: _cases(random, 1)),
        Check("negative numbers", 1, lambda random: _cases(random, -1)),
        Check("multiples of the spacing stay", 1, _exact),
        Check("a hundred random numbers for one x", 1, _many),
    ),
    mistakes=MISTAKES,
)
