"""Exercises of the lesson."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import torch
from torch import Tensor

from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- beyond.mx_scale ---


def _block(random: Random, largest: float) -> list[float]:
    """Return eight FP32 numbers below a magnitude, and that one itself, somewhere among them."""
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
    """A significand between 1.5 and 1.75, where the tops differ; one number alone; a long block, the largest at its
    end; and other formats' largest numbers.
    """
    cases = [*_any_size(random, 1), (_block(random, random.uniform(1.55, 1.7) * 2.0**5), 448.0)]
    long = [*_block(random, 3.0)] * 5
    alone = [float(random.randrange(500, 999))]
    return [*cases, (alone, 448.0), ([*long, 77.0], 6.0), (long, 28.0), (long, 7.5), (long, 240.0)]


def _after(x: float) -> float:
    """Return the next FP32 number."""
    return float(np.nextafter(np.float32(x), np.float32(np.inf)))


def _at_the_limit(random: Random) -> list[Case]:
    """Exactly top times a power of two, and the number after it."""
    limits = [(top, top * 2.0 ** random.randrange(-40, 40)) for top in (6.0, 448.0, 57344.0)]
    return [(_block(random, x), top) for top, at in limits for x in (at, _after(at))]


def _nothing(random: Random) -> list[Case]:
    """Blocks that any scale holds: zeros, and numbers far below the smallest scale, up to it and beyond."""
    ends = [([-x], 6.0) for x in (6 * 2.0**-127, _after(6 * 2.0**-127))]
    return [([0.0] * 4, 6.0), ([-0.0, 2.0**-149], 6.0), (_block(random, 2.0**-140), 448.0), *ends]


# fmt: off
MX_SCALE = Exercise(
    id="beyond.mx_scale",
    notes="A block's scale is a power of two, and it is read off the largest magnitude. Rounded up, nothing saturates.",
    checks=(
        Check("blocks whose largest number is positive", 1, _positive),
        Check("blocks whose largest number is negative", 1, lambda random: _any_size(random, -1)),
        Check("a largest number that just fits, and the next one", 2, _at_the_limit),
        Check("blocks of zeros, and of next to nothing", 1, _nothing),
    ),
    mistakes=(
        wrong("rounds down", "this is floor(log2 largest) - floor(log2 top), as OCP's text has it: the largest number "
              "may saturate. Here it must not.",
              replace=("largest > top * 2.0**k", "largest and math.frexp(largest)[1] > math.frexp(top)[1] + k")),
        wrong("goes one too far", "this is what going on while the largest is at or above top x 2^k gives: a number "
              "that fits exactly needs no larger scale.", replace=("largest >", "largest >=")),
        wrong("forgets the sign", "this is what max(block) gives: a large negative number saturates too. Take "
              "magnitudes.", replace=("max(abs(x) for x in block)", "max(block)")),
        wrong("takes the mean", "this is what the mean magnitude gives: the largest number saturates.",
              replace=("max(abs(x) for x in block)", "math.fsum(abs(x) for x in block) / len(block)")),
        wrong("forgets the top", "this is what bringing the largest below 1 gives. The elements reach up to top, and "
              "most of their range is left unused.", replace=("top * 2.0**k", "2.0**k")),
        wrong("rounds the logarithm", "this is what rounding log2(largest / top) to the nearest whole number gives: "
              "half of the blocks saturate.",
              replace=("largest > top * 2.0**k", "largest and round(math.log2(largest / top)) > k")),
        wrong("has no end", "this is what an exponent without an end gives: a scale has 8 bits, and ends at 2^-127.",
              replace=("k = -127", "k = -400")),
        wrong("turned round", "this is the exponent that numbers are multiplied by. Return that of the scale, by which "
              "they are divided.", replace=("return k", "return -k")),
    ),
)
# fmt: on

# --- beyond.history ---


def _steps(random: Random, count: int) -> list[float]:
    """Return magnitudes that are all different, none of them a power of two."""
    return [random.uniform(1.01, 1.99) * 2.0 ** random.randrange(-6, 6) for _ in range(count)]


def _short(random: Random) -> list[Case]:
    drawn = [(_steps(random, count), length, 448.0) for count, length in ((3, 4), (6, 8), (4, 16))]
    return [*drawn, ([3.0] * 4, 8, 448.0)]


def _long(random: Random) -> list[Case]:
    """Falling magnitudes, so that what leaves the history is felt; random ones; equal ones; and a long history."""
    falling = sorted(_steps(random, 9), reverse=True)
    a, b, c = sorted(_steps(random, 3))
    alike = [c, a, b, c, a, a, b, a, a]
    return [
        (falling, 3, 57344.0), (falling, 1, 448.0), (_steps(random, 12), 2, 448.0), (_steps(random, 9), 4, 57344.0),
        (alike, 3, 448.0), (sorted(_steps(random, 30), reverse=True), 20, 448.0),
        (sorted(_steps(random, 90), reverse=True), 64, 448.0),
    ]  # fmt: skip


def _outlier(random: Random) -> list[Case]:
    """One step far larger than the others, and than the format's largest number."""
    steps = _steps(random, 8)
    steps[3] = 1000 * max(steps)
    return [(steps, 2, 448.0), (steps, 16, 448.0), (steps, 2, 6.0)]


