"""Exercises of lesson 11d: the experts that a router chooses, and a scale for attention."""

from __future__ import annotations

import math
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- route.sets ---


def _scores(random: Random, experts: int, spread: float) -> list[float]:
    return [1 / (1 + math.exp(-random.gauss(0, spread))) for _ in range(experts)]


def _router(random: Random) -> list[Case]:
    """Scores of a router, most of them so close that rounding changes the sets."""
    return [
        (_scores(random, 64, 0.1), 8, 8),
        (_scores(random, 64, 0.05), 8, 8),
        (_scores(random, 32, 0.02), 4, 11),
        (_scores(random, 32, 1.0), 2, 4),
        (_scores(random, 6, 1.0), 3, 24),
    ]


def _equal(random: Random) -> list[Case]:
    """Equal scores at the last place, before the rounding and after it."""
    three = [0.5, 0.75, 0.75, 0.75, 0.25]
    nearly = [0.75, 0.7501, 0.7502, 0.5, 0.7503]
    return [
        (random.sample(three, 5), 2, 8),
        (random.sample(nearly, 5), 1, 8),
        (random.sample(nearly, 5), 2, 4),
        ([0.5] * 6, 3, 8),
    ]


def _halfway(random: Random) -> list[Case]:
    """Numbers halfway between two of 3 bits, which go to the even one: 1.125 to 1, 1.375 to 1.5."""
    ties = [1.125, 1.375, 1.0, 1.5, 1.25]
    scaled = [math.ldexp(x, random.randrange(-20, 20)) for x in ties]
    just = [1.125, math.nextafter(1.125, 2), 1.0, 1.25, math.nextafter(1.375, 0)]
    # Just below 1, numbers of 8 bits are 2^-8 apart. Of these nine, three are such numbers and two
    # are ties.
    fine = [1 - k * 2.0**-10 for k in range(9)]
    return [
        *((random.sample(ties, 5), chosen, 3) for chosen in (1, 2, 3, 4)),
        (random.sample(just, 5), 1, 3),
        (random.sample(just, 5), 2, 3),
        (random.sample(scaled, 5), 3, 3),
        (random.sample(fine, 9), 4, 8),
        (random.sample(fine, 9), 5, 8),
    ]


def _logits(random: Random) -> list[Case]:
    """Numbers of either sign, 0 itself, and numbers that are very small or very large."""
    logits = [random.gauss(0, 1) for _ in range(20)]
    below = [-1.125, -1.375, -1.0, -1.25, -1.5, 0.0]
    tiny = [random.uniform(1, 2) * 1e-5 for _ in range(16)]
    return [
        (logits, 5, 3),
        (random.sample(below, 6), 2, 3),
        (random.sample(below, 6), 3, 3),
        (random.sample(below, 6), 4, 3),
        (tiny, 4, 3),
        ([1000 * x for x in logits], 4, 2),
    ]


def _ends(random: Random) -> list[Case]:
    """One expert out of one, all of them, and scores rounded to one bit."""
    few = _scores(random, 5, 1.0)
    return [([0.7], 1, 8), (few, 5, 8), (few, 1, 1), (few, 2, 1)]


SETS = Exercise(
    id="route.sets",
    notes="""Rounding makes different scores equal, and then the number of the expert decides. The
    set changes where the last chosen score and the next one are nearer than the distance of two
    numbers of the format.""",
    checks=(
        Check("scores of a router", 2, _router),
        Check("equal scores", 1, _equal),
        Check("halfway between two numbers", 1, _halfway),
        Check("logits", 1, _logits),
        Check("one expert, and all of them", 1, _ends),
    ),
    mistakes=(
        wrong(
            "the higher number wins",
            "this is what the higher number of two equal experts gives. The lower one is chosen.",
            replace=(("key=lambda i: -values[i]", "key=lambda i: (-values[i], -i)"),),
        ),
        wrong(
            "cuts instead of rounding",
            "this is what cutting off the further bits gives. Round to the nearest number.",
            replace=(
                (
                    "round(math.ldexp(significand, bits))",
                    "math.floor(math.ldexp(significand, bits))",
                ),
            ),
        ),
        wrong(
            "ties away from zero",
            "this is what ties away from 0 give. A tie goes to the even significand.",
            replace=(
                (
                    "round(math.ldexp(significand, bits))",
                    "math.copysign(math.floor(abs(math.ldexp(significand, bits)) + 0.5), x)",
                ),
            ),
        ),
        wrong(
            "one bit too many",
            "this is what one bit more gives. `bits` counts all bits of the significand, with the "
            "hidden one.",
            replace=(
                ("math.ldexp(significand, bits)", "math.ldexp(significand, bits + 1)"),
                ("exponent - bits", "exponent - bits - 1"),
            ),
        ),
        wrong(
            "rounds to a fixed step",
            "this is what a step of 2^-bits gives for numbers of every size. In a floating-point "
            "format the step grows with the number.",
            replace=(
                (
                    "math.ldexp(round(math.ldexp(significand, bits)), exponent - bits)",
                    "round(x * 2.0**bits) / 2.0**bits",
                ),
            ),
        ),
        wrong(
            "in the order of the scores",
            "this is the experts in the order of their scores. Return them by number.",
            replace=(("sorted(order[:chosen])", "order[:chosen]"),),
        ),
        wrong(
            "takes the smallest",
            "this is the experts with the smallest scores. The largest are chosen.",
            replace=(("-values[i]", "values[i]"),),
        ),
        wrong(
            "does not round",
            "this is the same set twice. The second set is that of the rounded scores.",
            replace=(("best([rounded(x) for x in scores])", "best(scores)"),),
        ),
        wrong(
            "the other way round",
            "this is the rounded set first. The set of the exact scores comes first.",
            replace=(
                (
                    "best(scores), best([rounded(x) for x in scores])",
                    "best([rounded(x) for x in scores]), best(scores)",
                ),
            ),
        ),
    ),
    provides={"math": math},
)


