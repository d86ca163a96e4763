"""Exercises of lesson 11b: scales of blocks and of tensors, 4-bit rounding, and unit scaling."""

from __future__ import annotations

import math
from random import Random

import numpy as np

from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- beyond.mx_scale ---


def _block(random: Random, largest: float) -> list[float]:
    """Return eight FP32 numbers far below `largest`, with `largest` at a random place."""
    block = [random.choice((-1, 1)) * random.uniform(0, 0.2) * abs(largest) for _ in range(8)]
    block.insert(random.randrange(9), largest)
    return [float(np.float32(x)) for x in block]


def _any_size(random: Random, sign: int) -> list[Case]:
    """Blocks of any size; the last two reach FP32's end, and come near its smallest numbers."""
    exponents = [*(random.randrange(-60, 60) for _ in range(4)), 127, random.randrange(-118, -112)]
    largest = [sign * random.uniform(1.01, 1.99) * 2.0**exponent for exponent in exponents]
    tops = (6.0, 448.0, 57344.0, 6.0, 6.0, 448.0)
    return [(_block(random, x), top) for x, top in zip(largest, tops, strict=True)]


def _positive(random: Random) -> list[Case]:
    """Blocks of any size, single numbers, long blocks, and the largest numbers of other formats."""
    cases = [*_any_size(random, 1), (_block(random, random.uniform(1.55, 1.7) * 2.0**5), 448.0)]
    long = [*_block(random, 3.0)] * 5
    alone = [float(random.randrange(500, 999))]
    return [*cases, (alone, 448.0), ([*long, 77.0], 6.0), (long, 28.0), (long, 7.5), (long, 240.0)]


def _after(x: float) -> float:
    """Return the next FP32 number."""
    return float(np.nextafter(np.float32(x), np.float32(np.inf)))


def _at_the_limit(random: Random) -> list[Case]:
    """A largest number that just fits, the number after it, and fits that a logarithm misses."""
    limits = [(top, top * 2.0 ** random.randrange(-40, 40)) for top in (6.0, 448.0, 57344.0)]
    fits = [
        (top, top * 2.0**k)
        for top, k in ((448.0, 9), (448.0, 14), (57344.0, 3), (57344.0, 12), (6.0, 14))
    ]
    numbers = [*((top, x) for top, at in limits for x in (at, _after(at))), *fits]
    return [(_block(random, x), top) for top, x in numbers]


def _nothing(random: Random) -> list[Case]:
    """Blocks of zeros, and of numbers below, at and just above what the smallest scale holds."""
    ends = [([-x], 6.0) for x in (6 * 2.0**-127, _after(6 * 2.0**-127))]
    return [([0.0] * 4, 6.0), ([-0.0, 2.0**-149], 6.0), (_block(random, 2.0**-140), 448.0), *ends]


MX_SCALE = Exercise(
    id="beyond.mx_scale",
    notes="A block's scale is a power of two, and it is read off the largest magnitude. "
    "Rounded up, nothing saturates.",
    checks=(
        Check("blocks whose largest number is positive", 1, _positive),
        Check("blocks whose largest number is negative", 1, lambda random: _any_size(random, -1)),
        Check("a largest number that just fits, and the next one", 2, _at_the_limit),
        Check("blocks of zeros, and of next to nothing", 1, _nothing),
    ),
    mistakes=(
        wrong(
            "rounds down",
            "this is floor(log2 largest) - floor(log2 top), as OCP's text has it: the largest "
            "number may saturate. Here it must not.",
            replace=(
                "largest > top * 2.0**k",
                "largest and math.frexp(largest)[1] > math.frexp(top)[1] + k",
            ),
        ),
        wrong(
            "goes one too far",
            "this is what going on while the largest is at or above top x 2^k gives: a number "
            "that fits exactly needs no larger scale.",
            replace=("largest >", "largest >="),
        ),
        wrong(
            "forgets the sign",
            "this is what max(block) gives: a large negative number saturates too. Take "
            "magnitudes.",
            replace=("max(abs(x) for x in block)", "max(block)"),
        ),
        wrong(
            "takes the mean",
            "this is what the mean magnitude gives: the largest number saturates.",
            replace=("max(abs(x) for x in block)", "math.fsum(abs(x) for x in block) / len(block)"),
        ),
        wrong(
            "forgets the top",
            "this is what bringing the largest below 1 gives. The elements reach up to top, and "
            "most of their range is left unused.",
            replace=("top * 2.0**k", "2.0**k"),
        ),
        wrong(
            "rounds the logarithm",
            "this is what rounding log2(largest / top) to the nearest whole number gives: "
            "half of the blocks saturate.",
            replace=("largest > top * 2.0**k", "largest and round(math.log2(largest / top)) > k"),
        ),
        wrong(
            "subtracts two logarithms",
            "this is log2(largest) - log2(top), rounded up. Both logarithms are rounded, so the "
            "difference may be a little above a whole number: a number that fits exactly gets a "
            "larger scale.",
            replace=(
                "largest > top * 2.0**k",
                "largest and math.ceil(math.log2(largest) - math.log2(top)) > k",
            ),
        ),
        wrong(
            "has no end",
            "this is what an exponent without an end gives: a scale has 8 bits, and ends at "
            "2^-127.",
            replace=("k = -127", "k = -400"),
        ),
        wrong(
            "turned round",
            "this is the exponent that numbers are multiplied by. Return that of the scale, by "
            "which they are divided.",
            replace=("return k", "return -k"),
        ),
    ),
)


