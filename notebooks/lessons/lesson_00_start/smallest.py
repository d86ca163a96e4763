"""Can you say where a number format ends? The warm-up: a line of arithmetic, and a first look at a counter-example."""

from __future__ import annotations

from random import Random

from labkit.formats import BF16, E5M2, FP16, FP32, Format
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong


def reference(exponent_bits: int, significand_bits: int) -> float:
    """Return the smallest positive number of an IEEE-style format.

    >>> reference(5, 10) == 2.0**-24
    True
    """
    return Format("asked", exponent_bits, significand_bits).smallest_subnormal


def _known(random: Random) -> list[Case]:
    """Formats that people use."""
    formats = [FP16, BF16, E5M2, FP32]
    return [(f.exponent_bits, f.significand_bits) for f in [FP16, *random.sample(formats, 4)]]


def _any(random: Random) -> list[Case]:
    """Formats that nobody has built yet; from two exponent bits to FP64."""
    ends = [(2, 1), (2, 23), (11, 52), (11, 1), (10, 30)]
    return [*((random.randrange(3, 9), random.randrange(1, 20)) for _ in range(12)), *ends]


def _bias(exponent_bits: int) -> int:
    return (1 << (exponent_bits - 1)) - 1


@mistake
def epsilon(exponent_bits: int, significand_bits: int) -> float:
    """This is the spacing at 1, called epsilon. The smallest number lies much further down."""
    return 2.0**-significand_bits


# fmt: off
MISTAKES = (
    wrong("smallest normal", "this is the smallest normal number. Below it the format counts on, in "
          "2^significand_bits steps.", lambda exponent_bits, significand_bits: 2.0 ** (1 - _bias(exponent_bits))),
    epsilon,
    wrong("forgets that the lowest exponent field is 1", "this is what taking -bias for the lowest exponent gives. "
          "It is 1 - bias: exponent field 0 shares it.",
          lambda exponent_bits, significand_bits: 2.0 ** (-_bias(exponent_bits) - significand_bits)),
    wrong("has the bias of FP16", "this is what a bias of 15 gives, which is FP16's. It follows from exponent_bits.",
          lambda exponent_bits, significand_bits: 2.0 ** (1 - 15 - significand_bits)),
    wrong("divides by the steps twice", "this divides by the number of steps twice.",
          lambda exponent_bits, significand_bits: 2.0 ** (1 - _bias(exponent_bits) - 2 * significand_bits)),
    wrong("answers for FP16", "this is the answer for FP16, whatever the arguments are. Compute it from "
          "exponent_bits and significand_bits.", lambda exponent_bits, significand_bits: 2.0**-24),
)
# fmt: on

EXERCISE = Exercise(
    id="start.smallest",
    title="Where a format ends",
    entry="my_smallest",
    difficulty=1,
    minutes=3,
    reference=reference,
    checks=(
        Check("the formats that people use", 1, _known),
        Check("any format", 1, _any),
    ),
    mistakes=MISTAKES,
)
