"""Exercises of the lesson."""

from __future__ import annotations

import struct
from random import Random

import numpy as np

from labkit.formats import BF16, E5M2, FP16, FP32, decode, next_up, ulp
from labkit.grading.difference import bits_of_code, show_number
from labkit.grading.draws import always
from labkit.grading.exercise import CASTS_TO_FP16, Case, Check, Exercise, Rows, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- numbers.decode ---


def _codes(random: Random, low: int, high: int, count: int) -> list[Case]:
    """Codes of either sign whose other fifteen bits lie in low <= bits < high."""
    return [(random.choice((0, 0x8000)) | random.randrange(low, high),) for _ in range(count)]


def _normal(random: Random) -> list[Case]:
    """1 and -2, then any: exponent field 1 to 30."""
    return [(0x3C00,), (0xC000,), (0x3E00,), *_codes(random, 0x0401, 0x7C00, 8)]


def _subnormal(random: Random) -> list[Case]:
    """Exponent field 0: both zeros, the smallest, the largest, and some between."""
    return [
        (0x0000,),
        (0x8000,),
        (0x0001,),
        (0x03FF,),
        (0x83FF,),
        *_codes(random, 0x0002, 0x03FF, 6),
    ]


def _special(random: Random) -> list[Case]:
    """Exponent field 31."""
    return [
        (0x7C00,),
        (0xFC00,),
        (0x7E00,),
        (0x7FFF,),
        (0xFFFF,),
        *_codes(random, 0x7C01, 0x8000, 4),
    ]


def _all_kinds(random: Random) -> list[Case]:
    return [
        (0x0400,),
        (0x7BFF,),
        (0xFBFF,),
        (0x8001,),
        (0xFC00,),
        (0x7C01,),
        *_codes(random, 0x0002, 0x7C00, 60),
    ]


DECODE = Exercise(
    id="numbers.decode",
    notes="""The sixteen bits of an FP16 number, read by hand.

    The point: one formula for normal numbers, one for exponent field 0, and a last field that is no number at all.
    Oracle in the tests: numpy's float16, on all 65,536 codes.""",
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
            replace=("1 + significand", "significand"),
        ),
        wrong(
            "forgets subnormals",
            "this is what reading exponent field 0 like the others gives. There the hidden 1 "
            "is gone, so that zero can be written.",
            replace=("2.0**-14 * (significand / 1024)", "2.0**-15 * (1 + significand / 1024)"),
        ),
        wrong(
            "subnormals one binade too low",
            "this is what 2^(0 - 15) gives for exponent field 0. It shares the "
            "exponent of field 1, which is -14.",
            replace=("2.0**-14", "2.0**-15"),
        ),
        wrong(
            "has a bias of 16",
            "this is what a bias of 16, half of 32, gives. It is 15: one less than half.",
            replace=("exponent - 15", "exponent - 16"),
        ),
        wrong(
            "has the bias of FP32",
            "this is what a bias of 127 gives, which is FP32's. With five exponent bits it is 15.",
            replace=("exponent - 15", "exponent - 127"),
        ),
        wrong(
            "divides by 1023",
            "this is what dividing the significand by 1023, its largest value, gives. Ten bits "
            "make 1024 steps.",
            replace=(
                ("(significand / 1024)", "(significand / 1023)"),
                ("1 + significand / 1024", "1 + significand / 1023"),
            ),
        ),
        wrong(
            "ignores the sign",
            "this is what leaving out the sign bit gives: it is the highest of the sixteen, code "
            ">> 15.",
            replace=("-1.0 if sign else 1.0", "1.0"),
        ),
        wrong(
            "reads a signed integer",
            "this is what reading the code as a signed integer first gives. Integers work "
            "like that; here the sign bit changes the sign and nothing else.",
            lambda code: (
                -solution.my_decode(0x10000 - code) if code > 0x8000 else solution.my_decode(code)
            ),
        ),
        wrong(
            "reads BF16",
            "this is what eight exponent bits and seven significand bits give. That is BF16; FP16 has "
            "five and ten.",
            lambda code: float(np.array(code << 16, np.uint32).view(np.float32)),
        ),
        wrong(
            "knows no infinity",
            "this is what reading exponent field 31 like the others gives: numbers beyond "
            "65504. It is kept for infinity and NaN.",
            replace=("exponent == 31", "exponent == 32"),
        ),
        wrong(
            "knows no NaN",
            "this is what taking all of exponent field 31 for infinity gives. With any significand "
            "bit set it is NaN.",
            replace=("math.nan if significand else ", ""),
        ),
        wrong(
            "infinity without a sign",
            "this is what forgetting the sign of infinity gives: 0xFC00 is -inf.",
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
    withheld=(decode, *CASTS_TO_FP16, struct.unpack),
    aside=lambda code: (("in bits", bits_of_code(code)),),
)

