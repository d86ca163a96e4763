"""By which stations does a sum or a product pass, on paper and in silicon?

Idea: write each number as a whole significand times a power of two; then it is whole-number arithmetic. Multiply,
align, add (what falls off is remembered in one sticky bit), normalise to the format's precision, look at the guard,
round and sticky bits, round. Each station is a function that returns a frozen record, to be shown and played.

Invariant: up to the last station nothing is cut off that could change how the exact result rounds.

Source: IEEE 754-2019, 4.3, 6.3; Muller et al., Handbook of Floating-Point Arithmetic, 2nd ed., 7.3 to 7.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.format import Format
from labkit.formats.rounding import RANDOM_BITS, Rounding, binade, check_random_bits

Wholes: TypeAlias = NDArray[Any]  # int64, or Python's own integers (dtype object) where 62 bits are too few
Flags: TypeAlias = NDArray[np.bool_]
NOWHERE = -(1 << 20)  # the top of zero: below that of every number


@dataclass(frozen=True)
class Term:
    """An exact number, (-1)^negative * significand * 2^exponent; the fields are arrays of one shape."""

    negative: Flags
    significand: Wholes
    exponent: NDArray[np.int64]


@dataclass(frozen=True)
class Multiply:
    """The significands were multiplied and the exponents added; nothing is cut off."""

    a: Term
    b: Term
    product: Term


@dataclass(frozen=True)
class Align:
    """Both terms were written with one exponent; what fell off the lower one is remembered in its last bit."""

    a: Term
    b: Term
    shift: NDArray[np.int64]  # difference of their exponents, in places
    aligned_a: Term
    aligned_b: Term
    cut: Flags  # ones were cut off, so the last bit of the lower term is set: it is sticky


@dataclass(frozen=True)
class Add:
    """The aligned significands were added or, where the signs differ, subtracted."""

    subtract: Flags
    total: Term


@dataclass(frozen=True)
class Normalise:
    """The significand was cut to the format's precision (to fewer bits below the smallest normal number)."""

    kept: Term
    dropped: NDArray[np.int64]  # how many places were cut off; negative: zeros were appended instead
    rest: Wholes  # what stood there
    guard: Flags  # its first bit
    round: Flags  # its second
    sticky: Flags  # any later one


@dataclass(frozen=True)
class Round:
    """The kept significand was left alone, or raised by one."""

    up: Flags
    carried: Flags  # raising it ran through all ones into one bit more: the exponent grows
    rounded: Term


Step: TypeAlias = Multiply | Align | Add | Normalise | Round


def to_term(values: NDArray[np.float64], format: Format) -> Term:
    """Write values of a format as terms; infinities and NaNs, which are none, as zero.

    >>> from labkit.formats import FP16
    >>> to_term(np.array(-1.5), FP16)
    Term(negative=array(True), significand=array(1536), exponent=array(-10))
    """
    finite = np.where(np.isfinite(values), values, 0.0)
    exponent = binade(finite, format) - format.significand_bits
    significand = np.ldexp(np.abs(finite), -exponent).astype(np.int64)
    return Term(np.asarray(np.signbit(finite)), np.asarray(significand), np.asarray(exponent))


def multiply_terms(a: Term, b: Term, precision: int) -> Multiply:
    """Multiply exactly; each factor has at most `precision` bits."""
    kind = _whole_type(2 * precision)
    significand = np.asarray(a.significand.astype(kind) * b.significand.astype(kind), kind)
    return Multiply(a, b, Term(a.negative ^ b.negative, significand, np.asarray(a.exponent + b.exponent)))


def align_terms(a: Term, b: Term, window: int) -> Align:
    """Write two terms with one exponent, `window` places below the higher one's first bit or just where they end.

    Args:
        window: bits of the widest term and three more (guard, round, sticky). Ones fall off the lower term only if it
            begins three places below the higher one, and then a difference of the two loses one leading bit at most.
    """
    exponent = np.maximum(np.minimum(a.exponent, b.exponent), np.maximum(_top(a), _top(b)) - window)
    (aligned_a, cut_a), (aligned_b, cut_b) = (_with_exponent(term, exponent, window + 1) for term in (a, b))
    return Align(a, b, np.asarray(np.abs(a.exponent - b.exponent)), aligned_a, aligned_b, cut_a | cut_b)


