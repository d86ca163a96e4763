"""Exercises of lesson 01: codes, spacings, gaps, neighbours and bytes of FP16 numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import cast

from labkit.formats import BF16, E5M2, FP16, FP32, decode
from labkit.grading.difference import show_number
from labkit.grading.draws import always
from labkit.grading.exercise import Case, Check, Exercise, Rows, mistake, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- numbers.decode ---

FP16_FIELDS = (5, 10, 15)
"""Exponent bits, significand bits and bias of FP16: the last arguments of a case."""


def _codes(random: Random, low: int, high: int, count: int) -> list[Case]:
    """FP16 codes of either sign whose other fifteen bits lie in low <= bits < high."""
    codes = [random.choice((0, 0x8000)) | random.randrange(low, high) for _ in range(count)]
    return [(code, *FP16_FIELDS) for code in codes]


def _fields(random: Random) -> tuple[int, int, int]:
    """Return exponent bits, significand bits and bias of a format with an unusual bias.

    The usual bias is 2^(exponent_bits - 1) - 1.
    """
    exponent_bits = random.randrange(3, 9)
    usual = 2 ** (exponent_bits - 1) - 1
    bias = usual + random.choice((-1, 1)) * random.randrange(1, 20)
    return exponent_bits, random.randrange(3, 14), bias


def _in_formats(
    random: Random, count: int, field: Callable[[int], int], significands: Sequence[int] = ()
) -> list[Case]:
    """Return codes of random formats, of either sign.

    Args:
        random: Draws the formats and the codes.
        count: How many codes to return.
        field: Maps the largest exponent field to the exponent field of the code.
        significands: The significands that the codes take in turn; negative ones count from the
            end. If empty, significands are random.
    """
    cases: list[Case] = []
    for number in range(count):
        exponent_bits, significand_bits, bias = _fields(random)
        steps = 2**significand_bits
        exponent = field(2**exponent_bits - 1)
        significand = random.randrange(1, steps)
        if significands:
            significand = significands[number % len(significands)] % steps
        sign = random.choice((0, 1)) << exponent_bits + significand_bits
        code = sign | exponent << significand_bits | significand
        cases.append((code, exponent_bits, significand_bits, bias))
    return cases


def _normal(random: Random) -> list[Case]:
    """1, -2 and 1.5, then random normal numbers of FP16 and of other formats."""
    first: list[Case] = [(code, *FP16_FIELDS) for code in (0x3C00, 0xC000, 0x3E00)]
    drawn = _in_formats(random, 6, lambda last: random.randrange(1, last))
    ends = _in_formats(random, 2, lambda last: last - 1, (-1,))
    return [*first, *_codes(random, 0x0401, 0x7C00, 4), *drawn, *ends]


def _subnormal(random: Random) -> list[Case]:
    """Exponent field 0: both zeros, the smallest, the largest, and some between."""
    first: list[Case] = [(code, *FP16_FIELDS) for code in (0x0000, 0x8000, 0x0001, 0x03FF, 0x83FF)]
    drawn = _in_formats(random, 6, lambda last: 0, (0, 1, -1))
    return [*first, *_codes(random, 0x0002, 0x03FF, 3), *drawn]


def _special(random: Random) -> list[Case]:
    """The last exponent field."""
    first: list[Case] = [(code, *FP16_FIELDS) for code in (0x7C00, 0xFC00, 0x7E00, 0x7FFF, 0xFFFF)]
    drawn = _in_formats(random, 6, lambda last: last, (0, 0, 1, -1))
    return [*first, *_codes(random, 0x7C01, 0x8000, 2), *drawn]


def _all_kinds(random: Random) -> list[Case]:
    first: list[Case] = [
        (code, *FP16_FIELDS) for code in (0x0400, 0x7BFF, 0xFBFF, 0x8001, 0xFC00, 0x7C01)
    ]
    drawn = _in_formats(random, 30, lambda last: random.choice((0, last, random.randrange(last))))
    return [*first, *_codes(random, 0x0002, 0x7C00, 30), *drawn]


def _cut(code: int, exponent_bits: int, significand_bits: int, bias: int) -> Rows:
    """Return a row with the bits of a code, separated into its three fields."""
    bits = f"{code:0{1 + exponent_bits + significand_bits}b}"
    exponent = bits[1 : 1 + exponent_bits]
    significand = bits[1 + exponent_bits :]
    return (("in bits", f"S {bits[0]}  E {exponent}  F {significand}"),)


DECODE = Exercise(
    id="numbers.decode",
    notes="""The bits of a number, read by hand: of FP16, and of formats with widths and a bias of
    their own.

    The point: one formula for normal numbers, one for exponent field 0, and a last field that is no
    number at all. Such a bias is what no library of the lab decodes, so that nothing is forbidden.
    Oracle in the tests: numpy's float16, on all 65,536 codes; labkit.formats, times a power of two.
    """,
    checks=(
        Check("normal numbers", 2, _normal),
        Check("zero and the subnormal numbers", 2, _subnormal),
        Check("infinities and NaN", 1, _special),
        Check("codes of every kind", 2, _all_kinds),
    ),
    mistakes=(
        wrong(
            "forgets the hidden 1",
            "this is what forgetting the hidden 1 gives. A normal number is 1.F, and the 1 "
            "is not stored.",
            replace=("(1 + significand", "(significand"),
        ),
        wrong(
            "forgets subnormals",
            "this is what reading exponent field 0 like the others gives. There the hidden 1 "
            "is gone, so that zero can be written.",
            replace=("if exponent == 0", "if False"),
        ),
        wrong(
            "subnormals one binade too low",
            "this is what 2^(0 - bias) gives for exponent field 0. It shares the "
            "exponent of field 1, which is 1 - bias.",
            replace=("(1 - bias)", "(-bias)"),
        ),
        wrong(
            "answers for FP16",
            "this reads every code as one of FP16. The widths and the bias are arguments.",
            lambda code, *_: solution.my_decode(code, *FP16_FIELDS),
        ),
        wrong(
            "has the bias of FP16",
            "this has FP16's bias, 15, in every format. Here the bias is an argument.",
            replace=(("(exponent - bias)", "(exponent - 15)"), ("(1 - bias)", "(-14)")),
        ),
        wrong(
            "has the usual bias",
            "this has the usual bias, 2^(exponent_bits - 1) - 1. A format may have another one: "
            "it is an argument.",
            lambda code, e, s, bias: solution.my_decode(code, e, s, 2 ** (e - 1) - 1),
        ),
        wrong(
            "adds the bias",
            "this adds the bias. It is stored with the exponent: subtract it.",
            replace=(("(exponent - bias)", "(exponent + bias)"), ("(1 - bias)", "(1 + bias)")),
        ),
        wrong(
            "divides by the largest significand",
            "this is what dividing the significand by its largest value, 1023 in FP16, gives. "
            "Ten bits make 1024 steps.",
            replace=("steps = 2**significand_bits", "steps = 2**significand_bits - 1"),
        ),
        wrong(
            "ignores the sign",
            "this is what leaving out the sign bit gives: it is the highest of all.",
            replace=("-1.0 if sign else 1.0", "1.0"),
        ),
        wrong(
            "reads a signed integer",
            "this is what reading the code as a signed integer first gives. Integers work "
            "like that; here the sign bit changes the sign and nothing else.",
            lambda code, e, s, bias: (
                -solution.my_decode((2 << e + s) - code, e, s, bias)
                if code > 1 << e + s
                else solution.my_decode(code, e, s, bias)
            ),
        ),
        wrong(
            "knows no infinity",
            "this is what reading the last exponent field like the others gives: numbers beyond "
            "the largest. It is kept for infinity and NaN.",
            replace=("exponent == 2**exponent_bits - 1", "exponent == 2**exponent_bits"),
        ),
        wrong(
            "knows no NaN",
            "this is what taking all of the last exponent field for infinity gives. With any "
            "significand bit set it is NaN.",
            replace=("math.nan if significand else ", ""),
        ),
        wrong(
            "infinity without a sign",
            "this is what forgetting the sign of infinity gives: 0xFC00 of FP16 is -inf.",
            replace=("direction * math.inf", "math.inf"),
        ),
        wrong(
            "swaps infinity and NaN",
            "this is what swapping infinity and NaN gives. Infinity is the one with a "
            "significand of 0.",
            replace=(
                "math.nan if significand else direction * math.inf",
                "math.inf if significand else math.nan",
            ),
        ),
    ),
    two_zeros=True,
    codes=True,
    former=FP16_FIELDS,
    aside=_cut,
)

# --- numbers.ulp ---

FP16_ENDS = (10, -14)
"""Significand bits and smallest exponent of FP16: the last arguments of a case."""


def _values(codes: list[int]) -> list[Case]:
    return [(float(value), *FP16_ENDS) for value in decode(codes, FP16)]


def _elsewhere(
    random: Random, count: int, significands: Callable[[int], int], below: int = 0
) -> list[Case]:
    """Return numbers of random formats, at or above the smallest normal number.

    Args:
        random: Draws the formats and the numbers.
        count: How many numbers to return.
        significands: Maps the number of significands to one of them.
        below: The exponent is less than this above the smallest; 0 means 40.
    """
    cases: list[Case] = []
    for _ in range(count):
        significand_bits = random.randrange(2, 24)
        emin = random.randrange(-40, 3)
        exponent = emin + random.randrange(below or 40)
        steps = 2**significand_bits
        x = 2.0**exponent * (1 + significands(steps) / steps)
        cases.append((x, significand_bits, emin))
    return cases


def _at_powers_of_two(random: Random) -> list[Case]:
    powers = [1.0, 0.5, 1024.0, *(2.0 ** random.randrange(-13, 16) for _ in range(3))]
    fp16: list[Case] = [(x, *FP16_ENDS) for x in powers]
    return [*fp16, *_elsewhere(random, 4, lambda steps: 0)]


def _between(random: Random) -> list[Case]:
    """Above and below 1, where a logarithm changes its sign."""
    codes = [
        random.randrange(low + 1, low + 0x0400) for low in (0x3C00, 0x3800, 0x2C00, 0x5000, 0x7800)
    ]
    others = _elsewhere(random, 4, lambda steps: random.randrange(1, steps))
    return [*_values(codes), *others]


def _below_zero(random: Random) -> list[Case]:
    fp16 = _values([0xBC00, *(random.randrange(0x8800, 0xFC00) for _ in range(4))])
    others = _elsewhere(random, 4, random.randrange)
    return [*fp16, *((-cast(float, x), *ends) for x, *ends in others)]


def _small(random: Random) -> list[Case]:
    """Zero, the smallest normal number and subnormal ones."""
    codes = [0x0000, 0x8000, 0x0400, 0x0001, *(random.randrange(0x0002, 0x0400) for _ in range(3))]
    others: list[Case] = []
    for _ in range(3):
        significand_bits = random.randrange(3, 24)
        emin = random.randrange(-40, 3)
        unit = 2.0 ** (emin - significand_bits)
        numbers = (0.0, unit, unit * random.randrange(2, 2**significand_bits), 2.0**emin)
        others += [(x, significand_bits, emin) for x in numbers]
    return [*_values(codes), *others]


def _anywhere(random: Random) -> list[Case]:
    codes = [random.choice((0, 0x8000)) | random.randrange(0x7C00) for _ in range(20)]
    return [*_values([*codes, 0x7BFF, 0x8001]), *_elsewhere(random, 20, random.randrange)]


ULP = Exercise(
    id="numbers.ulp",
    notes="""How far the numbers of a format are apart.

    The point: the spacing follows from the binade alone, doubles with every power of two, and stops
    shrinking at the smallest exponent. Formats are drawn whose two ends belong to none of a
    library's.
    Oracle in the tests: numpy's `spacing` on float16.""",
    checks=(
        Check("at powers of two", 1, _at_powers_of_two),
        Check("between them", 1, _between),
        Check("below zero", 1, _below_zero),
        Check("subnormal numbers and zero", 1, _small),
        Check("anywhere", 1, _anywhere),
    ),
    mistakes=(
        wrong(
            "the same everywhere",
            "this is the spacing between 1 and 2, called epsilon. It doubles with every power "
            "of two.",
            replace=("max(exponent, emin) - significand_bits", "-significand_bits"),
        ),
        wrong(
            "proportional to x",
            "this is |x| * 2^-significand_bits. The spacing does not grow with x smoothly: it "
            "stays, then doubles at the next power of two.",
            lambda x, significand_bits, emin: abs(x) * 2.0**-significand_bits,
        ),
        wrong(
            "answers for FP16",
            "this is FP16's spacing in every format. The two ends are arguments.",
            lambda x, *_: solution.my_ulp(x, *FP16_ENDS),
        ),
        wrong(
            "one binade too high",
            "this is twice the spacing. math.frexp, for instance, gives an exponent that is "
            "one higher than that of 1.F x 2^e.",
            replace=("math.floor(math.log2(abs(x)))", "math.frexp(x)[1]"),
        ),
        wrong(
            "counts the hidden bit",
            "this is half the spacing: what counting the hidden bit gives. Only the stored bits "
            "are behind the point.",
            replace=("- significand_bits", "- significand_bits - 1"),
        ),
        wrong(
            "forgets subnormals",
            "this is what letting the exponent fall below emin gives. From there down to zero "
            "the spacing stays the same: 2^-24 in FP16.",
            replace=("max(exponent, emin)", "exponent"),
        ),
        wrong(
            "stops one binade too low",
            "this is what a lowest exponent of emin - 1 gives, as of exponent field 0. That "
            "field shares the exponent of field 1, which is emin.",
            replace=("max(exponent, emin)", "max(exponent, emin - 1)"),
        ),
        wrong(
            "forgets the sign",
            "this is what the logarithm of a negative number gives. Take abs(x) first.",
            replace=("abs(x)", "x"),
        ),
        wrong(
            "truncates the logarithm",
            "this is what int(log2(x)) gives. Below 1 the logarithm is negative, and int "
            "cuts towards zero: floor it.",
            replace=("math.floor", "int"),
        ),
        wrong(
            "rounds the logarithm up",
            "this is what rounding the logarithm up gives. It is right at powers of two, "
            "and one too high between.",
            replace=("math.floor", "math.ceil"),
        ),
    ),
    former=FP16_ENDS,
)

