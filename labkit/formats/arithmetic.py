"""Arithmetic in a format: `+`, `*` and sums, step by step.

Idea: each number is an integer significand times a power of two, so its arithmetic is that of
integers. Each step is a function that returns a frozen record for display. Operations are sequences
of steps:

- add: align (ones that are cut off set a sticky bit), add, normalise to the precision, round.
- multiply: multiply, normalise, round.
- fused multiply-add: multiply, align, add, normalise, round.

A sum is a sequence of additions.

Invariant: no step before the last cuts off bits that could change the rounding of the exact result.
The value of an operation is the exact result, rounded once.

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
    deterministic,
    limit,
    round_to,
    widen,
)

# int64, or Python's own integers (dtype object) above 62 bits
Wholes: TypeAlias = NDArray[Any]
Flags: TypeAlias = NDArray[np.bool_]
# bits of a significand in int64: its sign, and the carry of an addition, need one each
MOST_INT64_BITS = 62
# the top of zero (see `_top`), which is below that of every number
ZERO_TOP = -(1 << 20)
# guard, round and sticky
GUARD_BITS = 3
# What to do instead of a stochastic sum.
ADD_IN_A_LOOP = "Add in a loop: add(total, term, format, rounding, random_bits=...)"


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

    Attributes:
        a: a term.
        b: the other term.
        shift: difference of their exponents, in places.
        aligned_a: `a` with the common exponent.
        aligned_b: `b` with the common exponent.
        cut: ones were cut off the lower term, so its last bit, the sticky bit, is set.
    """

    a: Term
    b: Term
    shift: NDArray[np.int64]
    aligned_a: Term
    aligned_b: Term
    cut: Flags


@dataclass(frozen=True)
class Add:
    """Step that adds the aligned significands or, for different signs, subtracts them."""

    subtract: Flags
    total: Term


@dataclass(frozen=True)
class Normalise:
    """Step that cuts the significand to the precision of the format, or to a subnormal's bits.

    Attributes:
        kept: the term with the bits that are kept.
        dropped: number of places that are cut off; negative for appended zeros.
        rest: the bits that are cut off.
        guard: the first bit of the rest.
        round: the second bit of the rest.
        sticky: whether any later bit of the rest is set.
    """

    kept: Term
    dropped: NDArray[np.int64]
    rest: Wholes
    guard: Flags
    round: Flags
    sticky: Flags


@dataclass(frozen=True)
class Round:
    """Step that keeps the significand or raises it by one.

    Attributes:
        up: whether it is raised.
        carried: whether it was all ones, so that the exponent grows by one.
        rounded: the result.
    """

    up: Flags
    carried: Flags
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
    dtype = _whole_type(2 * precision)
    product = Term(
        negative=a.negative ^ b.negative,
        significand=np.asarray(a.significand.astype(dtype) * b.significand.astype(dtype), dtype),
        exponent=np.asarray(a.exponent + b.exponent),
    )
    return Multiply(a, b, product)


def align_terms(a: Term, b: Term, window: int) -> Align:
    """Write two terms with one exponent.

    It is the smaller of their exponents, but at most `window` places below the first bit of the
    higher term.

    Args:
        a: a term of the sum.
        b: the other term.
        window: bits of the widest term and three more (guard, round, sticky), with those of the
            random numbers if the sum is rounded stochastically. Ones are cut off the lower term
            only if it begins three places below the higher one, and then their difference loses at
            most one leading bit.
    """
    lowest = np.minimum(a.exponent, b.exponent)
    highest_top = np.maximum(_top(a), _top(b))
    exponent = np.maximum(lowest, highest_top - window)
    aligned_a, cut_a = _with_exponent(a, exponent, window + 1)
    aligned_b, cut_b = _with_exponent(b, exponent, window + 1)
    shift = np.asarray(np.abs(a.exponent - b.exponent))
    return Align(a, b, shift, aligned_a, aligned_b, cut=cut_a | cut_b)


