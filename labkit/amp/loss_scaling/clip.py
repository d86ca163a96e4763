"""Clipping of gradients by a total norm that may be far outside FP32's range.

A norm of type 2 adds up squares. In FP32 those of 1e20 overflow, and those of 1e-30 are zero. So
norms are computed in FP64, whose range holds the sixth power of any FP32 number. Norm and factor
stay on the gradients' device.

Invariant: the norm is right for any finite gradients, and at most max_norm after clipping. (Apple's
GPUs have no FP64: there FP32 has to hold the powers.)

Source: torch.nn.utils.clip_grad_norm_ (the rule: max_norm / (norm + 1e-6), at most 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.amp.loss_scaling.magnitudes import by_device_and_dtype, stored_values
from labkit.amp.loss_scaling.scaler import FP32_MAX, FP32_SMALLEST_NORMAL

# the number that torch adds to the norm before it divides
_EPSILON = 1e-6
# A smaller factor might not be a normal FP32 number, so it is applied in two multiplications.
_LEAST_FACTOR = 2.0**-100
# norm types p for which FP64 holds |x|^p of every FP32 number x
_FP64_HOLDS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


# (tensors that are not empty, norm type) -> their total norm, a scalar; 0 without tensors
Measure = Callable[[Sequence[Tensor], float], Tensor]


class Clipping(NamedTuple):
    """A clip of gradients.

    Attributes:
        length: the total norm before clipping, a scalar on the gradients' device.
        max_norm: the largest total norm.
    """

    length: Tensor
    max_norm: float


def total_norm(values: Sequence[Tensor], norm_type: float) -> Tensor:
    """Return the total norm of non-empty tensors, a scalar on the device of the first.

    It is in FP64, except on Apple's GPUs, which have none. Without tensors it is 0.
    """
    return _total_norm(values, norm_type) if values else torch.zeros(())


def clip_(
    gradients: Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    measure: Measure = total_norm,
) -> Tensor:
    """Scale gradients down in place to a total norm of at most `max_norm`.

    Args:
        gradients: tensors of any shapes, dtypes and devices.
        max_norm: the largest total norm.
        norm_type: the order of the norm, as in torch.nn.utils.clip_grad_norm_.
        measure: computes the total norm. That of a sharded model includes the other processes.

    Returns:
        The norm before clipping, a scalar: in FP64 if FP32 does not hold it. If a gradient holds
        inf or NaN, so does the norm, and nothing is changed.

    Raises:
        ValueError: max_norm is negative or NaN, or norm_type is NaN.

    >>> gradients = [torch.tensor([3e30]), torch.tensor([4e30])]
    >>> clip_(gradients, 1.0), [round(g.item(), 6) for g in gradients]
    (tensor(5.0000e+30), [0.6, 0.8])
    """
    clipping = clip_without_waiting_(gradients, max_norm, norm_type, measure)
    length = clipping.length.item()
    finish_clipping(gradients, clipping, length)
    is_normal = FP32_SMALLEST_NORMAL <= length <= FP32_MAX
    if is_normal or length == 0 or not math.isfinite(length):
        return clipping.length.float()
    return clipping.length


@torch.no_grad()
def clip_without_waiting_(
    gradients: Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    measure: Measure = total_norm,
) -> Clipping:
    """Clip as `clip_` does, without waiting for the device.

    A second factor, which is rarely needed, is left to `finish_clipping`. For norm types other than
    1 to 6 and infinity, the host waits for the largest magnitude first.
    """
    # a negative factor would reverse the gradients
    if not max_norm >= 0:
        raise ValueError(f"max_norm: expected 0 or more, got {max_norm!r}")
    # as torch, which also takes "inf"
    norm_type = float(norm_type)
    if math.isnan(norm_type):
        raise ValueError("norm_type: expected a number such as 2 or inf, got nan")
    values = [stored_values(g) for g in gradients if g.numel()]
    length = measure(values, norm_type)
    if not values:
        return Clipping(length, max_norm)
    # neither 0 nor inf, whose product with the reciprocal could be NaN
    limits = torch.finfo(length.dtype)
    longest = min(max(max_norm, limits.tiny), limits.max)
    # Inf and NaN become -epsilon: the reciprocal of their sum, 0, is inf, and the factor 1, so
    # that nothing is changed.
    within = length.nan_to_num(-_EPSILON, -_EPSILON, -_EPSILON)
    has_fp64 = any(value.dtype is torch.float64 for value in values)
    dtype = torch.float64 if has_fp64 else torch.float32
    factor = torch.empty((), dtype=dtype, device=length.device)
    torch.mul(within.add_(_EPSILON).reciprocal_(), longest, out=factor)
    factor.clamp_(_LEAST_FACTOR, 1.0)
    for group in by_device_and_dtype(values):
        _multiply_(group, factor.to(group[0].device))
    return Clipping(length, max_norm)


def _multiply_(values: list[Tensor], factor: Tensor) -> None:
    """Multiply tensors of one device and dtype in place by a factor in FP32 or FP64."""
    dtype = values[0].dtype
    if dtype in (torch.float32, torch.float64):
        torch._foreach_mul_(values, factor.to(dtype))
        return
    # a narrower format might not hold the factor, though it holds the products
    for value in values:
        value.copy_(value.to(factor.dtype) * factor)


def finish_clipping(gradients: Sequence[Tensor], clipping: Clipping, length: float) -> None:
    """Multiply gradients by the second factor of a clip, if it is below 1.

    Args:
        gradients: those of the clip.
        clipping: what `clip_without_waiting_` returned.
        length: the value of `clipping.length`.
    """
    rest = clipping.max_norm / (length + _EPSILON) / _LEAST_FACTOR
    if math.isfinite(length) and rest < 1.0:
        with torch.no_grad():
            torch._foreach_mul_([stored_values(g) for g in gradients if g.numel()], rest)


@torch.no_grad()
def _total_norm(values: Sequence[Tensor], norm_type: float) -> Tensor:
    device = values[0].device
    # Apple's GPUs have no FP64
    wide = torch.float64 if all(v.device.type != "mps" for v in values) else None
    has_fp64 = any(v.dtype is torch.float64 for v in values)
    if norm_type == math.inf or (norm_type in _FP64_HOLDS and not has_fp64):
        # a maximum cannot overflow in its own dtype
        dtype = None if norm_type == math.inf else wide
        norms = torch._foreach_norm(list(values), norm_type, dtype=dtype)
        gathered = torch.stack([norm.to(device) for norm in norms])
        whole: Tensor = torch.linalg.vector_norm(gathered, norm_type, dtype=wide)
        return whole
    if norm_type <= 0:
        norm: Tensor = torch.nn.utils.get_total_norm(values, norm_type)
        return norm.to(wide or norm.dtype)
    # Other powers may overflow in FP64. So divide by the largest magnitude, and multiply the norm.
    largest = _total_norm(values, math.inf)
    size = float(largest)
    if not 0 < size < math.inf:
        return largest
    parts: list[Tensor] = []
    for value in values:
        part = torch.linalg.vector_norm(value.to(wide or value.dtype) / size, norm_type)
        parts.append(part.to(device))
    combined: Tensor = torch.linalg.vector_norm(torch.stack(parts), norm_type)
    return largest * combined