# --- numbers.first_gap ---


def _wide(random: Random) -> list[Case]:
    """Formats that get gaps before they end: long before, or in their last binade."""
    long_before = [(random.randrange(6, 11), random.randrange(1, 12)) for _ in range(8)]
    in_the_last_binade = [(3, 2), (4, 6), (5, 14)]
    return [*long_before, *in_the_last_binade, (11, 52)]


def _short(random: Random) -> list[Case]:
    """Formats that end before they get gaps.

    With 2 exponent bits they end at 4, with 3 at 16, with 4 at 256.
    """
    # With one significand bit less, these would have a gap.
    just = [(2, 1), (3, 3), (4, 7), (5, 15)]
    drawn: list[Case] = []
    for exponent_bits, fewest in ((3, 3), (4, 7), (3, 3), (2, 2)):
        drawn.append((exponent_bits, random.randrange(fewest, 20)))
    return [*drawn, *just]


FIRST_GAP = Exercise(
    id="numbers.first_gap",
    notes="""The whole number from which on a format has gaps.

    The point: significand_bits + 1 bits count without a gap up to 2 to that power, and some formats
    end before.
    Oracles in the tests: numpy, ml_dtypes and gfloat, asked number by number.""",
    checks=(
        Check(
            "the formats that people use",
            2,
            always(*((f.exponent_bits, f.significand_bits) for f in (FP16, BF16, E5M2, FP32))),
        ),
        Check("any format with room above", 1, _wide),
        Check("formats that end before they get gaps", 1, _short),
    ),
    mistakes=(
        wrong(
            "forgets the hidden bit",
            "this is what counting only the stored bits gives. The hidden 1 is a bit too.",
            replace=("min(first_odd, beyond_the_end)", "2**significand_bits + 1"),
        ),
        wrong(
            "the last before the gap",
            "this is the last number before the gap: a power of two, and so it is held.",
            replace=("min(first_odd, beyond_the_end)", "first_odd - 1"),
        ),
        wrong(
            "the largest that fits the significand",
            "this is all ones in the significand. It is held, and so is the "
            "next one, a power of two.",
            replace=("min(first_odd, beyond_the_end)", "first_odd - 2"),
        ),
        wrong(
            "the next that is held",
            "this one is held again: beyond the gap the even numbers go on. The one before "
            "it is missing.",
            replace=("min(first_odd, beyond_the_end)", "first_odd + 1"),
        ),
        wrong(
            "counts the sign",
            "this is what counting the sign as one more bit gives. It makes no number finer.",
            replace=("min(first_odd, beyond_the_end)", "2 ** (significand_bits + 2) + 1"),
        ),
        wrong(
            "where it overflows",
            "this is where the format ends. Long before, its numbers are more than 1 apart.",
            replace=("min(first_odd, beyond_the_end)", "beyond_the_end"),
        ),
        wrong(
            "never overflows",
            "this is right for formats with room above. Three exponent bits end before 16, "
            "however many significand bits there are.",
            replace=("min(first_odd, beyond_the_end)", "first_odd"),
        ),
        wrong(
            "answers for FP16",
            "this is the answer for FP16, whatever the widths are. Compute it from the two widths.",
            replace=("min(first_odd, beyond_the_end)", "2049"),
        ),
    ),
)

