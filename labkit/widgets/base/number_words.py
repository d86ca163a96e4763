"""Numbers written where a person only glances at them.

Idea: a few digits, and powers of two by their exponent. What must be exact is written by `exact_decimal` instead.

Invariant: what is written is the number rounded once, to the digits shown; zero is only written for zero.
"""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction

import numpy as np

MINUS = "−"


def brief(number: Fraction | float, digits: int = 3) -> str:
    """Write a finite number with a few digits; whole numbers below ten million keep all of theirs.

    >>> brief(2.0**-24), brief(1 / 3), brief(65504.0), brief(3.4028e38), brief(-0.1)
    ('5.96e-8', '0.333', '65504', '3.4e38', '-0.1')
    """
    exact = Fraction(number)
    if exact.denominator == 1 and abs(exact) < 10**7:
        return str(exact.numerator)
    rounded = Context(prec=digits).divide(Decimal(exact.numerator), Decimal(exact.denominator)).normalize()
    power = rounded.adjusted()
    if -3 <= power < 6:
        return f"{rounded:f}"
    return f"{rounded.scaleb(-power):f}e{power}"


def leading(number: Fraction | float, digits: int = 12, *, plain_from: int = -3) -> str:
    """Write the first digits of a number, not rounded, and "…" where more follow; below 10^plain_from with a power.

    >>> leading(1 / 3), leading(2.0**-10 / 3), leading(0.5)
    ('0.333333333333…', '3.25520833333…e-4', '0.5')
    """
    exact = Fraction(number)
    context = Context(prec=digits, rounding=ROUND_DOWN)
    cut = context.divide(Decimal(exact.numerator), Decimal(exact.denominator))
    more = "" if Fraction(cut) == exact else "…"
    cut = cut if more else cut.normalize(context)
    power = cut.adjusted() if cut else 0
    plain = plain_from <= power < digits
    return f"{cut if plain else cut.scaleb(-power, context):f}" + more + ("" if plain else f"e{power}")


def power_of_two(number: Fraction | float) -> int | None:
    """Return k where |number| is 2^k, else None.

    >>> power_of_two(0.125), power_of_two(0.1)
    (-3, None)
    """
    top, bottom = abs(Fraction(number)).as_integer_ratio()
    if top < 1 or top & (top - 1) or bottom & (bottom - 1):
        return None
    return top.bit_length() - bottom.bit_length()


def spaced(number: Fraction | float) -> str:
    """Write a number for a sentence, a power of two with its exponent.

    >>> spaced(2.0**-10), spaced(1.0), spaced(1.5 * 2.0**-14)
    ('2^-10 = 9.77e-4', '1', '9.16e-5')
    """
    k = power_of_two(number)
    if k is None or 0 <= k <= 3:  # 1, 2, 4 and 8 need no explanation
        return brief(number)
    return f"{'-' if number < 0 else ''}2^{k} = {brief(number)}"


def percent_of(part: Fraction) -> str:
    """Write a share as a percentage with two digits; something is never shown as nothing, nor what is huge in digits.

    >>> percent_of(Fraction(1, 3)), percent_of(Fraction(1, 4096)), percent_of(Fraction(20))
    ('33%', '0.024%', '>1000%')
    """
    if part > 10:
        return ">1000%"
    return f"{brief(100 * part, 2)}%"


def short(value: float) -> str:
    """Return a measured number as a person reads it: three significant digits, NaN and inf by name.

    >>> short(0.02521), short(0.00000003), short(float("nan"))
    ('0.0252', '3e-8', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):g}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def power(scale: float) -> str:
    """Return a scale as a power of two where it is one.

    >>> power(1024.0), power(0.5), power(1000.0)
    ('2^10', '2^-1', '1000')
    """
    fraction, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if fraction == 0.5 else short(scale)


def percent(share: float) -> str:
    """Return a share (0 to 1) as a person reads it; something is never shown as nothing, nor almost all as all.

    >>> [percent(share) for share in (0, 0.00001, 0.0014, 0.025, 0.797, 0.99951, 1)]
    ['0%', '<0.01%', '0.14%', '2.5%', '80%', '>99.9%', '100%']
    """
    p = 100 * share
    if p == 0 or p >= 100:
        return "0%" if p == 0 else "100%"
    if p < 0.01:
        return "<0.01%"
    if p >= 99.9:
        return ">99.9%"
    places = "0.01" if p < 1 else "0.1" if p < 9.95 or p >= 99 else "1"
    # Half up, as JavaScript's toFixed does: 12.5 is 13 on both sides.
    return f"{Decimal(p).quantize(Decimal(places), ROUND_HALF_UP)}%"


def two_digits(ratio: float) -> str:
    """Return a ratio with two digits, without an exponent.

    >>> two_digits(183.4), two_digits(0.2349)
    ('180', '0.23')
    """
    return f"{float(f'{ratio:.2g}'):g}"


def number(value: float) -> str:
    """Write a value as a person reads it, five digits.

    >>> [number(value) for value in (1.0, 65504.0, 0.00010001659, -0.1015625, float("-inf"))]
    ['1', '65,504', '1.0002e-4', '−0.10156', '−inf']
    """
    sign, size = (MINUS if np.signbit(value) and not np.isnan(value) else ""), abs(value)
    if not np.isfinite(size):
        return f"{sign}{'NaN' if np.isnan(size) else 'inf'}"
    if size == int(size) and size < 1e7:
        return f"{sign}{int(size):,}"
    text = f"{size:.5g}"
    digits, _, exponent = text.partition("e")
    if not exponent and size < 1e-3:
        digits, _, exponent = f"{size:.4e}".partition("e")
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return f"{sign}{digits}" + (f"e{int(exponent)}" if exponent else "")
