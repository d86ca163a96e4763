"""Can training do without master weights, if the rounding is cleverer?

Idea: a step's result has more digits than FP16 keeps. Rounding to nearest drops them, and updates below half an ulp
are gone each time. Stochastic rounding drops them too, but goes up as often as the cut digits say, so that a thousand
small updates arrive on average. Kahan's compensation keeps what was cut off in a second FP16 number and adds it the
next time.

Invariant: what survives fits the model's format: one number of it for each weight, two with Kahan's compensation.

Source: Kahan, Further remarks on reducing truncation errors (CACM 8, 1965); arXiv:1502.02551 (stochastic rounding);
arXiv:2010.06192 (both, for weights in 16 bits).
"""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from labkit.formats import Rounding
from labkit.interop import format_of, round_tensor


class WeightRounding(Enum):
    """How a step's result gets into the model's format where no master remembers it."""

    NEAREST = "nearest"  # 2 bytes a weight; small updates are swallowed
    STOCHASTIC = "stochastic"  # 2 bytes a weight; small updates arrive on average
    KAHAN = "Kahan"  # 4 bytes a weight: what rounding cut off is kept in the same format


@torch.no_grad()
def store_rounded(
    wide: Tensor, weight: Tensor, rounding: WeightRounding, generator: torch.Generator | None = None
) -> None:
    """Round `wide` into `weight`, and take from `wide` all that would not survive; both in place, of one shape.

    Afterwards `wide`, rounded to nearest, is `weight`.

    >>> wide, weight = torch.tensor([1 + 2.0**-12]), torch.tensor([1.0]).half()
    >>> store_rounded(wide, weight, WeightRounding.KAHAN)
    >>> weight.item(), (wide - weight).item() == 2.0**-12
    (1.0, True)
    >>> store_rounded(wide, weight, WeightRounding.NEAREST)
    >>> (wide - weight).item()
    0.0
    """
    if rounding is WeightRounding.STOCHASTIC:
        bits = torch.randint(2**32, wide.shape, generator=generator, device=wide.device)
        if wide.dtype == torch.float32 and weight.dtype == torch.bfloat16:
            weight.copy_(stochastic_bf16(wide, bits))
        else:
            weight.copy_(round_tensor(wide.detach(), format_of(weight.dtype), Rounding.STOCHASTIC, random_bits=bits))
    else:
        weight.copy_(wide)
    kept = weight.to(wide.dtype)
    if rounding is WeightRounding.KAHAN:
        rest = (wide - kept).to(weight.dtype)
        rest = rest.nan_to_num(0.0, 0.0, 0.0)  # of a weight that is inf, nothing was cut off
        too_far = (kept + rest).to(weight.dtype) != weight  # rounded up to half an ulp: take one code less
        rest = (rest.view(torch.int16) - too_far.to(torch.int16)).view(weight.dtype)
        kept = kept + rest
    wide.copy_(kept)


def stochastic_bf16(values: Tensor, random_bits: Tensor) -> Tensor:
    """Round FP32 values as `round_tensor` does with Rounding.STOCHASTIC, in a few passes.

    BF16 is FP32's upper 16 bits: they carry where the lower ones are above the upper 16 of the random bits.
    """
    enough = (2**16 - 1) - (random_bits >> 16).to(torch.int32)
    carried = (values.view(torch.int32) + enough).bitwise_and_(-(2**16)).view(torch.float32)
    return torch.where(values.isnan(), values, carried)
