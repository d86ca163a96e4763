"""Which parameter does not move at all?

The point: a parameter is frozen if *no* element of it moves, and whether one moves is decided by BF16's rounding at
that element, not by the size of the update alone: below a power of two numbers stand twice as close.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Named = dict[str, Tensor]


def reference(weights: Named, updates: Named) -> list[str]:
    """Return the names of the parameters of which BF16 keeps every element as it was.

    >>> one = torch.ones(2).bfloat16()
    >>> reference({"a": one, "b": one}, {"a": torch.tensor([0.003, -0.001]), "b": torch.tensor([0.003, -0.003])})
    ['a']
    """
    return [name for name, w in weights.items() if (w.float() + updates[name]).bfloat16().equal(w)]


def _named(random: Random, moves: dict[str, list[float]], weight: float) -> tuple[Named, Named]:
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
    return [_named(random, parts, weight), (dict.fromkeys(updates, zero), updates), *others]


def _one_of_many(random: Random) -> list[Case]:
    """A single element that moves is enough; of a vector or a matrix."""
    parts = [0.1] * 6
    moving = parts.copy()
    moving[random.randrange(1, 6)] = random.choice((-1.0, 1.0)) * 0.9
    weight = 2.0 ** random.randrange(-6, 6)
    named = _named(random, {"still": parts, "moving": moving}, weight)
    matrices = tuple({name: tensor.reshape(2, 3) for name, tensor in part.items()} for part in named)
    vectors = [_named(random, moves, weight) for moves in ({"first": moving, "second": parts}, {"only": moving})]
    return [*vectors, matrices]


def _near(random: Random) -> list[Case]:
    """Just below and just above half the distance, where FP16 and other limits decide otherwise."""
    below, above = 0.5 - random.uniform(1, 2) * 2.0**-16, 0.5 + random.uniform(1, 2) * 2.0**-16
    parts = {"below": [below, -below], "above": [above, below], "fp16": [0.2, 0.1], "fp32": [0.03, 0.02]}
    return [_named(random, parts, 2.0 ** random.randrange(*powers)) for powers in ((-3, 3), (-15, -12), (-24, -20))]


def _ties(random: Random) -> list[Case]:
    """Exactly half the distance: the even neighbour is taken, so a weight that is even stays, and an odd one moves."""
    unit = 2.0 ** random.randrange(-6, 6)
    even, odd = (unit * (1 + (2 * random.randrange(1, 30) + i) * 2.0**-7) for i in (0, 1))
    named = {"even": [even, -even], "odd": [odd, odd], "minus odd": [-odd, even], "zero": [even, 0.0]}
    half = torch.tensor([0.5, -0.5]) * unit * 2.0**-7
    updates = {name: half if name != "zero" else half * torch.tensor([1.0, 0.0]) for name in named}
    return [({name: torch.tensor(elements).bfloat16() for name, elements in named.items()}, updates)]


def _around_one(_: Random) -> list[Case]:
    """At 1.0 exactly: upwards numbers are 2^-7 apart, downwards 2^-8."""
    one = torch.ones(2).bfloat16()
    names = {"up": [0.003, 0.0035], "down": [-0.003, -0.0035], "little": [-0.0015, 0.003], "none": [0.0, 0.0]}
    return [(dict.fromkeys(names, one), {name: torch.tensor(parts) for name, parts in names.items()}), ({}, {})]


@mistake
def one_element_is_enough(weights: Named, updates: Named) -> list[str]:
    """This is what asking for *any* element that stays gives. A parameter is frozen if all of them stay."""
    return [n for n, w in weights.items() if bool(((w.float() + updates[n]).bfloat16() == w).any())]


@mistake
def measures_by_the_weight(weights: Named, updates: Named) -> list[str]:
    """This is what |update| < 2^-8 |weight| gives. The distance of numbers follows the power of two below a weight."""
    return [n for n, w in weights.items() if bool((updates[n].abs() < 2.0**-8 * w.float().abs()).all())]


@mistake
def adds_up_the_movements(weights: Named, updates: Named) -> list[str]:
    """This is what a sum of all movements gives: one up and one down make 0, and both elements have moved."""
    return [n for n, w in weights.items() if not ((w.float() + updates[n]).bfloat16().float() - w.float()).sum()]


@mistake
def lets_half_the_distance_stay(weights: Named, updates: Named) -> list[str]:
    """This is what |update| <= half the distance gives. At exactly half, rounding takes the even neighbour: a weight
    whose last bit is 1 moves."""
    after = {n: torch.nextafter(w.float() + updates[n], w.float()).bfloat16() for n, w in weights.items()}
    return [n for n, w in weights.items() if after[n].equal(w)]


@mistake
def names_those_that_move(weights: Named, updates: Named) -> list[str]:
    """This is the parameters that move. Asked are the others."""
    frozen = reference(weights, updates)
    return [name for name in weights if name not in frozen]


# fmt: off
MISTAKES = (
    one_element_is_enough,
    wrong("adds in FP32", "this is what comparing in FP32 gives: there nearly every update arrives. The sum has to "
          "be rounded to BF16.",
          lambda weights, updates: [n for n, w in weights.items() if (w.float() + updates[n]).equal(w.float())]),
    wrong("rounds to FP16", "this is what FP16 keeps, which has three more bits than BF16.",
          lambda weights, updates: [n for n, w in weights.items() if (w.float() + updates[n]).half().equal(w.half())]),
    wrong("takes one limit for all", "this is what one limit, half an ulp above 1.0, gives for every weight. The "
          "distance grows with the weight, and below a power of two it is half as large.",
          lambda weights, updates: [n for n in weights if bool((updates[n].abs() <= 2.0**-8).all())]),
    measures_by_the_weight,
    adds_up_the_movements,
    lets_half_the_distance_stay,
    names_those_that_move,
)
# fmt: on

EXERCISE = Exercise(
    id="beyond.frozen",
    title="Find the frozen parameter",
    entry="my_frozen",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("updates far from the limit", 1, _clear),
        Check("one element that moves is enough", 1, _one_of_many),
        Check("updates near half the distance, and there", 2, lambda random: _near(random) + _ties(random)),
        Check("gains of exactly 1.0, upwards and downwards", 1, _around_one),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
)
