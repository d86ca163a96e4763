"""Exercises of lesson 02: rounding, updates that are lost, Kahan's sum and epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from random import Random
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import FP16, decode, ulp
from labkit.grading.difference import bits, show_number
from labkit.grading.draws import always, whole
from labkit.grading.exercise import Case, Check, Exercise, Rows, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- rounding.nearest_even ---

FP16_ENDS = (10, -14, 65504.0)
"""Significand bits, smallest exponent and largest number of FP16: the last arguments of a case."""


def _code(random: Random) -> int:
    return random.randrange(0x1000, 0x7000)


def _beside(code: int, part: float, sign: int = 1) -> Case:
    """Return the number `part` of a spacing above the FP16 number of a code, times a sign."""
    value = float(decode(code, FP16))
    return (sign * (value + part * float(ulp(value, FP16))), *FP16_ENDS)


def _ends(random: Random) -> tuple[int, int, float]:
    """Return significand bits, the smallest exponent and the largest number of an unusual format.

    The largest number may end in any significand, as E4M3's does, 448 = 1.75 * 2^8.
    """
    significand_bits = random.randrange(2, 20)
    emin = random.randrange(-30, -3)
    emax = emin + random.randrange(12, 40)
    steps = 2**significand_bits
    return significand_bits, emin, 2.0**emax * (1 + random.randrange(steps) / steps)


def _elsewhere(random: Random, parts: Sequence[float], *, small: bool = False) -> list[Case]:
    """Return numbers between two neighbours of random formats, of either sign.

    Args:
        random: Draws the formats and the numbers.
        parts: The parts of a spacing, above an even neighbour and above an odd one in turn.
        small: Whether the numbers are subnormal.
    """
    cases: list[Case] = []
    for number, part in enumerate(parts):
        significand_bits, emin, largest = _ends(random)
        steps = 2**significand_bits
        exponent = emin if small else emin + random.randrange(1, 10)
        significand = 2 * random.randrange(steps // 2) + number % 2
        units = significand if small else steps + significand
        x = random.choice((-1, 1)) * (units + part) * 2.0 ** (exponent - significand_bits)
        cases.append((x, significand_bits, emin, largest))
    return cases


def _nearer(random: Random) -> list[Case]:
    """Between two numbers, and clearly nearer to one of them."""
    parts = (0.2, 0.8, 0.4, 0.7, 0.3, 0.9)
    drawn = [_beside(_code(random), part, random.choice((-1, 1))) for part in parts]
    return [(0.1, *FP16_ENDS), *drawn, *_elsewhere(random, parts)]


def _half_way(random: Random) -> list[Case]:
    """Half-way above an even and above an odd significand, of either sign."""
    codes = [_code(random) & ~1 | odd for odd in (0, 1, 0, 1)]
    return [
        (1 + 2.0**-11, *FP16_ENDS),
        *(_beside(code, 0.5, sign) for code, sign in zip(codes, (1, 1, -1, -1), strict=True)),
        *_elsewhere(random, [0.5] * 6),
    ]


def _small(random: Random) -> list[Case]:
    """Zero, half of the smallest number and a bit more, and subnormal numbers."""
    half = 2.0**-25
    codes = [random.randrange(2, 0x0300) & ~1 | odd for odd in (0, 1)]
    between = [
        _beside(random.randrange(2, 0x03F0), part, sign)
        for part, sign in ((0.3, 1), (0.8, -1), (0.6, 1))
    ]
    ends = [
        0.0,
        -0.0,
        half,
        half * 1.01,
        -half,
        -half * 1.01,
        5e-324,
        -1e-300,
        2.0**-14 - half,
        2.0**-14 - half / 2,
    ]
    others = _elsewhere(random, (0.5, 0.5, 0.3, 0.8, 0.5, 0.5), small=True)
    fp16: list[Case] = [(x, *FP16_ENDS) for x in ends]
    return [*fp16, *(_beside(code, 0.5) for code in codes), *between, *others]


def _large(random: Random) -> list[Case]:
    """Numbers around the largest one, and infinities.

    Up to half a spacing above the largest number rounds to it if its last bit is 0. Beyond that
    comes infinity.
    """
    ends = [
        65504.0,
        65519.9,
        65520.0,
        -65519.0,
        -65520.0,
        random.uniform(7e4, 1e5),
        -1e6,
        1e308,
        math.inf,
        -math.inf,
    ]
    cases: list[Case] = [(x, *FP16_ENDS) for x in ends]
    # E4M3 ends at 448, whose last bit is 0, so the number half-way to 480 is rounded down.
    cases += [(x, 3, -6, 448.0) for x in (448.0, -463.9, 464.0, 464.1, -480.0)]
    for odd in (0, 1):
        significand_bits, emin, largest = _ends(random)
        unit = 2.0 ** (math.frexp(largest)[1] - 1 - significand_bits)
        top = (largest // unit // 2 * 2 + odd) * unit
        parts = (0.0, 0.49, 0.5, 0.51, 1.0)
        cases += [(top + part * unit, significand_bits, emin, top) for part in parts]
        cases.append((-math.inf, significand_bits, emin, top))
    return cases


def _just_beside_half_way(random: Random) -> list[Case]:
    """Numbers 2^-30 of a spacing off half-way, which rounding to FP32 first would hide."""
    fp16: list[Case] = []
    for odd, side, sign in product((0, 1), (-1, 1), (-1, 1)):
        fp16.append(_beside(_code(random) & ~1 | odd, 0.5 + side * 2.0**-30, sign))
    parts = [0.5 + side * 2.0**-30 for side in (-1, -1, 1, 1)]
    return [*fp16, *_elsewhere(random, parts)]


def _neighbours(x: float, significand_bits: int, emin: int, largest: float) -> Rows:
    """Return rows with the two numbers of the format between which x lies."""
    if math.isinf(x):
        return ()
    exponent = max(math.frexp(x)[1] - 1, emin) if x else emin
    spacing = 2.0 ** (exponent - significand_bits)
    below = math.floor(x / spacing) * spacing
    above = math.ceil(x / spacing) * spacing
    return ("below it", show_number(below, 9)), ("above it", show_number(above, 9))


NEAREST_EVEN = Exercise(
    id="rounding.nearest_even",
    notes="""A real number is rounded to a format, given by its significand bits and its two ends.

    The point: find the spacing, round to a whole number of spacings, half-way to the even one; then
    mind both ends. The largest number of a format may be any, so that no library rounds to all of
    them.
    Oracle in the tests: numpy's float16, which rounds a float64 once, and ml_dtypes' float8_e4m3fn.
    """,
    checks=(
        Check("to the nearer of two neighbours", 2, _nearer),
        Check("half-way to the even one", 2, _half_way),
        Check("among the subnormal numbers", 1, _small),
        Check("at the upper end", 1, _large),
        Check("a hair's breadth beside half-way", 1, _just_beside_half_way),
    ),
    mistakes=(
        wrong(
            "truncates",
            "this is what cutting off gives (int does that). The result should be the *nearer* "
            "neighbour.",
            replace=("round(x / spacing)", "math.trunc(x / spacing)"),
        ),
        wrong(
            "rounds down",
            "this is what rounding down gives: always to the lower neighbour, even where the upper "
            "one is nearer.",
            replace=("round(x / spacing)", "math.floor(x / spacing)"),
        ),
        wrong(
            "half way away from zero",
            "this is what rounding half-way cases away from zero gives, as taught at "
            "school. IEEE 754 takes the even one.",
            replace=("round(x / spacing)", "math.copysign(math.floor(abs(x) / spacing + 0.5), x)"),
        ),
        wrong(
            "half way up",
            "this is what floor(x + 0.5) gives: half-way cases go up. They should go to the even "
            "one.",
            replace=("round(x / spacing)", "math.floor(x / spacing + 0.5)"),
        ),
        wrong(
            "half way towards zero",
            "this is what rounding half-way cases towards zero gives. They should go to the "
            "even one.",
            replace=("round(x / spacing)", "math.copysign(math.ceil(abs(x) / spacing - 0.5), x)"),
        ),
        wrong(
            "half way to the odd one",
            "this is what rounding half-way cases to the odd neighbour gives. They should "
            "go to the even one, whose last bit is 0.",
            replace=(
                "round(x / spacing)",
                "(math.floor(x / spacing) | 1 if x / spacing % 1 == 0.5 else round(x / spacing))",
            ),
        ),
        wrong(
            "forgets subnormals",
            "this is what a spacing that shrinks without end gives. Below 2^emin it stays the "
            "same.",
            replace=("max(exponent, emin)", "max(exponent, emin - 30)"),
        ),
        wrong(
            "flushes subnormals",
            "this is what putting 0 for everything below 2^emin gives. Some hardware does; these "
            "formats go on.",
            replace=(
                "x / spacing) * spacing",
                "x / spacing) * spacing if exponent >= emin else 0.0",
            ),
        ),
        wrong(
            "forgets the hidden bit",
            "this is what a spacing twice too wide gives: ten significant bits in FP16. It has "
            "eleven, one of them hidden.",
            replace=("- significand_bits", "- (significand_bits - 1)"),
        ),
        wrong(
            "never overflows",
            "this is what rounding without an upper end gives. Beyond the largest number is "
            "infinity.",
            replace=("<= largest", "<= math.inf"),
        ),
        wrong(
            "saturates",
            "this is what stopping at the largest number gives. Some conversions of FP8 do; here "
            "infinity comes next.",
            replace=("math.copysign(math.inf, x)", "math.copysign(largest, x)"),
        ),
        wrong(
            "overflows at the largest number",
            "this is what infinity for everything above the largest number gives. Up to half a "
            "spacing further it is the nearest: 65519 becomes 65504 in FP16.",
            replace=("abs(rounded) <= largest", "abs(x) <= largest"),
        ),
        wrong(
            "loses the sign of infinity",
            "this is what +inf on both sides gives. Far below zero it is -inf.",
            replace=("math.copysign(math.inf, x)", "math.inf"),
        ),
        wrong(
            "answers for FP16",
            "this rounds to FP16, whatever the format is. Its two ends and its bits are arguments.",
            lambda x, *_: solution.my_round(x, *FP16_ENDS),
        ),
        wrong(
            "rounds twice",
            "this is what rounding to FP32 first gives: it moves numbers onto the half-way point, "
            "and the second rounding takes them the wrong way. Round once.",
            lambda x, *ends: solution.my_round(torch.tensor(x, dtype=torch.float32).item(), *ends),
        ),
    ),
    former=FP16_ENDS,
    aside=_neighbours,
)

# --- rounding.smallest_update ---


def _weights(codes: list[int]) -> list[Case]:
    return [(np.float16(value),) for value in decode(codes, FP16)]


def _with_last_bit(random: Random, last: int) -> list[Case]:
    """Normal weights below 2,048 with this last significand bit, none a power of two."""
    codes: list[int] = []
    for _ in range(4):
        exponent = random.randrange(2, 26)
        significand = random.randrange(1, 511) << 1 | last
        codes.append(exponent << 10 | significand)
    return _weights(codes)


def _powers_of_two(random: Random) -> list[Case]:
    exponents = [0, *(random.randrange(-12, 11) for _ in range(3))]
    return [(np.float16(2.0**exponent),) for exponent in exponents]


def _subnormal(random: Random) -> list[Case]:
    return _weights([0x0001, random.randrange(2, 0x0400), random.randrange(2, 0x0400)])


def _anywhere(random: Random) -> list[Case]:
    drawn = [random.randrange(1, 26 << 10) for _ in range(12)]
    return _weights([0x03FF, 0x0400, 0x0800, 0x67FE, 0x67FF, *drawn])


SMALLEST_UPDATE = Exercise(
    id="rounding.smallest_update",
    notes="""The smallest update that moves an FP16 weight.

    The point: it is about half the spacing at the weight; where exactly half is enough depends on
    the weight's last bit. The learner searches, and reads the rule off what comes out.
    Oracle in the tests: labkit.formats.add, which is integer arithmetic.""",
    checks=(
        Check("weights whose last bit is 0", 2, lambda random: _with_last_bit(random, 0)),
        Check("weights whose last bit is 1", 1, lambda random: _with_last_bit(random, 1)),
        Check("powers of two", 1, _powers_of_two),
        Check("subnormal weights", 1, _subnormal),
        Check("a dozen weights anywhere", 1, _anywhere),
    ),
    mistakes=(
        wrong(
            "half the spacing",
            "this is half the spacing, which moves a weight only if its last bit is 1. Half-way "
            "goes to the even neighbour, and that may be the weight itself.",
            replace=("weight + updates != weight", "updates >= np.spacing(weight) / 2"),
        ),
        wrong(
            "always more than half",
            "this is the first number above half the spacing. A weight whose last bit is 1 "
            "moves at exactly half: the even neighbour is the other one.",
            replace=("weight + updates != weight", "updates > np.spacing(weight) / 2"),
        ),
        wrong(
            "a whole spacing",
            "this is the spacing at the weight. It moves the weight for sure, and so does a "
            "little more than half.",
            replace=("weight + updates != weight", "updates >= np.spacing(weight)"),
        ),
        wrong(
            "powers of two only",
            "this is what doubling the update until the weight moves gives: the smallest "
            "*power of two*. Try all FP16 numbers, one by one.",
            replace=(
                "np.arange(1, 0x7800, dtype=np.uint16).view(np.float16)",
                "np.float16(2) ** np.arange(-24, 16, dtype=np.float16)",
            ),
        ),
        wrong(
            "the same for every weight",
            "this is the spacing between 1 and 2, whatever the weight.",
            lambda weight: np.float16(2.0**-10),
        ),
        wrong(
            "divides the weight by 1024",
            "this is the weight times 2^-10. Updates of half that size still arrive, "
            "and the limit grows in steps, not in proportion.",
            lambda weight: weight / np.float16(1024),
        ),
        wrong(
            "divides the weight by 2048",
            "this is the weight divided by 2048, a rule of thumb. The limit jumps at "
            "powers of two and stays between.",
            lambda weight: weight / np.float16(2048),
        ),
        wrong(
            "adds outside FP16",
            "this is what adding in FP32 or FP64 gives: there every update moves the weight. "
            "Round the sum to FP16 before you compare.",
            replace=("weight + updates", "np.float64(weight) + updates"),
        ),
        wrong(
            "forgets subnormals",
            "this is what half the spacing gives for small weights when it is rounded to FP16: "
            "0, and 0 moves nothing.",
            replace=("[0]", "[0] if weight >= 2**-13 else np.float16(0)"),
        ),
        wrong(
            "one too early",
            "this is the largest update that does *not* move the weight. The next one does.",
            lambda weight: np.nextafter(solution.my_smallest_update(weight), np.float16(0)),
        ),
        wrong(
            "goes down",
            "this is the answer for weight - update. Below a power of two the spacing is half "
            "as wide, so less is enough there.",
            replace=("weight + updates", "weight - updates"),
        ),
    ),
    provides={"np": np},
    aside=lambda weight: (("in bits", bits(weight)),),
)

# --- rounding.stochastic ---


def _number(random: Random, sign: int, eighths: int) -> tuple[float, float]:
    """Return a number that is some eighths above a multiple of its spacing, and the spacing."""
    spacing = 2.0 ** random.randrange(-24, -2)
    return sign * (random.randrange(1024, 2048) * spacing) + eighths / 8 * spacing, spacing


def _of_sign(random: Random, sign: int) -> list[Case]:
    """Random numbers just below and just above the part of a spacing, and far from it."""
    pairs = (
        (2, 0.1),
        (2, 0.3),
        (2, 0.6),
        (6, 0.1),
        (6, 0.4),
        (6, 0.7),
        (6, 0.8),
        (5, 0.99),
        (1, 0.01),
    )
    shaken = [(eighths, part + random.uniform(0, 0.009)) for eighths, part in pairs]
    wide = [(sign * 13.0, 8.0, part) for part in (0.1, 0.37, 0.38, 0.62, 0.63, 0.9)]
    spacing = 2.0 ** random.randrange(-24, -2)
    less_than_one = [(sign * 0.375 * spacing, spacing, part) for part in (0.1, 0.5, 0.9)]
    near = [(*_number(random, sign, eighths), part) for eighths, part in shaken]
    return [*near, *wide, *less_than_one]


def _exact(random: Random) -> list[Case]:
    """Multiples of the spacing stay, even if the random number is 0; with spacing 5, 7 moves."""
    drawn = [
        (*_number(random, sign, 0), part)
        for sign, part in ((1, 0.0), (1, 0.9), (-1, 0.0), (1, 0.3))
    ]
    fives = [(x, 5.0, part) for x in (15.0, 7.0, -7.0) for part in (0.2, 0.5, 0.8)]
    return [*drawn, (0.0, 0.25, 0.0), (-24.0, 8.0, 0.0), *fives]


def _many(random: Random) -> list[Case]:
    """A hundred evenly spaced random numbers each: the share that goes up is exactly the part."""
    numbers = [_number(random, sign, random.randrange(1, 8)) for sign in (1, -1)]
    return [(*number, (2 * i + 1) / 200) for number in numbers for i in range(100)]


STOCHASTIC = Exercise(
    id="rounding.stochastic",
    notes="""A rounding whose mean is right.

    The point: go up with the probability that is the part of the spacing already covered. The
    random number is an argument, so the answer is exact. Numbers of either sign go *up*, towards
    +inf, so that one rule serves both.""",
    checks=(
        Check("positive numbers", 2, lambda random: _of_sign(random, 1)),
        Check("negative numbers", 1, lambda random: _of_sign(random, -1)),
        Check("multiples of the spacing stay", 1, _exact),
        Check("a hundred random numbers for one x", 1, _many),
    ),
    mistakes=(
        wrong(
            "rounds to nearest",
            "this is round to nearest: the random number changes nothing, and small updates are "
            "swallowed again.",
            lambda x, spacing, random: round(x / spacing) * spacing,
        ),
        wrong(
            "tosses a coin",
            "this is what up or down with probability 1/2 gives. The nearer neighbour has to be "
            "taken more often.",
            replace=("random < (x - lower) / spacing", "x > lower and random < 0.5"),
        ),
        wrong(
            "turned round",
            "this is what going up where random is *above* the part gives: the farther "
            "neighbour is taken more often.",
            replace=("random <", "random >="),
        ),
        wrong(
            "from the other end",
            "this is what floor(x / spacing + random) gives: right in the mean, but it goes up "
            "for large random numbers. Here it is up where random is below the part.",
            lambda x, spacing, random: math.floor(x / spacing + random) * spacing,
        ),
        wrong(
            "truncates",
            "this is what int(x / spacing) gives: below zero it cuts upwards, and the part becomes "
            "negative. Take math.floor.",
            replace=("math.floor", "int"),
        ),
        wrong(
            "away from zero",
            "this is what rounding |x| and putting the sign back gives: right in the mean, but "
            "below zero it goes down where it should go up.",
            lambda x, spacing, random: math.copysign(
                solution.my_stochastic(abs(x), spacing, random), x
            ),
        ),
        wrong(
            "forgets to divide by the spacing",
            "this is what comparing random with x - lower gives. That is a "
            "length; divide it by the spacing.",
            replace=("(x - lower) / spacing", "x - lower"),
        ),
        wrong(
            "moves what is exact",
            "this is what random <= part gives: with random = 0 a number that needs no "
            "rounding moves. Take <.",
            replace=("random <", "random <="),
        ),
        wrong(
            "adds noise then rounds to nearest",
            "this is what round(x / spacing + random) gives: half a spacing too high in the mean.",
            lambda x, spacing, random: round(x / spacing + random) * spacing,
        ),
        wrong(
            "counts spacings",
            "this is how many spacings the result is. Multiply by the spacing.",
            lambda x, spacing, random: solution.my_stochastic(x, spacing, random) / spacing,
        ),
    ),
)

# --- rounding.kahan ---

Halves = NDArray[np.float16]


FROM_ZERO = (np.float16(0), np.float16(0))
"""The total and what was lost, before the first number: the last arguments of a case."""


def _once(values: Halves, total: np.float16 = FROM_ZERO[0], *_: np.float16) -> np.float16:
    """Return the sum, rounded only at the end."""
    return np.float16(float(total) + values.astype(np.float64).sum())


def _continued(random: Random, arrays: Iterable[Halves]) -> list[Case]:
    """Return each sum twice: from 0, and from a total whose last addition lost something."""
    cases: list[Case] = []
    for values in arrays:
        cases.append((values, *FROM_ZERO))
        total = np.float16(random.randrange(1024, 2047) * 2.0 ** random.randrange(-8, -4))
        spacing = float(np.spacing(total))
        lost = np.float16(random.choice((-1, 1)) * random.randrange(20, 31) / 64 * spacing)
        cases.append((values, total, lost))
    return cases


def _small_ones(random: Random) -> list[Case]:
    """A large number, then many of a quarter of its spacing: added in turn, each is lost."""
    exponents = [random.randrange(6, 10) for _ in range(2)]
    arrays = [
        np.array([2.0**e] + [2.0 ** (e - 12)] * random.randrange(40, 80), np.float16)
        for e in exponents
    ]
    return _continued(random, arrays)


def _positive(random: Random) -> list[Case]:
    arrays = [
        np.array([random.randrange(1, 2048) / 512 for _ in range(60)], np.float16),
        np.array([random.uniform(0, 1) ** 3 for _ in range(60)], np.float16),
    ]
    return _continued(random, arrays)


def _signed(random: Random) -> list[Case]:
    tiny = [random.choice((-1, 1)) * random.randrange(1, 1024) * 2.0**-24 for _ in range(9)]
    drawn = [[random.uniform(-1, 3) for _ in range(60)] for _ in range(2)]
    all_values = (*drawn, tiny, [3.5, -3.5], [-1.0, -2.5])
    return _continued(random, [np.array(values, np.float16) for values in all_values])


def _short(random: Random) -> list[Case]:
    numbers: tuple[list[float], ...] = (
        [],
        [random.randrange(1, 99) / 16],
        [random.randrange(1, 99) / 4096],
    )
    return _continued(random, [np.array(values, np.float16) for values in numbers])


def _not_once(random: Random) -> list[Case]:
    """Sums where Kahan's result differs from one rounding, and from his result in other orders."""
    cases: list[Case] = []
    while len(cases) < 4:
        values = np.array([random.uniform(-1, 3) for _ in range(60)], np.float16)
        start = FROM_ZERO
        if len(cases) % 2:
            _, *later = _continued(random, [values])[1]
            start = cast("tuple[np.float16, np.float16]", tuple(later))
        arrays = (values[::-1], values[np.argsort(abs(values), kind="stable")])
        others = [solution.my_kahan(array, *start) for array in arrays]
        if solution.my_kahan(values, *start) not in (_once(values, *start), *others):
            cases.append((values, *start))
    return cases


