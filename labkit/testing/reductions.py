"""Sums, means and largest numbers over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from labkit.formats import Format
from labkit.formats.arguments import require_kind
from labkit.testing import orders
from labkit.testing.bound import Arithmetic, Floats, sum_error
from labkit.testing.operation import Array, Operation, Places, dimension_of, operand


def sum_over(x: Array, dim: int | Sequence[int] | None = None) -> Operation:
    """Return the sum of x over some dimensions, by default over all.

    >>> float(sum_over(np.ones((3, 4), np.float32)).value)
    12.0
    """
    rows, format = _rows(x, dim)
    sums = _Sums(rows, format)
    return Operation(
        f"sum {list(x.shape)}",
        sums.value,
        rows.shape[-1],
        (format,),
        sums.error,
        sums.replay,
        sums.pairs,
    )


def mean(x: Array, dim: int | Sequence[int] | None = None) -> Operation:
    """Return the mean of x over some dimensions, by default all.

    It is the sum divided by K, or times 1 / K.
    """
    rows, format = _rows(x, dim)
    means = _Means(rows, format)
    return Operation(
        f"mean {list(x.shape)}",
        means.value,
        rows.shape[-1],
        (format,),
        means.error,
        means.replay,
        others=means.others,
    )


def amax(x: Array, dim: int | Sequence[int] | None = None) -> Operation:
    """Return the largest number of x over some dimensions, by default over all.

    Nothing is rounded before the end.
    """
    rows, format = _rows(x, dim)
    if not rows.shape[-1]:
        raise ValueError("expected a number or more to take the largest of, got an empty dimension")
    value = rows.max(-1)
    return Operation(
        f"amax {list(x.shape)}",
        value,
        1,
        (format,),
        lambda how: np.zeros_like(value),
        lambda how, places: value.reshape(1, -1)[:, places],
    )


class _Sums:
    """Sums of the rows [..., K] of an array."""

    def __init__(self, rows: Floats, format: Format) -> None:
        self.rows = rows
        self.format = format
        self.terms = rows.shape[-1]
        with np.errstate(invalid="ignore", over="ignore"):
            self.value = np.asarray(rows.sum(-1))

    def error(self, how: Arithmetic) -> Floats:
        return sum_error(
            how,
            self.terms,
            self._sum_of_magnitudes(),
            extra=self._operand_roundings(how),
            grid=self.format.smallest_subnormal,
        )

    def pairs(self, places: Places) -> tuple[Floats, None]:
        return self._rows_at(places).T, None

    def replay(self, how: Arithmetic, places: Places) -> Floats:
        return np.stack(list(orders.sums(*self.pairs(places), how)))

    def _rows_at(self, places: Places) -> Floats:
        # not -1 for the number of rows, which is unknown if a row has no terms
        rows = math.prod(self.rows.shape[:-1])
        return self.rows.reshape(rows, self.terms)[places]

    def _sum_of_magnitudes(self) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(self.rows).sum(-1))

    def _operand_roundings(self, how: Arithmetic) -> int:
        """Return how often a term is rounded before it is added: once, to a narrower format."""
        return int(self.format.precision > how.format.precision)


class _Means(_Sums):
    """Means of the rows [..., K] of an array: sums that are divided by K, or times 1 / K."""

    def __init__(self, rows: Floats, format: Format) -> None:
        super().__init__(rows, format)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            self.value = np.asarray(self.value / float(self.terms))

    def error(self, how: Arithmetic) -> Floats:
        divisor = max(1.0, float(self.terms))
        # the two roundings of 1 / K and of the product
        roundings = 2 + self._operand_roundings(how)
        of_sums = sum_error(
            how, self.terms, self._sum_of_magnitudes(), extra=roundings, gain=divisor
        )
        with np.errstate(invalid="ignore"):
            return of_sums / divisor

    def replay(self, how: Arithmetic, places: Places) -> Floats:
        sums = super().replay(how, places)
        rounded = orders.rounding_of(how)
        count = float(self.terms)
        with np.errstate(all="ignore"):
            inverse = np.asarray(rounded(np.asarray(1 / np.float64(count))), np.float64)
            product = np.asarray(rounded(sums * inverse), np.float64)
            return np.concatenate([sums / count, product])

    def others(self, places: Places) -> dict[str, Floats]:
        sums = self._rows_at(places).sum(-1)
        with np.errstate(all="ignore"):
            return {
                "the sum is not divided": sums,
                "the sum is divided by n - 1": sums / (np.float64(self.terms) - 1),
            }


def _rows(x: Array, dim: int | Sequence[int] | None) -> tuple[Floats, Format]:
    """Return x with the dimensions that are summed over moved to the end, as one."""
    values, format = operand(x, "x")
    require_kind(dim, (int, Sequence, type(None)), "dim", "Pass a dimension, or a tuple of them")
    if dim is None or (isinstance(dim, Sequence) and not dim):
        # no dimensions are all of them, as in torch
        dims = tuple(range(values.ndim))
    else:
        dimensions = tuple(dim) if isinstance(dim, Sequence) else (dim,)
        dims = tuple(dimension_of(each, values.ndim, dim) for each in dimensions)
    if len(set(dims)) < len(dims):
        raise ValueError(f"dim: expected each dimension once, got {dim}")
    if dims:
        values = values.reshape(values.shape or (1,))
    rest = [each for each in range(values.ndim) if each not in dims]
    moved = values.transpose(*rest, *dims)
    return moved.reshape(
        *moved.shape[: len(rest)], math.prod(values.shape[each] for each in dims)
    ), format
