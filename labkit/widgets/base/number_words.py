"""Numbers written where a person only glances at them.

Idea: a few digits, and powers of two by their exponent. What must be exact is written by
`exact_decimal` instead.

Invariant: what is written is the number rounded once, to the digits shown, or for a share near 0%
or 100% a bound; zero is only written for zero.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal
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
    rounded = (
        Context(prec=digits)
        .divide(Decimal(exact.numerator), Decimal(exact.denominator))
        .normalize()
    )
    power = rounded.adjusted()
    if -3 <= power < 6:
        return f"{rounded:f}"
    return f"{rounded.scaleb(-power):f}e{power}"


def short(value: float) -> str:
    """Return a measured number as a person reads it: three significant digits, NaN and inf by name.

    >>> short(0.02521), short(0.00000003), short(999_900.0), short(float("nan"))
    ('0.0252', '3e-8', '1000000', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):.7g}"
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
    """Return a share (0 to 1) as a person reads it.

    Something is never shown as nothing, nor almost all as all.

    >>> [percent(share) for share in (0, 0.00001, 0.0014, 0.025, 0.797, 0.99951, 1)]
    ['0%', '<0.01%', '0.14%', '2.5%', '80%', '>99.9%', '100%']
    """
    p = 100 * share
    if p == 0:
        return "0%"
    if p >= 100:
        return "100%"
    if p < 0.01:
        return "<0.01%"
    if p > 99.9:
        return ">99.9%"
    if p < 1:
        places = "0.01"
    elif p < 9.95 or p >= 99:
        places = "0.1"
    else:
        places = "1"
    # Half up, as JavaScript's toFixed does: 12.5 is 13 on both sides.
    return f"{Decimal(p).quantize(Decimal(places), ROUND_HALF_UP)}%"


def two_digits(ratio: float) -> str:
    """Return a ratio with two digits, without an exponent.

    >>> two_digits(183.4), two_digits(0.2349), two_digits(1_234_567)
    ('180', '0.23', '1200000')
    """
    return f"{Decimal(f'{ratio:.2g}'):f}"


def number(value: float) -> str:
    """Write a value with five digits; whole numbers below ten million keep all of theirs.

    >>> [number(value) for value in (1.0, 65504.0, 0.00010001659, -0.1015625, float("-inf"))]
    ['1', '65,504', '1.0002e-4', '−0.10156', '−inf']
    """
    sign = MINUS if np.signbit(value) and not np.isnan(value) else ""
    size = abs(value)
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