def _in_pairs(values: Halves, total: np.float16, lost: np.float16) -> np.float16:
    return total + _pairs(values)


def _pairs(values: Halves) -> np.float16:
    middle = len(values) // 2
    if middle == 0:
        return _once(values)
    return _pairs(values[:middle]) + _pairs(values[middle:])


KAHAN = Exercise(
    id="rounding.kahan",
    notes="""A sum that carries along what each addition loses.

    The point: after t = total + y, the difference (t - total) - y is what the addition got wrong,
    and FP16 holds it exactly. Take it off the next number.
    Source: W. Kahan, Further remarks on reducing truncation errors, CACM 8(1), 1965.
    Oracles in the tests: labkit.formats.sum_compensated, built from integer arithmetic, and
    math.fsum.""",
    checks=(
        Check("many small numbers after a large one", 2, _small_ones),
        Check("positive numbers", 1, _positive),
        Check("numbers of either sign", 1, _signed),
        Check("one number, and none", 1, _short),
        Check("sums that FP16 alone cannot get quite right", 1, _not_once),
    ),
    mistakes=(
        wrong(
            "one after another",
            "this is what total = total + x gives: what each addition loses is gone. (So is it "
            "with lost = t - (total + y), which is always 0.)",
            replace=("x - lost", "x"),
        ),
        wrong(
            "adds the loss",
            "this is what y = x + lost gives: what was too much is added once more. (t - total) "
            "- y is arrived minus meant, so it has to be subtracted.",
            replace=("x - lost", "x + lost"),
        ),
        wrong(
            "forgets what it corrected",
            "this is what (t - total) - x gives. It was y that was added; with x the "
            "earlier loss is counted as new.",
            replace=("(t - total) - y", "(t - total) - x"),
        ),
        wrong(
            "moves the total too early",
            "this is what total = t before computing the loss gives: t - total is then "
            "0. Compute lost first.",
            replace=(
                "lost = (t - total) - y\n        total = t",
                "total = t\n        lost = (t - total) - y",
            ),
        ),
        wrong(
            "counts the first number twice",
            "this is what starting with values[0] and then running over all values "
            "gives: the first counts twice.",
            lambda values, total, lost: solution.my_kahan(
                np.concatenate([values[:1], values]), total, lost
            ),
        ),
        wrong(
            "begins at zero",
            "this begins at zero, with nothing lost. Go on from `total` and `lost`.",
            lambda values, total, lost: solution.my_kahan(values, *FROM_ZERO),
        ),
        wrong(
            "forgets what was lost before",
            "this goes on from the total, and forgets what its last addition lost.",
            lambda values, total, lost: solution.my_kahan(values, total, FROM_ZERO[1]),
        ),
        wrong(
            "sorts first",
            "this is what adding from small to large gives: better than before, but each addition "
            "still loses.",
            replace=(("in values", "in sorted(values, key=abs)"), ("x - lost", "x")),
        ),
        wrong(
            "adds in pairs",
            "this is what adding in pairs gives: a good sum as well, but not Kahan's.",
            _in_pairs,
        ),
        wrong(
            "returns the loss",
            "this is the last loss. Return the total.",
            replace=("return total", "return lost"),
        ),
        wrong(
            "sums in FP32",
            "this is what a wider sum, rounded once, gives (values.sum() does that inside). It is "
            "better, and what hardware does where it can; here use FP16 only.",
            _once,
        ),
    ),
    provides={"np": np},
    former=FROM_ZERO,
)

