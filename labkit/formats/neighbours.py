"""Which values stand next to this one, and which real numbers does it stand for?

Idea: read as whole numbers, the codes of the non-negative values are in the order of the values. So the next value is
the next code; and which numbers round to a value, the rounding of a few points between neighbours tells.

Invariant: between a value and `next_up` of it lies no other value of the format.

Source: IEEE 754-2019, 5.3.1 (nextUp, nextDown), 5.7.2 (class).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.codes import decode, encode, split
from labkit.formats.format import FP16, Format, Specials
from labkit.formats.rounding import RANDOM_BITS, Overflow, Rounding, round_to, ulp


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
        ValueError: a NaN code; or a format so wide that points between two values are not float64 values (50 or more
            stored bits, or 11 exponent bits).

    >>> interval = rounding_interval([0x7BFF, 0x7C00], FP16)  # the largest value, and infinity
    >>> interval.low, interval.high, interval.high_included
    (array([65488., 65520.]), array([65520.,    inf]), array([False,  True]))
    """
    if format.significand_bits >= 50 or format.exponent_bits > 10:
        raise ValueError(f"points between two {format.name} values are not all float64 values; take a narrower format.")
    value = decode(codes, format)
    if np.isnan(value).any():
        raise ValueError(f"no real number rounds to NaN; {format.name} has NaN codes among those given.")

    def comes_here(points: NDArray[np.float64]) -> NDArray[np.bool_]:
        draws: list[ArrayLike | None] = [None]
        if rounding is Rounding.STOCHASTIC:  # the two extremes: away from zero whenever it can, and never
            draws = [np.zeros(points.shape, int), np.full(points.shape, 2**RANDOM_BITS - 1)]
        real = points + 0.0  # the real number 0 has no sign: +0
        rounded = [round_to(real, format, rounding, overflow, draw) for draw in draws]
        same = [(each == value) & (np.signbit(each) == np.signbit(value)) for each in rounded]
        return np.asarray(np.any(same, axis=0))

    low, high = (_reach(value, format, direction, comes_here) for direction in (-1, +1))
    return Interval(low, high, comes_here(low), comes_here(high))


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


def _reach(
    value: NDArray[np.float64],
    format: Format,
    direction: int,
    comes_here: Callable[[NDArray[np.float64]], NDArray[np.bool_]],
) -> NDArray[np.float64]:
    """Return how far numbers still round to each value: to infinity, the neighbour, half-way, or not beyond itself.

    Points between these places are rounded, and the rounding itself says it.
    """
    step = direction * ulp(value, format)
    place = np.where(np.isinf(value), np.copysign(format.max + ulp(format.max, format), value), value)
    neighbour = next_up(value, format) if direction > 0 else next_down(value, format)
    neighbour = np.where(np.isfinite(neighbour) & (neighbour != value), neighbour, place + step)  # beyond the last one
    near, far = (3 * place + neighbour) / 4, (place + 3 * neighbour) / 4
    very_far = np.full(value.shape, direction * np.finfo(np.float64).max)
    reached = [comes_here(points) for points in (very_far, far, near)]
    return np.asarray(np.select(reached, [direction * np.inf, neighbour, (place + neighbour) / 2], value))
