"""Can you round a block by chance?

The point: the numbers of a 4-bit format do not stand at one distance, so the way from one to the next has to be found
first; then chance decides as in lesson 02.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the magnitudes of E2M1
Block = list[float]


def reference(block: Block, scale: float, random: Block) -> Block:
    """Return the block in E2M1 at a scale: |x| / scale goes to the upper neighbour if random is below its part.

    >>> reference([5.0, -5.0, 100.0], scale=2.0, random=[0.4, 0.6, 0.0])  # 2.5 lies half-way from 2 to 3
    [6.0, -4.0, 12.0]
    """
    return _each(block, scale, random, lambda size, chance: _up(size, lambda part: chance < part))


def _each(block: Block, scale: float, random: Block, choose: Callable[[float, float], float]) -> Block:
    sizes = [min(abs(x) / scale, GRID[-1]) for x in block]
    return [math.copysign(choose(size, r) * scale, x) for size, r, x in zip(sizes, random, block, strict=True)]


def _up(size: float, goes: Callable[[float], bool]) -> float:
    """Return the neighbour that `goes`, asked for the part of the way, decides on; a number of the grid stays."""
    lower, upper = max(g for g in GRID if g <= size), min(g for g in GRID if g >= size)
    return upper if upper > lower and goes((size - lower) / (upper - lower)) else lower


def _between(random: Random, places: tuple[int, ...], sign: int = 1) -> Case:
    """Return a block of numbers between two neighbours: some eighths of the way; chances on both sides, and there."""
    scale, block, chances = 2.0 ** random.randrange(-20, 20), [], []
    for place in places:
        for side in (-1, 0, 1):
            part = random.randrange(1, 8) / 8
            block.append(sign * scale * (GRID[place] + part * (GRID[place + 1] - GRID[place])))
            chances.append(part + side * random.uniform(0.01, 0.1))
    return block, scale, chances


def _small(random: Random) -> list[Case]:
    return [_between(random, (0, 1, 2, 3)) for _ in range(3)]


def _large(random: Random) -> list[Case]:
    """Where the steps are 1 and 2; the last block is longer than those of NVFP4 and MXFP4."""
    return [_between(random, (4, 5, 6, 6)) for _ in range(3)] + [_between(random, (4, 5, 6) * 4)]


def _ends(random: Random) -> list[Case]:
    """Numbers of the grid with a chance of 0, and what is beyond the last."""
    scale = 2.0 ** random.randrange(-9, 9)
    beyond = [scale * 6.5, -scale * 100, scale * 6, scale * 7, math.inf]
    tiny = [scale * 2.0**-12, -scale * 2.0**-20, scale * 2.0**-12]
    chances = [0.0, 0.5, 0.0, 0.99, 0.5]
    return [
        ([scale * g for g in GRID], scale, [0.0] * 8),
        (beyond, scale, chances),
        ([], scale, []),
        (tiny, scale, [0.0, 0.0, 2.0**-12]),
        ([2.5 * 2.0**40], 2.0**40, [0.25]),
    ]


@mistake
def rounds_to_nearest(block: Block, scale: float, random: Block) -> Block:
    """This is round to nearest: the chances change nothing."""
    return _each(block, scale, random, lambda size, _: min(GRID, key=lambda g: abs(g - size)))


@mistake
def tosses_a_coin(block: Block, scale: float, random: Block) -> Block:
    """This is what up or down with probability 1/2 gives. The nearer neighbour has to be taken more often."""
    return _each(block, scale, random, lambda size, chance: _up(size, lambda _: chance < 0.5))


@mistake
def turned_round(block: Block, scale: float, random: Block) -> Block:
    """This is what going up where random is above the part gives: the farther neighbour is taken more often."""
    return _each(block, scale, random, lambda size, chance: _up(size, lambda part: chance >= part))


@mistake
def steps_of_a_half(block: Block, scale: float, random: Block) -> Block:
    """This is what steps of 0.5 everywhere give. From 2 on E2M1 has steps of 1, from 4 on of 2."""

    def choose(size: float, chance: float) -> float:
        lower = math.floor(2 * size) / 2
        return lower + 0.5 * (chance < 2 * (size - lower))

    return _each(block, scale, random, choose)


@mistake
def compares_a_length(block: Block, scale: float, random: Block) -> Block:
    """This is what comparing random with size - lower gives. That is a length; divide it by upper - lower."""

    def choose(size: float, chance: float) -> float:
        lower = max(g for g in GRID if g <= size)
        return _up(size, lambda _: chance < size - lower)

    return _each(block, scale, random, choose)


@mistake
def moves_what_is_exact(block: Block, scale: float, random: Block) -> Block:
    """This is what random <= part gives: with random = 0 a number of the format moves up. Take <."""

    def choose(size: float, chance: float) -> float:
        above = [g for g in GRID if g > size]
        return above[0] if above and size in GRID and chance <= 0 else _up(size, lambda part: chance <= part)

    return _each(block, scale, random, choose)


# fmt: off
MISTAKES = (
    rounds_to_nearest,
    tosses_a_coin,
    turned_round,
    steps_of_a_half,
    compares_a_length,
    wrong("forgets the scale", "this is the elements alone. What they stand for is scale times that.",
          lambda block, scale, random: [x / scale for x in reference(block, scale, random)]),
    wrong("loses the sign", "this is what leaving out the sign gives.",
          lambda block, scale, random: [abs(x) for x in reference(block, scale, random)]),
    moves_what_is_exact,
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.block",
    title="Round a block by chance",
    entry="my_block",
    difficulty=3,
    minutes=12,
    reference=reference,
    checks=(
        Check("small numbers, where the steps are 0.5", 1, _small),
        Check("large numbers, where the steps are 1 and 2", 2, _large),
        Check("negative numbers", 1, lambda random: [_between(random, (0, 3, 5, 6), sign=-1) for _ in range(2)]),
        Check("numbers of the format, and beyond its end", 1, _ends),
    ),
    mistakes=MISTAKES,
)
