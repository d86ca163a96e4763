"""Arithmetic in a format: `+`, `*` and sums, step by step.

Idea: each number is an integer significand times a power of two, so its arithmetic is that of
integers. Each step is a function that returns a frozen record for display. Operations are sequences
of steps:

- add: align (bits that are cut off set a sticky bit), add, normalise to the precision, round.
- multiply: multiply, normalise, round.
- fused multiply-add: multiply, align, add, normalise, round.

A sum is a sequence of adds.

Invariant: no step before the last cuts off bits that could change how the exact result rounds; an
operation's value is the exact result rounded once.

Source: IEEE 754-2019, 4.3, 5.4.1, 6.1, 6.3, 9.4; Muller et al., Handbook of Floating-Point
Arithmetic, 2nd ed., 7.3 to 7.5; W. Kahan, Further remarks on reducing truncation errors, CACM 8(1),
1965.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.arguments import FormatLike, as_format, as_member
from labkit.formats.codes import check_exact
from labkit.formats.format import Format
from labkit.formats.rounding import (
    RANDOM_BITS,
    Overflow,
    Rounding,
    binade,
    check_random_bits,
    limit,
    round_to,
    widen,
)

# int64, or Python's own integers (dtype object) above 62 bits
Wholes: TypeAlias = NDArray[Any]
Flags: TypeAlias = NDArray[np.bool_]
ZERO_TOP = -(1 << 20)  # the top of zero, below that of every number


@dataclass(frozen=True)
class Term:
    """Exact numbers, (-1)^negative * significand * 2^exponent.

    The fields are arrays of one shape.
    """

    negative: Flags
    significand: Wholes
    exponent: NDArray[np.int64]


@dataclass(frozen=True)
class Multiply:
    """Step that multiplies the significands and adds the exponents, exactly."""

    a: Term
    b: Term
    product: Term


@dataclass(frozen=True)
class Align:
    """Step that writes both terms with one exponent.

    Bits cut off the lower one set its last bit.
    """

    a: Term
    b: Term
    shift: NDArray[np.int64]  # difference of their exponents, in places
    aligned_a: Term
    aligned_b: Term
    # ones were cut off, so the last bit of the lower term, the sticky bit, is set
    cut: Flags


@dataclass(frozen=True)
class Add:
    """Step that adds the aligned significands or, for different signs, subtracts them."""

    subtract: Flags
    total: Term


@dataclass(frozen=True)
class Normalise:
    """Step that cuts the significand to the precision of the format, or to a subnormal's bits."""

    kept: Term
    dropped: NDArray[np.int64]  # number of places cut off; negative for appended zeros
    rest: Wholes  # the bits cut off
    guard: Flags  # its first bit
    round: Flags  # its second
    sticky: Flags  # any later one


@dataclass(frozen=True)
class Round:
    """Step that keeps the significand or raises it by one."""

    up: Flags
    carried: Flags  # the significand was all ones, so the exponent grows by one
    rounded: Term


CalculationStep: TypeAlias = Multiply | Align | Add | Normalise | Round


