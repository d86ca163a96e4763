"""Rounding of float64 arrays to any binary format.

Idea: in each binade, a format's values are the multiples of one spacing, the ulp. So a value is
divided by the ulp, rounded to an integer, and multiplied by the ulp. The division and the
multiplication are exact, since the ulp is a power of two.

Invariant: in every mode, the exact argument is rounded once. A rounded number does not change when
it is rounded again.

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


# width of each random integer of stochastic rounding
RANDOM_BITS = 32

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


def deterministic(rounding: Rounding | str, instead: str) -> Rounding:
    """Return a rounding as a member of `Rounding`, if it needs no random bits.

    Args:
        rounding: the rounding, or its name.
        instead: what a caller can do instead of rounding stochastically, for the message.

    Raises:
        ValueError: the rounding is stochastic.
    """
    member = as_member(Rounding, rounding, "rounding")
    if member is Rounding.STOCHASTIC:
        raise ValueError(
            f"rounding: expected one that needs no random bits, got stochastic. {instead}"
        )
    return member


def round_to(
    values: ArrayLike,
    format: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> FloatArray:
    """Round values to a format, once.

    The array keeps its shape and its float type; any other type becomes float64. The sign of zero
    is kept. A NaN becomes the default NaN. A directed rounding away from infinity stops at the
    largest value, as IEEE 754 specifies. In a format without zero (E8M0), zero and negative numbers
    become NaN, and positive numbers below the smallest value become that value.

    Args:
        values: real numbers of any shape; float64 must represent whole numbers exactly.
        format: the format to round to.
        rounding: direction of the rounding.
        overflow: result for values beyond the largest value of the format.
        random_bits: for `Rounding.STOCHASTIC` only: whole numbers below 2^32, uniformly random,
            with the shape of `values`. A value is rounded away from zero if its random number is
            below 2^32 * (its distance from the neighbour nearer to zero, in ulps). The mean is
            exact for values with up to 32 bits more than the format, else within 2^-32 ulp.

    Raises:
        TypeError: text, complex, or a float type other than float16, float32 and float64.
        ValueError: the float type of `values` represents neither all values of `format` nor only
            values of it; a value is NaN and the format has none; or random_bits are missing,
            superfluous, or of another shape.

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
    # The ulp is a power of two, so the division and the multiplication are exact. Rounding up to
    # the next binade results in the first value of that binade. Values beyond max are limited
    # afterwards.
    with np.errstate(over="ignore", invalid="ignore"):
        spacing = ulp(exact, target)
        rounded = _to_whole(exact / spacing, rounding, random_bits) * spacing
    rounded = limit(rounded, target, rounding, overflow)
    _, _, infinity = overflow_values(target, rounding, overflow)
    rounded = np.where(np.isinf(exact), np.copysign(infinity, exact), rounded)
    # one NaN, without sign and payload; also for numbers that the format does not represent
    is_nan = np.isnan(rounded)
    if not target.signed:
        is_nan |= exact < 0
    if not target.has_zero:
        is_nan |= exact == 0
    return np.where(is_nan, np.nan, rounded).astype(floats.dtype)


def ulp(values: ArrayLike, format: FormatLike) -> NDArray[np.float64]:
    """Return the spacing of a format's values in the binade of each value (unit in the last place).

    Below `smallest_normal` it is that of the first binade; beyond `max` and for infinity, that of
    the last binade. For NaN it is NaN.

    Source: IEEE 754-2019, 3.3 (2^(e - p + 1)).

    >>> ulp([1.0, 1000.0, 0.0], FP16)
    array([9.76562500e-04, 5.00000000e-01, 5.96046448e-08])
    """
    format = as_format(format)
    exact = widen(values)
    exponent = binade(exact, format) - format.significand_bits
    # C's ldexp has an exponent of type int; NumPy is slow with a wider type
    spacing = np.ldexp(1.0, exponent.astype(np.intc))
    return np.where(np.isnan(exact), np.nan, spacing)


def binade(values: NDArray[np.float64], format: Format) -> NDArray[np.int64]:
    """Return the exponent e of 2^e <= |value| < 2^(e + 1), limited to `emin` .. `emax`.

    >>> binade(np.array([1.5, 0.0, np.inf]), FP16)
    array([  0, -14,  15])
    """
    # frexp returns an exponent with 2^(above - 1) <= |value| < 2^above, and 0 for 0, inf and NaN
    _, above = np.frexp(values)
    exponent = above - 1
    exponent = np.where(values == 0, format.emin, exponent)
    exponent = np.where(np.isinf(values), format.emax, exponent)
    return np.asarray(np.clip(exponent, format.emin, format.emax), np.int64)


