"""Codes of values: encoding, decoding, fields, classes, neighbours and rounding intervals.

A code is an integer with three fields; `split` and `join` convert between codes and fields. A value
is significand * 2^exponent with an integer significand; `decode` and `encode` convert between codes
and values. The codes of non-negative values are in the order of the values, so the next value has
the next code. The interval of numbers that round to a value follows from rounding a few points
between the value and its neighbours.

Invariant: `encode(decode(code)) == code` for every code except those of NaNs, which become the
default NaN. No value of the format is between a value and its `next_up`.

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
    """The three parts of a code, as whole numbers (arrays of one shape).

    Attributes:
        sign: 0 or 1.
        exponent: the stored field, bias included.
        significand: the stored field, without the hidden bit.
    """

    sign: NDArray[np.int64]
    exponent: NDArray[np.int64]
    significand: NDArray[np.int64]


def split(codes: ArrayLike, format: FormatLike = FP16) -> Fields:
    """Cut codes into sign, exponent and significand.

    >>> split(0x3C01, FP16)
    Fields(sign=array(0), exponent=array(15), significand=array(1))
    """
    format = as_format(format)
    checked = as_codes(codes, format).astype(np.uint64)

    def field(lowest_bit: int, width: int) -> NDArray[np.int64]:
        mask = np.uint64((1 << width) - 1)
        return np.asarray((checked >> np.uint64(lowest_bit)) & mask).astype(np.int64)

    return Fields(
        sign=field(format.bits - format.signed, int(format.signed)),
        exponent=field(format.significand_bits, format.exponent_bits),
        significand=field(0, format.significand_bits),
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

    def placed(name: str, field: ArrayLike, lowest_bit: int, width: int) -> NDArray[np.uint64]:
        what = f"the {name} field of {format.name} has {width} bits"
        return np.asarray(_integers(field, 1 << width, what) << np.uint64(lowest_bit))

    codes = (
        placed("sign", sign, format.bits - format.signed, int(format.signed))
        | placed("exponent", exponent, format.significand_bits, format.exponent_bits)
        | placed("significand", significand, 0, format.significand_bits)
    )
    return np.asarray(codes).astype(format.code_dtype)


def decode(codes: ArrayLike, format: FormatLike = FP16) -> NDArray[np.float64]:
    """Return the values of codes, exactly; every NaN code becomes the default NaN.

    Raises:
        TypeError: codes are not whole numbers.
        ValueError: a code is negative or has more bits than the format.

    >>> decode([0x3C00, 0x3C01, 0x0001, 0xFC00], FP16)
    array([1.00000000e+00, 1.00097656e+00, 5.96046448e-08,           -inf])
    """
    format = as_format(format)
    sign, exponent, significand = split(codes, format)
    is_normal = (exponent > 0) | (not format.has_zero)
    with_hidden_bit = significand + np.where(is_normal, 1 << format.significand_bits, 0)
    # subnormals have the exponent of the smallest normal number
    smallest_field = int(format.has_zero)
    power = np.maximum(exponent, smallest_field) - format.bias - format.significand_bits
    # read as numbers, the codes of FP64's infinity and NaNs overflow; they are replaced below
    with np.errstate(over="ignore"):
        magnitude = np.ldexp(with_hidden_bit.astype(np.float64), power)
    magnitude_mask = format.code_dtype.type(format.codes - 1 - format.sign_mask)
    magnitude_code = as_codes(codes, format) & magnitude_mask
    magnitude = np.where(magnitude_code > format.max_code, np.nan, magnitude)
    if format.infinity_code is not None:
        magnitude = np.where(magnitude_code == format.infinity_code, np.inf, magnitude)
    # -NaN is NaN: without a sign
    is_negative = (sign == 1) & ~np.isnan(magnitude)
    return np.where(is_negative, -magnitude, magnitude)


def encode(values: ArrayLike, format: FormatLike = FP16) -> CodeArray:
    """Return the codes of values of a format; NaN becomes the default NaN.

    Raises:
        ValueError: a number is not a value of the format; the message has the number, and the value
            that it rounds to.

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
    # The codes of a binade follow those of the binade below. So the hidden bit, added as a part of
    # the significand, raises the exponent field by one: from 0, that of subnormals, to 1 in the
    # first binade. A format without subnormals begins at field 0.
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
    what = f"{format.name} codes have {format.bits} bits"
    return _integers(codes, format.codes, what).astype(format.code_dtype)


def _integers(codes: ArrayLike, limit: int, what: str) -> NDArray[np.uint64]:
    """Validate integers from 0 to below `limit`; an empty list is valid.

    Args:
        codes: the integers.
        limit: the first integer that is too large.
        what: the beginning of an error's message.
    """
    numbers = np.asarray(codes)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise TypeError(
            f"{what} and are integers, got {numbers.dtype}. "
            "encode(values, format) makes codes of values, parse(text, format) of text."
        )
    if numbers.size:
        smallest = int(numbers.min())
        largest = int(numbers.max())
        if smallest < 0 or largest >= limit:
            wrong = smallest if smallest < 0 else largest
            raise ValueError(f"{what}: 0 to {limit - 1:#x}, got {wrong:#x}")
    return numbers.astype(np.uint64)


def check_exact(values: NDArray[np.float64], format: Format) -> None:
    """Raise an error unless the format represents all numbers.

    Raises:
        ValueError: a number is not a value of the format, or is NaN and the format has none.
    """
    rounded = round_to(values, format)
    inexact = (rounded != values) & ~np.isnan(values)
    if inexact.any():
        value = values[inexact].flat[0]
        nearest = rounded[inexact].flat[0]
        raise ValueError(
            f"{value!s} is not a value of {format.name}; the nearest is {nearest!s}. "
            f"Round first: encode(round_to(values, {format.name}), {format.name})."
        )