def _zeros(random: Random) -> list[Case]:
    """A tensor of zeros: first, for longer than the history, and beside others; and one that is nearly zero."""
    a, b = _steps(random, 2)
    tiny = [x * 2.0**-60 for x in (a, b, b)]
    runs = ([0.0, a, b], 1), ([a, 0.0, 0.0, b, a], 2), (tiny, 2), ([0.0] * 2, 4)
    return [*((largest, length, 448.0) for largest, length in runs), ([], 4, 448.0)]


# fmt: off
HISTORY = Exercise(
    id="beyond.history",
    notes="""Delayed scaling looks back, never at the tensor in hand; and it takes the largest of a few steps.
    Two ulps are free: top * (1 / largest) rounds twice.""",
    ulps=2,
    checks=(
        Check("a run shorter than its history", 1, _short),
        Check("what is older than the history is forgotten", 2, _long),
        Check("one outlier", 1, _outlier),
        Check("tensors of zeros", 1, _zeros),
    ),
    mistakes=(
        wrong("looks at the tensor in hand", "this is what counting the step itself gives: current scaling, which has "
              "to read the tensor twice.", replace=("step - length) : step", "step + 1 - length) : step + 1")),
        wrong("takes the last alone", "this is what the step before alone gives. The history is there for the steps "
              "that were larger.", replace=("step - length", "step - 1")),
        wrong("forgets nothing", "this is what looking back to the first step gives: one outlier keeps the scale too "
              "small until the end.", replace=("max(0, step - length) : step", ":step")),
        wrong("takes tiny for zero", "this is what a threshold gives, below which all counts as zero. Gradients are "
              "often that small; only 0 has no scale.", replace=("any(before)", "max(before, default=0) > 1e-8")),
        wrong("one step too many", "this is what a history one step longer gives.",
              replace=("step - length", "step - length - 1")),
        wrong("takes the mean", "this is what the mean of the history gives: everything above it saturates.",
              replace=("max(before)", "sum(before) * len(before)")),
        wrong("turned round", "this is 1 / scale, by which the result is multiplied afterwards.",
              replace=("top / max(before)", "max(before) / top")),
        wrong("begins with its own", "this is what reading the first tensor first gives. In the first step nothing is "
              "known yet: its scale is 1.", replace=(" : step]", " : max(step, 1)]")),
        wrong("divides by zero less", "this is what passing over zeros by keeping the last scale gives. Where the "
              "history holds nothing but zeros, the scale is 1.",
              replace=("else 1.0", "else scales[-1] if scales else 1.0")),
    ),
)
# fmt: on

# --- beyond.block ---

GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the magnitudes of E2M1


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
    return [
        ([scale * g for g in GRID], scale, [0.0] * 8),
        ([scale * 6.5, -scale * 100, scale * 6, scale * 7, math.inf], scale, [0.0, 0.5, 0.0, 0.99, 0.5]),
        ([], scale, []),
        ([scale * 2.0**-12, -scale * 2.0**-20, scale * 2.0**-12], scale, [0.0, 0.0, 2.0**-12]),
        ([2.5 * 2.0**40], 2.0**40, [0.25]),
    ]


