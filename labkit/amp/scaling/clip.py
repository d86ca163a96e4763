"""How long are the gradients together, and how are they shortened, if their squares are beyond FP32?

Idea: a norm of type p adds up p-th powers. From p = 2 on, those of 1e20 are beyond FP32, and those of 1e-30 are zero.
Where the FP32 norm comes near either end, it is taken again in FP64, of gradients divided by the largest of them.

Invariant: the length is right for any finite gradients, and what is longer than it may be is shortened to that.

Source: torch.nn.utils.clip_grad_norm_ (the rule: max_norm / (norm + 1e-6), at most 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.amp.scaling.scaler import FP32_MAX, FP32_SMALLEST_NORMAL

_SAFE = (2.0**-40, math.inf)  # between these, a norm of type 1 or 2 that FP32 added up lost nothing that counts


@torch.no_grad()
def clip_(gradients: Sequence[Tensor], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """Shorten gradients in place to a common length of at most `max_norm`; return the length they had, a scalar.

    It is FP64 where FP32 does not hold it. Where a gradient is inf or NaN, so is the length, and nothing is changed.

    >>> gradients = [torch.tensor([3e30]), torch.tensor([4e30])]
    >>> clip_(gradients, 1.0), [round(g.item(), 6) for g in gradients]
    (tensor(5.0000e+30), [0.6, 0.8])
    """
    values = [g._values() if g.is_sparse else g for g in gradients if g.numel()]  # nothing has no largest element
    norm = torch.nn.utils.get_total_norm(values, norm_type)
    if norm_type <= 0 or (norm_type in (1.0, 2.0) and _SAFE[0] < norm < _SAFE[1]):
        shorter = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for value in values:
            value.mul_(shorter.to(value.device))
        return norm
    length = _length_in_fp64(values, norm_type)
    if not math.isfinite(length):
        return norm.new_tensor(length)
    shorten_(values, length, max_norm)
    held = length == 0 or FP32_SMALLEST_NORMAL <= length <= FP32_MAX
    return torch.tensor(length, dtype=norm.dtype if held else torch.float64, device=norm.device)


def shorten_(values: Sequence[Tensor], length: float, max_norm: float) -> None:
    """Shorten gradients of this common length, a finite one, in place to at most `max_norm`, in FP64."""
    if max_norm < length + 1e-6:
        for value in values:
            value.copy_(value.double() * (max_norm / (length + 1e-6)))


def _length_in_fp64(values: Sequence[Tensor], norm_type: float) -> float:
    """Return the common length; inf and NaN only where a gradient is."""
    largest = float(torch.nn.utils.get_total_norm(values, math.inf))
    if not 0 < largest < math.inf:
        return largest
    norms = [float(torch.linalg.vector_norm(value.double() / largest, norm_type)) for value in values]
    return largest * float(torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), norm_type))