# --- attend.scale ---

# The largest number of each format, and the smallest above 0.
E4M3 = (448.0, 2.0**-9)
E5M2 = (57344.0, 2.0**-16)
E2M1 = (6.0, 0.5)
HALF = (65504.0, 2.0**-24)


def _rows(random: Random) -> list[Case]:
    rows = [[random.gauss(0, spread) for _ in range(100)] for spread in (2, 6, 20)]
    return [
        *((row, *E4M3) for row in rows),
        (rows[2], *E5M2),
        (rows[1], *E2M1),
    ]


def _edges(random: Random) -> list[Case]:
    """Elements at a quarter, at half, and at the whole of the smallest number, and around half."""
    top = float(random.randrange(-40, 40))
    cases: list[Case] = []
    for largest, smallest in (E4M3, E5M2, E2M1):
        factor = math.floor(math.log2(largest))
        half = math.log2(smallest) - 1 - factor
        offsets = [0.0, half, half + 2.0**-12, half - 2.0**-12, half + 1, half - 1, half, half - 1]
        cases.append(([top + offset for offset in offsets], largest, smallest))
    return cases


def _largest(random: Random) -> list[Case]:
    """Formats whose largest number is a power of two, just below one, less than 1, or FP16's."""
    row = [random.gauss(0, 4) for _ in range(20)]
    tops = (256.0, 255.0, 511.0, 1.0, 0.75, 0.3, 65504.0)
    return [(row, largest, 2.0**-9) for largest in tops]


def _masked(random: Random) -> list[Case]:
    """A causal row: what is masked is 0 in every format, and not lost."""
    seen = [random.gauss(0, 8) for _ in range(12)]
    hidden = [-math.inf] * 9
    mixed = random.sample(seen + hidden, 21)
    far = [700.0 + score for score in mixed]
    return [
        (seen + hidden, *E4M3),
        (mixed, *E4M3),
        (far, *E4M3),
        ([-math.inf, 3.0], *HALF),
        ([0.0], *E4M3),
    ]


def _large(random: Random) -> list[Case]:
    """Scores far from 0: only their distance from the largest counts."""
    row = [random.gauss(0, 6) for _ in range(40)]
    shifted = [[shift + x for x in row] for shift in (-500.0, 700.0, 5000.0)]
    return [(scores, *E4M3) for scores in (*shifted, [0.0, -3000.0, -2.0])]


SCALE = Exercise(
    id="attend.scale",
    notes="""P is at most 1, so the whole range of the format above 1 is free: a factor 2^8 in E4M3.
    It is a loss scale for attention, and it can be chosen once, since the largest element of a row
    is always 1.""",
    checks=(
        Check("rows of scores", 2, _rows),
        Check("at half of the smallest number", 1, _edges),
        Check("the largest number of a format", 1, _largest),
        Check("masked tokens", 1, _masked),
        Check("scores far from 0", 1, _large),
    ),
    mistakes=(
        wrong(
            "counts what is masked",
            "this is what you get if masked tokens count. Their P is 0 in every format, so "
            "nothing is lost.",
            replace=(("score > -math.inf and ", ""),),
        ),
        wrong(
            "the tie survives",
            "this is what `<` gives. Exactly half of the smallest number is a tie: it goes to 0.",
            replace=(("<= smallest / 2", "< smallest / 2"),),
        ),
        wrong(
            "below the smallest number",
            "this is what everything below the smallest number gives. What is above half of it is "
            "rounded up.",
            replace=(("<= smallest / 2", "< smallest"),),
        ),
        wrong(
            "without the factor",
            "this is what is lost without the factor. Multiply by it first.",
            replace=(("score - top + log2_factor", "score - top"),),
        ),
        wrong(
            "one factor too many",
            "this is the next larger power of two. P = 1 would become larger than the largest "
            "number.",
            replace=(("math.floor(math.log2(largest))", "math.floor(math.log2(largest)) + 1"),),
        ),
        wrong(
            "the nearest power of two",
            "this is the power of two nearest to the largest number, which may be above it.",
            replace=(("math.floor(math.log2(largest))", "round(math.log2(largest))"),),
        ),
        wrong(
            "forgets the largest score",
            "this is what 2^score gives. Subtract the largest score of the row first.",
            replace=(
                ("2.0 ** (score - top + log2_factor)", "2.0 ** min(score + log2_factor, 1000)"),
            ),
        ),
        wrong(
            "with base e",
            "this is what exp gives. Here P is a power of two, as in fast kernels.",
            replace=(
                ("2.0 ** (score - top + log2_factor)", "math.exp(score - top) * 2.0**log2_factor"),
            ),
        ),
        wrong(
            "returns the factor",
            "this is the factor itself. Return its base-2 logarithm.",
            replace=(("return log2_factor, zeros", "return 2**log2_factor, zeros"),),
        ),
        wrong(
            "counts the others",
            "this is how many elements stay. Return how many become 0.",
            replace=(("<= smallest / 2", "> smallest / 2"),),
        ),
    ),
    provides={"math": math},
)

EXERCISES = (SETS, SCALE)