# fmt: off
BLOCK = Exercise(
    id="beyond.block",
    notes="""The numbers of a 4-bit format are not equally far apart, so find the distance from one to the next first.
    Then chance decides as in lesson 02.""",
    checks=(
        Check("small numbers, where the steps are 0.5", 1, _small),
        Check("large numbers, where the steps are 1 and 2", 2, _large),
        Check("negative numbers", 1, lambda random: [_between(random, (0, 3, 5, 6), sign=-1) for _ in range(2)]),
        Check("numbers of the format, and beyond its end", 1, _ends),
    ),
    mistakes=(
        wrong("rounds to nearest", "this is round to nearest: the chances change nothing.",
              replace=("chance < (size - lower) / (upper - lower)", "upper - size < size - lower")),
        wrong("tosses a coin", "this is what up or down with probability 1/2 gives. The nearer neighbour has to be "
              "taken more often.", replace=("(size - lower) / (upper - lower)", "0.5")),
        wrong("turned round", "this is what going up where random is above the part gives: the farther neighbour is "
              "taken more often.", replace=("chance <", "chance >=")),
        wrong("steps of a half", "this is what steps of 0.5 everywhere give. From 2 on E2M1 has steps of 1, from 4 on "
              "of 2.", replace=(("max(g for g in GRID if g <= size)", "math.floor(2 * size) / 2"),
                                ("min(g for g in GRID if g >= size)", "lower + 0.5"))),
        wrong("compares a length", "this is what comparing random with size - lower gives. That is a length; divide it "
              "by upper - lower.", replace=(" / (upper - lower)", "")),
        wrong("forgets the scale", "this is the elements alone. The numbers are scale times that.",
              replace=("scale * (", "(")),
        wrong("loses the sign", "this is what leaving out the sign gives.", replace=(", x))", ", 1))")),
        wrong("moves what is exact", "this is what random <= part gives: with random = 0 a number of the format moves "
              "up. Take <.", replace=(("chance <", "chance <="), ("min(g for g in GRID if g >= size)",
                                                                  "min([g for g in GRID if g > size] or [6])"))),
    ),
)
# fmt: on

# --- beyond.frozen ---

Named = dict[str, Tensor]


def _moving(random: Random, moves: dict[str, list[float]], weight: float) -> tuple[Named, Named]:
    """Return parameters of elements near a weight, of either sign; each moves by part of the distance there.

    The updates come in another order than the weights.
    """
    weights, updates = {}, {}
    for name, parts in moves.items():
        elements = [random.choice((-1, 1)) * weight * (1 + random.randrange(1, 60) * 2.0**-7) for _ in parts]
        weights[name] = torch.tensor(elements).bfloat16()
        updates[name] = torch.tensor([part * weight * 2.0**-7 for part in parts])
    return weights, dict(reversed(updates.items()))


def _clear(random: Random) -> list[Case]:
    """Updates far below and far above half the distance; two that cancel; zeros, which any update moves; and what is
    no number of BF16 after the step.
    """
    weight = 2.0 ** random.randrange(-6, 6)
    zero = torch.zeros(2).bfloat16()
    updates = {"stays": torch.zeros(2), "moves": torch.tensor([0.0, -(2.0**-60)])}
    ends = {"minus zero": -zero, "to inf": zero, "inf": zero, "nan": zero}
    sums = [torch.tensor([0.0, x]) for x in (0.0, torch.finfo(torch.float32).max, torch.inf, torch.nan)]
    parts = {"a": [0.1, -0.2, 0.0], "b": [1.0, 2.0, -1.0], "c": [0.3, 0.3, 0.3], "both ways": [1.0, -1.0]}
    numbers = {"number": torch.tensor(weight).bfloat16(), "none": torch.zeros(0).bfloat16(), "moved": zero[0]}
    added = {"number": torch.tensor(weight * 2.0**-12), "none": torch.zeros(0), "moved": torch.tensor(weight)}
    others = (numbers, added), (ends, dict(zip(ends, sums, strict=True)))
    return [_moving(random, parts, weight), (dict.fromkeys(updates, zero), updates), *others]


def _one_of_many(random: Random) -> list[Case]:
    """A single element that moves is enough; of a vector or a matrix."""
    parts = [0.1] * 6
    moving = parts.copy()
    moving[random.randrange(1, 6)] = random.choice((-1.0, 1.0)) * 0.9
    weight = 2.0 ** random.randrange(-6, 6)
    named = _moving(random, {"still": parts, "moving": moving}, weight)
    matrices = tuple({name: tensor.reshape(2, 3) for name, tensor in part.items()} for part in named)
    vectors = [_moving(random, moves, weight) for moves in ({"first": moving, "second": parts}, {"only": moving})]
    return [*vectors, matrices]


