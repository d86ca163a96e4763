"""What do `+`, `*` and a sum give in a format, and how did they get there?

Idea: an operation is a row of stations (`steps`): add = align, add, normalise, round; multiply = multiply, normalise,
round; fused multiply-add = multiply, align, add, normalise, round. A sum of many is a row of adds.

Invariant: an operation's value is the exact result rounded once.

Source: IEEE 754-2019, 5.4.1, 6.1, 9.4; W. Kahan, Further remarks on reducing truncation errors, CACM 8(1), 1965.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats.codes import check_exact
from labkit.formats.format import Format
from labkit.formats.rounding import RANDOM_BITS, Overflow, Rounding, limit, round_to, widen
from labkit.formats.steps import (
    Round,
    Step,
    Term,
    add_terms,
    align_terms,
    multiply_terms,
    normalise,
    round_term,
    to_term,
)

GUARD_BITS = 3  # guard, round and sticky


@dataclass(frozen=True)
class Calculation:
    """What an operation gave, and the stations on the way to it.

    With an infinite or NaN operand the value follows IEEE 754's table, and the steps show zero in its place.
    """

    value: NDArray[np.float64]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Sum:
    """What a sum gave, the additions it was made of, in order, and the totals seen on the way."""

    value: NDArray[np.float64]
    additions: tuple[Calculation, ...]
    totals: tuple[NDArray[np.float64], ...]  # running totals; for a pairwise sum, the shrinking list after each round


def add(
    a: ArrayLike,
    b: ArrayLike,
    format: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Add two numbers of a format, element by element; `add(a, -b, ...)` subtracts.

    Raises:
        ValueError: an operand is no value of the format (see `encode`); random_bits as for `round_to`.

    >>> from labkit.formats import FP16, round_to
    >>> sum = add(1.0, round_to(0.0001, FP16), FP16)
    >>> align, plus, cut, decision = sum.steps
    >>> float(sum.value), int(align.shift), bool(cut.guard), bool(cut.sticky), bool(decision.up)
    (1.0, 14, False, True, False)
    """
    x, y = _operands(format, a, b)
    return _add(x, y, format, rounding, overflow, random_bits)


