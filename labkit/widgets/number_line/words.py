"""What does a number round to, in each way of rounding, and how is that said?

Idea: `round_to` is asked once for each rounding; stochastic rounding is asked twice, with the luckiest and the
unluckiest draw, and the odds lie in the distance to the two outcomes.

Invariant: every outcome comes from `round_to`; the odds of the outcomes add up to 1, and their mean is the number
wherever both are finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from labkit.formats import Format, Rounding, Specials, encode, round_to, rounding_interval, ulp
from labkit.widgets.base.number_words import brief, spaced
from labkit.widgets.bits.words import name_of

NAMES = {
    Rounding.NEAREST_EVEN: "to nearest, ties to even",
    Rounding.NEAREST_AWAY: "to nearest, ties away from 0",
    Rounding.TOWARD_ZERO: "toward 0",
    Rounding.TOWARD_POSITIVE: "toward +infinity",
    Rounding.TOWARD_NEGATIVE: "toward -infinity",
    Rounding.STOCHASTIC: "stochastic",
}


@dataclass(frozen=True)
class Outcome:
    """What a number may become, and how often."""

    value: float
    odds: Fraction


def outcomes(x: float, format: Format, rounding: Rounding) -> tuple[Outcome, ...]:
    """Return what a number becomes: one value, or two for stochastic rounding, the lower one first.

    >>> from labkit.formats import FP16
    >>> [(o.value, str(o.odds)) for o in outcomes(2048.5, FP16, Rounding.STOCHASTIC)]
    [(2048.0, '3/4'), (2050.0, '1/4')]
    """
    if rounding is not Rounding.STOCHASTIC:
        return (Outcome(float(round_to(x, format, rounding)), Fraction(1)),)
    bits = (np.asarray(2**32 - 1), np.asarray(0))  # the draw that never goes away from 0, and the one that always does
    inner, outer = (float(round_to(x, format, rounding, random_bits=draw)) for draw in bits)
    away = abs(Fraction(x)) / Fraction(float(ulp(x, format))) % 1
    if inner == outer or np.isnan(inner) or away == 0:
        return (Outcome(inner, Fraction(1)),)
    both = (Outcome(inner, 1 - away), Outcome(outer, away))
    return both if x > 0 else both[::-1]


def interval(x: float, format: Format, rounding: Rounding) -> dict[str, Any] | None:
    """Return the real numbers that round as x does: low, high (None at infinity), and whether these belong to it.

    For stochastic rounding: the gap that x lies in. None where the outcome is no number.

    >>> from labkit.formats import FP16
    >>> interval(0.1, FP16, Rounding.NEAREST_EVEN)
    {'low': 0.099945068359375, 'high': 0.100006103515625, 'low_in': True, 'high_in': True}
    """
    found = outcomes(x, format, rounding)
    values = [outcome.value for outcome in found]
    if np.isnan(values).any():
        return None
    if rounding is Rounding.STOCHASTIC:
        return _interval(values[0], values[-1], True, True)
    (value,) = values
    code = int(encode(value, format))
    codes = [code] if value else [*([format.sign_mask] if format.signed else []), 0]  # zero: from -0's end to +0's
    ends = rounding_interval(codes, format, rounding)
    some = np.flatnonzero((ends.low < ends.high) | (ends.low_included & ends.high_included))  # one zero may have none
    first, last = some[0], some[-1]
    return _interval(ends.low[first], ends.high[last], bool(ends.low_included[first]), bool(ends.high_included[last]))


def _interval(low: float, high: float, low_in: bool, high_in: bool) -> dict[str, Any]:
    ends = {"low": finite(low), "high": finite(high)}
    return {**ends, "low_in": low_in, "high_in": high_in}


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: infinity and NaN are None."""
    return float(value) if np.isfinite(value) else None


def rounded(x: float, format: Format, rounding: Rounding) -> dict[str, Any]:
    """Return everything the browser shows of a number: a row for each rounding, and the interval of the chosen one."""
    chosen = outcomes(x, format, rounding)
    return {
        "x": x,
        "rounding": rounding.name,
        "format": format.name,
        "values": [{"at": finite(o.value), "text": name_of(o.value), "odds": odds(o.odds)} for o in chosen],
        "interval": interval(x, format, rounding),
        "rows": [row(x, format, mode) for mode in NAMES],
        "sentence": sentence(x, format, rounding),
    }


