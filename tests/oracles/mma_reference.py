"""The Tensor Core model in exact rational arithmetic, written from its description alone.

Nothing of labkit is used: no format, no row, no rounding. Every finite number is a whole multiple
of 2^-GRID, so a Python integer holds it; what is written here follows arXiv:2511.10909 sentence by
sentence, one dot product at a time.
"""

import math
from collections.abc import Sequence

# 2^-400 divides every product (2^-298 at least), every unit of alignment and every FP32 number.
GRID = 400

# name: (exponent of the smallest normal number, stored significand bits), written out by hand
FORMATS = {
    "FP32": (-126, 23),
    "TF32": (-126, 10),
    "FP16": (-14, 10),
    "BF16": (-126, 7),
    "E5M2": (-14, 2),
    "E4M3": (-6, 3),
}
LARGEST = {"FP32": (2**24 - 1) << 104, "FP16": 65504, "BF16": (2**8 - 1) << 120}


def whole(value: float) -> int:
    """Return a finite number as a multiple of 2^-GRID."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator << GRID) // denominator


def exponent_of(value: int, emin: int) -> int:
    """Return floor(log2 |value|), but no less than emin."""
    return max(abs(value).bit_length() - 1 - GRID, emin)


def dot(
    a: Sequence[float],
    b: Sequence[float],
    c: float,
    operands: str,
    block_length: int,
    fraction_bits: int,
    result: str = "FP32",
    result_bits: int = 23,
    operands_b: str = "",
) -> float:
    """Return D = C + sum of a[i] * b[i], block after block.

    `operands_b` names the format of b if it is not that of a.
    """
    for first in range(0, len(a), block_length):
        part = slice(first, first + block_length)
        pair = operands, operands_b or operands
        c = block(a[part], b[part], c, pair, fraction_bits, result, result_bits)
    return c


def block(
    a: Sequence[float],
    b: Sequence[float],
    c: float,
    operands: tuple[str, str],
    fraction_bits: int,
    result: str,
    result_bits: int,
) -> float:
    special = special_sum(a, b, c)
    if special is not None:
        return special
    emin, emin_b = (FORMATS[name][0] for name in operands)
    terms = []
    for x, y in zip(a, b, strict=True):
        left = whole(x)
        right = whole(y)
        terms.append((left * right >> GRID, exponent_of(left, emin) + exponent_of(right, emin_b)))
    terms.append((whole(c), exponent_of(whole(c), FORMATS[result][0])))
    # A zero C has the exponent of FP32's zero, -126; a product of zero has none.
    largest = max([-126, *(exponent for value, exponent in terms if value)])
    unit = 1 << (GRID + largest - fraction_bits)
    # the rest is cut off
    total = sum(abs(value) // unit * (1 if value >= 0 else -1) for value, _ in terms) * unit
    # Results in FP16 are rounded to nearest, those in FP32 are cut.
    return to_format(total, result, result_bits, nearest=result == "FP16")


def to_format(total: int, result: str, bits: int = 52, nearest: bool = True) -> float:
    """Return a multiple of 2^-GRID rounded to a format, or to fewer significand bits.

    A number beyond the largest of the format becomes infinity.
    """
    emin, stored = FORMATS[result]
    place = 1 << (GRID + exponent_of(total, emin) - min(bits, stored))
    units, rest = divmod(abs(total), place)
    # a tie is rounded to the even number of units
    if nearest and 2 * rest + units % 2 > place:
        units += 1
    size = units * place
    # int / int is correctly rounded
    magnitude = math.inf if size > LARGEST[result] << GRID else size / (1 << GRID)
    return -magnitude if total < 0 else magnitude


def special_sum(a: Sequence[float], b: Sequence[float], c: float) -> float | None:
    """Return the sum by IEEE 754 if a number is infinite or NaN; None if all are finite."""
    if all(math.isfinite(value) for value in (*a, *b, c)):
        return None
    terms = [
        *(
            0.0 if math.isfinite(x) and math.isfinite(y) else x * y
            for x, y in zip(a, b, strict=True)
        ),
        c,
    ]
    signs = {math.copysign(1.0, term) for term in terms if math.isinf(term)}
    if any(math.isnan(term) for term in terms) or len(signs) == 2:
        return math.nan
    return math.copysign(math.inf, signs.pop())
