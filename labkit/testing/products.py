"""Products of matrices and vectors, with a scale and a bias."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import cast

import numpy as np
import torch
from torch import Tensor

from labkit.formats import BF16, FP16, Format, FormatLike, as_format, round_to
from labkit.formats.arguments import require_kind
from labkit.testing import orders
from labkit.testing.bound import Arithmetic, Floats, sum_error
from labkit.testing.operation import Array, Operation, Pairs, Places, operand, values_of

# Roundings of the scale, of its product, and of the sum with the bias.
SCALE_ROUNDINGS = 3


def matmul(
    a: Array,
    b: Array,
    *,
    bias: Array | None = None,
    scale: Array | float | None = None,
    operands: FormatLike | None = None,
) -> Operation:
    """Return the product a @ b by torch.matmul's rules for shapes, times `scale`, plus `bias`.

    Args:
        a: array [..., m, k].
        b: array [..., k, n].
        bias: added to the scaled product; it is broadcast to [..., m, n].
        scale: multiplies the sums; a number or an array that is broadcast.
        operands: format in which the kernel multiplies: that of FP8 values in FP32 tensors; or TF32
            or BF16, to which it rounds FP32 operands.

    Raises:
        TypeError: operands are not floats, or are FP64.
        ValueError: the shapes do not match; an operand is not a value of the format.

    >>> matmul(np.ones((2, 3), np.float16), np.ones((3, 4), np.float16)).terms
    3
    """
    if operands is not None:
        operands = as_format(operands, "operands")
    a_values, a_format = operand(a, "a", operands)
    b_values, b_format = operand(b, "b", operands)
    if not a_values.ndim or not b_values.ndim:
        raise ValueError("expected a and b with one dimension or more, got a single number")
    # vectors are a row and a column, whose dimension the result lacks
    left = a_values[None] if a_values.ndim == 1 else a_values
    right = b_values[:, None] if b_values.ndim == 1 else b_values
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        if left.shape[-1] != right.shape[-2]:
            raise ValueError
    except ValueError:
        raise ValueError(
            "expected a[..., m, k] and b[..., k, n] with one k, got "
            f"{list(a_values.shape)} and {list(b_values.shape)}"
        ) from None
    shape = batch
    if a_values.ndim > 1:
        shape = (*shape, left.shape[-2])
    if b_values.ndim > 1:
        shape = (*shape, right.shape[-1])
    rows = np.broadcast_to(left, (*batch, *left.shape[-2:]))
    columns = np.broadcast_to(right, (*batch, *right.shape[-2:])).swapaxes(-1, -2)

    def pairs(places: Places) -> tuple[Floats, Floats]:
        *sheet, i, j = np.unravel_index(places, (*batch, left.shape[-2], right.shape[-1]))
        return rows[(*sheet, i)].T, columns[(*sheet, j)].T

    products = Products(
        (left, a_format), (right, b_format), _gemm, pairs, shape, left.shape[-1], scale, bias
    )
    return products.operation(f"matmul {list(a_values.shape)} @ {list(b_values.shape)}", operands)


def dot(a: Array, b: Array) -> Operation:
    """Return the dot product of two vectors.

    Raises:
        ValueError: they are not vectors of one length.
    """
    for name, array in (("a", a), ("b", b)):
        require_kind(array, (Tensor, np.ndarray), name)
    if len(a.shape) != 1 or a.shape != b.shape:
        raise ValueError(
            f"expected two vectors of one length, got {list(a.shape)} and {list(b.shape)}"
        )
    return matmul(a, b)


class Products:
    """Sums of products, one for each element of the result, times a scale, plus a bias.

    Args:
        left: an operand and its format.
        right: an operand and its format.
        multiply: computes the sums in FP64 from the two operands.
        pairs: places -> operands [terms, places] of their sums.
        shape: shape of the result.
        terms: number of terms of each sum.
        scale: as in `matmul`.
        bias: as in `matmul`.
    """

    def __init__(
        self,
        left: tuple[Floats, Format],
        right: tuple[Floats, Format],
        multiply: Callable[[Floats, Floats], Floats],
        pairs: Pairs,
        shape: tuple[int, ...],
        terms: int,
        scale: Array | float | None = None,
        bias: Array | None = None,
    ) -> None:
        self.left, self.left_format = left
        self.right, self.right_format = right
        self.multiply = multiply
        self.pairs = pairs
        self.shape = shape
        self.terms = terms
        self.has_scale = scale is not None
        self.has_bias = bias is not None
        self.scale = np.ones(()) if scale is None else _broadcastable(scale, "scale", shape)
        self.bias = np.zeros(()) if bias is None else _broadcastable(bias, "bias", shape)
        self.sums = multiply(self.left, self.right).reshape(shape)

    @property
    def is_plain(self) -> bool:
        """Whether the sums are the result."""
        return not self.has_scale and not self.has_bias

    def operation(self, name: str, operands: Format | None) -> Operation:
        """Return the operation, for operands that the kernel rounds to a format first."""
        formats = (self.left_format, self.right_format)
        value = self.sums
        if not self.is_plain:
            with np.errstate(invalid="ignore", over="ignore"):
                value = self.sums * self.scale + self.bias
        return Operation(
            name,
            value,
            self.terms,
            formats,
            self.error,
            self.replay,
            pairs=self.pairs if self.is_plain else None,
            rounded=None if operands in formats else operands,
            others=self.others,
        )

    def error(self, how: Arithmetic) -> Floats:
        """Return the bound of the error of each element; `bound` derives it."""
        size = self._sum_of_magnitudes(how)
        digits = self.left_format.precision + self.right_format.precision
        # a Tensor Core's products are exact; others are rounded if the format is too narrow
        roundings = 1 if how.spec is None and digits > how.format.precision else 0
        grid = self.left_format.smallest_subnormal * self.right_format.smallest_subnormal
        of_sums = sum_error(how, self.terms, size, extra=roundings, grid=grid)
        if self.is_plain:
            return of_sums
        whole = sum_error(
            how,
            # a bias is one term more
            self.terms + 1 if self.has_bias else self.terms,
            size * np.abs(self.scale) + np.abs(self.bias),
            extra=roundings + SCALE_ROUNDINGS if self.has_scale else roundings,
            gain=max(1.0, float(np.abs(self.scale).max(initial=0.0))),
        )
        return np.where(np.isinf(of_sums), np.inf, whole)

    def _sum_of_magnitudes(self, how: Arithmetic) -> Floats:
        """Return S' of `bound`: magnitudes, with subnormal operands as they are aligned."""
        if how.spec is None:
            aligned_as = (how.operands, how.operands)
        else:
            aligned_as = (how.spec.operands, how.spec.right)
        magnitudes = []
        for values, format in zip((self.left, self.right), aligned_as, strict=True):
            magnitude = np.abs(values)
            if format is not None:
                least = format.smallest_normal
                np.maximum(magnitude, least, out=magnitude, where=magnitude > 0)
            magnitudes.append(magnitude)
        return self.multiply(*magnitudes).reshape(self.shape)

    def replay(self, how: Arithmetic, places: Places) -> Floats:
        """Return the results of right kernels at some places, in several orders."""
        sums = np.stack(list(orders.sums(*self.pairs(places), how)))
        if self.is_plain:
            return sums
        scale = self._at(places, self.scale)
        bias = self._at(places, self.bias)
        rounded = orders.rounding_of(how)
        fused = sums * scale + bias
        scaled = np.asarray(rounded(sums * scale), np.float64)
        rounded_between = np.asarray(rounded(scaled + bias), np.float64)
        return np.concatenate([fused, rounded_between])

    def others(self, places: Places) -> dict[str, Floats]:
        """Return the results of known faults at some places, by name."""
        if self.is_plain:
            return {}
        sums = self.sums.reshape(-1)[places]
        scale = self._at(places, self.scale)
        bias = self._at(places, self.bias)
        found = {}
        if self.has_bias:
            found["the bias is missing"] = sums * scale
            found["the bias was added twice"] = sums * scale + 2 * bias
        if self.has_scale:
            found["the scale is missing"] = sums + bias
            found["the scale was applied twice"] = sums * scale**2 + bias
        turned = _other_dimension(self.scale, self.shape)
        if turned is not None:
            found["the scale is applied along the other dimension"] = (
                sums * self._at(places, turned) + bias
            )
        turned = _other_dimension(self.bias, self.shape)
        if turned is not None:
            found["the bias is added along the other dimension"] = sums * scale + self._at(
                places, turned
            )
        for format in (FP16, BF16):
            name = f"the product is rounded to {format.name} before the scale or the bias"
            found[name] = np.asarray(round_to(sums, format), np.float64) * scale + bias
        return found

    def _at(self, places: Places, values: Floats) -> Floats:
        """Return a scale or a bias at some places of the flattened result."""
        return np.broadcast_to(values, self.shape).reshape(-1)[places]


def _gemm(a: Floats, b: Floats) -> Floats:
    product: Floats = torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return product


def _other_dimension(values: Floats, shape: tuple[int, ...]) -> Floats | None:
    """Swap the last two dimensions of a scale or bias, if the result differs and still fits."""
    if not values.ndim or len(shape) < 2:
        return None
    swapped = np.atleast_2d(values).swapaxes(-1, -2)
    fits = all(size in (1, of) for size, of in zip(swapped.shape[-2:], shape[-2:], strict=True))
    if not fits or swapped.size == 1:
        return None
    return swapped


def _broadcastable(array: Array | float, name: str, shape: tuple[int, ...]) -> Floats:
    """Return the values of a scale or a bias.

    Raises:
        ValueError: it does not broadcast to the shape of the result.
    """
    if isinstance(array, Real) and not isinstance(array, bool):
        values = np.asarray(float(array))
    else:
        values = values_of(cast(Array, array), name)[0]
    try:
        fits = np.broadcast_shapes(values.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"expected {name} to broadcast to the result, {list(shape)}, got {list(values.shape)}"
        )
    return values
