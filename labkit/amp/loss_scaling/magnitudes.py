"""Magnitudes of the numbers in tensors, and the groups of tensors that one kernel takes.

Invariant: a magnitude stays on the device of its tensor, and the host does not wait for it. NaN
counts as the largest magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def stored_values(tensor: Tensor) -> Tensor:
    """Return the values that a tensor stores, dense or sparse in any layout."""
    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def by_device_and_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the values that tensors store, in groups that one kernel takes."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        # a call of `stored_values` would cost as much as the rest of the loop
        values = tensor if tensor.layout is torch.strided else stored_values(tensor)
        groups.setdefault((tensor.device, tensor.dtype), []).append(values)
    return list(groups.values())


def largest_magnitude(values: Tensor, axes: Sequence[int] = ()) -> Tensor:
    """Return the largest magnitude of a tensor; NaN counts as the largest.

    Args:
        values: a floating-point tensor that is not empty.
        axes: the axes to reduce, to size 1 each. Without any, all are reduced, to a scalar.
    """
    # On a CPU, vector_norm is ten times as slow as the operations below.
    if values.device.type != "cpu":
        largest: Tensor = torch.linalg.vector_norm(
            values, math.inf, dim=list(axes) or None, keepdim=bool(axes)
        )
        return largest
    if not axes:
        least, most = torch.aminmax(values)
        # `abs` turns the -0 of a tensor of zeros into +0
        return torch.maximum(-least, most).abs_()
    sizes = values.abs()
    # one axis at a time is faster than several in one call
    for axis in axes:
        sizes = sizes.amax(axis, keepdim=True)
    return sizes


@torch.no_grad()
def largest_magnitudes(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return each gradient's largest magnitude, as a scalar on its device.

    It is inf or NaN if the gradient holds such a number, and 0 if the gradient is empty.
    """
    values = [stored_values(g) for g in gradients]
    # torch's kernel refuses an empty tensor and an empty list
    filled = [value for value in values if value.numel()]
    norms = iter(torch._foreach_norm(filled, math.inf) if filled else [])
    return [
        next(norms) if value.numel() else torch.zeros((), device=value.device) for value in values
    ]