def _add(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    format: Format,
    rounding: Rounding,
    overflow: Overflow = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    aligned = align_terms(to_term(x, format), to_term(y, format), _window(format.precision, rounding))
    summed = add_terms(aligned, rounding)
    cut = normalise(summed.total, format)
    final = round_term(cut, format, rounding, random_bits)
    value = _value(final, np.ones_like(x), x, y, format, rounding, overflow)
    return Calculation(value, (aligned, summed, cut, final))


def multiply(
    a: ArrayLike,
    b: ArrayLike,
    format: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Multiply two numbers of a format, element by element.

    Raises:
        ValueError: as `add`.

    >>> from labkit.formats import FP16
    >>> multiply(3.0, 0.5, FP16).value
    array(1.5)
    """
    x, y = _operands(format, a, b)
    product = multiply_terms(to_term(x, format), to_term(y, format), format.precision)
    cut = normalise(product.product, format)
    final = round_term(cut, format, rounding, random_bits)
    value = _value(final, x, y, np.zeros_like(x), format, rounding, overflow)
    return Calculation(value, (product, cut, final))


def fused_multiply_add(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike,
    format: Format,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow = Overflow.TO_INFINITY,
    random_bits: ArrayLike | None = None,
) -> Calculation:
    """Return a * b + c, rounded once at the end, element by element.

    Raises:
        ValueError: as `add`.

    >>> from labkit.formats import FP16
    >>> x = 1 + 2.0**-10
    >>> float(fused_multiply_add(x, x, -(1 + 2.0**-9), FP16).value) == 2.0**-20  # rounding the product first gives 0
    True
    """
    x, y, z = _operands(format, a, b, c)
    product = multiply_terms(to_term(x, format), to_term(y, format), format.precision)
    aligned = align_terms(product.product, to_term(z, format), _window(2 * format.precision, rounding))
    summed = add_terms(aligned, rounding)
    cut = normalise(summed.total, format)
    final = round_term(cut, format, rounding, random_bits)
    return Calculation(_value(final, x, y, z, format, rounding, overflow), (product, aligned, summed, cut, final))


def sum_sequential(values: ArrayLike, format: Format, rounding: Rounding = Rounding.NEAREST_EVEN) -> Sum:
    """Add along the last axis from the first to the last, rounding after every addition. An empty sum is 0.

    >>> from labkit.formats import FP16
    >>> float(sum_sequential([2048.0, 1.0, 1.0], FP16).value)  # 2048 + 1 is half-way between 2048 and 2050
    2048.0
    """
    terms = _terms(format, values)
    total, additions, totals = _first(terms), [], []
    for i in range(1, terms.shape[-1]):
        additions.append(_add(total, terms[..., i], format, rounding))
        total = additions[-1].value
        totals.append(total)
    return Sum(total, tuple(additions), tuple(totals))


def sum_pairwise(values: ArrayLike, format: Format, rounding: Rounding = Rounding.NEAREST_EVEN) -> Sum:
    """Add neighbours along the last axis, then the neighbouring sums, until one is left; an odd last one waits.

    >>> from labkit.formats import FP16
    >>> float(sum_pairwise(np.ones(2100), FP16).value)
    2100.0
    """
    terms = _terms(format, values)
    additions, totals = [], []
    while terms.shape[-1] > 1:
        even = terms.shape[-1] // 2 * 2
        additions.append(_add(terms[..., 0:even:2], terms[..., 1:even:2], format, rounding))
        terms = np.concatenate([additions[-1].value, terms[..., even:]], axis=-1)
        totals.append(terms)
    return Sum(_first(terms), tuple(additions), tuple(totals))


def sum_compensated(values: ArrayLike, format: Format, rounding: Rounding = Rounding.NEAREST_EVEN) -> Sum:
    """Add along the last axis as Kahan does: what each addition loses is carried and added to the next number.

    Four additions a number: y = x - lost; t = total + y; lost = (t - total) - y, all rounded to the format.

    >>> from labkit.formats import FP16
    >>> float(sum_compensated([2048.0, 1.0, 1.0], FP16).value)
    2050.0
    """
    terms = _terms(format, values)
    total, additions, totals = _first(terms), [], []
    plus: Callable[[NDArray[np.float64], NDArray[np.float64]], Calculation]
    plus = partial(_add, format=format, rounding=rounding)
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


def _operands(format: Format, *given: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    exact = np.broadcast_arrays(*(widen(values) for values in given))
    for values in exact:
        check_exact(values, format)
    return tuple(exact)


def _terms(format: Format, values: ArrayLike) -> NDArray[np.float64]:
    (terms,) = _operands(format, values)
    if terms.ndim == 0:
        raise ValueError("a sum runs along an axis of its array; it was given a single number. Put it in a list.")
    return terms


def _window(widest: int, rounding: Rounding) -> int:
    """Places that alignment keeps; stochastic rounding reads as many more as it has random bits."""
    return widest + GUARD_BITS + (RANDOM_BITS if rounding is Rounding.STOCHASTIC else 0)


def _first(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first term along the last axis, 0 where there is none."""
    return np.asarray(terms[..., 0]) if terms.shape[-1] else np.zeros(terms.shape[:-1])


def _value(
    final: Round,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    c: NDArray[np.float64],
    format: Format,
    rounding: Rounding,
    overflow: Overflow,
) -> NDArray[np.float64]:
    """Turn the last station into a float; where an operand of a * b + c is infinite or NaN, apply IEEE 754's table."""
    term: Term = final.rounded
    with np.errstate(over="ignore", invalid="ignore"):
        magnitude = np.ldexp(term.significand.astype(np.float64), term.exponent)
        # float64 knows the table; a finite product counts as 0 there, since it might overflow in float64
        special = np.where(np.isfinite(a) & np.isfinite(b), 0.0, a * b) + c
    finite = limit(np.where(term.negative, -magnitude, magnitude), format, rounding, overflow)
    ordinary = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    if ordinary.all():
        return finite
    return np.where(ordinary, finite, round_to(np.where(ordinary, 1.0, special), format, rounding, overflow))
