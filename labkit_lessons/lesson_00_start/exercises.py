"""The exercise of lesson 00: the smallest number of a format."""

from __future__ import annotations

from random import Random

from labkit.formats import BF16, E5M2, FP16, FP32
from labkit.grading.exercise import Case, Check, Exercise, wrong

# --- start.smallest ---


def _known(random: Random) -> list[Case]:
    """Formats that people use."""
    formats = [FP16, *random.sample([FP16, BF16, E5M2, FP32], 4)]
    return [(format.exponent_bits, format.significand_bits) for format in formats]


def _any(random: Random) -> list[Case]:
    """Twelve random formats, then formats with the fewest and the most bits, up to FP64."""
    drawn = [(random.randrange(3, 9), random.randrange(1, 20)) for _ in range(12)]
    return [*drawn, (2, 1), (2, 23), (11, 52), (11, 1), (10, 30)]


SMALLEST = Exercise(
    id="start.smallest",
    notes="""Where a number format ends. The warm-up: a line of arithmetic, and a first look at a
    counter-example.""",
    checks=(
        Check("the formats that people use", 1, _known),
        Check("any format", 1, _any),
    ),
    mistakes=(
        wrong(
            "smallest normal",
            "this is the smallest normal number. Below it the format counts on, in "
            "2^significand_bits steps.",
            replace=(" - significand_bits", ""),
        ),
        wrong(
            "epsilon",
            "this is the spacing at 1, called epsilon. The smallest number lies much further down.",
            replace=("1 - bias - significand_bits", "-significand_bits"),
        ),
        wrong(
            "forgets that the lowest exponent field is 1",
            "this is what taking -bias for the lowest exponent gives. "
            "It is 1 - bias: exponent field 0 shares it.",
            replace=("1 - bias", "-bias"),
        ),
        wrong(
            "has the bias of FP16",
            "this is what a bias of 15 gives, which is FP16's. It follows from exponent_bits.",
            replace=("2 ** (exponent_bits - 1) - 1", "15"),
        ),
        wrong(
            "divides by the steps twice",
            "this divides by the number of steps twice.",
            replace=("- significand_bits", "- 2 * significand_bits"),
        ),
        wrong(
            "answers for FP16",
            "this is the answer for FP16, whatever the arguments are. Compute it from "
            "exponent_bits and significand_bits.",
            replace=("1 - bias - significand_bits", "-24"),
        ),
    ),
)

EXERCISES = (SMALLEST,)
