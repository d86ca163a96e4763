"""Codes of values: encoding, decoding, fields, classes, neighbours and rounding intervals.

A code is an integer with three fields; `split` and `join` convert between them. A value is
significand * 2^exponent with an integer significand; `decode` and `encode` convert between codes
and values. The codes of non-negative values, read as integers, are in the order of the values, so
the next value is the next code. The interval of numbers that round to a value is found by rounding
a few points between neighbours.

Invariant: `encode(decode(code)) == code` for every code except NaNs, which all return the default
one. No value of the format is between a value and its `next_up`.

Source: IEEE 754-2019, 3.4, 5.3.1 (nextUp, nextDown), 5.7.2 (class); OCP OFP8 1.0, table 2.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.arguments import FormatLike, as_format, as_member
from labkit.formats.format import FP16, Format, Specials
from labkit.formats.rounding import RANDOM_BITS, Overflow, Rounding, binade, round_to, ulp, widen

CodeArray: TypeAlias = NDArray[np.unsignedinteger]


class Fields(NamedTuple):
    """The three parts of a code, as whole numbers (arrays of one shape)."""

    sign: NDArray[np.int64]  # 0 or 1
    exponent: NDArray[np.int64]  # as stored, bias included
    significand: NDArray[np.int64]  # as stored, without the hidden bit


def split(codes: ArrayLike, format: FormatLike = FP16) -> Fields:
    """Cut codes into sign, exponent and significand.

    >>> split(0x3C01, FP16)
    Fields(sign=array(0), exponent=array(15), significand=array(1))
    """
    format = as_format(format)
    checked = as_codes(codes, format).astype(np.uint64)
    return Fields(
        *(
            np.asarray((checked >> np.uint64(low)) & np.uint64((1 << width) - 1)).astype(np.int64)
            for low, width in zip(_lowest_bits(format), _widths(format), strict=True)
        )
    )


def join(
    sign: ArrayLike, exponent: ArrayLike, significand: ArrayLike, format: FormatLike = FP16
) -> CodeArray:
    """Put sign, exponent and significand together into codes; the inverse of `split`.

    Raises:
        ValueError: a field is negative or does not fit its width.

    >>> hex(join(0, 15, 1, FP16))
    '0x3c01'
    """
    format = as_format(format)
    codes: NDArray[np.uint64] = np.asarray(0, np.uint64)
    for name, field, low, width in zip(
        Fields._fields,
        (sign, exponent, significand),
        _lowest_bits(format),
        _widths(format),
        strict=True,
    ):
        checked = _integers(
            field, 1 << width, f"the {name} field of {format.name} has {width} bits"
        )
        codes = codes | (checked << np.uint64(low))
    return np.asarray(codes).astype(format.code_dtype)


def decode(codes: ArrayLike, format: FormatLike = FP16) -> NDArray[np.float64]:
    """Return the values of codes, exactly.

    Every NaN code gives the one NaN: payloads are not kept.

    Raises:
        TypeError: codes are not whole numbers.
        ValueError: a code is negative or has more bits than the format.

    >>> decode([0x3C00, 0x3C01, 0x0001, 0xFC00], FP16)
    array([1.00000000e+00, 1.00097656e+00, 5.96046448e-08,           -inf])
    """
    format = as_format(format)
    sign, exponent, significand = split(codes, format)
    normal = (exponent > 0) | (not format.has_zero)
    whole = significand + np.where(normal, 1 << format.significand_bits, 0)
    power = np.maximum(exponent, int(format.has_zero)) - format.bias - format.significand_bits
    magnitude_code = as_codes(codes, format) & format.code_dtype.type(
        format.codes - 1 - format.sign_mask
    )
    # the specials of FP64 lie beyond float64; they are replaced at once
    with np.errstate(over="ignore"):
        magnitude = np.ldexp(whole.astype(np.float64), power)
    special = magnitude_code > format.max_code
    infinite = magnitude_code == (format.infinity_code if format.infinity_code is not None else -1)
    value = np.where(special, np.where(infinite, np.inf, np.nan), magnitude)
    return np.where(np.isnan(value), np.nan, np.where(sign == 1, -value, value))


def encode(values: ArrayLike, format: FormatLike = FP16) -> CodeArray:
    """Return the codes of values that the format holds exactly.

    NaN gives the default NaN, without sign or payload.

    Raises:
        ValueError: a value is not one of the format's; the message names it and what it would round
            to.

    >>> [hex(code) for code in encode([1.0, -2.0, 65504.0, np.inf, np.nan], FP16)]
    ['0x3c00', '0xc000', '0x7bff', '0x7c00', '0x7e00']
    >>> encode(0.1, FP16)
    Traceback (most recent call last):
    ValueError: 0.1 is not a value of FP16; the nearest is 0.0999755859375. Round first: ...
    """
    format = as_format(format)
    exact = widen(values)
    check_exact(exact, format)
    magnitude = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    exponent = binade(magnitude, format)
    # hidden bit included
    significand = np.ldexp(magnitude, format.significand_bits - exponent).astype(np.int64)
    # Codes count up through a binade into the next, so the hidden bit of a normal number is the
    # step out of the first.
    first = 0 if format.has_zero else 1 << format.significand_bits
    codes = ((exponent - format.emin) << format.significand_bits) + significand - first
    codes = np.where(np.isinf(exact), format.infinity_code or 0, codes).astype(np.uint64)
    codes = codes | np.where(np.signbit(exact), np.uint64(format.sign_mask), np.uint64(0))
    codes = np.where(np.isnan(exact), np.uint64(format.nan_code or 0), codes)
    return np.asarray(codes).astype(format.code_dtype)


def as_codes(codes: ArrayLike, format: Format) -> CodeArray:
    """Return codes as an array of the format's own unsigned integer type.

    Raises:
        TypeError: codes are not whole numbers.
        ValueError: a code is negative or has more bits than the format.
    """
    return _integers(codes, format.codes, f"{format.name} codes have {format.bits} bits").astype(
        format.code_dtype
    )


def _integers(codes: ArrayLike, limit: int, what: str) -> NDArray[np.uint64]:
    """Validate integers from 0 to below `limit`; an empty list is valid."""
    numbers = np.asarray(codes)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise TypeError(
            f"{what} and are integers, got {numbers.dtype}. "
            "encode(values, format) makes codes of values, parse(text, format) of text."
        )
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= limit):
        wrong = int(numbers.min()) if int(numbers.min()) < 0 else int(numbers.max())
        raise ValueError(f"{what}: 0 to {limit - 1:#x}, got {wrong:#x}")
    return numbers.astype(np.uint64)


def check_exact(values: NDArray[np.float64], format: Format) -> None:
    """Raise ValueError with the first value that the format does not represent.

    NaN passes if the format has one.
    """
    rounded = round_to(values, format)
    missed = (rounded != values) & ~np.isnan(values)
    if missed.any():
        value, nearest = values[missed].flat[0], rounded[missed].flat[0]
        raise ValueError(
            f"{value!s} is not a value of {format.name}; the nearest is {nearest!s}. "
            f"Round first: encode(round_to(values, {format.name}), {format.name})."
        )


def _widths(format: Format) -> tuple[int, int, int]:
    return int(format.signed), format.exponent_bits, format.significand_bits


def _lowest_bits(format: Format) -> tuple[int, int, int]:
    return format.bits - format.signed, format.significand_bits, 0


class NumberClass(StrEnum):
    """Kind of number that a code represents."""

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


def classify(codes: ArrayLike, format: FormatLike = FP16) -> NDArray[np.str_]:
    """Return the kind of number that each code represents, as a `NumberClass` (a string).

    >>> classify([0x0000, 0x0001, 0x3C00, 0x7C00, 0x7E00], FP16).tolist()
    ['zero', 'subnormal', 'normal', 'infinity', 'nan']
    """
    format = as_format(format)
    values = decode(codes, format)
    _, exponent, _ = split(codes, format)
    conditions = [
        np.isnan(values),
        np.isinf(values),
        values == 0,
        (exponent == 0) & format.has_zero,
    ]
    kinds = [NumberClass.NAN, NumberClass.INFINITY, NumberClass.ZERO, NumberClass.SUBNORMAL]
    return np.asarray(
        np.select(conditions, [str(kind) for kind in kinds], str(NumberClass.NORMAL)), np.str_
    )


def next_up(values: ArrayLike, format: FormatLike = FP16) -> NDArray[np.float64]:
    """Return the next larger value of the format; NaN for NaN, and both zeros are one.

    Above the largest value comes infinity, or NaN if there is none (E4M3), or that value again if
    there is neither.

    Raises:
        ValueError: a value is not one of the format's.

    >>> next_up([0.0, 1.0, 65504.0], FP16)
    array([5.96046448e-08, 1.00097656e+00,            inf])
    """
    format = as_format(format)
    return _step(values, format, +1)


def next_down(values: ArrayLike, format: FormatLike = FP16) -> NDArray[np.float64]:
    """Return the next smaller value of the format; otherwise as `next_up`.

    >>> next_down([0.0, 1.0, np.inf], FP16)
    array([-5.96046448e-08,  9.99511719e-01,  6.55040000e+04])
    """
    format = as_format(format)
    return _step(values, format, -1)


def rounding_interval(
    codes: ArrayLike,
    format: FormatLike = FP16,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
) -> Interval:
    """Return the real numbers that `round_to` makes each code's value.

    For stochastic rounding, those that it may. The real number 0 counts to +0, not to -0. An
    interval without any number in it has equal ends, both left out.

    Raises:
        ValueError: a NaN code; or a format so wide that points between two values are not float64
            values (50 or more stored bits, or 11 exponent bits).

    >>> interval = rounding_interval([0x7BFF, 0x7C00], FP16)  # the largest value, and infinity
    >>> interval.low, interval.high, interval.high_included
    (array([65488., 65520.]), array([65520.,    inf]), array([False,  True]))
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    if format.significand_bits >= 50 or format.exponent_bits > 10:
        raise ValueError(
            f"points between two {format.name} values are not all float64 values; take a narrower "
            "format."
        )
    value = decode(codes, format)
    if np.isnan(value).any():
        raise ValueError(
            f"no real number rounds to NaN; {format.name} has NaN codes among those given."
        )

    def comes_here(points: NDArray[np.float64]) -> NDArray[np.bool_]:
        draws: list[ArrayLike | None] = [None]
        # the two extremes: away from zero whenever it can, and never
        if rounding is Rounding.STOCHASTIC:
            draws = [np.zeros(points.shape, int), np.full(points.shape, 2**RANDOM_BITS - 1)]
        real = points + 0.0  # the real number 0 has no sign: +0
        rounded = [round_to(real, format, rounding, overflow, draw) for draw in draws]
        same = [(each == value) & (np.signbit(each) == np.signbit(value)) for each in rounded]
        return np.asarray(np.any(same, axis=0))

    ends = []
    for direction, neighbour in ((-1, next_down(value, format)), (+1, next_up(value, format))):
        # Numbers still round to a value as far as infinity, its neighbour, half-way, or not beyond
        # itself. Points between these places are rounded, and the rounding itself says it.
        place = np.where(
            np.isinf(value), np.copysign(format.max + ulp(format.max, format), value), value
        )
        beyond = place + direction * ulp(value, format)  # the last one
        neighbour = np.where(np.isfinite(neighbour) & (neighbour != value), neighbour, beyond)
        near = (3 * place + neighbour) / 4
        far = (place + 3 * neighbour) / 4
        very_far = np.full(value.shape, direction * np.finfo(np.float64).max)
        reached = [comes_here(points) for points in (very_far, far, near)]
        ends.append(
            np.select(reached, [direction * np.inf, neighbour, (place + neighbour) / 2], value)
        )
    low, high = map(np.asarray, ends)
    return Interval(low, high, comes_here(low), comes_here(high))


def _step(values: ArrayLike, format: Format, direction: int) -> NDArray[np.float64]:
    codes = encode(values, format)
    negative = (codes & format.sign_mask) != 0
    magnitude = (codes & (format.codes - 1 - format.sign_mask)).astype(np.int64)
    # on the line of values, counted from zero
    place = np.where(negative, -magnitude, magnitude) + direction
    negative = np.where(place == 0, negative, place < 0)
    # infinity, or the NaN that follows max in E4M3
    last = format.max_code + (format.specials is not Specials.NONE)
    stepped = np.minimum(np.abs(place), last).astype(np.uint64)
    stepped |= np.where(negative, np.uint64(format.sign_mask), np.uint64(0))
    known = ~np.isnan(decode(codes, format)) & ~((place < 0) & (not format.signed))
    return np.where(known, decode(stepped, format), np.nan)