# --- numbers.ulp ---


def _values(codes: list[int]) -> list[Case]:
    return [(float(value),) for value in decode(codes, FP16)]


def _at_powers_of_two(random: Random) -> list[Case]:
    return [(1.0,), (0.5,), (1024.0,), *((2.0 ** random.randrange(-13, 16),) for _ in range(4))]


def _between(random: Random) -> list[Case]:
    """Above and below 1, where a logarithm changes its sign."""
    return _values(
        [
            random.randrange(low + 1, low + 0x0400)
            for low in (0x3C00, 0x3800, 0x2C00, 0x5000, 0x7800)
        ]
    )


def _below_zero(random: Random) -> list[Case]:
    return _values([0xBC00, *(random.randrange(0x8800, 0xFC00) for _ in range(5))])


def _small(random: Random) -> list[Case]:
    """Zero, the smallest normal number and subnormal ones."""
    return _values(
        [0x0000, 0x8000, 0x0400, 0x0001, *(random.randrange(0x0002, 0x0400) for _ in range(4))]
    )


def _anywhere(random: Random) -> list[Case]:
    return _values(
        [random.choice((0, 0x8000)) | random.randrange(0x7C00) for _ in range(40)]
        + [0x7BFF, 0x8001]
    )


ULP = Exercise(
    id="numbers.ulp",
    notes="""How far FP16's numbers are apart.

    The point: the spacing follows from the binade alone, doubles with every power of two, and stops shrinking at 2^-14.
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
            replace=("max(exponent, -14) - 10", "-10"),
        ),
        wrong(
            "proportional to x",
            "this is x times 2^-10. The spacing does not grow with x smoothly: it stays, then "
            "doubles at the next power of two.",
            lambda x: abs(x) * 2.0**-10,
        ),
        wrong(
            "one binade too high",
            "this is twice the spacing. math.frexp, for instance, gives an exponent that is "
            "one higher than that of 1.F x 2^e.",
            replace=("math.floor(math.log2(abs(x)))", "math.frexp(x)[1]"),
        ),
        wrong(
            "counts the hidden bit",
            "this is half the spacing: what counting the hidden bit gives. Ten bits are "
            "stored behind the point.",
            replace=("- 10", "- 11"),
        ),
        wrong(
            "forgets subnormals",
            "this is what letting the exponent fall below -14 gives. From there down to zero "
            "the spacing stays 2^-24.",
            replace=("max(exponent, -14)", "exponent"),
        ),
        wrong(
            "stops one binade too low",
            "this is what a lowest exponent of 0 - 15 gives. Exponent field 0 shares "
            "that of field 1, which is -14.",
            replace=("max(exponent, -14)", "max(exponent, -15)"),
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
    withheld=(ulp, np.spacing),
)

# --- numbers.first_gap ---


def _wide(random: Random) -> list[Case]:
    """Formats that get gaps before they end: long before, or in their last binade."""
    last = [(3, 2), (4, 6), (5, 14)]
    return [
        *((random.randrange(6, 11), random.randrange(1, 12)) for _ in range(8)),
        *last,
        (11, 52),
    ]


def _short(random: Random) -> list[Case]:
    """Formats that end before they get gaps: with 2 exponent bits at 4, with 3 at 16, with 4 at 256."""
    just = [(2, 1), (3, 3), (4, 7), (5, 15)]  # one significand bit less, and there is a gap
    return [*((e, random.randrange(low, 20)) for e, low in ((3, 3), (4, 7), (3, 3), (2, 2))), *just]


FIRST_GAP = Exercise(
    id="numbers.first_gap",
    notes="""The whole number from which on a format has gaps.

    The point: significand_bits + 1 bits count without a gap up to 2 to that power, and some formats end before.
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


def _positive(random: Random) -> list[Case]:
    return [(0x3C00,), *((random.randrange(0x0002, 0x7BFF),) for _ in range(6))]


def _across(random: Random) -> list[Case]:
    """The last code of a binade, the last subnormal, and zero."""
    return [
        (0x3BFF,),
        (0x03FF,),
        (0x0000,),
        (0x0001,),
        *((random.randrange(2, 30) << 10 | 0x3FF,) for _ in range(3)),
    ]


def _negative(random: Random) -> list[Case]:
    """From one binade into the one nearer to zero, from normal to subnormal numbers, and from -2^-24 to -0."""
    ends = [(0xBC00,), (0xC000,), (0x8400,), (0x8002,), (0x8001,)]
    return [*ends, *((random.randrange(0x8002, 0xFC00),) for _ in range(6))]


_EDGES: list[Case] = [(0x8000,), (0x7BFF,), (0x7BFE,), (0x7C00,), (0xFC00,), (0xFBFF,)]
"""-0, the largest numbers of either sign, and both infinities."""


def _in_bits(code: int) -> Rows:
    rows = (("that is", code), ("next is", solution.my_next_up(code)))
    return tuple(
        (name, f"{bits_of_code(c)}  {show_number(float(decode(c, FP16)))}") for name, c in rows
    )


NEXT_UP = Exercise(
    id="numbers.next_up",
    notes="""From one FP16 number to the next.

    The point: read as integers, codes of positive numbers count upwards through binades, subnormals and into infinity;
    negative ones count away from zero; and there are two zeros. IEEE 754-2019, 5.3.1 says the same.
    Oracle in the tests: numpy's nextafter.""",
    checks=(
        Check("positive numbers", 1, _positive),
        Check("from one binade into the next, and out of zero", 1, _across),
        Check("negative numbers", 1, _negative),
        Check("-0, the largest number and the infinities", 2, always(*_EDGES)),
        Check("codes anywhere", 2, lambda random: _EDGES + _codes(random, 2, 0x7C00, 30)),
    ),
    mistakes=(
        wrong(
            "always adds 1",
            "this is what code + 1 gives for every code. For a negative number that is the next one "
            "down.",
            lambda code: code + 1,
        ),
        wrong(
            "always subtracts 1",
            "this is what code - 1 gives. For a positive number that is the next one down.",
            replace=("code - 1 if code & 0x8000 else code + 1", "code - 1 if code else 1"),
        ),
        wrong(
            "falls off minus zero",
            "this is what 0x8000 - 1 gives: 0x7FFF, a NaN. Minus zero is zero, and the next "
            "number is 2^-24.",
            replace=("return 0x0001", "return 0x8000 - 1"),
        ),
        wrong(
            "takes the zeros for two numbers",
            "this is what stepping from -0 to +0 gives. They are the same number: "
            "the next larger one is 2^-24.",
            replace=("return 0x0001", "return 0x0000"),
        ),
        wrong(
            "stops at the largest number",
            "this is what stopping at 65504 gives. After it comes infinity.",
            replace=("code == 0x7C00", "code in (0x7BFF, 0x7C00)"),
        ),
        wrong(
            "goes beyond infinity",
            "this is what 0x7C00 + 1 gives: 0x7C01, a NaN. Nothing is larger than infinity, "
            "so it stays.",
            replace=("return code\n", "return code + 1\n"),
        ),
        wrong(
            "stays at minus infinity",
            "this is what leaving both infinities alone gives. Above -inf comes -65504.",
            replace=("code == 0x7C00", "code in (0x7C00, 0xFC00)"),
        ),
        wrong(
            "loses the carry",
            "this is what adding 1 to the significand field alone gives. Let it carry into the "
            "exponent: the next binade begins there.",
            replace=("else code + 1", "else code & 0xFC00 | (code + 1) & 0x03FF"),
        ),
        wrong(
            "skips the subnormals",
            "this is what stepping from zero to the smallest normal number gives. 1,023 "
            "subnormal ones lie between.",
            lambda code: 0x0400 if (code & 0x7FFF) < 0x0400 else solution.my_next_up(code),
        ),
        wrong(
            "returns the value",
            "this is the value of the next number. Return its code.",
            lambda code: float(decode(solution.my_next_up(code), FP16)),
        ),
    ),
    codes=True,
    withheld=(next_up, np.nextafter),
    aside=_in_bits,
)

# --- numbers.bytes ---


def _shape(random: Random, dimensions: int) -> tuple[int, ...]:
    return tuple(random.randrange(3, 40) for _ in range(dimensions))


def _usual(random: Random) -> list[Case]:
    """Of one to four dimensions; last, one of more bytes than 32 bits count."""
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
    """Bits that a dtype has, and that none has, packed: an odd number of 4-bit elements ends in half a byte."""
    odd = random.randrange(3, 20) * 2 + 1
    others = [(_shape(random, 2), bits) for bits in (1, 12, 64, random.choice((2, 3, 5, 7, 9, 19)))]
    # more than FP32 counts without a gap
    many = [
        ((1031, random.randrange(1025, 1500, 2)), 6),
        ((4 * random.randrange(2**22, 2**23) + 1,), 4),
    ]
    return [(_shape(random, 2), 8), ((odd,), 4), ((odd, 3), 6), *others, *many]


BYTES = Exercise(
    id="numbers.bytes",
    notes="""How many bytes a tensor takes.

    The point: elements times bits, whatever the numbers are; which is also all that a number format saves by itself.
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