# --- beyond.history ---


def _steps(random: Random, count: int) -> list[float]:
    """Return magnitudes that are all different, none of them a power of two."""
    return [random.uniform(1.01, 1.99) * 2.0 ** random.randrange(-6, 6) for _ in range(count)]


def _short(random: Random) -> list[Case]:
    drawn = [(_steps(random, count), length, 448.0) for count, length in ((3, 4), (6, 8), (4, 16))]
    return [*drawn, ([3.0] * 4, 8, 448.0)]


def _long(random: Random) -> list[Case]:
    """Falling magnitudes, whose largest leaves the history; random, equal ones; long histories."""
    falling = sorted(_steps(random, 9), reverse=True)
    a, b, c = sorted(_steps(random, 3))
    alike = [c, a, b, c, a, a, b, a, a]
    return [
        (falling, 3, 57344.0),
        (falling, 1, 448.0),
        (_steps(random, 12), 2, 448.0),
        (_steps(random, 9), 4, 57344.0),
        (alike, 3, 448.0),
        (sorted(_steps(random, 30), reverse=True), 20, 448.0),
        (sorted(_steps(random, 90), reverse=True), 64, 448.0),
    ]


def _outlier(random: Random) -> list[Case]:
    """One step far larger than the others, and than the format's largest number."""
    steps = _steps(random, 8)
    steps[3] = 1000 * max(steps)
    return [(steps, 2, 448.0), (steps, 16, 448.0), (steps, 2, 6.0)]


def _zeros(random: Random) -> list[Case]:
    """Tensors of zeros: at the start, for the whole history, and always; and tiny ones."""
    a, b = _steps(random, 2)
    tiny = [x * 2.0**-60 for x in (a, b, b)]
    runs = ([0.0, a, b], 1), ([a, 0.0, 0.0, b, a], 2), (tiny, 2), ([0.0] * 2, 4)
    return [*((largest, length, 448.0) for largest, length in runs), ([], 4, 448.0)]


