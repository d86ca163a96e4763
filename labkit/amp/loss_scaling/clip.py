"""Clipping of gradients to a common length that may be far outside FP32's range.

A norm of type 2 adds up squares. In FP32 those of 1e20 overflow, and those of 1e-30 are zero; so lengths are measured
in FP64, whose range holds the sixth power of any FP32 number. Length and factor stay on the gradients' device.

Invariant: the length is right for any finite gradients, and what is longer than it may be is shortened to that.

Source: torch.nn.utils.clip_grad_norm_ (the rule: max_norm / (norm + 1e-6), at most 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.amp.loss_scaling.scaler import FP32_MAX, FP32_SMALLEST_NORMAL

_EPSILON = 1e-6  # torch's
_LEAST_FACTOR = 2.0**-100  # that FP32 gradients are multiplied by at once; what is less comes in two factors
_FP64_HOLDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)  # norm types whose powers of FP32 numbers FP64 holds


@dataclass(frozen=True)
class Clipping:
    """Gradients were clipped to `max_norm`; `length`, a scalar on their device, is what they had before."""

    length: Tensor
    max_norm: float

    def rest(self, length: float) -> float:
        """Return the factor that is still missing, of gradients that had this length."""
        if not math.isfinite(length):
            return 1.0
        return min(1.0, self.max_norm / (length + _EPSILON) / _LEAST_FACTOR)


@torch.no_grad()
def clip_(gradients: Sequence[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Shorten gradients in place to a common length of at most `max_norm`; return the length they had, a scalar.

    It is FP64 where FP32 does not hold it. Where a gradient is inf or NaN, so is the length, and nothing is changed.

    >>> gradients = [torch.tensor([3e30]), torch.tensor([4e30])]
    >>> clip_(gradients, 1.0), [round(g.item(), 6) for g in gradients]
    (tensor(5.0000e+30), [0.6, 0.8])
    """
    clipping = clip_without_waiting_(gradients, max_norm, norm_type)
    length = clipping.length.item()
    finish_clipping(gradients, clipping, length)
    return in_fp32_where_held(clipping.length, length)


@torch.no_grad()
def clip_without_waiting_(gradients: Sequence[Tensor], max_norm: float, norm_type: float = 2.0) -> Clipping:
    """Do as `clip_` does as far as the device can by itself; `finish_clipping` does the rest, which is mostly nothing.

    Norm types beside 1 to 6 and infinity are measured after a look at the largest magnitude, for which the host waits.
    """
    values = [g._values() if g.is_sparse else g for g in gradients if g.numel()]  # nothing has no largest element
    if not values:
        return Clipping(torch.zeros(()), max_norm)
    return shorten_(values, total_norm(values, norm_type), max_norm)


def shorten_(values: Sequence[Tensor], length: Tensor, max_norm: float) -> Clipping:
    """Shorten tensors of this common length, a scalar on their device, in place to at most `max_norm`."""
    longest = min(max_norm, torch.finfo(length.dtype).max / 4)
    # Inf and NaN become a length that is short enough, so that the factor is 1 and they stay where they are.
    within = length.nan_to_num(longest - _EPSILON, longest - _EPSILON, longest - _EPSILON)
    factor = torch.empty((), dtype=values[0].dtype, device=length.device)
    torch.mul(within.add_(_EPSILON).reciprocal_(), longest, out=factor)
    factor.clamp_(_LEAST_FACTOR, 1.0)
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for value in values:
        groups.setdefault((value.device, value.dtype), []).append(value)
    for (device, dtype), group in groups.items():
        torch._foreach_mul_(group, factor.to(device, dtype))
    return Clipping(length, max_norm)


def finish_clipping(gradients: Sequence[Tensor], clipping: Clipping, length: float) -> None:
    """Multiply gradients of this length by what was too small for one factor."""
    rest = clipping.rest(length)
    if rest != 1.0:
        torch._foreach_mul_([g._values() if g.is_sparse else g for g in gradients if g.numel()], rest)


def in_fp32_where_held(length: Tensor, value: float) -> Tensor:
    """Return a length, whose value is known, in FP32 if that is a normal number there, and else as it is."""
    held = value == 0 or not math.isfinite(value) or FP32_SMALLEST_NORMAL <= value <= FP32_MAX
    return length.float() if held else length


@torch.no_grad()
def total_norm(values: Sequence[Tensor], norm_type: float) -> Tensor:
    """Return the common length of tensors that are not empty, a scalar on the device of the first, in FP64."""
    home = values[0].device
    wide = torch.float64 if all(v.device.type != "mps" for v in values) else None  # Apple's GPUs have no FP64
    if norm_type == math.inf or (norm_type in _FP64_HOLDS and all(v.dtype is not torch.float64 for v in values)):
        norms = torch._foreach_norm(list(values), norm_type, dtype=None if norm_type == math.inf else wide)
        whole: Tensor = torch.linalg.vector_norm(torch.stack([n.to(home) for n in norms]), norm_type, dtype=wide)
        return whole
    if norm_type <= 0:
        norm: Tensor = torch.nn.utils.get_total_norm(values, norm_type)
        return norm.to(wide or norm.dtype)
    largest = total_norm(values, math.inf)
    size = float(largest)
    if not 0 < size < math.inf:
        return largest
    parts = [torch.linalg.vector_norm(value.to(wide or value.dtype) / size, norm_type) for value in values]
    combined: Tensor = torch.linalg.vector_norm(torch.stack([p.to(home) for p in parts]), norm_type)
    return largest * combined