def add_terms(align: Align, rounding: Rounding) -> Add:
    """Add two aligned terms.

    An exact zero is +0, or -0 when rounding downward or when both terms are negative.
    """
    a = align.aligned_a
    b = align.aligned_b
    signed_a = np.where(a.negative, -a.significand, a.significand)
    signed_b = np.where(b.negative, -b.significand, b.significand)
    total = np.asarray(signed_a + signed_b, a.significand.dtype)
    subtract = a.negative ^ b.negative
    zero_is_negative = np.where(subtract, rounding is Rounding.TOWARD_NEGATIVE, a.negative)
    negative = np.where(total == 0, zero_is_negative, np.asarray(total < 0, np.bool_))
    return Add(subtract, Term(negative, np.asarray(np.abs(total), total.dtype), a.exponent))


def normalise(term: Term, format: Format) -> Normalise:
    """Cut a term to the format's precision, and return the bits that determine its rounding."""
    # `precision` bits below the top, but none below the last bit of a subnormal
    exponent = np.maximum(_top(term) - format.precision, format.emin - format.significand_bits)
    dropped = np.asarray(exponent - term.exponent)
    significand = _shift(term.significand, -dropped)
    rest = np.asarray(term.significand - _shift(significand, dropped), significand.dtype)
    guard = np.asarray(_shift(rest, 1 - dropped) & 1, np.bool_)
    second = np.asarray(_shift(rest, 2 - dropped) & 1, np.bool_)
    # without its later bits, the rest is another number
    first_two = _shift(_shift(rest, 2 - dropped), dropped - 2)
    return Normalise(
        kept=Term(term.negative, significand, np.asarray(exponent)),
        dropped=dropped,
        rest=rest,
        guard=guard,
        round=second,
        sticky=np.asarray(first_two != rest, np.bool_),
    )


def round_term(
    cut: Normalise, format: Format, rounding: Rounding, random_bits: ArrayLike | None = None
) -> Round:
    """Raise the significand by one, or not, as the bits cut off and the rounding mode decide.

    Args:
        cut: the normalised term.
        format: the format, whose precision the term has.
        rounding: the rounding mode.
        random_bits: as for `round_to`; for stochastic rounding only.

    Raises:
        ValueError: random_bits are missing or of another shape (stochastic), or were passed for
            another mode.
    """
    negative = cut.kept.negative
    significand = cut.kept.significand
    after_guard = cut.round | cut.sticky
    inexact = cut.guard | after_guard
    random = check_random_bits(random_bits, rounding, significand.shape)
    up: Flags
    if rounding is Rounding.NEAREST_EVEN:
        # a tie, the guard bit alone, goes to the even significand
        is_odd = np.asarray(significand & 1, np.bool_)
        up = cut.guard & (after_guard | is_odd)
    elif rounding is Rounding.NEAREST_AWAY:
        up = cut.guard
    elif rounding is Rounding.TOWARD_ZERO:
        up = np.zeros_like(inexact)
    elif rounding is Rounding.TOWARD_POSITIVE:
        up = inexact & ~negative
    elif rounding is Rounding.TOWARD_NEGATIVE:
        up = inexact & negative
    else:
        # stochastic: up with the probability rest / ulp, cut to the bits of the random numbers
        up = np.asarray(random < _shift(cut.rest, RANDOM_BITS - cut.dropped), np.bool_)
    raised = np.asarray(significand + up, significand.dtype)
    carried = np.asarray(raised == 1 << format.precision, np.bool_) & up
    return Round(np.asarray(up), carried, Term(negative, raised, cut.kept.exponent))


def _whole_type(bits: int) -> np.dtype[Any]:
    """Return the dtype for significands of this many bits."""
    return np.dtype(np.int64 if bits <= MOST_INT64_BITS else object)


def _shift(significand: Wholes, places: NDArray[np.int64]) -> Wholes:
    """Shift left by `places`, or right where they are negative."""
    dtype = significand.dtype
    left = np.maximum(places, 0)
    right = np.maximum(-places, 0)
    if dtype == np.int64:
        # a shift of int64 by 64 or more is undefined; one by 62 clears a significand already
        left = np.minimum(left, MOST_INT64_BITS)
        right = np.minimum(right, MOST_INT64_BITS)
    return np.asarray((significand << left.astype(dtype)) >> right.astype(dtype), dtype)


