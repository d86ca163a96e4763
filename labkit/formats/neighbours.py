"""Which values stand next to this one, and which real numbers does it stand for?

Idea: read as whole numbers, the codes of the non-negative values are in the order of the values. So the next value is
the next code, and the ends of the interval that rounds to a value lie half-way to its neighbours.

Invariant: between a value and `next_up` of it lies no other value of the format.

Source: IEEE 754-2019, 5.3.1 (nextUp, nextDown), 5.7.2 (class).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.codes import as_codes, decode, encode, split
from labkit.formats.format import FP16, Format, Specials
from labkit.formats.rounding import Overflow, Rounding, ulp


class NumberClass(StrEnum):
    """What kind of number a code stands for."""

    ZERO = "zero"
    SUBNORMAL = "subnormal"
    NORMAL = "normal"
    INFINITY = "infinity"
    NAN = "nan"


class Interval(NamedTuple):
    """Real numbers from `low` to `high`; an end belongs to it where its flag says so."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    low_included: NDArray[np.bool_]
    high_included: NDArray[np.bool_]


def classify(codes: ArrayLike, format: Format = FP16) -> NDArray[np.str_]:
    """Say what kind of number each code stands for, as a `NumberClass` (a string).

    >>> classify([0x0000, 0x0001, 0x3C00, 0x7C00, 0x7E00], FP16).tolist()
    ['zero', 'subnormal', 'normal', 'infinity', 'nan']
    """
    values = decode(codes, format)
    _, exponent, _ = split(codes, format)
    conditions = [np.isnan(values), np.isinf(values), values == 0, (exponent == 0) & format.has_zero]
    kinds = [NumberClass.NAN, NumberClass.INFINITY, NumberClass.ZERO, NumberClass.SUBNORMAL]
    return np.asarray(np.select(conditions, [str(kind) for kind in kinds], str(NumberClass.NORMAL)), np.str_)


def next_up(values: ArrayLike, format: Format = FP16) -> NDArray[np.float64]:
    """Return the next larger value of the format; NaN for NaN, and both zeros are one.

    Above the largest value comes infinity; NaN where there is none (E4M3); that value again where there is neither.

    Raises:
        ValueError: a value is not one of the format's.

    >>> next_up([0.0, 1.0, 65504.0], FP16)
    array([5.96046448e-08, 1.00097656e+00,            inf])
    """
    return _step(values, format, +1)


def next_down(values: ArrayLike, format: Format = FP16) -> NDArray[np.float64]:
    """Return the next smaller value of the format; otherwise as `next_up`.

    >>> next_down([0.0, 1.0, np.inf], FP16)
    array([-5.96046448e-08,  9.99511719e-01,  6.55040000e+04])
    """
    return _step(values, format, -1)


def rounding_interval(
    codes: ArrayLike,
    format: Format = FP16,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow = Overflow.TO_INFINITY,
) -> Interval:
    """Return the real numbers that `round_to` makes each code's value; for stochastic rounding, those that it may.

    The real number 0 counts to +0, not to -0. An interval without any number in it has equal ends, both left out.

    Raises:
        ValueError: a NaN code; or a format so wide that half-way points are not float64 values (52 stored bits, or 11
            exponent bits).

    >>> interval = rounding_interval([0x7BFF, 0x7C00], FP16)  # the largest value, and infinity
    >>> interval.low, interval.high, interval.high_included
    (array([65488., 65520.]), array([65520.,    inf]), array([False,  True]))
    """
    if format.significand_bits > 51 or format.exponent_bits > 10:
        raise ValueError(f"half-way points of {format.name} are not all float64 values; take a narrower format.")
    checked = as_codes(codes, format)
    negative = (checked & format.sign_mask) != 0
    code = (checked & (format.codes - 1 - format.sign_mask)).astype(np.int64)
    if np.isnan(decode(code, format)).any():
        raise ValueError(f"no real number rounds to NaN; {format.name} has NaN codes among those given.")
    upward, downward = rounding is Rounding.TOWARD_POSITIVE, rounding is Rounding.TOWARD_NEGATIVE
    inward = np.where(negative, upward, downward) | (rounding is Rounding.TOWARD_ZERO)
    outward = np.where(negative, downward, upward)
    low, high, low_in, high_in = _magnitude_interval(code, format, rounding, inward, outward, overflow)
    low_in_mirrored = low_in & (code != 0)  # 0 itself is +0's
    return Interval(
        np.where(negative, -high, low),
        np.where(negative, -low, high),
        np.where(negative, high_in & (low_in_mirrored | (low != high)), low_in),
        np.where(negative, low_in_mirrored, high_in),
    )


def _step(values: ArrayLike, format: Format, direction: int) -> NDArray[np.float64]:
    codes = encode(values, format)
    negative = (codes & format.sign_mask) != 0
    magnitude = (codes & (format.codes - 1 - format.sign_mask)).astype(np.int64)
    place = np.where(negative, -magnitude, magnitude) + direction  # on the line of values, counted from zero
    negative = np.where(place == 0, negative, place < 0)
    last = format.max_code + (format.specials is not Specials.NONE)  # infinity, or the NaN that follows max in E4M3
    stepped = np.minimum(np.abs(place), last).astype(np.uint64)
    stepped |= np.where(negative, np.uint64(format.sign_mask), np.uint64(0))
    known = ~np.isnan(decode(codes, format)) & ~((place < 0) & (not format.signed))
    return np.where(known, decode(stepped, format), np.nan)


def _magnitude_interval(
    code: NDArray[np.int64],
    format: Format,
    rounding: Rounding,
    inward: NDArray[np.bool_],
    outward: NDArray[np.bool_],
    overflow: Overflow,
) -> Interval:
    """Return the magnitudes that round to the magnitude of each code; inward is toward zero, outward away from it."""
    value, below, above = (_endless(place, format) for place in (code, np.maximum(code - 1, 0), code + 1))
    if rounding is Rounding.STOCHASTIC:
        nearest = Interval(below, above, np.zeros(code.shape, bool), np.zeros(code.shape, bool))
    else:
        ties_away = rounding is Rounding.NEAREST_AWAY
        # A tie goes to the even one, counted in the ulps of the side where it is.
        low_in, high_in = ((value / ulp(side, format)) % 2 == 0 for side in (below, value))
        nearest = Interval((below + value) / 2, (value + above) / 2, low_in | ties_away, high_in & (not ties_away))
    low = np.where(inward, value, np.where(outward, below, nearest.low))
    high = np.where(inward, above, np.where(outward, value, nearest.high))
    low_in = inward | ~outward & nearest.low_included
    high_in = outward | ~inward & nearest.high_included
    # The ends of the line: zero (or what stands in its place), the largest value, infinity.
    low, low_in = np.where(code == 0, 0.0, low), np.where(code == 0, format.has_zero, low_in)
    stops = overflow is Overflow.SATURATE or format.specials is Specials.NONE
    last, infinite = code == format.max_code, code > format.max_code
    high = np.where(infinite | last & (inward | stops), np.inf, high)
    high_in = np.where(last & (inward | stops), stops, high_in | infinite) & ~(infinite & stops)
    low, low_in = np.where(infinite & (inward | stops), np.inf, low), low_in & ~(infinite & stops)
    return Interval(low, high, low_in, high_in)


def _endless(code: NDArray[np.int64], format: Format) -> NDArray[np.float64]:
    """Decode magnitudes as if the largest value were followed by one more."""
    within = decode(np.minimum(code, format.max_code), format)
    return np.where(code > format.max_code, within + ulp(format.max, format), within)