def row(x: float, format: Format, rounding: Rounding) -> dict[str, str]:
    """Return one rounding in words: its name, what x becomes, by how much it is off."""
    found = outcomes(x, format, rounding)
    values = [o.value for o in found]
    if len(found) > 1:
        return {
            "mode": rounding.name,
            "name": NAMES[rounding],
            "value": " or ".join(name_of(value) for value in values),
            "error": " or ".join(odds(o.odds) for o in found),
        }
    (value,) = values
    error = Fraction(value) - Fraction(x) if np.isfinite(value) else None
    sign = "+" if error and error > 0 else ""
    said = "" if error is None else "exact" if error == 0 else sign + brief(error)
    return {"mode": rounding.name, "name": NAMES[rounding], "value": name_of(value), "error": said}


def odds(share: Fraction) -> str:
    """Write odds as a percentage; what can happen is never 0%, and what may fail is never 100%.

    >>> odds(Fraction(3, 4)), odds(Fraction(1)), odds(Fraction(1, 10**9)), odds(1 - Fraction(1, 10**9))
    ('75%', '100%', '<0.1%', '>99.9%')
    """
    if share in (0, 1):
        return f"{share:.0f}%" if share == 0 else "100%"
    if share < Fraction(1, 1000):
        return "<0.1%"
    return ">99.9%" if share > Fraction(999, 1000) else f"{brief(100 * share)}%"


def sentence(x: float, format: Format, rounding: Rounding) -> str:
    """Say in one sentence where a number lies and what it becomes.

    >>> from labkit.formats import FP16
    >>> sentence(2049.0, FP16, Rounding.NEAREST_EVEN)
    '2049 lies half-way between the FP16 numbers 2048 and 2050, 2 apart; to nearest, ties to even, it becomes 2048.'
    """
    low, high = (outcomes(x, format, mode)[0].value for mode in (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE))
    name, number = format.name, written(x)
    if np.isnan(low):
        return f"{number} becomes NaN: {name} has " + ("no zero." if x == 0 else "no sign, so nothing below 0.")
    if low == high == x:
        return f"{number} is exact in {name}: every rounding keeps it."
    found = outcomes(x, format, rounding)
    if abs(x) > format.max:
        last = name_of(float(np.copysign(format.max, x)))
        return f"{number} lies beyond the last {name} number, {last}; {_becomes(rounding, found)}."
    middle = "half-way between" if Fraction(x) * 2 == Fraction(low) + Fraction(high) else "between"
    gap = spaced(Fraction(high) - Fraction(low))
    where = f"{number} lies {middle} the {name} numbers {name_of(low)} and {name_of(high)}, {gap} apart"
    return f"{where}; {_becomes(rounding, found)}."


def _becomes(rounding: Rounding, found: tuple[Outcome, ...]) -> str:
    if len(found) == 1:
        how = "by stochastic rounding" if rounding is Rounding.STOCHASTIC else NAMES[rounding]
        return f"{how}, it becomes {name_of(found[0].value)}"
    draws = " and ".join(f"{name_of(o.value)} in {odds(o.odds)}" for o in found)
    return f"stochastic rounding makes it {draws} of the draws"


def written(x: float) -> str:
    """Write x with the fewest digits that mean it.

    >>> written(0.1), written(2049.0), written(1e-7)
    ('0.1', '2049', '1e-7')
    """
    text = repr(float(x)).removesuffix(".0")
    return text.replace("e-0", "e-").replace("e+", "e")


def axis(format: Format) -> dict[str, Any]:
    """Return what the browser needs to draw where a format's values lie, and where it has none.

    zero_to     positive numbers up to here round to 0 (0 in a format without zero)
    ends_from   numbers from here on round to what `beyond` says; None where they stay at the largest value
    """
    to_zero = float(rounding_interval(0, format).high[()]) if format.has_zero else 0.0
    last = float(rounding_interval(format.max_code, format).high[()])
    beyond = {Specials.IEEE: "to infinity", Specials.FN: "to NaN", Specials.NONE: "to max"}[format.specials]
    return {
        "name": format.name,
        "emin": format.emin,
        "emax": format.emax,
        "significand_bits": format.significand_bits,
        "max": format.max,
        "signed": format.signed,
        "has_zero": format.has_zero,
        "zero_to": to_zero,
        "ends_from": finite(last),
        "beyond": beyond,
    }


def whole(format: Format, scale: str) -> tuple[float, float]:
    """Return a window that shows all values of a format."""
    if scale == "log":
        return format.smallest_subnormal / 8, format.max * 4
    return (-1.15 * format.max if format.signed else -0.1 * format.max), 1.15 * format.max
