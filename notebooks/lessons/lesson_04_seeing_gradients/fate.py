"""Can you say what FP16 would lose at any scale, from one count by powers of two?

The point: the counterfactual. Scaling by 2^k adds k to every exponent, so no tensor is looked at again; and FP16 loses
what lies below 2^-25, half of its smallest number, not what is merely subnormal.

Oracle in the tests: numpy's float16, number by number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong
from labkit.instrument import fate

LOST_BELOW = -25
Counts = Mapping[int, int]


def reference(counts: Counts, log2_scale: int) -> float:
    """Return the share of the numbers whose binade is rounded to zero at this scale.

    >>> reference({-30: 1, -20: 3}, 0), reference({-30: 1, -20: 3}, 5)
    (0.25, 0.0)
    """
    total = sum(counts.values())
    lost = sum(n for exponent, n in counts.items() if exponent + log2_scale < LOST_BELOW)
    return lost / total if total else 0.0


def _counts(random: Random, low: int, high: int) -> Counts:
    exponents = random.sample(range(low, high), 6)
    return {exponent: random.randrange(1, 100) for exponent in exponents}


def _unscaled(random: Random) -> list[Case]:
    drawn: list[Case] = [(_counts(random, -36, -6), 0) for _ in range(2)]
    return [*drawn, ({-40: random.randrange(2, 9)}, 0)]


def _scaled(random: Random) -> list[Case]:
    """Up and down: what a scale saves, and what one below 1 loses."""
    drawn: list[Case] = [(_counts(random, -40, -16), k) for k in (3, 7, 10)]
    return [
        *drawn,
        (_counts(random, -28, -14), -6),
        ({-10: 3, -3: 4, 8: random.randrange(2, 9)}, -20),
        ({-50: 2, -45: random.randrange(3, 9), -3: 1}, 24),
    ]


def _edges(random: Random) -> list[Case]:
    """The binades on both sides of 2^-25, of 2^-24 and of 2^-14, at several scales."""
    return [
        ({edge - 1 - k: random.randrange(2, 50), edge - k: random.randrange(51, 99)}, k)
        for edge in (-25, -24, -14)
        for k in (0, random.randrange(1, 12))
    ]


def _lost(counts: Counts, is_lost: Callable[[int], bool]) -> float:
    total = sum(counts.values())
    return sum(n for exponent, n in counts.items() if is_lost(exponent)) / total if total else 0.0


@mistake
def counts_binades(counts: Counts, log2_scale: int) -> float:
    """This is the share of the binades. A binade counts as often as it has numbers."""
    return _lost(dict.fromkeys((e for e, n in counts.items() if n), 1), lambda e: e + log2_scale < LOST_BELOW)


@mistake
def divides_by_zero(counts: Counts, log2_scale: int) -> float:
    """This divides by 0 where nothing was counted. The share is then 0."""
    total = sum(counts.values())
    return reference(counts, log2_scale) if total else float("nan")


# fmt: off
MISTAKES = (
    wrong("forgets the scale", "this is what is lost without a scale. Times 2^log2_scale adds log2_scale to each "
          "exponent.", lambda counts, log2_scale: reference(counts, 0)),
    wrong("scales down", "this subtracts log2_scale: it divides. A product adds exponents.",
          lambda counts, log2_scale: reference(counts, -log2_scale)),
    wrong("multiplies exponents", "this multiplies exponents. 2^e times 2^k is 2^(e + k).",
          lambda counts, log2_scale: _lost(counts, lambda e: e * 2**log2_scale < LOST_BELOW)),
    wrong("loses subnormal numbers too", "this counts subnormal numbers as lost. They keep fewer bits, but they are "
          "not zero: what is lost lies below 2^-25.",
          lambda counts, log2_scale: _lost(counts, lambda e: e + log2_scale < -14)),
    wrong("ends at the smallest number", "this loses all below 2^-24, the smallest number. From half of it on, "
          "2^-25, numbers are rounded up to it.",
          lambda counts, log2_scale: _lost(counts, lambda e: e + log2_scale < -24)),
    wrong("ends a binade too low", "this keeps the binade below 2^-25. All its numbers are nearer to zero than to "
          "2^-24.", lambda counts, log2_scale: _lost(counts, lambda e: e + log2_scale < -26)),
    counts_binades,
    wrong("counts numbers", "this is how many are lost. Divide by how many there are.",
          lambda counts, log2_scale: float(sum(n for e, n in counts.items() if e + log2_scale < LOST_BELOW))),
    wrong("says what is kept", "this is the share that is kept.",
          lambda counts, log2_scale: _lost(counts, lambda e: e + log2_scale >= LOST_BELOW)),
    divides_by_zero,
)
# fmt: on

EXERCISE = Exercise(
    id="gradients.fate",
    title="What would another scale lose?",
    entry="my_lost_share",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("without a scale", 1, _unscaled),
        Check("at other scales", 2, _scaled),
        Check("both sides of 2^-25, 2^-24 and 2^-14", 2, _edges),
        Check("of nothing, nothing is lost", 1, lambda _: [({}, 0), ({}, 8), ({-3: 0, -30: 0}, 0)]),
    ),
    mistakes=MISTAKES,
    ulps=2**30,  # a share may be had in FP32, or as 1 minus the rest
    withheld=(fate,),
)