def to_term(values: NDArray[np.float64], format: Format) -> Term:
    """Return values of a format as terms, with zero for infinities and NaNs.

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
    return Multiply(
        a, b, Term(a.negative ^ b.negative, significand, np.asarray(a.exponent + b.exponent))
    )


def align_terms(a: Term, b: Term, window: int) -> Align:
    """Write two terms with one exponent.

    It is `window` places below the first bit of the higher term, or where both terms end.

    Args:
        a: a term of the sum.
        b: the other term.
        window: bits of the widest term and three more (guard, round, sticky). Ones are cut off the
            lower term only if it begins three places below the higher one, and then their
            difference loses at most one leading bit.
    """
    exponent = np.maximum(np.minimum(a.exponent, b.exponent), np.maximum(_top(a), _top(b)) - window)
    (aligned_a, cut_a), (aligned_b, cut_b) = (
        _with_exponent(term, exponent, window + 1) for term in (a, b)
    )
    return Align(
        a, b, np.asarray(np.abs(a.exponent - b.exponent)), aligned_a, aligned_b, cut_a | cut_b
    )


def add_terms(align: Align, rounding: Rounding) -> Add:
    """Add two aligned terms.

    An exact zero is +0, or -0 when rounding downward or when both terms are negative.
    """
    a, b = align.aligned_a, align.aligned_b
    signed = [np.where(term.negative, -term.significand, term.significand) for term in (a, b)]
    total = np.asarray(signed[0] + signed[1], a.significand.dtype)
    subtract = a.negative ^ b.negative
    of_zero = np.where(subtract, rounding is Rounding.TOWARD_NEGATIVE, a.negative)
    negative = np.where(total == 0, of_zero, np.asarray(total < 0, np.bool_))
    return Add(subtract, Term(negative, np.asarray(np.abs(total), total.dtype), a.exponent))


def normalise(term: Term, format: Format) -> Normalise:
    """Cut a term to the format's precision, and return the bits that determine its rounding."""
    exponent = np.maximum(_top(term) - format.precision, format.emin - format.significand_bits)
    dropped = np.asarray(exponent - term.exponent)
    kept = _shift(term.significand, -dropped)
    rest = np.asarray(term.significand - _shift(kept, dropped), kept.dtype)
    guard, second = (np.asarray(_shift(rest, place - dropped) & 1, np.bool_) for place in (1, 2))
    sticky = np.asarray(_shift(_shift(rest, 2 - dropped), dropped - 2) != rest, np.bool_)
    return Normalise(
        Term(term.negative, kept, np.asarray(exponent)), dropped, rest, guard, second, sticky
    )