def add_terms(align: Align, rounding: Rounding) -> Add:
    """Add two aligned terms; an exact zero is +0, or -0 when rounding downward or when both terms are negative."""
    a, b = align.aligned_a, align.aligned_b
    signed = [np.where(term.negative, -term.significand, term.significand) for term in (a, b)]
    total = np.asarray(signed[0] + signed[1], a.significand.dtype)
    subtract = a.negative ^ b.negative
    of_zero = np.where(subtract, rounding is Rounding.TOWARD_NEGATIVE, a.negative)
    negative = np.where(total == 0, of_zero, np.asarray(total < 0, np.bool_))
    return Add(subtract, Term(negative, np.asarray(np.abs(total), total.dtype), a.exponent))


def normalise(term: Term, format: Format) -> Normalise:
    """Cut a term to the format's precision, and name the bits that decide how it rounds."""
    exponent = np.maximum(_top(term) - format.precision, format.emin - format.significand_bits)
    dropped = np.asarray(exponent - term.exponent)
    kept = _shift(term.significand, -dropped)
    rest = np.asarray(term.significand - _shift(kept, dropped), kept.dtype)
    guard, second = (np.asarray(_shift(rest, place - dropped) & 1, np.bool_) for place in (1, 2))
    sticky = np.asarray(_shift(_shift(rest, 2 - dropped), dropped - 2) != rest, np.bool_)
    return Normalise(Term(term.negative, kept, np.asarray(exponent)), dropped, rest, guard, second, sticky)


def round_term(cut: Normalise, format: Format, rounding: Rounding, random_bits: ArrayLike | None = None) -> Round:
    """Raise the kept significand by one, or not: guard, round and sticky decide, as the rounding mode reads them.

    Raises:
        ValueError: random_bits missing or of another shape (stochastic), or given for another mode.
    """
    negative, significand = cut.kept.negative, cut.kept.significand
    below_half = cut.round | cut.sticky  # anything after the guard bit
    inexact = cut.guard | below_half
    odd = np.asarray(significand & 1, np.bool_)
    random = check_random_bits(random_bits, rounding, significand.shape)
    up = {
        Rounding.NEAREST_EVEN: cut.guard & (below_half | odd),
        Rounding.NEAREST_AWAY: cut.guard,
        Rounding.TOWARD_ZERO: np.zeros_like(inexact),
        Rounding.TOWARD_POSITIVE: inexact & ~negative,
        Rounding.TOWARD_NEGATIVE: inexact & negative,
        Rounding.STOCHASTIC: np.asarray(random < _shift(cut.rest, RANDOM_BITS - cut.dropped), np.bool_),
    }[rounding]
    raised = np.asarray(significand + up, significand.dtype)
    carried = np.asarray(raised == 1 << format.precision, np.bool_) & up
    return Round(np.asarray(up), carried, Term(negative, raised, cut.kept.exponent))


def _whole_type(bits: int) -> np.dtype[Any]:
    return np.dtype(np.int64 if bits <= 62 else object)


def _shift(significand: Wholes, places: NDArray[np.int64]) -> Wholes:
    """Shift left by `places`, or right where they are negative (what falls off is gone)."""
    kind = significand.dtype
    left, right = (np.maximum(way, 0) for way in (places, -places))
    if kind == np.int64:  # int64 shifts by 63 and more are undefined; 62 empties it already
        left, right = np.minimum(left, 62), np.minimum(right, 62)
    return np.asarray((significand << left.astype(kind)) >> right.astype(kind), kind)


def _bit_length(significand: Wholes) -> NDArray[np.int64]:
    if significand.dtype == object:
        return np.asarray(np.frompyfunc(int.bit_length, 1, 1)(significand), np.int64)
    _, length = np.frexp(significand.astype(np.float64))
    length = np.asarray(length, np.int64)
    too_long = (length > 0) & (_shift(significand, 1 - length) == 0)  # float64 had rounded up to a power of two
    return np.asarray(length - too_long, np.int64)


def _top(term: Term) -> NDArray[np.int64]:
    """Exponent just above the first bit: |term| < 2^top."""
    return np.where(term.significand == 0, NOWHERE, term.exponent + _bit_length(term.significand))


def _with_exponent(term: Term, exponent: NDArray[np.int64], bits: int) -> tuple[Term, Flags]:
    """Write a term with another exponent; say where ones fell off and were gathered in the last bit."""
    places = term.exponent - exponent
    significand = term.significand.astype(_whole_type(bits))
    shifted = _shift(significand, places)
    cut = np.asarray(_shift(shifted, -places) != significand, np.bool_)
    return Term(term.negative, np.asarray(shifted | cut, shifted.dtype), np.asarray(exponent)), cut