# --- numbers.next_up ---

ONE_STEP = (5, 10, 1)
"""Exponent bits and significand bits of FP16, and one step: the last arguments of a case."""


def _one_step(codes: Iterable[int]) -> list[Case]:
    return [(code, *ONE_STEP) for code in codes]


def _many_steps(random: Random, starts: Sequence[float], ends: Sequence[float]) -> list[Case]:
    """Return cases of wide formats whose numbers are too many for a loop.

    Args:
        random: Draws the formats.
        starts: Where each case starts: -1 is -inf, 0 is zero, 1 is +inf.
        ends: Where each case ends, on the same scale; beyond 1 is beyond +inf.
    """
    cases: list[Case] = []
    for exponent_bits, significand_bits in ((8, 23), (random.randrange(6, 11), 40)):
        sign = 1 << exponent_bits + significand_bits
        infinity = sign - 2**significand_bits
        for start, end in zip(starts, ends, strict=True):
            # Drawn even where it is not used, so that all cases take as many random numbers.
            beside = random.randrange(-99, 99)
            place = int(start * infinity)
            if abs(start) not in (0, 1):
                place += beside
            code = place if place >= 0 else sign - place
            steps = int(end * infinity) - place
            cases.append((code, exponent_bits, significand_bits, steps))
    return cases