# --- rounding.epsilon ---


def _wholes(random: Random, low: int, high: int, log2_unit: int, count: int = 8) -> Tensor:
    """Return FP16 numbers n * 2^log2_unit, low <= |n| < high, of either sign."""
    return whole(random, (count,), low, high).half() * 2.0**log2_unit


def _ordinary(random: Random) -> list[Case]:
    a, b, c, d = (_wholes(random, 200, 1024, -8) for _ in range(4))
    return [(a,), (b,), (c,), (d[:1],), (_wholes(random, 200, 1024, -8, 40),)]


def _small_numbers(random: Random) -> list[Case]:
    """Numbers whose squares are subnormal or 0 in FP16, and a few whose root is subnormal too."""
    return [
        (_wholes(random, low, high, unit),)
        for low, high, unit in ((100, 1024, -20), (2, 9, -24), (1, 30, -24))
    ]


def _large_numbers(random: Random) -> list[Case]:
    """From 3,200 to 32,000, and up to the largest number: their squares are beyond 65504."""
    return [
        *((_wholes(random, 100, 1000, 5),) for _ in range(2)),
        (torch.tensor([65504.0, -65504.0, 1000.0]).half(),),
    ]


def _one_small(random: Random) -> list[Case]:
    """One small number among zeros, and one among large numbers."""
    alone = torch.zeros(8, dtype=torch.float16)
    beside = _wholes(random, 100, 1000, 4)
    alone[3] = random.randrange(50, 500) * 2.0**-24
    beside[5] = 2.0**-10
    return [(alone,), (beside,)]


