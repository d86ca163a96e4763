"""Can you say from which whole number on a format has gaps?

The point: significand_bits + 1 bits count without a gap up to 2 to that power, and some formats end before.
Oracles in the tests: numpy, ml_dtypes and gfloat, asked number by number.
"""

from __future__ import annotations

from random import Random

from labkit.formats import BF16, E5M2, FP16, FP32, Format
from labkit.grading.exercise import Case, Check, Exercise, wrong


def reference(exponent_bits: int, significand_bits: int) -> int:
    """Return the smallest whole number above 0 that an IEEE-style format does not hold.

    >>> reference(5, 10), reference(3, 6)
    (2049, 16)
    """
    format = Format("asked", exponent_bits, significand_bits)
    return int(min(2**format.precision + 1, 2 ** (format.emax + 1)))


def _known(random: Random) -> list[Case]:
    return [(f.exponent_bits, f.significand_bits) for f in (FP16, BF16, E5M2, FP32)]


def _wide(random: Random) -> list[Case]:
    """Formats that get gaps before they end: long before, or in their last binade."""
    last = [(3, 2), (4, 6), (5, 14)]
    return [*((random.randrange(6, 11), random.randrange(1, 12)) for _ in range(8)), *last, (11, 52)]


def _short(random: Random) -> list[Case]:
    """Formats that end before they get gaps: with 2 exponent bits at 4, with 3 at 16, with 4 at 256."""
    just = [(2, 1), (3, 3), (4, 7), (5, 15)]  # one significand bit less, and there is a gap
    return [*((e, random.randrange(low, 20)) for e, low in ((3, 3), (4, 7), (3, 3), (2, 2))), *just]


def _emax(exponent_bits: int) -> int:
    return int(2 ** (exponent_bits - 1) - 1)


# fmt: off
MISTAKES = (
    wrong("forgets the hidden bit", "this is what counting only the stored bits gives. The hidden 1 is a bit too.",
          lambda exponent_bits, significand_bits: (1 << significand_bits) + 1),
    wrong("the last before the gap", "this is the last number before the gap: a power of two, and so it is held.",
          lambda exponent_bits, significand_bits: 1 << (significand_bits + 1)),
    wrong("the largest that fits the significand", "this is all ones in the significand. It is held, and so is the "
          "next one, a power of two.", lambda exponent_bits, significand_bits: (1 << (significand_bits + 1)) - 1),
    wrong("the next that is held", "this one is held again: beyond the gap the even numbers go on. The one before it "
          "is missing.", lambda exponent_bits, significand_bits: (1 << (significand_bits + 1)) + 2),
    wrong("counts the sign", "this is what counting the sign as one more bit gives. It makes no number finer.",
          lambda exponent_bits, significand_bits: (1 << (significand_bits + 2)) + 1),
    wrong("where it overflows", "this is where the format ends. Long before, its numbers stand more than 1 apart.",
          lambda exponent_bits, significand_bits: 1 << (_emax(exponent_bits) + 1)),
    wrong("never overflows", "this is right for formats with room above. Three exponent bits end before 16, however "
          "many significand bits there are.",
          lambda exponent_bits, significand_bits: (1 << (significand_bits + 1)) + 1),
    wrong("answers for FP16", "this is the answer for FP16, whatever the widths are. Compute it from the two widths.",
          lambda exponent_bits, significand_bits: 2049),
)
# fmt: on

EXERCISE = Exercise(
    id="numbers.first_gap",
    title="The first whole number that is missing",
    entry="my_first_gap",
    difficulty=1,
    minutes=5,
    reference=reference,
    checks=(
        Check("the formats that people use", 2, _known),
        Check("any format with room above", 1, _wide),
        Check("formats that end before they get gaps", 1, _short),
    ),
    mistakes=MISTAKES,
)