def _positive(random: Random) -> list[Case]:
    codes = [0x3C00, *(random.randrange(0x0002, 0x7BFF) for _ in range(6))]
    return [*_one_step(codes), *_many_steps(random, (0.2, 0.5), (0.7, 0.9))]


def _across(random: Random) -> list[Case]:
    """The last code of a binade, the last subnormal, and zero."""
    last_of_binades = [random.randrange(2, 30) << 10 | 0x3FF for _ in range(3)]
    codes = [0x3BFF, 0x03FF, 0x0000, 0x0001, *last_of_binades]
    few: list[Case] = [(0x03FE, 5, 10, 3), (0x3BF0, 5, 10, random.randrange(20, 2000))]
    return [*_one_step(codes), *few, *_many_steps(random, (0, 0), (0.1, 0.6))]


def _negative(random: Random) -> list[Case]:
    """From one binade into the one nearer to zero, from normal to subnormal numbers, and from
    -2^-24 to -0.
    """
    ends = [0xBC00, 0xC000, 0x8400, 0x8002, 0x8001]
    codes = [*ends, *(random.randrange(0x8002, 0xFC00) for _ in range(4))]
    return [*_one_step(codes), *_many_steps(random, (-0.9, -0.5, -0.3), (-0.2, 0, 0.4))]


