"""Rounding of float64 arrays to any binary format.

Idea: in each binade, a format's values are the multiples of one spacing, the ulp. So divide by the
ulp, round to an integer, multiply back. Division and multiplication by a power of two are exact;
the integer is the only rounding.

Invariant: one rounding, from the exact argument to the result, in every rounding mode; rounding is
idempotent.

Source: IEEE 754-2019, 4.3 (rounding) and 7.4 (overflow); OCP OFP8 1.0, 5.2 (saturating conversion).
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.arguments import FormatLike, as_format, as_member
from labkit.formats.format import FP16, FP32, FP64, Format, Specials

FloatArray: TypeAlias = NDArray[np.floating]


class Rounding(Enum):
    """Choice between the two neighbours of a value."""

    NEAREST_EVEN = "to the nearer one; half-way to the one with an even significand"
    NEAREST_AWAY = "to the nearer one; half-way to the one farther from zero"
    TOWARD_ZERO = "to the one nearer to zero"
    TOWARD_POSITIVE = "to the upper one"
    TOWARD_NEGATIVE = "to the lower one"
    STOCHASTIC = "to either, the nearer one more often, so that the mean is the value itself"


class Overflow(Enum):
    """Result for a value beyond the largest finite one."""

    TO_INFINITY = (
        "infinity, NaN in a format without infinities, the largest value in a format without either"
    )
    SATURATE = "the largest finite value, infinities included"


RANDOM_BITS = 32  # width of each random integer of stochastic rounding

_NUMPY_FORMATS = {
    np.dtype(np.float16): FP16,
    np.dtype(np.float32): FP32,
    np.dtype(np.float64): FP64,
}
_WHOLE = {
    Rounding.NEAREST_EVEN: np.rint,
    Rounding.TOWARD_ZERO: np.trunc,
    Rounding.TOWARD_POSITIVE: np.ceil,
    Rounding.TOWARD_NEGATIVE: np.floor,
}


def round_to(
    values: ArrayLike,
    format: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> FloatArray:
    """Round values to a format, once.

    The array keeps its shape and its float type (float64 for anything else). The sign of zero
    survives. A NaN becomes the default NaN: it has no value to round, and its payload is not kept.
    A directed rounding that points away from infinity stops at the largest value, as IEEE 754 asks.
    A format without zero (E8M0) makes zero and what is negative NaN, and everything below its
    smallest value that one.

    Args:
        values: real numbers of any shape; whole numbers must fit float64 exactly.
        format: the format whose values the result holds.
        rounding: direction of the rounding.
        overflow: result for values beyond the largest of the format.
        random_bits: for `Rounding.STOCHASTIC` only: whole numbers below 2^32, uniformly random,
            shaped like `values`. A value is rounded away from zero if its number is below 2^32 *
            (the part of an ulp it exceeds its lower neighbour by). The mean is exact for up to 32
            bits beyond the format's own, else within 2^-32 ulp.

    Raises:
        TypeError: text, complex, or a float type other than float16, float32 and float64.
        ValueError: the float type of `values` holds neither all of `format` nor only values of it;
            NaN for a format that has none; random_bits missing, superfluous, or of another shape.

    Source: IEEE 754-2019, 4.3.

    >>> round_to([0.1, 1 + 2.0**-11, 65519.99, 65520.0], FP16)
    array([9.99755859e-02, 1.00000000e+00, 6.55040000e+04,            inf])
    >>> round_to(np.float32(1.0001), FP16, Rounding.TOWARD_POSITIVE)
    array(1.0009766, dtype=float32)
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    floats = as_floats(values)
    target = common_format(_NUMPY_FORMATS[floats.dtype], format)
    exact = widen(floats)
    if target.nan_code is None and np.isnan(exact).any():
        raise no_nan(target)
    # The ulp is a power of two, so the division and the multiplication are exact; the exponent is
    # not limited yet. Rounding up to the next binade gives that binade's first value.
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = ulp(exact, target)
        rounded = _to_whole(exact / spacing, rounding, random_bits) * spacing
    _, _, infinity = overflow_values(target, rounding, overflow)
    rounded = np.where(
        np.isinf(exact), np.copysign(infinity, exact), limit(rounded, target, rounding, overflow)
    )
    # values that the format has no place for become NaN
    refused = (exact < 0) & (not target.signed) | (exact == 0) & (not target.has_zero)
    return np.where(refused | np.isnan(rounded), np.nan, rounded).astype(floats.dtype)


def ulp(values: ArrayLike, format: FormatLike) -> NDArray[np.float64]:
    """Return the spacing of a format's values in the binade of each value (unit in the last place).

    Below `smallest_normal` it stays that of the first binade; beyond `max` and for infinity, that
    of the last one. For NaN it is NaN.

    Source: IEEE 754-2019, 3.3 (2^(e - p + 1)).

    >>> ulp([1.0, 1000.0, 0.0], FP16)
    array([9.76562500e-04, 5.00000000e-01, 5.96046448e-08])
    """
    format = as_format(format)
    exact = widen(values)
    exponent = binade(exact, format) - format.significand_bits
    # C's int is what ldexp takes; wider ones are slow
    spacing = np.ldexp(1.0, exponent.astype(np.intc))
    return np.where(np.isnan(exact), np.nan, spacing)