def _near(random: Random) -> list[Case]:
    """Just below and just above half the distance, where FP16 and other limits decide otherwise; and exactly half: the
    even neighbour is taken, so a weight that is even stays, and an odd one moves.
    """
    below, above = 0.5 - random.uniform(1, 2) * 2.0**-16, 0.5 + random.uniform(1, 2) * 2.0**-16
    parts = {"below": [below, -below], "above": [above, below], "fp16": [0.2, 0.1], "fp32": [0.03, 0.02]}
    near = [_moving(random, parts, 2.0 ** random.randrange(*powers)) for powers in ((-3, 3), (-15, -12), (-24, -20))]
    unit = 2.0 ** random.randrange(-6, 6)
    even, odd = (unit * (1 + (2 * random.randrange(1, 30) + i) * 2.0**-7) for i in (0, 1))
    named = {"even": [even, -even], "odd": [odd, odd], "minus odd": [-odd, even], "zero": [even, 0.0]}
    half = torch.tensor([0.5, -0.5]) * unit * 2.0**-7
    updates = {name: half if name != "zero" else half * torch.tensor([1.0, 0.0]) for name in named}
    return [*near, ({name: torch.tensor(elements).bfloat16() for name, elements in named.items()}, updates)]


def _around_one(_: Random) -> list[Case]:
    """At 1.0 exactly: upwards numbers are 2^-7 apart, downwards 2^-8."""
    one = torch.ones(2).bfloat16()
    names = {"up": [0.003, 0.0035], "down": [-0.003, -0.0035], "little": [-0.0015, 0.003], "none": [0.0, 0.0]}
    return [(dict.fromkeys(names, one), {name: torch.tensor(parts) for name, parts in names.items()}), ({}, {})]


# fmt: off
FROZEN = Exercise(
    id="beyond.frozen",
    notes="""A parameter is frozen if *no* element of it moves, and whether one moves is decided by BF16's rounding at
    that element, not by the size of the update alone: below a power of two numbers are twice as close.""",
    checks=(
        Check("updates far from the limit", 1, _clear),
        Check("one element that moves is enough", 1, _one_of_many),
        Check("updates near half the distance, and there", 2, _near),
        Check("gains of exactly 1.0, upwards and downwards", 1, _around_one),
    ),
    mistakes=(
        wrong("one element is enough", "this is what asking for *any* element that stays gives. A parameter is frozen "
              "if all of them stay.", replace=("after.equal(weight)", "(after == weight).any()")),
        wrong("adds in FP32", "this is what comparing in FP32 gives: there nearly every update arrives. The sum has to "
              "be rounded to BF16.", replace=((".bfloat16()", ""), ("equal(weight)", "equal(weight.float())"))),
        wrong("rounds to FP16", "this is what FP16 keeps, which has three more bits than BF16.",
              replace=((".bfloat16()", ".half()"), ("equal(weight)", "equal(weight.half())"))),
        wrong("takes one limit for all", "this is what one limit, half an ulp above 1.0, gives for every weight. The "
              "distance grows with the weight, and below a power of two it is half as large.",
              replace=("after.equal(weight)", "(updates[name].abs() <= 2.0**-8).all()")),
        wrong("measures by the weight", "this is what |update| < 2^-8 |weight| gives. The distance of numbers follows "
              "the power of two below a weight.",
              replace=("after.equal(weight)", "(updates[name].abs() < 2.0**-8 * weight.float().abs()).all()")),
        wrong("adds up the movements", "this is what a sum of all movements gives: one up and one down make 0, and "
              "both elements have moved.",
              replace=("after.equal(weight)", "not (after.float() - weight.float()).sum()")),
        wrong("lets half the distance stay", "this is what |update| <= half the distance gives. At exactly half, "
              "rounding takes the even neighbour: a weight whose last bit is 1 moves.",
              replace=("(weight.float() + updates[name])",
                       "torch.nextafter(weight.float() + updates[name], weight.float())")),
        wrong("names those that move", "this is the parameters that move. Return the others.",
              replace=("if after", "if not after")),
    ),
    provides={"torch": torch},
)
# fmt: on

# --- beyond.clipped ---

LOW, HIGH = 3e-4, 4e-4  # Source: arXiv:2507.18071, 5.1