def round_term(
    cut: Normalise, format: Format, rounding: Rounding, random_bits: ArrayLike | None = None
) -> Round:
    """Raise the significand by one, or not, as its lowest bits and the rounding mode decide.

    Raises:
        ValueError: random_bits missing or of another shape (stochastic), or passed for another
            mode.
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
        Rounding.STOCHASTIC: np.asarray(
            random < _shift(cut.rest, RANDOM_BITS - cut.dropped), np.bool_
        ),
    }[rounding]
    raised = np.asarray(significand + up, significand.dtype)
    carried = np.asarray(raised == 1 << format.precision, np.bool_) & up
    return Round(np.asarray(up), carried, Term(negative, raised, cut.kept.exponent))


def _whole_type(bits: int) -> np.dtype[Any]:
    return np.dtype(np.int64 if bits <= 62 else object)


def _shift(significand: Wholes, places: NDArray[np.int64]) -> Wholes:
    """Shift left by `places`, or right where they are negative."""
    kind = significand.dtype
    left, right = (np.maximum(way, 0) for way in (places, -places))
    if kind == np.int64:  # int64 shifts by 63 and more are undefined; 62 clears it
        left, right = np.minimum(left, 62), np.minimum(right, 62)
    return np.asarray((significand << left.astype(kind)) >> right.astype(kind), kind)


def _bit_length(significand: Wholes) -> NDArray[np.int64]:
    if significand.dtype == object:
        return np.asarray(np.frompyfunc(int.bit_length, 1, 1)(significand), np.int64)
    _, length = np.frexp(significand.astype(np.float64))
    length = np.asarray(length, np.int64)
    # float64 had rounded up to a power of two
    too_long = (length > 0) & (_shift(significand, 1 - length) == 0)
    return np.asarray(length - too_long, np.int64)


def _top(term: Term) -> NDArray[np.int64]:
    """Exponent just above the first bit: |term| < 2^top."""
    return np.where(term.significand == 0, ZERO_TOP, term.exponent + _bit_length(term.significand))


def _with_exponent(term: Term, exponent: NDArray[np.int64], bits: int) -> tuple[Term, Flags]:
    """Return a term with another exponent, and where ones were cut off and set the last bit."""
    places = term.exponent - exponent
    significand = term.significand.astype(_whole_type(bits))
    shifted = _shift(significand, places)
    cut = np.asarray(_shift(shifted, -places) != significand, np.bool_)
    return Term(term.negative, np.asarray(shifted | cut, shifted.dtype), np.asarray(exponent)), cut


GUARD_BITS = 3  # guard, round and sticky


@dataclass(frozen=True)
class Calculation:
    """Result of an operation, and its steps.

    With an infinite or NaN operand the value follows IEEE 754's table, and the steps show zero in
    its place.
    """

    value: NDArray[np.float64]
    steps: tuple[CalculationStep, ...]


@dataclass(frozen=True)
class Sum:
    """Result of a sum, its additions in order, and its running totals."""

    value: NDArray[np.float64]
    additions: tuple[Calculation, ...]
    # running totals; for a pairwise sum, the shrinking list after each round
    totals: tuple[NDArray[np.float64], ...]


def add(
    a: ArrayLike,
    b: ArrayLike,
    format: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Add two numbers of a format, element by element; `add(a, -b, ...)` subtracts.

    Raises:
        ValueError: an operand is not a value of the format (see `encode`); random_bits as for
            `round_to`.

    >>> from labkit.formats import FP16, round_to
    >>> sum = add(1.0, round_to(0.0001, FP16), FP16)
    >>> align, plus, cut, decision = sum.steps
    >>> float(sum.value), int(align.shift), bool(cut.guard), bool(cut.sticky), bool(decision.up)
    (1.0, 14, False, True, False)
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    x, y = _operands(format, a, b)
    return _calculate(None, x, y, format, rounding, overflow, random_bits)


def multiply(
    a: ArrayLike,
    b: ArrayLike,
    format: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Multiply two numbers of a format, element by element.

    Raises:
        ValueError: as `add`.

    >>> from labkit.formats import FP16
    >>> multiply(3.0, 0.5, FP16).value
    array(1.5)
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    x, y = _operands(format, a, b)
    return _calculate(x, y, None, format, rounding, overflow, random_bits)


def fused_multiply_add(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    format: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Return a * b + c, rounded once at the end, element by element.

    Raises:
        ValueError: as `add`.

    >>> from labkit.formats import FP16
    >>> x = 1 + 2.0**-10
    >>> # rounding the product first would give 0
    >>> float(fused_multiply_add(x, x, -(1 + 2.0**-9), FP16).value) == 2.0**-20
    True
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    x, y, z = _operands(format, a, b, c)
    return _calculate(x, y, z, format, rounding, overflow, random_bits)


def sum_sequential(
    values: ArrayLike, format: FormatLike, rounding: Rounding | str = Rounding.NEAREST_EVEN
) -> Sum:
    """Add along the last axis from the first to the last, rounding after every addition.

    An empty sum is 0.

    >>> from labkit.formats import FP16
    >>> # 2048 + 1 is half-way between 2048 and 2050
    >>> float(sum_sequential([2048.0, 1.0, 1.0], FP16).value)
    2048.0
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    terms = _terms(format, values)
    total = _first(terms)
    additions = []
    totals = []
    for i in range(1, terms.shape[-1]):
        additions.append(_calculate(None, total, terms[..., i], format, rounding))
        total = additions[-1].value
        totals.append(total)
    return Sum(total, tuple(additions), tuple(totals))