_EDGES: list[int] = [0x8000, 0x7BFF, 0x7BFE, 0x7C00, 0xFC00, 0xFBFF]
"""-0, the largest numbers of either sign, and both infinities."""


def _edges_of_formats(random: Random) -> list[Case]:
    few: list[Case] = [(0x7BFE, 5, 10, 2), (0x7BFE, 5, 10, 3), (0x8002, 5, 10, 2)]
    minus_zero: Case = (1 << 31, 8, 23, random.randrange(2**27, 2**28))
    wide = _many_steps(random, (-1, 0.5, 1, -0.5), (1, 1, 1.5, 1.5))
    return [*_one_step(_EDGES), *few, minus_zero, *wide]


def _any_codes(random: Random) -> list[Case]:
    codes = [random.choice((0, 0x8000)) | random.randrange(2, 0x7C00) for _ in range(30)]
    shares = [random.uniform(-1, 1) for _ in range(6)]
    return [
        *_one_step([*_EDGES, *codes]),
        *_many_steps(random, shares, [share + random.uniform(0.2, 1) for share in shares]),
    ]


def _in_bits(code: int, exponent_bits: int, significand_bits: int, steps: int) -> Rows:
    """Return rows with the bits and the value of a code, and of the code some steps above."""
    after = solution.my_next_up(code, exponent_bits, significand_bits, steps)
    bias = 2 ** (exponent_bits - 1) - 1
    rows: list[tuple[str, str]] = []
    for name, shown in (("that is", code), ("then comes", after)):
        ((_, fields),) = _cut(shown, exponent_bits, significand_bits, bias)
        value = solution_of_decode(shown, exponent_bits, significand_bits)
        rows.append((name, f"{fields}  {show_number(value)}"))
    return tuple(rows)