HISTORY = Exercise(
    id="beyond.history",
    notes="""Delayed scaling looks back, never at the tensor in hand; and it takes the largest of a
    few steps. Two ulps are free: top * (1 / largest) rounds twice.""",
    ulps=2,
    checks=(
        Check("a run shorter than its history", 1, _short),
        Check("what is older than the history is forgotten", 2, _long),
        Check("one outlier", 1, _outlier),
        Check("tensors of zeros", 1, _zeros),
    ),
    mistakes=(
        wrong(
            "looks at the tensor in hand",
            "this is what counting the step itself gives: current scaling, which has "
            "to read the tensor twice.",
            replace=("step - length) : step", "step + 1 - length) : step + 1"),
        ),
        wrong(
            "takes the last alone",
            "this is what the step before alone gives. The history is there for the steps "
            "that were larger.",
            replace=("step - length", "step - 1"),
        ),
        wrong(
            "forgets nothing",
            "this is what looking back to the first step gives: one outlier keeps the scale too "
            "small until the end.",
            replace=("max(0, step - length) : step", ":step"),
        ),
        wrong(
            "takes tiny for zero",
            "this is what a threshold gives, below which all counts as zero. Gradients are "
            "often that small; only 0 has no scale.",
            replace=("any(before)", "max(before, default=0) > 1e-8"),
        ),
        wrong(
            "one step too many",
            "this is what a history one step longer gives.",
            replace=("step - length", "step - length - 1"),
        ),
        wrong(
            "takes the mean",
            "this is what the mean of the history gives: everything above it saturates.",
            replace=("max(before)", "sum(before) * len(before)"),
        ),
        wrong(
            "turned round",
            "this is 1 / scale, by which the result is multiplied afterwards.",
            replace=("top / max(before)", "max(before) / top"),
        ),
        wrong(
            "begins with its own",
            "this is what reading the first tensor first gives. In the first step nothing is "
            "known yet: its scale is 1.",
            replace=(" : step]", " : max(step, 1)]"),
        ),
        wrong(
            "divides by zero less",
            "this is what passing over zeros by keeping the last scale gives. Where the "
            "history holds nothing but zeros, the scale is 1.",
            replace=("else 1.0", "else scales[-1] if scales else 1.0"),
        ),
    ),
)


# --- beyond.block ---

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the magnitudes of E2M1


def _between(random: Random, places: tuple[int, ...], sign: int = 1) -> Case:
    """Return a block, its scale, and random numbers that decide how each element is rounded.

    Args:
        random: Draws the scale, the elements and their chances.
        places: For each group of three elements, the index in GRID of the neighbour below.
        sign: The sign of all elements.
    """
    scale = 2.0 ** random.randrange(-20, 20)
    block: list[float] = []
    chances: list[float] = []
    for place in places:
        # The chance lies below, at and above the element's part of the way to the next number.
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
    """Numbers of the grid, beyond its end and far below its first step; and an empty block."""
    scale = 2.0 ** random.randrange(-9, 9)
    return [
        ([scale * g for g in GRID], scale, [0.0] * 8),
        (
            [scale * 6.5, -scale * 100, scale * 6, scale * 7, math.inf],
            scale,
            [0.0, 0.5, 0.0, 0.99, 0.5],
        ),
        ([], scale, []),
        ([scale * 2.0**-12, -scale * 2.0**-20, scale * 2.0**-12], scale, [0.0, 0.0, 2.0**-12]),
        ([2.5 * 2.0**40], 2.0**40, [0.25]),
    ]


BLOCK = Exercise(
    id="beyond.block",
    notes="""The numbers of a 4-bit format are not equally far apart, so find the distance from one
    to the next first. Then chance decides as in lesson 02.""",
    checks=(
        Check("small numbers, where the steps are 0.5", 1, _small),
        Check("large numbers, where the steps are 1 and 2", 2, _large),
        Check(
            "negative numbers",
            1,
            lambda random: [_between(random, (0, 3, 5, 6), sign=-1) for _ in range(2)],
        ),
        Check("numbers of the format, and beyond its end", 1, _ends),
    ),
    mistakes=(
        wrong(
            "rounds to nearest",
            "this is round to nearest: the chances change nothing.",
            replace=("chance < (size - lower) / (upper - lower)", "upper - size < size - lower"),
        ),
        wrong(
            "tosses a coin",
            "this is what up or down with probability 1/2 gives. The nearer neighbour has to be "
            "taken more often.",
            replace=("(size - lower) / (upper - lower)", "0.5"),
        ),
        wrong(
            "turned round",
            "this is what going up where random is above the part gives: the farther neighbour is "
            "taken more often.",
            replace=("chance <", "chance >="),
        ),
        wrong(
            "steps of a half",
            "this is what steps of 0.5 everywhere give. From 2 on E2M1 has steps of 1, from 4 on "
            "of 2.",
            replace=(
                ("max(g for g in GRID if g <= size)", "math.floor(2 * size) / 2"),
                ("min(g for g in GRID if g >= size)", "lower + 0.5"),
            ),
        ),
        wrong(
            "compares a length",
            "this is what comparing random with size - lower gives. That is a length; divide it "
            "by upper - lower.",
            replace=(" / (upper - lower)", ""),
        ),
        wrong(
            "forgets the scale",
            "this is the elements alone. The numbers are scale times that.",
            replace=("scale * (", "("),
        ),
        wrong(
            "loses the sign", "this is what leaving out the sign gives.", replace=(", x))", ", 1))")
        ),
        wrong(
            "moves what is exact",
            "this is what random <= part gives: with random = 0 a number of the format moves "
            "up. Take <.",
            replace=(
                ("chance <", "chance <="),
                ("min(g for g in GRID if g >= size)", "min([g for g in GRID if g > size] or [6])"),
            ),
        ),
    ),
)