EPSILON = Exercise(
    id="rounding.epsilon",
    notes="""An epsilon that FP16 rounds to zero is repaired.

    The point: constants are rounded too, and 1e-8 is 0 in FP16. A larger epsilon hides the symptom
    and changes the answer; what helps is to compute in FP32 and round once, at the end. This is
    RMSNorm as its authors wrote it.
    Source: B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467;
    github.com/bzhangGo/rmsnorm.

    Tolerance: FP32 may sum in any order, which can move the result across one rounding to FP16: 1
    ulp.""",
    checks=(
        Check("ordinary numbers, answered in FP16", 1, _ordinary),
        Check("zeros stay zeros", 1, always((torch.zeros(8, dtype=torch.float16),))),
        Check("small numbers", 2, _small_numbers),
        Check("large numbers", 1, _large_numbers),
        Check("one number that differs from the rest", 1, _one_small),
    ),
    mistakes=(
        wrong(
            "as it was",
            "this is the code as it was: in FP16 1e-8 is 0, small squares underflow, and large "
            "ones overflow.",
            replace=("x.float()", "x"),
        ),
        wrong(
            "a larger epsilon",
            "this is what an epsilon of 1e-4 in FP16 gives: no NaN for zeros, but the squares "
            "still underflow and overflow, and small numbers are shrunk.",
            replace=(("x.float()", "x"), ("1e-8", "1e-4")),
        ),
        wrong(
            "FP32 and a larger epsilon",
            "this is right but for the epsilon: 1e-4 is larger than the small numbers. "
            "In FP32 1e-8 is fine.",
            replace=("1e-8", "1e-4"),
        ),
        wrong(
            "no epsilon",
            "this is what leaving the epsilon out gives: 0 / 0 is NaN in any precision.",
            replace=(" + 1e-8", ""),
        ),
        wrong(
            "squares in FP16",
            "this is what casting after squaring gives: the squares had already gone to 0 or inf. "
            "Cast x first.",
            replace=("wide.pow(2)", "x.pow(2).float()"),
        ),
        wrong(
            "widens the root only",
            "this is what casting after the root gives: the squares were FP16, and had gone "
            "to 0 or inf.",
            lambda x: x / (x.pow(2).mean().sqrt().float() + 1e-8),
        ),
        wrong(
            "divides in FP16",
            "this is what going back to FP16 before dividing gives: the epsilon becomes 0 again. "
            "Divide, then cast.",
            replace=(("(wide / (wide", "x / (wide"), (")).half()", ").half()")),
        ),
        wrong(
            "forgets to return FP16",
            "this is FP32. Compute in it, but return FP16, as the rest of the network expects.",
            replace=(".half()", ""),
        ),
        wrong(
            "epsilon inside the root",
            "this is what adding the epsilon under the root gives. Later models do that, "
            "but it is another formula: there 1e-8 counts as 1e-4.",
            replace=(".sqrt() + 1e-8)", " + 1e-8).sqrt()"),
        ),
        wrong(
            "sum for mean",
            "this is what the sum of squares gives. RMS is root of the *mean* square.",
            replace=("mean()", "sum()"),
        ),
        wrong(
            "clears away NaN",
            "this is what nan_to_num on the old code gives: zeros where an answer should be. The "
            "symptom is gone, and the small numbers with it.",
            replace=(
                ("x.float()", "x"),
                (".half()", ".nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)"),
            ),
        ),
    ),
    ulps=1,
    provides={"torch": torch},
)

EXERCISES = (NEAREST_EVEN, SMALLEST_UPDATE, STOCHASTIC, KAHAN, EPSILON)
