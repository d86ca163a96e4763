"""What does the zoom say of one gradient: which of its sixteen bits would move if it were twice as large?

Idea: doubling adds one to the exponent field and leaves the significand alone, but at both ends of FP16.

Invariant: what is said of a gradient is read off two codes, of the number and of twice the number.
"""

from __future__ import annotations

from labkit.formats import FP16, NumberClass, classify, decode, split
from labkit.widgets.base.number_words import percent, spaced
from labkit.widgets.bits.words import explore


def code_of(value: float) -> int:
    """Return the FP16 code that a number is rounded to.

    >>> hex(code_of(1.0)), hex(code_of(2.0**-30)), hex(code_of(1e9))
    ('0x3c00', '0x0', '0x7c00')
    """
    return explore(repr(value), FP16).code


def gradient_sentence(gradient: float, log2_scale: int) -> str:
    """Say what FP16 makes of a gradient at a scale, and what twice the scale would change.

    >>> gradient_sentence(1.5 * 2.0**-10, 3)
    'FP16 holds it, in full precision. Times two, only the exponent field moves, from 8 to 9: the significand stays.'
    >>> gradient_sentence(2.0**-30, 0)
    'FP16 makes it 0: it is below 2^-25, half of the smallest number. Times two, it is 0 as well.'
    """
    if gradient == 0:
        return "It is exactly zero already in FP32: no scale changes that."
    value = gradient * 2.0**log2_scale
    return f"{_now(value)} {_doubled(code_of(value), code_of(2 * value))}"


def _now(value: float) -> str:
    kind = classify(code_of(value), FP16)
    if kind == NumberClass.ZERO:
        return "FP16 makes it 0: it is below 2^-25, half of the smallest number."
    if kind == NumberClass.INFINITY:
        return "FP16 makes it inf: it is 65520 or more."
    if kind == NumberClass.SUBNORMAL:
        error = percent(abs(float(decode(code_of(value), FP16)) / value - 1))
        return f"FP16 holds it as a subnormal number, {error} off."
    return "FP16 holds it, in full precision."


def _doubled(code: int, twice: int) -> str:
    before, after = (tuple(int(field) for field in split(one, FP16)) for one in (code, twice))
    kinds = classify(code, FP16), classify(twice, FP16)
    if kinds[1] == NumberClass.ZERO:
        return "Times two, it is 0 as well."
    if kinds[1] == NumberClass.INFINITY:
        return "Times two, it is inf."
    if kinds[0] == NumberClass.ZERO:
        return f"Times two, it is rounded up to {spaced(abs(float(decode(twice, FP16))))} and is not lost."
    if kinds[0] == NumberClass.SUBNORMAL:
        return "Times two, its significand bits move one place to the left, and one more bit of the gradient fits."
    return f"Times two, only the exponent field moves, from {before[1]} to {after[1]}: the significand stays."