# --- beyond.unit ---

# Of none of these, log2 of the square root is near the middle between two whole numbers.
SIZES = (9, 27, 64, 100, 144, 256, 784, 1000, 1024, 3000, 4096)


def _layer(random: Random, fan_in: int, width: int, log2_size: int) -> Case:
    """Return a layer whose gradient's exponent is clearly nearer to one whole number."""
    off = random.choice((-1, 1)) * random.uniform(0.05, 0.4)
    # Stands in for log2 of the width's square root.
    root = round(math.log2(width) / 2) + off
    return fan_in, width, math.sqrt(width) / 2.0 ** (root - log2_size)


def _square(random: Random) -> list[Case]:
    return [_layer(random, n, n, 0) for n in (*random.sample(SIZES, 5), 1, 3, 65536)]


def _shapes(random: Random) -> list[Case]:
    """Layers that are wider than what comes in, or narrower."""
    pairs = [random.sample(SIZES, 2) for _ in range(3)] + [[784, 100], [64, 3000], [144, 9]]
    return [_layer(random, fan_in, width, random.randrange(-3, 4)) for fan_in, width in pairs]


def _losses(random: Random) -> list[Case]:
    """Losses divided or multiplied by much, and one 1.46 times a power of two."""
    return [
        *(_layer(random, 1000, 64, log2) for log2 in (-20, -8, -1, 1, 8)),
        (1000, 64, 8.0 / (1.46 * 2.0**-4)),
    ]


UNIT = Exercise(
    id="beyond.unit",
    notes="""No scale has to be searched for. A weight's follows from its layer's shape, a
    gradient's from the shape and one number for the whole network.""",
    checks=(
        Check("layers as wide as what comes in", 1, _square),
        Check("layers of other shapes", 2, _shapes),
        Check("losses of any size", 1, _losses),
    ),
    mistakes=(
        wrong(
            "forgets the root",
            "this is what fan_in and width give without their roots. Sums of n random numbers "
            "grow as the root of n.",
            replace=(("math.sqrt(fan_in)", "fan_in"), ("math.sqrt(width)", "width")),
        ),
        wrong(
            "rounds down",
            "this is what rounding down gives. Round to the nearest whole number.",
            replace=(
                ("weight = round", "weight = math.floor"),
                ("gradient = round", "gradient = math.floor"),
            ),
        ),
        wrong(
            "nearest in value",
            "this is the power of two that is nearest to the factor. The logarithm decides: 1.46 "
            "is nearer to 1 than to 2, and its logarithm, 0.55, is nearer to 1 than to 0.",
            replace=(
                "gradient = round(math.log2(math.sqrt(width) / size))",
                "gradient = min(range(-60, 60), key=lambda k: abs(2.0**k - math.sqrt(width) / "
                "size))",
            ),
        ),
        wrong(
            "multiplies by the size",
            "this is what sqrt(width) times `size` gives. A gradient that is small needs a "
            "large factor: divide.",
            replace=("/ size", "* size"),
        ),
        wrong(
            "forgets the size",
            "this is what the shape alone gives. How large the loss's gradient is, the shape "
            "does not know.",
            replace=(" / size", ""),
        ),
        wrong(
            "exchanges the shapes",
            "this is what the width gives for the weight, and fan_in for the gradient. It is "
            "the other way round.",
            lambda fan_in, width, size: solution.my_unit_exponents(width, fan_in, size),
        ),
        wrong(
            "turned round",
            "this is the factor to divide by. Return the factor that a number is multiplied by, to "
            "get size 1.",
            replace=("weight, gradient", "-weight, -gradient"),
        ),
        wrong(
            "the factors themselves",
            "this is 2^k. Return k.",
            replace=("weight, gradient", "2.0**weight, 2.0**gradient"),
        ),
    ),
)

EXERCISES = (MX_SCALE, HISTORY, BLOCK, UNIT)
