"""Exercises of lesson 11: frozen gains, clipped texts, and channels that FP16 cannot hold."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- beyond.frozen ---

Named = dict[str, Tensor]


def _moving(random: Random, moves: dict[str, list[float]], weight: float) -> tuple[Named, Named]:
    """Return BF16 parameters near a weight, of either sign, and FP32 updates in another order.

    Args:
        random: Draws the parameters.
        moves: For each parameter, its elements' updates in parts of BF16's spacing at the weight.
        weight: A power of two.
    """
    weights: Named = {}
    updates: Named = {}
    for name, parts in moves.items():
        elements = [
            random.choice((-1, 1)) * weight * (1 + random.randrange(1, 60) * 2.0**-7) for _ in parts
        ]
        weights[name] = torch.tensor(elements).bfloat16()
        updates[name] = torch.tensor([part * weight * 2.0**-7 for part in parts])
    return weights, dict(reversed(updates.items()))


def _clear(random: Random) -> list[Case]:
    """Updates far below and far above half the spacing, zeros, and steps that end at inf or NaN."""
    weight = 2.0 ** random.randrange(-6, 6)
    zero = torch.zeros(2).bfloat16()
    updates = {"stays": torch.zeros(2), "moves": torch.tensor([0.0, -(2.0**-60)])}
    ends = {"minus zero": -zero, "to inf": zero, "inf": zero, "nan": zero}
    sums = [
        torch.tensor([0.0, x]) for x in (0.0, torch.finfo(torch.float32).max, torch.inf, torch.nan)
    ]
    parts = {
        "a": [0.1, -0.2, 0.0],
        "b": [1.0, 2.0, -1.0],
        "c": [0.3, 0.3, 0.3],
        "both ways": [1.0, -1.0],
    }
    numbers = {
        "number": torch.tensor(weight).bfloat16(),
        "none": torch.zeros(0).bfloat16(),
        "moved": zero[0],
    }
    added = {
        "number": torch.tensor(weight * 2.0**-12),
        "none": torch.zeros(0),
        "moved": torch.tensor(weight),
    }
    others = (numbers, added), (ends, dict(zip(ends, sums, strict=True)))
    return [_moving(random, parts, weight), (dict.fromkeys(updates, zero), updates), *others]


def _one_of_many(random: Random) -> list[Case]:
    """A single element that moves is enough; of a vector or a matrix."""
    parts = [0.1] * 6
    moving = parts.copy()
    moving[random.randrange(1, 6)] = random.choice((-1.0, 1.0)) * 0.9
    weight = 2.0 ** random.randrange(-6, 6)
    named = _moving(random, {"still": parts, "moving": moving}, weight)
    matrices = tuple(
        {name: tensor.reshape(2, 3) for name, tensor in part.items()} for part in named
    )
    vectors = [
        _moving(random, moves, weight)
        for moves in ({"first": moving, "second": parts}, {"only": moving})
    ]
    return [*vectors, matrices]


def _near(random: Random) -> list[Case]:
    """Updates just below, just above and exactly at half the spacing.

    At exactly half the even neighbour is taken, so an even weight stays and an odd one moves.
    """
    below = 0.5 - random.uniform(1, 2) * 2.0**-16
    above = 0.5 + random.uniform(1, 2) * 2.0**-16
    parts = {
        "below": [below, -below],
        "above": [above, below],
        "fp16": [0.2, 0.1],
        "fp32": [0.03, 0.02],
    }
    near = [
        _moving(random, parts, 2.0 ** random.randrange(*powers))
        for powers in ((-3, 3), (-15, -12), (-24, -20))
    ]
    unit = 2.0 ** random.randrange(-6, 6)
    even, odd = (unit * (1 + (2 * random.randrange(1, 30) + i) * 2.0**-7) for i in (0, 1))
    named = {
        "even": [even, -even],
        "odd": [odd, odd],
        "minus odd": [-odd, even],
        "zero": [even, 0.0],
    }
    half = torch.tensor([0.5, -0.5]) * unit * 2.0**-7
    weights = {name: torch.tensor(elements).bfloat16() for name, elements in named.items()}
    updates = dict.fromkeys(named, half)
    updates["zero"] = half * torch.tensor([1.0, 0.0])
    return [*near, (weights, updates)]


def _around_one(_: Random) -> list[Case]:
    """At 1.0 exactly: upwards numbers are 2^-7 apart, downwards 2^-8."""
    one = torch.ones(2).bfloat16()
    names = {
        "up": [0.003, 0.0035],
        "down": [-0.003, -0.0035],
        "little": [-0.0015, 0.003],
        "none": [0.0, 0.0],
    }
    return [
        (dict.fromkeys(names, one), {name: torch.tensor(parts) for name, parts in names.items()}),
        ({}, {}),
    ]


FROZEN = Exercise(
    id="beyond.frozen",
    notes="""A parameter is frozen if *no* element of it moves, and whether one moves is decided by
    BF16's rounding at that element, not by the size of the update alone: below a power of two
    numbers are twice as close.""",
    checks=(
        Check("updates far from the limit", 1, _clear),
        Check("one element that moves is enough", 1, _one_of_many),
        Check("updates near half the distance, and there", 2, _near),
        Check("gains of exactly 1.0, upwards and downwards", 1, _around_one),
    ),
    mistakes=(
        wrong(
            "one element is enough",
            "this is what asking for *any* element that stays gives. A parameter is frozen "
            "if all of them stay.",
            replace=("after.equal(weight)", "(after == weight).any()"),
        ),
        wrong(
            "adds in FP32",
            "this is what comparing in FP32 gives: there nearly every update arrives. The sum "
            "has to be rounded to BF16.",
            replace=((".bfloat16()", ""), ("equal(weight)", "equal(weight.float())")),
        ),
        wrong(
            "rounds to FP16",
            "this is what FP16 keeps, which has three more bits than BF16.",
            replace=((".bfloat16()", ".half()"), ("equal(weight)", "equal(weight.half())")),
        ),
        wrong(
            "takes one limit for all",
            "this is what one limit, half an ulp above 1.0, gives for every weight. The "
            "distance grows with the weight, and below a power of two it is half as large.",
            replace=("after.equal(weight)", "(updates[name].abs() <= 2.0**-8).all()"),
        ),
        wrong(
            "measures by the weight",
            "this is what |update| < 2^-8 |weight| gives. The distance of numbers follows "
            "the power of two below a weight.",
            replace=(
                "after.equal(weight)",
                "(updates[name].abs() < 2.0**-8 * weight.float().abs()).all()",
            ),
        ),
        wrong(
            "adds up the movements",
            "this is what a sum of all movements gives: one up and one down make 0, and "
            "both elements have moved.",
            replace=("after.equal(weight)", "not (after.float() - weight.float()).sum()"),
        ),
        wrong(
            "lets half the distance stay",
            "this is what |update| <= half the distance gives. At exactly half, "
            "rounding takes the even neighbour: a weight whose last bit is 1 moves.",
            replace=(
                "(weight.float() + updates[name])",
                "torch.nextafter(weight.float() + updates[name], weight.float())",
            ),
        ),
        wrong(
            "names those that move",
            "this is the parameters that move. Return the others.",
            replace=("if after", "if not after"),
        ),
    ),
    provides={"torch": torch},
)


# --- beyond.clipped ---

# Source: arXiv:2507.18071, 5.1.
LOW, HIGH = 3e-4, 4e-4


def _texts(random: Random, means: list[float], low: float, high: float) -> list[Case]:
    """Return one call with a text for each mean of log-ratios, in random order.

    Each log-ratio of a text lies within 0.02 of the mean.
    """
    learner: list[list[float]] = []
    sampler: list[list[float]] = []
    for mean in random.sample(means, len(means)):
        theirs = [random.uniform(-4, -0.1) for _ in range(random.choice((1, 2, 8, 100)))]
        noise = [random.uniform(-0.01, 0.01) for _ in theirs]
        off = mean - sum(noise) / len(noise)
        sampler.append(theirs)
        learner.append([x + y + off for x, y in zip(theirs, noise, strict=True)])
    return [(learner, sampler, low, high)]


def _published(random: Random) -> list[Case]:
    """Both sides of each limit, and what lies between the two."""
    means = [
        0.0,
        1e-4,
        -2.9e-4,
        -3.1e-4,
        -3.5e-4,
        3.5e-4,
        3.9e-4,
        4.1e-4,
        random.uniform(1e-3, 1e-2),
    ]
    return _texts(random, means, LOW, HIGH) + _texts(random, [-x for x in means], HIGH, LOW)


def _wide(random: Random) -> list[Case]:
    """Limits so wide that a ratio and its logarithm differ."""
    return _texts(random, [0.26, 0.24, 0.199, -0.21, -0.23, -0.288, 0.0], 0.2, 0.28)


def _equal(random: Random) -> list[Case]:
    """Equal log-probabilities, whose ratio of 1 is never clipped; a text twice; and no texts."""
    text = [random.uniform(-4, -0.1) for _ in range(4)]
    far = [x - 0.01 for x in text]
    return [
        ([text, text], [text, text], 0.0, 0.0),
        ([text] * 3, [far, text, far], LOW, HIGH),
        ([], [], LOW, HIGH),
    ]


CLIPPED = Exercise(
    id="beyond.clipped",
    notes="What counts is the *mean* of a text's log-ratios, as a ratio again, and the two "
    "limits differ.",
    checks=(
        Check("the published limits, from both sides", 2, _published),
        Check("wide limits: a ratio is not its logarithm", 2, _wide),
        Check("equal programs, and no texts", 1, _equal),
    ),
    mistakes=(
        wrong(
            "adds up",
            "this is what the sum of the log-ratios gives. GSPO takes their mean: long texts "
            "are judged as short ones.",
            replace=(" / len(mine)", ""),
        ),
        wrong(
            "turned round",
            "this is what sampler - learner gives: the ratio upside down.",
            replace=("a - b", "b - a"),
        ),
        wrong(
            "leaves the logarithm",
            "this is what the mean itself gives, between -low and high. The limits are of a "
            "ratio: take its exp.",
            replace=("ratio < 1 - low or ratio > 1 + high", "mean < -low or mean > high"),
        ),
        wrong(
            "exchanges the limits",
            "this is what 1 - high and 1 + low give. `low` is the limit below 1.",
            replace=("1 - low or ratio > 1 + high", "1 - high or ratio > 1 + low"),
        ),
        wrong(
            "token by token",
            "this is the texts of which some token's ratio is outside. GSPO looks at the text as a "
            "whole.",
            replace=(
                "ratio < 1 - low or ratio > 1 + high",
                "not all(1 - low <= math.exp(a - b) <= 1 + high for a, b in zip(mine, theirs, "
                "strict=True))",
            ),
        ),
        wrong(
            "looks above alone",
            "this is what the upper limit alone clips. A text that became less probable is "
            "clipped as well.",
            replace=("ratio < 1 - low or ", ""),
        ),
        wrong(
            "names those that stay",
            "this is the texts inside both limits. Return the others.",
            replace=("ratio < 1 - low or ratio > 1 + high", "1 - low <= ratio <= 1 + high"),
        ),
    ),
)


# --- beyond.rescue ---


def _model(
    random: Random,
    largest: list[float],
    limit: float,
    inputs: int = 3,
    outputs: int = 2,
    size: float = 2.0,
) -> Case:
    """Return weights of a block with hidden numbers of these largest magnitudes.

    Args:
        random: The source of the weights.
        largest: The largest magnitude of each hidden number.
        limit: The largest magnitude that fits.
        inputs: The number of inputs.
        outputs: The number of outputs.
        size: The largest magnitude of the weights.
    """

    def weights(rows: int, columns: int) -> Tensor:
        return torch.tensor(
            [[random.uniform(-size, size) for _ in range(columns)] for _ in range(rows)]
        ).reshape(rows, columns)

    return weights(len(largest), inputs), weights(outputs, len(largest)), largest, limit


def _one_channel(random: Random) -> list[Case]:
    """One channel beyond the limit, at any place; the others fit."""
    cases = []
    for limit in (65504.0, 448.0):
        largest = [random.uniform(0.01, 0.9) * limit for _ in range(5)]
        largest[random.randrange(5)] = random.uniform(1.1, 1.9) * 2 ** random.randrange(6) * limit
        cases.append(_model(random, largest, limit))
    return cases


def _several(random: Random) -> list[Case]:
    """Channels that need different powers or none, in several shapes; and a power above 2^16."""
    powers = random.sample(range(12), 6)
    mixed = [random.uniform(1.1, 1.9) * 2.0 ** (power - 4) * 65504 for power in powers]
    return [
        _model(random, mixed, 65504.0, 2, 7),
        _model(random, mixed, 65504.0, 6, 6),
        _model(random, [2e12, 1.0], 448.0),
    ]


def _exactly(random: Random) -> list[Case]:
    """Magnitudes at the limit times a power of two, and a little above and below it."""
    limit = random.choice((65504.0, 57344.0))
    part = random.uniform(1, 9) * 2.0**-40
    sizes = [limit * 2.0**power * (1 + side * part) for power in (0, 1, 5) for side in (0, 1, -1)]
    return [_model(random, sizes, limit)]


def _nothing_to_move(random: Random) -> list[Case]:
    """Channels that are small, zero, or at the limit, with weights that FP16 would lose; a block
    without any.
    """
    small = random.uniform(1, 9) * 2.0**-30
    return [
        _model(random, [0.0, small, 65504.0], 65504.0, size=2.0**-26),
        _model(random, [], 65504.0),
    ]


RESCUE = Exercise(
    id="beyond.rescue",
    notes="Powers of two change exponents alone, so FP32 computes the same bits. Each channel "
    "has a power of its own.",
    checks=(
        Check("one channel beyond the limit", 1, _one_channel),
        Check("channels that need different powers", 2, _several),
        Check("magnitudes at the limit, and around it", 1, _exactly),
        Check("channels that fit already", 1, _nothing_to_move),
    ),
    mistakes=(
        wrong(
            "one power for all",
            "this is what the largest of all channels gives. The others lose range for "
            "nothing: each channel has a power of its own.",
            replace=("size / 2**k", "max(largest) / 2**k"),
        ),
        wrong(
            "forgets the column",
            "this is what dividing the rows of up gives, without down: the block computes "
            "another result.",
            replace=("down[:, channel] *= 2**k", "pass"),
        ),
        wrong(
            "divides twice",
            "this is what dividing the column of down as well gives. What one matrix is "
            "divided by, the other is multiplied by.",
            replace=("down[:, channel] *=", "down[:, channel] /="),
        ),
        wrong(
            "turned round",
            "this is what multiplying up and dividing down gives: the hidden number gets larger.",
            replace=(
                ("up[channel] /=", "up[channel] *="),
                ("down[:, channel] *=", "down[:, channel] /="),
            ),
        ),
        wrong(
            "goes one too far",
            "this is what going on while the magnitude is at or above the limit gives. A "
            "magnitude of exactly `limit` fits.",
            replace=("> limit", ">= limit"),
        ),
        wrong(
            "stops one too early",
            "this is what rounding the power down gives: the magnitude is still above the limit.",
            replace=("> limit", ">= 2 * limit"),
        ),
        wrong(
            "no power of two",
            "this is what dividing by largest / limit gives. It is no power of two, so "
            "FP32 rounds, and the bits change.",
            replace=(
                ("size / 2**k > limit", "False"),
                ("/= 2**k", "/= max(1, size / limit)"),
                ("*= 2**k", "*= max(1, size / limit)"),
            ),
        ),
        wrong(
            "enlarges small channels",
            "this is what bringing every channel up to the limit gives. k begins at 0.",
            replace=("k = 0", "k = -60"),
        ),
    ),
    provides={"torch": torch},
)

EXERCISES = (FROZEN, CLIPPED, RESCUE)