def _bit_length(significand: Wholes) -> NDArray[np.int64]:
    """Return the number of bits of each significand, without leading zeros."""
    if significand.dtype == object:
        return np.asarray(np.frompyfunc(int.bit_length, 1, 1)(significand), np.int64)
    _, length = np.frexp(significand.astype(np.float64))
    length = np.asarray(length, np.int64)
    # above 2^53, the conversion to float64 may have rounded up to a power of two
    too_long = (length > 0) & (_shift(significand, 1 - length) == 0)
    return np.asarray(length - too_long, np.int64)


def _top(term: Term) -> NDArray[np.int64]:
    """Return the exponent just above the first bit: |term| < 2^top."""
    return np.where(term.significand == 0, ZERO_TOP, term.exponent + _bit_length(term.significand))


def _with_exponent(term: Term, exponent: NDArray[np.int64], bits: int) -> tuple[Term, Flags]:
    """Return a term with another exponent, and flags where ones were cut off and set the last bit.

    Args:
        term: the term.
        exponent: its new exponent.
        bits: the most bits that its significand then has.
    """
    places = term.exponent - exponent
    significand = term.significand.astype(_whole_type(bits))
    shifted = _shift(significand, places)
    cut = np.asarray(_shift(shifted, -places) != significand, np.bool_)
    with_sticky = np.asarray(shifted | cut, shifted.dtype)
    return Term(term.negative, with_sticky, np.asarray(exponent)), cut


@dataclass(frozen=True)
class Calculation:
    """Result of an operation, and its steps.

    With an infinite or NaN operand, the value follows the rules of IEEE 754, and the steps show
    zero in place of the operand.
    """

    value: NDArray[np.float64]
    steps: tuple[CalculationStep, ...]


