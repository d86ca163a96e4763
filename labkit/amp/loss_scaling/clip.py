"""Clipping of gradients by a total norm that may be far outside FP32's range.

A norm of type 2 adds up squares. In FP32 those of 1e20 overflow, and those of 1e-30 are zero. So
norms are computed in FP64, whose range holds the sixth power of any FP32 number. Norm and factor
stay on the gradients' device.

Invariant: the norm is right for any finite gradients, and at most max_norm after clipping.

Source: torch.nn.utils.clip_grad_norm_ (the rule: max_norm / (norm + 1e-6), at most 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.amp.loss_scaling.scaler import FP32_MAX, FP32_SMALLEST_NORMAL
from labkit.amp.loss_scaling.unscale import by_device_and_dtype, stored

_EPSILON = 1e-6  # torch's
_LEAST_FACTOR = 2.0**-100  # smaller ones are applied to FP32 gradients as two factors
# norm types whose powers of FP32 numbers FP64 holds
_FP64_HOLDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


# values that are not empty, norm type -> their total norm, a scalar; of no values 0
Measure = Callable[[Sequence[Tensor], float], Tensor]


class Clipping(NamedTuple):
    """A clip of gradients to `max_norm`; `length`, a scalar on their device, is the norm before."""

    length: Tensor
    max_norm: float


def total_norm(values: Sequence[Tensor], norm_type: float) -> Tensor:
    """Return the total norm of non-empty tensors in FP64.

    It is a scalar on the device of the first tensor.
    """
    return _total_norm(values, norm_type) if values else torch.zeros(())


def clip_(
    gradients: Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    measure: Measure = total_norm,
) -> Tensor:
    """Scale gradients down in place to a total norm of at most `max_norm`.

    Returns:
        The norm before, a scalar. `measure` returns the norm of values and a type; that of several
        processes asks the others. The norm is FP64 if FP32 does not hold it. If a gradient is inf
        or NaN, so is the norm, and nothing is changed.

    >>> gradients = [torch.tensor([3e30]), torch.tensor([4e30])]
    >>> clip_(gradients, 1.0), [round(g.item(), 6) for g in gradients]
    (tensor(5.0000e+30), [0.6, 0.8])
    """
    clipping = clip_without_waiting_(gradients, max_norm, norm_type, measure)
    length = clipping.length.item()
    finish_clipping(gradients, clipping, length)
    # in FP32 where that holds it as a normal number
    held = length == 0 or not math.isfinite(length) or FP32_SMALLEST_NORMAL <= length <= FP32_MAX
    return clipping.length.float() if held else clipping.length


@torch.no_grad()
def clip_without_waiting_(
    gradients: Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    measure: Measure = total_norm,
) -> Clipping:
    """Clip without waiting for the device.

    `finish_clipping` applies a second factor, which is rarely needed. For norm types other than 1
    to 6 and infinity the host waits for the largest magnitude first.
    """
    values = [stored(g) for g in gradients if g.numel()]
    length = measure(values, norm_type)
    if not values:
        return Clipping(length, max_norm)
    longest = min(max_norm, torch.finfo(length.dtype).max / 4)
    # Replace inf and NaN by a norm below the limit, so that the factor is 1.
    within = length.nan_to_num(longest - _EPSILON, longest - _EPSILON, longest - _EPSILON)
    factor = torch.empty((), dtype=values[0].dtype, device=length.device)
    torch.mul(within.add_(_EPSILON).reciprocal_(), longest, out=factor)
    factor.clamp_(_LEAST_FACTOR, 1.0)
    for group in by_device_and_dtype(values):
        torch._foreach_mul_(group, factor.to(group[0].device, group[0].dtype))
    return Clipping(length, max_norm)


def finish_clipping(gradients: Sequence[Tensor], clipping: Clipping, length: float) -> None:
    """Multiply gradients of this norm by the rest of the factor, if it is below 1."""
    rest = clipping.max_norm / (length + _EPSILON) / _LEAST_FACTOR
    if math.isfinite(length) and rest < 1.0:
        with torch.no_grad():
            torch._foreach_mul_([stored(g) for g in gradients if g.numel()], rest)


@torch.no_grad()
def _total_norm(values: Sequence[Tensor], norm_type: float) -> Tensor:
    home = values[0].device
    # Apple's GPUs have no FP64
    wide = torch.float64 if all(v.device.type != "mps" for v in values) else None
    if norm_type == math.inf or (
        norm_type in _FP64_HOLDS and all(v.dtype is not torch.float64 for v in values)
    ):
        norms = torch._foreach_norm(
            list(values), norm_type, dtype=None if norm_type == math.inf else wide
        )
        whole: Tensor = torch.linalg.vector_norm(
            torch.stack([n.to(home) for n in norms]), norm_type, dtype=wide
        )
        return whole
    if norm_type <= 0:
        norm: Tensor = torch.nn.utils.get_total_norm(values, norm_type)
        return norm.to(wide or norm.dtype)
    largest = _total_norm(values, math.inf)
    size = float(largest)
    if not 0 < size < math.inf:
        return largest
    parts = [
        torch.linalg.vector_norm(value.to(wide or value.dtype) / size, norm_type)
        for value in values
    ]
    combined: Tensor = torch.linalg.vector_norm(torch.stack([p.to(home) for p in parts]), norm_type)
    return largest * combined