def sum_pairwise(
    values: ArrayLike, format: FormatLike, rounding: Rounding | str = Rounding.NEAREST_EVEN
) -> Sum:
    """Add neighbours along the last axis, then the neighbouring sums, until one is left.

    An odd last one is kept.

    >>> from labkit.formats import FP16
    >>> float(sum_pairwise(np.ones(2100), FP16).value)
    2100.0
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    terms = _terms(format, values)
    additions, totals = [], []
    while terms.shape[-1] > 1:
        even = terms.shape[-1] // 2 * 2
        additions.append(
            _calculate(None, terms[..., 0:even:2], terms[..., 1:even:2], format, rounding)
        )
        terms = np.concatenate([additions[-1].value, terms[..., even:]], axis=-1)
        totals.append(terms)
    return Sum(_first(terms), tuple(additions), tuple(totals))


def sum_compensated(
    values: ArrayLike, format: FormatLike, rounding: Rounding | str = Rounding.NEAREST_EVEN
) -> Sum:
    """Add along the last axis by Kahan's algorithm.

    The error of each addition is added to the next number.

    Four additions a number: y = x - lost; t = total + y; lost = (t - total) - y, all rounded to the
    format.

    >>> from labkit.formats import FP16
    >>> float(sum_compensated([2048.0, 1.0, 1.0], FP16).value)
    2050.0
    """
    format = as_format(format)
    rounding = as_member(Rounding, rounding, "rounding")
    terms = _terms(format, values)
    total = _first(terms)
    additions = []
    totals = []
    plus = partial(_calculate, None, format=format, rounding=rounding)
    lost = np.zeros_like(total)
    for i in range(1, terms.shape[-1]):
        corrected = plus(terms[..., i], -lost)
        raised = plus(total, corrected.value)
        gained = plus(raised.value, -total)
        missed = plus(gained.value, -corrected.value)
        total, lost = raised.value, missed.value
        additions += [corrected, raised, gained, missed]
        totals.append(total)
    return Sum(total, tuple(additions), tuple(totals))


def _operands(format: Format, *arguments: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    exact = np.broadcast_arrays(*(widen(values) for values in arguments))
    for values in exact:
        check_exact(values, format)
    return tuple(exact)


def _terms(format: Format, values: ArrayLike) -> NDArray[np.float64]:
    (terms,) = _operands(format, values)
    if terms.ndim == 0:
        raise ValueError(
            "expected an array with an axis to sum along, got a single number. Put it in a list."
        )
    return terms


def _window(widest: int, rounding: Rounding) -> int:
    """Return the places that alignment keeps.

    Stochastic rounding needs more, by the width of its random bits.
    """
    return widest + GUARD_BITS + (RANDOM_BITS if rounding is Rounding.STOCHASTIC else 0)


def _first(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first term along the last axis, 0 for an empty axis."""
    return np.asarray(terms[..., 0]) if terms.shape[-1] else np.zeros(terms.shape[:-1])


def _calculate(
    a: NDArray[np.float64] | None,
    b: NDArray[np.float64],
    c: NDArray[np.float64] | None,
    format: Format,
    rounding: Rounding,
    overflow: Overflow = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Return a * b + c, or b + c without a, or a * b without c.

    Infinite and NaN operands follow IEEE 754's table.
    """
    steps: list[CalculationStep] = []
    exact = to_term(b, format)
    widest = format.precision
    if a is not None:
        product = multiply_terms(to_term(a, format), exact, format.precision)
        steps = [product]
        exact = product.product
        widest = 2 * format.precision
    if c is not None:
        aligned = align_terms(exact, to_term(c, format), _window(widest, rounding))
        summed = add_terms(aligned, rounding)
        steps = [*steps, aligned, summed]
        exact = summed.total
    cut = normalise(exact, format)
    final = round_term(cut, format, rounding, random_bits)
    value = value_of(final.rounded, format, rounding, overflow)
    factor, term = np.float64(1.0) if a is None else a, np.float64(0.0) if c is None else c
    ordinary = np.isfinite(factor) & np.isfinite(b) & np.isfinite(term)
    if not ordinary.all():
        with np.errstate(over="ignore", invalid="ignore"):
            # float64 follows the table; a finite product counts as 0, since it might overflow in
            # float64
            special = np.where(np.isfinite(factor) & np.isfinite(b), 0.0, factor * b) + term
        value = np.where(
            ordinary, value, round_to(np.where(ordinary, 1.0, special), format, rounding, overflow)
        )
    return Calculation(value, (*steps, cut, final))


def value_of(
    term: Term, format: Format, rounding: Rounding, overflow: Overflow
) -> NDArray[np.float64]:
    """Return a rounded term as a float, with the format's result beyond its largest value."""
    with np.errstate(over="ignore"):
        magnitude = np.ldexp(term.significand.astype(np.float64), term.exponent)
    return limit(np.where(term.negative, -magnitude, magnitude), format, rounding, overflow)