def binade(values: NDArray[np.float64], format: Format) -> NDArray[np.int64]:
    """Return the exponent e of 2^e <= |value| < 2^(e + 1), limited to `emin` .. `emax`.

    >>> binade(np.array([1.5, 0.0, np.inf]), FP16)
    array([  0, -14,  15])
    """
    # 2^(above - 1) <= |value| < 2^above, but 0 for 0, infinity and NaN
    _, above = np.frexp(values)
    exponent = np.where(
        values == 0, format.emin, np.where(np.isinf(values), format.emax, above - 1)
    )
    return np.clip(exponent, format.emin, format.emax).astype(np.int64)


def _to_whole(
    ratio: NDArray[np.float64], rounding: Rounding, random_bits: ArrayLike | None
) -> NDArray[np.float64]:
    """Round to integers by exact fractions, without an addition that could round them."""
    random = check_random_bits(random_bits, rounding, ratio.shape)
    if rounding in _WHOLE:
        return np.asarray(_WHOLE[rounding](ratio))
    # the difference is exact: whole has no more bits than ratio
    whole = np.trunc(ratio)
    fraction = np.abs(ratio - whole)
    if rounding is Rounding.NEAREST_AWAY:
        away = fraction >= 0.5
    else:
        # away with probability `fraction`, cut to the random numbers' bits
        away = random < np.floor(np.ldexp(fraction, RANDOM_BITS))
    return np.asarray(whole + np.copysign(away, ratio))


def limit(
    rounded: NDArray[np.float64], format: Format, rounding: Rounding, overflow: Overflow
) -> NDArray[np.float64]:
    """Apply the format's limits to values that were rounded with an unbounded exponent."""
    above, below, _ = overflow_values(format, rounding, overflow)
    limited = np.where(rounded > format.max, above, np.where(rounded < -format.max, below, rounded))
    return limited if format.has_zero else np.maximum(limited, format.smallest_normal)


def overflow_values(
    format: Format, rounding: Rounding, overflow: Overflow
) -> tuple[float, float, float]:
    """Return the results for a value above max, for one below -max, and for +infinity.

    >>> overflow_values(FP16, Rounding.TOWARD_POSITIVE, Overflow.TO_INFINITY)
    (inf, -65504.0, inf)
    """
    beyond = {Specials.IEEE: np.inf, Specials.FN: np.nan, Specials.NONE: format.max}[
        format.specials
    ]
    infinity = format.max if overflow is Overflow.SATURATE else beyond
    above = format.max if rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_NEGATIVE) else infinity
    below = -(
        format.max if rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE) else infinity
    )
    return above, below, infinity


def common_format(carrier: Format, format: Format) -> Format:
    """Return the format to round to for numbers stored in the format `carrier`.

    That is `format`, or `carrier` if `format` contains it.

    Raises:
        ValueError: neither contains the other, so `carrier` may not represent a rounded value.

    >>> common_format(FP32, FP16).name, common_format(FP16, FP32).name
    ('FP16', 'FP16')
    """
    if carrier.contains(format):
        return format
    if format.contains(carrier):
        return carrier
    raise ValueError(
        f"{format.name} has values that {carrier.name} cannot hold (max {format.max:g} and "
        f"{carrier.max:g}, precision {format.precision} and {carrier.precision}). Cast the numbers "
        "to a wider float type first, then round."
    )


def as_floats(values: ArrayLike) -> FloatArray:
    """Return values as an array of float16, float32 or float64, without loss.

    Raises:
        TypeError: text, booleans, complex numbers, objects, or a float wider than 64 bits.
        ValueError: an integer that float64 does not represent exactly.

    >>> as_floats([1, 2]).dtype
    dtype('float64')
    """
    array = np.asarray(values)
    if array.dtype in _NUMPY_FORMATS:
        return array
    if array.dtype.kind in "iu":
        if ((array > 2**53) | (array < -(2**53))).any():
            raise ValueError(
                "whole numbers beyond 2^53 are not all float64 values; cast by .astype(float) first"
            )
        return array.astype(np.float64)
    advice = (
        "parse(text, format) reads text."
        if array.dtype.kind in "US"
        else "Cast with .astype(np.float64)."
    )
    raise TypeError(f"expected float16, float32, float64 or integers, got {array.dtype}. {advice}")


def widen(values: ArrayLike) -> NDArray[np.float64]:
    """Return values as float64, exactly; raises as `as_floats`."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes quiet
        return as_floats(values).astype(np.float64)


def check_random_bits(
    random_bits: ArrayLike | None, rounding: Rounding, shape: tuple[int, ...]
) -> NDArray[np.integer]:
    """Return the random whole numbers of stochastic rounding, one for each value.

    For the other modes it is 0.

    Raises:
        ValueError: they are missing, of another shape, not integers, or outside 0 to 2^32 - 1; or
            the mode uses none.
    """
    if rounding is not Rounding.STOCHASTIC:
        if random_bits is not None:
            raise ValueError(
                f"random_bits are for Rounding.STOCHASTIC; {rounding} takes none. Leave them out."
            )
        return np.asarray(0)
    bits = np.asarray(() if random_bits is None else random_bits)
    if (
        bits.dtype.kind not in "iu"
        or bits.shape != shape
        or ((bits < 0) | (bits >= 2**RANDOM_BITS)).any()
    ):
        raise ValueError(
            f"stochastic rounding takes a random whole number below 2^{RANDOM_BITS} for each "
            f"value, shape {shape}: "
            f"random_bits=np.random.default_rng(0).integers(2**{RANDOM_BITS}, size={shape})"
        )
    return bits


def no_nan(format: Format) -> ValueError:
    """Return the error for a NaN in a format without NaN."""
    return ValueError(
        f"{format.name} has no NaN, and the values have one. Replace it first, by nan_to_num "
        "perhaps."
    )
