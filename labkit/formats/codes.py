"""What do these bits stand for, and which bits stand for this value?

Idea: a code is one whole number, its fields are three; `split` and `join` go between them. A value is
significand * 2^exponent with a whole significand, and `decode` and `encode` go between codes and values.

Invariant: `encode(decode(code)) == code` for every code but the NaNs, which all come back as the default one.

Source: IEEE 754-2019, 3.4; OCP OFP8 1.0, table 2.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.format import FP16, Format
from labkit.formats.rounding import binade, round_to, widen

CodeArray: TypeAlias = NDArray[np.unsignedinteger]


class Fields(NamedTuple):
    """The three parts of a code, as whole numbers (arrays of one shape)."""

    sign: NDArray[np.int64]  # 0 or 1
    exponent: NDArray[np.int64]  # as stored, bias included
    significand: NDArray[np.int64]  # as stored, without the hidden bit


def split(codes: ArrayLike, format: Format = FP16) -> Fields:
    """Cut codes into sign, exponent and significand.

    >>> split(0x3C01, FP16)
    Fields(sign=array(0), exponent=array(15), significand=array(1))
    """
    checked = as_codes(codes, format).astype(np.uint64)
    return Fields(
        *(
            np.asarray((checked >> np.uint64(low)) & np.uint64((1 << width) - 1)).astype(np.int64)
            for low, width in zip(_lowest_bits(format), _widths(format), strict=True)
        )
    )


def join(sign: ArrayLike, exponent: ArrayLike, significand: ArrayLike, format: Format = FP16) -> CodeArray:
    """Put sign, exponent and significand together into codes; the inverse of `split`.

    Raises:
        ValueError: a field is negative or does not fit its width.

    >>> hex(join(0, 15, 1, FP16))
    '0x3c01'
    """
    codes: NDArray[np.uint64] = np.asarray(0, np.uint64)
    for name, field, low, width in zip(
        Fields._fields, (sign, exponent, significand), _lowest_bits(format), _widths(format), strict=True
    ):
        checked = _whole_numbers(field, 1 << width, f"the {name} field of {format.name} has {width} bits")
        codes = codes | (checked << np.uint64(low))
    return np.asarray(codes).astype(format.code_dtype)


def decode(codes: ArrayLike, format: Format = FP16) -> NDArray[np.float64]:
    """Return the values that codes stand for, exactly. Every NaN code gives the one NaN: payloads are not kept.

    Raises:
        TypeError: codes are not whole numbers.
        ValueError: a code is negative or has more bits than the format.

    >>> decode([0x3C00, 0x3C01, 0x0001, 0xFC00], FP16)
    array([1.00000000e+00, 1.00097656e+00, 5.96046448e-08,           -inf])
    """
    sign, exponent, significand = split(codes, format)
    normal = (exponent > 0) | (not format.has_zero)
    whole = significand + np.where(normal, 1 << format.significand_bits, 0)
    power = np.maximum(exponent, int(format.has_zero)) - format.bias - format.significand_bits
    magnitude_code = as_codes(codes, format) & format.code_dtype.type(format.codes - 1 - format.sign_mask)
    with np.errstate(over="ignore"):  # the specials of FP64 lie beyond float64; they are replaced at once
        magnitude = np.ldexp(whole.astype(np.float64), power)
    special = magnitude_code > format.max_code
    infinite = magnitude_code == (format.infinity_code if format.infinity_code is not None else -1)
    value = np.where(special, np.where(infinite, np.inf, np.nan), magnitude)
    return np.where(np.isnan(value), np.nan, np.where(sign == 1, -value, value))


def encode(values: ArrayLike, format: Format = FP16) -> CodeArray:
    """Return the codes of values that the format holds exactly; NaN gives the default NaN, without sign or payload.

    Raises:
        ValueError: a value is not one of the format's; the message names it and what it would round to.

    >>> [hex(code) for code in encode([1.0, -2.0, 65504.0, np.inf, np.nan], FP16)]
    ['0x3c00', '0xc000', '0x7bff', '0x7c00', '0x7e00']
    >>> encode(0.1, FP16)
    Traceback (most recent call last):
    ValueError: 0.1 is no FP16 value; the nearest is 0.0999755859375. Round first: encode(round_to(values, FP16), FP16).
    """
    exact = widen(values)
    check_exact(exact, format)
    magnitude = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    exponent = binade(magnitude, format)
    significand = np.ldexp(magnitude, format.significand_bits - exponent).astype(np.int64)  # hidden bit included
    # Codes count up through a binade into the next, so the hidden bit of a normal number is the step out of the first.
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
    return _whole_numbers(codes, format.codes, f"{format.name} codes have {format.bits} bits").astype(format.code_dtype)


def _whole_numbers(given: ArrayLike, limit: int, what: str) -> NDArray[np.uint64]:
    """Check whole numbers from 0 to below `limit`; an empty list counts as whole numbers."""
    numbers = np.asarray(given)
    if numbers.size and numbers.dtype.kind not in "iu":
        raise TypeError(
            f"{what} and are whole numbers; it was given {numbers.dtype}. "
            "encode(values, format) makes codes of values, parse(text, format) of text."
        )
    if numbers.size and (int(numbers.min()) < 0 or int(numbers.max()) >= limit):
        wrong = int(numbers.min()) if int(numbers.min()) < 0 else int(numbers.max())
        raise ValueError(f"{what}: 0 to {limit - 1:#x}; it was given {wrong:#x}")
    return numbers.astype(np.uint64)


def check_exact(values: NDArray[np.float64], format: Format) -> None:
    """Raise ValueError, with the first example, unless every value is one of the format's (or NaN, if it has that)."""
    rounded = round_to(values, format)
    missed = (rounded != values) & ~np.isnan(values)
    if missed.any():
        value, nearest = values[missed].flat[0], rounded[missed].flat[0]
        raise ValueError(
            f"{value!s} is no {format.name} value; the nearest is {nearest!s}. "
            f"Round first: encode(round_to(values, {format.name}), {format.name})."
        )


def _widths(format: Format) -> tuple[int, int, int]:
    return int(format.signed), format.exponent_bits, format.significand_bits


def _lowest_bits(format: Format) -> tuple[int, int, int]:
    return format.bits - format.signed, format.significand_bits, 0