def _texts(random: Random, means: list[float], low: float, high: float) -> list[Case]:
    """Return one call: a text for each mean of log-ratios, in any order; single tokens differ far more."""
    learner, sampler = [], []
    for mean in random.sample(means, len(means)):
        theirs = [random.uniform(-4, -0.1) for _ in range(random.choice((1, 2, 8, 100)))]
        noise = [random.uniform(-0.01, 0.01) for _ in theirs]
        off = mean - sum(noise) / len(noise)
        sampler.append(theirs)
        learner.append([x + y + off for x, y in zip(theirs, noise, strict=True)])
    return [(learner, sampler, low, high)]


def _published(random: Random) -> list[Case]:
    """Both sides of each limit, and what lies between the two."""
    means = [0.0, 1e-4, -2.9e-4, -3.1e-4, -3.5e-4, 3.5e-4, 3.9e-4, 4.1e-4, random.uniform(1e-3, 1e-2)]
    return _texts(random, means, LOW, HIGH) + _texts(random, [-x for x in means], HIGH, LOW)


def _wide(random: Random) -> list[Case]:
    """Limits so wide that a ratio and its logarithm differ."""
    return _texts(random, [0.26, 0.24, 0.199, -0.21, -0.23, -0.288, 0.0], 0.2, 0.28)


def _equal(random: Random) -> list[Case]:
    """Equal log-probabilities: the ratio is 1, which no limit of 0 clips; a text twice; and no texts at all."""
    text = [random.uniform(-4, -0.1) for _ in range(4)]
    far = [x - 0.01 for x in text]
    return [([text, text], [text, text], 0.0, 0.0), ([text] * 3, [far, text, far], LOW, HIGH), ([], [], LOW, HIGH)]


# fmt: off
CLIPPED = Exercise(
    id="beyond.clipped",
    notes="What counts is the *mean* of a text's log-ratios, as a ratio again, and the two limits differ.",
    checks=(
        Check("the published limits, from both sides", 2, _published),
        Check("wide limits: a ratio is not its logarithm", 2, _wide),
        Check("equal programs, and no texts", 1, _equal),
    ),
    mistakes=(
        wrong("adds up", "this is what the sum of the log-ratios gives. GSPO takes their mean: long texts are judged "
              "as short ones.", replace=(" / len(mine)", "")),
        wrong("turned round", "this is what sampler - learner gives: the ratio upside down.",
              replace=("a - b", "b - a")),
        wrong("leaves the logarithm", "this is what the mean itself gives, between -low and high. The limits are of a "
              "ratio: take its exp.", replace=("ratio < 1 - low or ratio > 1 + high", "mean < -low or mean > high")),
        wrong("exchanges the limits", "this is what 1 - high and 1 + low give. `low` is the limit below 1.",
              replace=("1 - low or ratio > 1 + high", "1 - high or ratio > 1 + low")),
        wrong("token by token", "this is the texts of which some token's ratio is outside. GSPO looks at the text as a "
              "whole.", replace=(
                  "ratio < 1 - low or ratio > 1 + high",
                  "not all(1 - low <= math.exp(a - b) <= 1 + high for a, b in zip(mine, theirs, strict=True))")),
        wrong("looks above alone", "this is what the upper limit alone clips. A text that became less probable is "
              "clipped as well.", replace=("ratio < 1 - low or ", "")),
        wrong("names those that stay", "this is the texts inside both limits. Return the others.",
              replace=("ratio < 1 - low or ratio > 1 + high", "1 - low <= ratio <= 1 + high")),
    ),
)
# fmt: on

# --- beyond.orders ---


def _numbers(random: Random, count: int, spread: int) -> list[float]:
    return [float(np.float32(random.uniform(-1, 1) * 2.0 ** random.randrange(spread))) for _ in range(count)]


def _odd(random: Random) -> list[Case]:
    """An odd number of numbers: the rest is one longer; in the first, two small ones there make up for each other."""
    large = 2.0 ** random.randrange(10, 40)
    return [([large, large * 2.0**-24, large * 2.0**-24],), *((_numbers(random, count, 16),) for count in (41, 99))]