class NumberClass(StrEnum):
    """Kind of number that a code represents."""

    ZERO = "zero"
    SUBNORMAL = "subnormal"
    NORMAL = "normal"
    INFINITY = "infinity"
    NAN = "nan"


class Interval(NamedTuple):
    """The real numbers from `low` to `high`; the flags say whether the ends are included."""

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
    exponent = split(codes, format).exponent
    # the first class whose condition is true
    conditions = {
        NumberClass.NAN: np.isnan(values),
        NumberClass.INFINITY: np.isinf(values),
        NumberClass.ZERO: values == 0,
        NumberClass.SUBNORMAL: (exponent == 0) & format.has_zero,
    }
    names = [str(kind) for kind in conditions]
    classes = np.select(list(conditions.values()), names, str(NumberClass.NORMAL))
    return np.asarray(classes, np.str_)


def next_up(values: ArrayLike, format: FormatLike = FP16) -> NDArray[np.float64]:
    """Return the next larger value of the format; NaN for NaN. Both zeros count as one value.

    Above the largest value comes infinity; NaN in a format without infinity (E4M3); and the largest
    value again in a format without either.

    Raises:
        ValueError: a number is not a value of the format.

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
    """Return the interval of real numbers that `round_to` rounds to each code's value.

    For stochastic rounding, it is the interval of numbers that may be rounded to it. The real
    number 0 belongs to +0, not to -0. An empty interval has equal ends, both excluded.

    Raises:
        ValueError: a code is NaN; or the format is so wide that points between two values are not
            float64 values (50 or more stored bits, or 11 exponent bits).

    >>> interval = rounding_interval([0x7BFF, 0x7C00], FP16)  # the largest value, and infinity
    >>> interval.low, interval.high, interval.high_included
    (array([65488., 65520.]), array([65520.,    inf]), array([False,  True]))
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    # the middle of two values needs a bit more than the format has, and float64 has 52
    if format.significand_bits >= 50 or format.exponent_bits > 10:
        raise ValueError(
            f"points between two {format.name} values are not all float64 values; take a narrower "
            "format."
        )
    value = decode(codes, format)
    if np.isnan(value).any():
        raise ValueError(
            f"codes: expected codes of numbers, got one of NaN in {format.name}; no real number "
            "rounds to NaN."
        )

    def rounds_to_value(points: NDArray[np.float64]) -> NDArray[np.bool_]:
        draws: list[ArrayLike | None] = [None]
        if rounding is Rounding.STOCHASTIC:
            # the two extremes: away from zero whenever possible, and never
            draws = [np.zeros(points.shape, int), np.full(points.shape, 2**RANDOM_BITS - 1)]
        # the real number 0 has no sign: make -0 a +0
        real = points + 0.0
        result = np.zeros(points.shape, np.bool_)
        for draw in draws:
            rounded = round_to(real, format, rounding, overflow, draw)
            result |= (rounded == value) & (np.signbit(rounded) == np.signbit(value))
        return result

    def end(direction: int, neighbour: NDArray[np.float64]) -> NDArray[np.float64]:
        # The numbers that round to a value reach up to infinity, to its neighbour, half-way to the
        # neighbour, or only to the value itself. A point before each of these places is rounded.
        # In place of infinity, take the first number beyond max with the ulp of max.
        first_beyond_max = np.copysign(format.max + ulp(format.max, format), value)
        place = np.where(np.isinf(value), first_beyond_max, value)
        # the last value has no neighbour: take the number that would follow
        following = place + direction * ulp(value, format)
        if direction < 0 and not format.has_zero:
            # every positive number below the first value rounds to it
            following = np.zeros(value.shape)
        has_neighbour = np.isfinite(neighbour) & (neighbour != value)
        neighbour = np.where(has_neighbour, neighbour, following)
        before_half_way = (3 * place + neighbour) / 4
        before_neighbour = (place + 3 * neighbour) / 4
        before_infinity = np.full(value.shape, direction * np.finfo(np.float64).max)
        conditions = [
            rounds_to_value(before_infinity),
            rounds_to_value(before_neighbour),
            rounds_to_value(before_half_way),
        ]
        ends = [np.asarray(direction * np.inf), neighbour, (place + neighbour) / 2]
        return np.asarray(np.select(conditions, ends, value))

    low = end(-1, next_down(value, format))
    high = end(+1, next_up(value, format))
    return Interval(low, high, rounds_to_value(low), rounds_to_value(high))


def _step(values: ArrayLike, format: Format, direction: int) -> NDArray[np.float64]:
    """Return the value after each value (direction 1), or before it (direction -1)."""
    codes = encode(values, format)
    is_negative = (codes & format.sign_mask) != 0
    magnitude = (codes & (format.codes - 1 - format.sign_mask)).astype(np.int64)
    # the rank of the value among all values: 0 for zero, negative below it
    rank = np.where(is_negative, -magnitude, magnitude) + direction
    # a step to zero keeps the sign
    is_negative = np.where(rank == 0, is_negative, rank < 0)
    # after max comes infinity, or the NaN of E4M3; a format without either ends at max
    last = format.max_code
    if format.specials is not Specials.NONE:
        last += 1
    stepped = np.minimum(np.abs(rank), last).astype(np.uint64)
    stepped |= np.where(is_negative, np.uint64(format.sign_mask), np.uint64(0))
    # a NaN has no neighbour, and an unsigned format has no value below its first
    has_result = ~np.isnan(decode(codes, format))
    if not format.signed:
        has_result &= rank >= 0
    return np.where(has_result, decode(stepped, format), np.nan)