def solution_of_decode(code: int, exponent_bits: int, significand_bits: int) -> float:
    """Return the value of a code in a format with the usual bias."""
    bias = 2 ** (exponent_bits - 1) - 1
    return float(solution.my_decode(code, exponent_bits, significand_bits, bias))


@mistake
def takes_the_zeros_for_two_numbers(code: int, e: int, s: int, steps: int) -> int:
    """This is what a step from -0 to +0 gives. They are the same number: the next larger one is the
    smallest.
    """
    sign = 1 << e + s
    crosses = code >= sign and code - sign < steps
    return int(solution.my_next_up(code, e, s, steps - 1 if crosses else steps))


NEXT_UP = Exercise(
    id="numbers.next_up",
    notes="""From one number to those above it.

    The point: read as integers, codes of positive numbers count upwards through binades, subnormals
    and into infinity; negative ones count away from zero; and there are two zeros. IEEE 754-2019,
    5.3.1 says the same of one step. Many steps at once are an addition, which no library has.
    Oracle in the tests: numpy's nextafter.""",
    checks=(
        Check("positive numbers", 1, _positive),
        Check("from one binade into the next, and out of zero", 1, _across),
        Check("negative numbers", 1, _negative),
        Check("-0, the largest number and the infinities", 2, _edges_of_formats),
        Check("codes anywhere", 2, _any_codes),
    ),
    mistakes=(
        wrong(
            "always adds",
            "this is what code + steps gives for every code. For a negative number that is further "
            "down.",
            lambda code, e, s, steps: code + steps,
        ),
        wrong(
            "always subtracts",
            "this is what code - steps gives. For a positive number that is further down.",
            lambda code, e, s, steps: code - steps,
        ),
        wrong(
            "takes one step",
            "this takes one step, however many there are.",
            replace=("place + steps", "place + 1"),
        ),
        wrong(
            "answers for FP16",
            "this takes every code for one of FP16. The widths are arguments.",
            lambda code, e, s, steps: solution.my_next_up(code, 5, 10, steps),
        ),
        takes_the_zeros_for_two_numbers,
        wrong(
            "ends below zero at plus zero",
            "this is +0 where the steps from below end at zero. Below zero -0 comes last.",
            replace=(" or (place == 0 and code > sign)", ""),
        ),
        wrong(
            "stops at the largest number",
            "this is what stopping at the largest number gives. After it comes infinity.",
            replace=("place + steps, infinity", "place + steps, infinity - 1"),
        ),
        wrong(
            "goes beyond infinity",
            "this is what goes on after infinity: NaN. Nothing is larger than infinity, "
            "so it stays.",
            replace=("min(place + steps, infinity)", "place + steps"),
        ),
        wrong(
            "stays at minus infinity",
            "this is what leaving both infinities alone gives. Above -inf comes the largest "
            "negative number.",
            lambda code, e, s, steps: (
                code if code == (2 << e + s) - 2**s else solution.my_next_up(code, e, s, steps)
            ),
        ),
        wrong(
            "loses the carry",
            "this is what adding to the significand field alone gives. Let it carry into the "
            "exponent: the next binade begins there.",
            lambda code, e, s, steps: (
                code >> s << s | (code + (-steps if code >> e + s else steps)) % 2**s
            ),
        ),
        wrong(
            "returns the value",
            "this is the value of that number. Return its code.",
            lambda code, e, s, steps: solution_of_decode(
                solution.my_next_up(code, e, s, steps), e, s
            ),
        ),
    ),
    codes=True,
    former=ONE_STEP,
    aside=_in_bits,
)