def _swallowed(random: Random) -> list[Case]:
    """A large number first: what follows in turn is swallowed, the second half is not."""
    large = 2.0 ** random.randrange(25, 40)
    lists = [[large, *[large * 2.0**-25] * 63], [-large, *_numbers(random, 39, 2)]]
    return [(numbers,) for numbers in (*lists, [], _numbers(random, 1, 2), [large, 1.0])]


# fmt: off
ORDERS = Exercise(
    id="beyond.orders",
    notes="""FP32 rounds after each addition, so the order is part of the result; a GPU chooses it by a batch's
    shape.""",
    checks=(
        Check("numbers of one size", 1, lambda random: [(_numbers(random, count, 1),) for count in (64, 100, 200)]),
        Check("numbers of all sizes", 1, lambda random: [(_numbers(random, 40, 24),) for _ in range(3)]),
        Check("an odd number of them", 2, _odd),
        Check("small numbers after a large one", 1, _swallowed),
    ),
    mistakes=(
        wrong("adds in FP64", "this is what Python's own floats give: FP64 rounds so finely that both orders are "
              "nearly equal. Round to FP32 after each addition.",
              replace=(("np.float32(0)", "0.0"), ("np.float32(total + np.float32(x))", "total + x"),
                       ("np.float32(first + rest)", "first + rest"))),
        wrong("rounds at the end", "this is what rounding to FP32 once at the end gives. FP32 rounds after each "
              "addition.", lambda numbers: (float(np.float32(math.fsum(numbers))),) * 2),
        wrong("adds in FP16", "this is what FP16 gives. Round to FP32.",
              replace=(("def in_turn", "@np.errstate(over='ignore', invalid='ignore')\n    def in_turn"),
                       ("np.float32(0)", "np.float16(0)"),
                       ("np.float32(total + np.float32(x))", "np.float16(total + np.float16(x))"),
                       ("np.float32(first + rest)", "in_turn([first, rest])"))),
        wrong("takes every second", "this is what two sums of every second number give. The second order cuts the list "
              "in the middle.", replace=(("numbers[:half]", "numbers[::2]"), ("numbers[half:]", "numbers[1::2]"))),
        wrong("goes on with the first half", "this is what adding the second half onto the first gives: that is one "
              "after another again. Begin it at 0.", replace=("first + rest", "in_turn(numbers)")),
        wrong("forgets the last rounding", "this is what adding the two halves in FP64 gives. That addition rounds, "
              "too.", replace=("np.float32(first + rest)", "float(first) + float(rest)")),
        wrong("sorts first", "this is what sorting by magnitude first gives: it may be more exact, and is another "
              "order.", lambda numbers: solution.my_two_sums(sorted(numbers, key=abs))),
        wrong("gives the longer half first", "this is what a first half that is one longer gives. Of an odd number, "
              "the rest is the longer one.", replace=("len(numbers) // 2", "(len(numbers) + 1) // 2")),
    ),
    provides={"np": np},
)
# fmt: on

# --- beyond.keep ---


def _parts(random: Random, kind: str, numbers: list[float]) -> list[Case]:
    """Return one call: parts of one kind, in any order."""
    shuffled = random.sample(numbers, len(numbers))
    return [([(f"part {i}", kind, x) for i, x in enumerate(shuffled)],)]


def _count(random: Random) -> list[Case]:
    far = [float(random.randrange(2, 200)), float(random.randrange(300, 2000)), 2048.0, 4096.0, 65536.0]
    return _parts(random, "counts", far) + _parts(random, "counts", [0.0, 255.0, 256.0, 257.0, 258.0])


def _change(random: Random) -> list[Case]:
    drawn = [random.uniform(0.01, 0.5), random.uniform(0, 1e-4), random.uniform(0, 1e-9)]
    far = [*drawn, 1 - 0.9, 1 - 0.95, 1 - 0.999, 2.0**-10, 2.0**-11, 2.0**-12]
    near = [0.0, 2.0**-9, math.nextafter(2.0**-9, 0), 1.01 * 2.0**-9, 2.0**-8]
    return _parts(random, "changes", far) + _parts(random, "changes", near)


def _both(random: Random) -> list[Case]:
    """A training: some of each kind, in two orders; a change of 300 is no count, and a count of 1 no change."""
    numbers = [("counts", 1.0), ("changes", 300.0), ("counts", 50257.0), ("changes", 1e-5), ("counts", 12.0)]
    drawn = random.sample(numbers, 5)
    orders = (drawn, drawn[::-1])
    return [*(([(f"{kind} {i}", kind, x) for i, (kind, x) in enumerate(order)],) for order in orders), ([],)]