def _to_whole(
    ratio: NDArray[np.float64], rounding: Rounding, random_bits: ArrayLike | None
) -> NDArray[np.float64]:
    """Round to integers by exact fractions, without an addition that could round them."""
    random = check_random_bits(random_bits, rounding, ratio.shape)
    if rounding in _WHOLE:
        return np.asarray(_WHOLE[rounding](ratio))
    # the difference is exact: the fraction consists of the last bits of the ratio
    whole = np.trunc(ratio)
    fraction = np.abs(ratio - whole)
    if rounding is Rounding.NEAREST_AWAY:
        away = fraction >= 0.5
    else:
        # away from zero with probability `fraction`, cut to the bits of the random numbers
        away = random < np.floor(np.ldexp(fraction, RANDOM_BITS))
    return np.asarray(whole + np.copysign(away, ratio))


def limit(
    rounded: NDArray[np.float64], format: Format, rounding: Rounding, overflow: Overflow
) -> NDArray[np.float64]:
    """Apply the format's limits to values that were rounded to multiples of its spacing."""
    above, below, _ = overflow_values(format, rounding, overflow)
    limited = np.where(rounded > format.max, above, rounded)
    limited = np.where(rounded < -format.max, below, limited)
    if not format.has_zero:
        limited = np.maximum(limited, format.smallest_normal)
    return limited


def overflow_values(
    format: Format, rounding: Rounding, overflow: Overflow
) -> tuple[float, float, float]:
    """Return the results for a value above max, for one below -max, and for +infinity.

    >>> overflow_values(FP16, Rounding.TOWARD_POSITIVE, Overflow.TO_INFINITY)
    (inf, -65504.0, inf)
    """
    if overflow is Overflow.SATURATE or format.specials is Specials.NONE:
        infinity = format.max
    elif format.specials is Specials.FN:
        infinity = np.nan
    else:
        infinity = np.inf
    above = infinity
    below = -infinity
    # a direction away from infinity stops at the largest value
    if rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_NEGATIVE):
        above = format.max
    if rounding in (Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE):
        below = -format.max
    return above, below, infinity


def common_format(carrier: Format, format: Format) -> Format:
    """Return the format to round to for numbers that are stored in the format `carrier`.

    It is `format`, or `carrier` if `format` contains it: then nothing is rounded.

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
        ValueError: an integer beyond 2^53, above which float64 does not have all of them.

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
    advice = "Cast with .astype(np.float64)."
    if array.dtype.kind in "US":
        advice = "parse(text, format) reads text."
    raise TypeError(f"expected float16, float32, float64 or integers, got {array.dtype}. {advice}")


def widen(values: ArrayLike) -> NDArray[np.float64]:
    """Return values as float64, exactly; the errors are those of `as_floats`."""
    # a signalling NaN becomes quiet, which NumPy would warn about
    with np.errstate(invalid="ignore"):
        return as_floats(values).astype(np.float64)


def check_random_bits(
    random_bits: ArrayLike | None, rounding: Rounding, shape: tuple[int, ...]
) -> NDArray[np.integer]:
    """Return the validated random numbers of stochastic rounding; 0 for the other modes.

    Args:
        random_bits: a whole number for each value.
        rounding: the mode.
        shape: shape of the values.

    Raises:
        ValueError: random_bits are missing, of another shape, not integers, or outside 0 to
            2^32 - 1; or the mode uses none.
    """
    if rounding is not Rounding.STOCHASTIC:
        if random_bits is not None:
            raise ValueError(
                f"random_bits are for Rounding.STOCHASTIC; {rounding} takes none. Leave them out."
            )
        return np.asarray(0)
    if random_bits is None:
        got = "None"
    else:
        bits = np.asarray(random_bits)
        if bits.dtype.kind not in "iu":
            got = f"an array of {bits.dtype}"
        elif bits.shape != shape:
            got = f"shape {bits.shape}"
        elif ((bits < 0) | (bits >= 2**RANDOM_BITS)).any():
            got = "a number outside this range"
        else:
            return bits
    raise ValueError(
        f"random_bits: expected a random whole number from 0 to 2^{RANDOM_BITS} - 1 for each "
        f"value, shape {shape}, for stochastic rounding, got {got}. For example: "
        f"random_bits=np.random.default_rng(0).integers(2**{RANDOM_BITS}, size={shape})"
    )


def no_nan(format: Format) -> ValueError:
    """Return the error for a NaN in a format without NaN."""
    return ValueError(
        f"{format.name} has no NaN, and the values have one. Replace it first, by nan_to_num for "
        "instance."
    )