@dataclass(frozen=True)
class Sum:
    """Result of a sum.

    Attributes:
        value: the sum.
        additions: its additions, in order.
        totals: the running totals; for a pairwise sum, the list of sums after each round.
    """

    value: NDArray[np.float64]
    additions: tuple[Calculation, ...]
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

    Raises:
        ValueError: the rounding is stochastic.

    >>> from labkit.formats import FP16
    >>> # 2048 + 1 is half-way between 2048 and 2050
    >>> float(sum_sequential([2048.0, 1.0, 1.0], FP16).value)
    2048.0
    """
    format = as_format(format)
    rounding = deterministic(rounding, ADD_IN_A_LOOP)
    terms = _terms(format, values)
    total = _first(terms)
    additions = []
    totals = []
    for i in range(1, terms.shape[-1]):
        addition = _calculate(None, total, terms[..., i], format, rounding)
        total = addition.value
        additions.append(addition)
        totals.append(total)
    return Sum(total, tuple(additions), tuple(totals))


def sum_pairwise(
    values: ArrayLike, format: FormatLike, rounding: Rounding | str = Rounding.NEAREST_EVEN
) -> Sum:
    """Add neighbours along the last axis, then neighbouring sums, until one number is left.

    In a round with an odd number of terms, the last one is passed on to the next round.

    Raises:
        ValueError: the rounding is stochastic.

    >>> from labkit.formats import FP16
    >>> float(sum_pairwise(np.ones(2100), FP16).value)
    2100.0
    """
    format = as_format(format)
    rounding = deterministic(rounding, ADD_IN_A_LOOP)
    terms = _terms(format, values)
    additions = []
    totals = []
    while terms.shape[-1] > 1:
        even = terms.shape[-1] // 2 * 2
        addition = _calculate(None, terms[..., 0:even:2], terms[..., 1:even:2], format, rounding)
        terms = np.concatenate([addition.value, terms[..., even:]], axis=-1)
        additions.append(addition)
        totals.append(terms)
    return Sum(_first(terms), tuple(additions), tuple(totals))


def sum_compensated(
    values: ArrayLike, format: FormatLike, rounding: Rounding | str = Rounding.NEAREST_EVEN
) -> Sum:
    """Add along the last axis by Kahan's algorithm.

    The error of each addition is subtracted from the next number. Each number x takes four
    additions, all rounded to the format: y = x - lost; t = total + y; lost = (t - total) - y.

    Raises:
        ValueError: the rounding is stochastic.

    >>> from labkit.formats import FP16
    >>> float(sum_compensated([2048.0, 1.0, 1.0], FP16).value)
    2050.0
    """
    format = as_format(format)
    rounding = deterministic(rounding, ADD_IN_A_LOOP)
    terms = _terms(format, values)
    total = _first(terms)
    additions = []
    totals = []
    plus = partial(_calculate, None, format=format, rounding=rounding)
    lost = np.zeros_like(total)
    for i in range(1, terms.shape[-1]):
        corrected = plus(terms[..., i], -lost)
        new_total = plus(total, corrected.value)
        gained = plus(new_total.value, -total)
        error = plus(gained.value, -corrected.value)
        total = new_total.value
        lost = error.value
        additions += [corrected, new_total, gained, error]
        totals.append(total)
    return Sum(total, tuple(additions), tuple(totals))


def _operands(format: Format, *arguments: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    """Return arguments as float64 arrays of one shape, which hold only values of the format."""
    exact = np.broadcast_arrays(*(widen(values) for values in arguments))
    for values in exact:
        check_exact(values, format)
    return tuple(exact)


def _terms(format: Format, values: ArrayLike) -> NDArray[np.float64]:
    """Return the terms of a sum along the last axis."""
    (terms,) = _operands(format, values)
    if terms.ndim == 0:
        raise ValueError(
            "expected an array with an axis to sum along, got a single number. Put it in a list."
        )
    return terms


def _window(widest: int, rounding: Rounding) -> int:
    """Return the number of places that alignment keeps, for terms of at most `widest` bits."""
    window = widest + GUARD_BITS
    # compared with random numbers of this width
    if rounding is Rounding.STOCHASTIC:
        window += RANDOM_BITS
    return window


def _first(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first term along the last axis, 0 for an empty axis."""
    if terms.shape[-1] == 0:
        return np.zeros(terms.shape[:-1])
    return np.asarray(terms[..., 0])


def _calculate(
    a: NDArray[np.float64] | None,
    b: NDArray[np.float64],
    c: NDArray[np.float64] | None,
    format: Format,
    rounding: Rounding,
    overflow: Overflow = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Return a * b + c; b + c if a is None; a * b if c is None.

    Infinite and NaN operands follow the rules of IEEE 754.
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

    factor = np.asarray(1.0) if a is None else a
    term = np.asarray(0.0) if c is None else c
    finite_product = np.isfinite(factor) & np.isfinite(b)
    finite = finite_product & np.isfinite(term)
    if not finite.all():
        with np.errstate(over="ignore", invalid="ignore"):
            # Float64 follows the rules of IEEE 754 for infinities and NaNs. A finite product counts
            # as 0, since it might overflow in float64.
            special = np.where(finite_product, 0.0, factor * b) + term
        # The finite elements need any value that the format has.
        special = np.where(finite, 1.0, special)
        # Infinities and NaNs have no neighbours to choose from at random.
        if rounding is Rounding.STOCHASTIC:
            rounding = Rounding.NEAREST_EVEN
        value = np.where(finite, value, round_to(special, format, rounding, overflow))
    return Calculation(value, (*steps, cut, final))


def value_of(
    term: Term, format: Format, rounding: Rounding, overflow: Overflow
) -> NDArray[np.float64]:
    """Return a rounded term as a float, with the format's result beyond its largest value."""
    with np.errstate(over="ignore"):
        magnitude = np.ldexp(term.significand.astype(np.float64), term.exponent)
    return limit(np.where(term.negative, -magnitude, magnitude), format, rounding, overflow)