# fmt: off
KEEP = Exercise(
    id="beyond.keep",
    notes="""BF16 has 8 significant bits, and two facts follow. It counts to 2^8. And a number that changes by less than
    2^-9 of itself in a step never changes: half the distance of numbers is at least that.""",
    checks=(
        Check("whole numbers", 2, _count),
        Check("numbers that change", 2, _change),
        Check("a training with both", 1, _both),
    ),
    mistakes=(
        wrong("with the limits of FP16", "this is what FP16's eleven bits keep: it counts to 2^11, and notices changes "
              "down to 2^-12. BF16 has eight.", replace=(("2**8", "2**11"), ("2.0**-9", "2.0**-12"))),
        wrong("counts to 255", "this is what counts >= 256 gives: 256 itself is a number of BF16. The first that is "
              "missing is 257.", replace=("> 2**8", ">= 2**8")),
        wrong("forbids the limit", "this is what changes <= 2^-9 gives. *Less* than that never arrives.",
              replace=("< 2.0**-9", "<= 2.0**-9")),
        wrong("takes a whole step", "this is what changes below 2^-8 gives: some of those do arrive, where the weight "
              "is just below a power of two.", replace=("2.0**-9", "2.0**-8")),
        wrong("forgets what changes", "this is what counts alone need. A moment that changes little does not change at "
              "all in BF16.", replace=(' or (kind == "changes" and number < 2.0**-9)', "")),
        wrong("forgets what counts", "this is what changes alone need. Whole numbers beyond 2^8 melt together in BF16.",
              replace=('(kind == "counts" and number > 2**8) or ', "")),
        wrong("takes one kind after the other", "this is first what counts and then what changes. Keep the order of "
              "the parts.", replace=("in parts", "in sorted(parts, key=lambda part: part[1] == 'changes')")),
        wrong("names those that may", "this is the parts that BF16 can keep. Return the others.",
              replace=(("number > 2**8", "number <= 2**8"), ("number < 2.0**-9", "number >= 2.0**-9"))),
        wrong("one limit for both", "this is what both limits give for every part, whatever its kind.",
              replace=(('kind == "counts" and ', ""), ('kind == "changes" and ', ""))),
    ),
)
# fmt: on

# --- beyond.unit ---

SIZES = (9, 27, 64, 100, 144, 256, 784, 1000, 1024, 3000, 4096)  # the log2 of no root is near a half


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


# fmt: off
UNIT = Exercise(
    id="beyond.unit",
    notes="""No scale has to be searched for. A weight's follows from its layer's shape, a gradient's from the shape
    and one number for the whole network.""",
    checks=(
        Check("layers as wide as what comes in", 1, _square),
        Check("layers of other shapes", 2, _shapes),
        Check("losses of any size", 1, _losses),
    ),
    mistakes=(
        wrong("forgets the root", "this is what fan_in and width give without their roots. Sums of n random numbers "
              "grow as the root of n.", replace=(("math.sqrt(fan_in)", "fan_in"), ("math.sqrt(width)", "width"))),
        wrong("rounds down", "this is what rounding down gives. Round to the nearest whole number.",
              replace=(("weight = round", "weight = math.floor"), ("gradient = round", "gradient = math.floor"))),
        wrong("multiplies by the size", "this is what sqrt(width) times `size` gives. A gradient that is small needs a "
              "large factor: divide.", replace=("/ size", "* size")),
        wrong("forgets the size", "this is what the shape alone gives. How large the loss's gradient is, the shape "
              "does not know.", replace=(" / size", "")),
        wrong("exchanges the shapes", "this is what the width gives for the weight, and fan_in for the gradient. It is "
              "the other way round.", lambda fan_in, width, size: solution.my_unit_exponents(width, fan_in, size)),
        wrong("turned round", "this is the factor to divide by. Return the factor that a number is multiplied by, to "
              "get size 1.", replace=("weight, gradient", "-weight, -gradient")),
        wrong("the factors themselves", "this is 2^k. Return k.",
              replace=("weight, gradient", "2.0**weight, 2.0**gradient")),
    ),
)
# fmt: on

EXERCISES = (MX_SCALE, HISTORY, BLOCK, FROZEN, CLIPPED, ORDERS, KEEP, UNIT)
