"""Training without master weights, with stochastic rounding or Kahan's sum.

A step's result has more digits than FP16 keeps. Rounding to nearest drops them, and updates below
half an ulp are gone each time. Stochastic rounding drops them too, but goes up as often as the cut
digits say, so that a thousand small updates arrive on average. Kahan's compensation keeps what was
cut off in a second FP16 number and adds it the next time.

The generator of stochastic rounding is part of a checkpoint. Its state belongs to its kind of
device: a CPU's has 5056 bytes, a GPU's 16, and neither can load the other's. A run that was
saved on one and resumed on the other continues with a generator seeded from the state.

Invariant: what survives fits the model's format: one number of it for each weight, two with Kahan's
compensation.

Source: Kahan, Further remarks on reducing truncation errors (CACM 8, 1965); arXiv:1502.02551
(stochastic rounding); arXiv:2010.06192 (both, for weights in 16 bits).
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from enum import Enum

import torch
from torch import Tensor

from labkit.formats import as_member
from labkit.formats.arguments import require_kind
from labkit.interop import format_of, random_bits_like, round_with_bits

# numbers that are rounded at once: a small network's all, with bounded copies of a large one's
TOGETHER = 2**22


class WeightRounding(Enum):
    """How a step's result is rounded to the model's format without a master weight."""

    NEAREST = "nearest"  # 2 bytes a weight; small updates are swallowed
    STOCHASTIC = "stochastic"  # 2 bytes a weight; small updates arrive on average
    # 4 bytes a weight: what rounding cut off is kept in the same format
    KAHAN = "Kahan"


@torch.no_grad()
def store_rounded(
    wide: Tensor,
    weight: Tensor,
    rounding: WeightRounding | str,
    generator: torch.Generator | None = None,
) -> None:
    """Round `wide` into `weight`, and leave in `wide` only what survives a copy.

    Both in place, of one shape. Afterwards `wide`, rounded to nearest, is `weight`.

    >>> wide, weight = torch.tensor([1 + 2.0**-12]), torch.tensor([1.0]).half()
    >>> store_rounded(wide, weight, WeightRounding.KAHAN)
    >>> weight.item(), (wide - weight).item() == 2.0**-12
    (1.0, True)
    >>> store_rounded(wide, weight, WeightRounding.NEAREST)
    >>> (wide - weight).item()
    0.0
    """
    require_kind(wide, Tensor, "wide")
    require_kind(weight, Tensor, "weight")
    rounding = as_member(WeightRounding, rounding, "rounding")
    if rounding is WeightRounding.STOCHASTIC:
        bits = random_bits_like(wide, generator)
        if wide.dtype == torch.float32 and weight.dtype == torch.bfloat16:
            weight.copy_(stochastic_bf16(wide, bits))
        else:
            weight.copy_(round_with_bits(wide.detach(), format_of(weight.dtype), bits))
    else:
        weight.copy_(wide)
    kept = weight.to(wide.dtype)
    if rounding is WeightRounding.KAHAN:
        rest = (wide - kept).to(weight.dtype)
        # nothing is cut off from a weight that is inf
        rest = rest.nan_to_num(0.0, 0.0, 0.0)
        # a rest that was rounded up to half an ulp would change the weight: take one code less
        too_far = (kept + rest).to(weight.dtype) != weight
        rest = (rest.view(torch.int16) - too_far.to(torch.int16)).view(weight.dtype)
        kept = kept + rest
    wide.copy_(kept)


@torch.no_grad()
def store_all_rounded(
    wide: Sequence[Tensor],
    weights: Sequence[Tensor],
    rounding: WeightRounding,
    generator: torch.Generator | None = None,
) -> None:
    """Apply `store_rounded` to each pair of tensors, many at once, with the same results."""
    if not wide:
        return
    if rounding is WeightRounding.NEAREST:
        torch._foreach_copy_(list(weights), list(wide))
        torch._foreach_copy_(list(wide), list(weights))
        return
    for part in _pieces(wide, weights):
        masters, stored = list(wide[part]), list(weights[part])
        flat = torch.cat([master.reshape(-1) for master in masters])
        rounded = torch.empty_like(flat, dtype=stored[0].dtype)
        exact = flat.dtype == rounded.dtype
        store_rounded(flat, rounded, WeightRounding.NEAREST if exact else rounding, generator)
        sizes = [master.numel() for master in masters]
        for whole, tensors in ((rounded, stored), (flat, masters)):
            parts = [
                piece.view(t.shape) for piece, t in zip(whole.split(sizes), tensors, strict=True)
            ]
            torch._foreach_copy_(tensors, parts)


def _pieces(wide: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[slice]:
    """Yield runs of neighbours that may be rounded as one tensor.

    They have the same devices and dtypes, and are not too many.
    """
    first, count = 0, 0
    for index, (master, weight) in enumerate(zip(wide, weights, strict=True)):
        kinds = {
            (t.device, m.dtype, t.dtype)
            for m, t in ((wide[first], weights[first]), (master, weight))
        }
        if index > first and (len(kinds) > 1 or count + master.numel() > TOGETHER):
            yield slice(first, index)
            first, count = index, 0
        count += master.numel()
    yield slice(first, len(wide))


def stochastic_bf16(values: Tensor, random_bits: Tensor) -> Tensor:
    """Round FP32 values as `round_tensor` does with Rounding.STOCHASTIC, in a few passes.

    BF16 is FP32's upper 16 bits: they carry where the lower ones are above the upper 16 of the
    random bits.
    """
    enough = (2**16 - 1) - (random_bits >> 16).to(torch.int32)
    carried = (values.view(torch.int32) + enough).bitwise_and_(-(2**16)).view(torch.float32)
    return torch.where(values.isnan(), values, carried)


# bytes of a state -> whose it is
SIZES = {len(torch.Generator().get_state()): "a CPU", 16: "a GPU"}


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Set a generator's state; seed it from the state if that is of another kind of device.

    Raises:
        RuntimeError: it is not a state of a generator.

    Warns:
        UserWarning: the state is of another kind of device.
    """
    state = state.cpu()
    own = len(generator.get_state())
    if state.numel() == own or state.numel() not in SIZES:
        generator.set_state(state)
        return
    seed = int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:4], "little")
    generator.manual_seed(seed)
    warnings.warn(
        f"the random numbers of stochastic rounding were drawn on {SIZES[state.numel()]} when this "
        f"was saved, and are drawn on {SIZES.get(own, 'another device')} now: the generator is "
        "seeded again. The run continues, but not bit for bit.",
        stacklevel=2,
    )