# --- numbers.bytes ---


def _shape(random: Random, dimensions: int) -> tuple[int, ...]:
    return tuple(random.randrange(3, 40) for _ in range(dimensions))


def _usual(random: Random) -> list[Case]:
    """Tensors of one to four dimensions; the last has more bytes than 32 bits can count."""
    drawn = [
        (_shape(random, dimensions), bits)
        for dimensions, bits in ((1, 16), (2, 16), (2, 32), (3, 32), (4, 16))
    ]
    return [*drawn, ((65537, random.randrange(40_001, 60_001, 2)), 16)]


def _edges(random: Random) -> list[Case]:
    """A single number has the shape (); a tensor may be empty."""
    return [
        ((), 16),
        ((), 32),
        ((*_shape(random, 1), 0), 16),
        ((0, *_shape(random, 1)), 32),
        ((1, 1, 1), 16),
        ((), 4),
    ]


def _narrow(random: Random) -> list[Case]:
    """Packed elements of widths that a dtype has, and of widths that none has.

    An odd number of 4-bit elements ends in half a byte.
    """
    odd = random.randrange(3, 20) * 2 + 1
    widths = (1, 12, 64, random.choice((2, 3, 5, 7, 9, 19)))
    others = [(_shape(random, 2), bits) for bits in widths]
    # Their bits are not whole bytes. The second has more elements than FP32 counts without a gap.
    many = [
        ((1031, random.randrange(1025, 1500, 2)), 6),
        ((4 * random.randrange(2**22, 2**23) + 1,), 4),
    ]
    return [(_shape(random, 2), 8), ((odd,), 4), ((odd, 3), 6), *others, *many]


BYTES = Exercise(
    id="numbers.bytes",
    notes="""How many bytes a tensor takes.

    The point: elements times bits, whatever the numbers are; which is also all that a number format
    saves by itself.
    Oracle in the tests: torch's own tensors.""",
    checks=(
        Check("tensors in 16 and in 32 bits", 1, _usual),
        Check("a single number, and an empty tensor", 1, _edges),
        Check("formats of 8, 6 and 4 bits, and of any", 1, _narrow),
    ),
    mistakes=(
        wrong(
            "adds the dimensions",
            "this is what adding the dimensions gives. A 3 x 5 tensor has 15 elements.",
            replace=("math.prod", "sum"),
        ),
        wrong("counts bits", "this is the number of bits. A byte has eight.", replace=(" / 8", "")),
        wrong("counts elements", "this is the number of elements.", replace=(" * bits / 8", "")),
        wrong(
            "counts the first dimension",
            "this is what len(tensor) counts: the first dimension only.",
            replace=("math.prod(shape)", "math.prod(shape[:1])"),
        ),
        wrong(
            "a single number is nothing",
            "this is what starting the product at 0, or special-casing (), gives. A "
            "shape without dimensions is one number.",
            replace=("bits / 8)", "bits / 8) if shape else 0"),
        ),
        wrong(
            "always FP16",
            "this is two bytes an element, whatever the format. Use `bits`.",
            replace=("bits / 8", "2"),
        ),
        wrong(
            "a byte an element at least",
            "this is what whole bytes for each element give. Packed, two 4-bit elements share one.",
            replace=("math.ceil(math.prod(shape) * ", "math.prod(shape) * math.ceil("),
        ),
        wrong(
            "drops the last byte",
            "this is what rounding down gives. Half a byte at the end still takes one.",
            replace=("math.ceil", "math.floor"),
        ),
    ),
)

EXERCISES = (DECODE, ULP, FIRST_GAP, NEXT_UP, BYTES)
