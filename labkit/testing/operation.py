"""An operation that can be judged: exact value, error bound, and the sum in several orders.

Idea: an operation holds what an answer needs, from the operands alone. That is its value in FP64,
the bound of the error before the final rounding for an arithmetic, and its replay in the orders of
`orders`.

Invariant: operands are used as they are stored; a float32 tensor is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import BF16, FP16, FP32, FP64, TF32, Format, round_to
from labkit.formats.arguments import require_kind
from labkit.interop import format_of
from labkit.testing.bound import Arithmetic, Floats

Array: TypeAlias = "Tensor | NDArray[Any]"
# Indices into the flattened result.
Places: TypeAlias = NDArray[np.intp]
Pairs: TypeAlias = "Callable[[Places], tuple[Floats, Floats | None]]"

_NUMPY = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}


@dataclass(frozen=True, eq=False)
class Operation:
    """An operation with its operands.

    Attributes:
        name: for display, with shapes.
        value: the exact result, in FP64 (its own error is part of the bound).
        terms: K, the number of terms of each sum.
        formats: formats of the operands.
        error: arithmetic -> bound of the error before the final rounding, shaped like `value`.
        replay: (arithmetic, places) -> results [orders, places] before the final rounding.
        pairs: places -> operands [K, places] of the sums; None where the result is not one sum.
        rounded: format that the kernel rounds operands to, if they are not values of it.
        others: places -> the results of known faults there before the final rounding, by name.
        noisy: (arithmetic, places) -> replays of faults whose errors depend on the order, by name.
    """

    name: str
    value: Floats
    terms: int
    formats: tuple[Format, ...]
    error: Callable[[Arithmetic], Floats]
    replay: Callable[[Arithmetic, Places], Floats]
    pairs: Pairs | None = None
    rounded: Format | None = None
    others: Callable[[Places], dict[str, Floats]] | None = None
    noisy: Callable[[Arithmetic, Places], dict[str, Floats]] | None = None


def values_of(array: Array, name: str) -> tuple[Floats, Format]:
    """Return the values of a tensor or an array of floats, exactly, and their format.

    Raises:
        TypeError: it is neither, or holds no floats, or is sparse.
    """
    if isinstance(array, Tensor):
        if array.layout is not torch.strided:
            raise TypeError(
                f"expected a dense tensor for {name}, got one of {array.layout}. Pass "
                "tensor.to_dense()."
            )
        if not array.is_floating_point():
            raise TypeError(
                f"expected floats in {name}, got {array.dtype}. Cast to the dtype that the kernel "
                "reads."
            )
        format = format_of(array.dtype)
        array = array.detach().cpu()
        wide = array if format in (FP32, FP64) else array.float()
        return wide.double().numpy(), format
    if isinstance(array, np.ndarray | np.floating):
        if array.dtype not in _NUMPY:
            raise TypeError(
                f"expected float16, float32 or float64 in {name}, got {array.dtype}. Cast it first."
            )
        with np.errstate(invalid="ignore"):
            return np.asarray(array, np.float64), _NUMPY[array.dtype]
    raise TypeError(
        f"expected a torch tensor or a numpy array of floats for {name}, got {type(array).__name__}"
    )


def operand(array: Array, name: str, operands: Format | None = None) -> tuple[Floats, Format]:
    """Return values and their format: `operands` if it represents them all."""
    values, format = values_of(array, name)
    if format == FP64:
        raise TypeError(
            f"expected FP32 or narrower in {name}, got FP64, whose products FP64 cannot hold. Cast "
            "it."
        )
    if operands is not None and operands != format:
        rounded = round_to(values, operands)
        if not ((rounded == values) | np.isnan(values)).all():
            if operands not in (TF32, BF16):
                raise ValueError(
                    f"expected {operands.name} values in {name}, got others. Round it as the "
                    "kernel does."
                )
            return values, format
        format = operands
    return values, format


def dimension_of(dim: int, dimensions: int, argument: object) -> int:
    """Return a dimension that is counted from the front.

    A number counts as one dimension, as in torch.

    Raises:
        TypeError: it is not a whole number.
        ValueError: `dim` is out of range.
    """
    require_kind(dim, int, "dim", "Pass a dimension, or a tuple of them")
    most = max(dimensions, 1)
    if not -most <= dim < most:
        raise ValueError(f"expected dim within the {dimensions} dimensions of x, got {argument}")
    return int(dim) % most
