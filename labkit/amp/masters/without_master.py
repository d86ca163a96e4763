"""Training without master weights, with stochastic rounding or Kahan's sum.

A step's result has more digits than FP16 holds. Rounding to nearest drops them, so an update below
half an ulp is swallowed each time. Stochastic rounding rounds up with a probability equal to the
dropped fraction of an ulp, so that a thousand small updates arrive on average. Kahan's compensation
stores the dropped rest in a second FP16 number and adds it the next time.

The generator of stochastic rounding is part of a checkpoint. The state of a CPU's generator has
5056 bytes, that of a GPU's 16, and neither can load the other's. A run that was saved on one and
resumed on the other continues with a generator seeded from the state.

Invariant: a weight survives a step as one number of the model's format, or as two numbers with
Kahan's compensation.

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

# Weights that are rounded at once. A small network needs one call, and the copies of a large one's
# weights are bounded.
TOGETHER = 2**22


class WeightRounding(Enum):
    """How a step's result is rounded to the model's format without a master weight."""

    # 2 bytes a weight; small updates are swallowed
    NEAREST = "nearest"
    # 2 bytes a weight; small updates arrive on average
    STOCHASTIC = "stochastic"
    # 4 bytes a weight: the rest that rounding dropped is stored in the same format
    KAHAN = "Kahan"


@torch.no_grad()
def store_rounded(
    wide: Tensor,
    weight: Tensor,
    rounding: WeightRounding | str,
    generator: torch.Generator | None = None,
) -> None:
    """Round `wide` into `weight`, and leave in `wide` only the digits that survive the step.

    Afterwards `wide`, rounded to nearest, is `weight`.

    Args:
        wide: the result of a step in FP32, changed in place.
        weight: a tensor of the same shape in the model's format, overwritten.
        rounding: how to round.
        generator: the source of stochastic rounding's random bits; None for torch's default.

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
    surviving = weight.to(wide.dtype)
    # a weight in the dtype of `wide` has lost nothing
    if rounding is WeightRounding.KAHAN and weight.dtype != wide.dtype:
        rest = (wide - surviving).to(weight.dtype)
        # a weight that is inf has no rest
        rest = rest.nan_to_num(0.0, 0.0, 0.0)
        # A rest that was rounded up to half an ulp would change the weight. Subtracting 1 from its
        # 16-bit code gives the next smaller magnitude.
        too_far = (surviving + rest).to(weight.dtype) != weight
        rest = (rest.view(torch.int16) - too_far.to(torch.int16)).view(weight.dtype)
        surviving = surviving + rest
    wide.copy_(surviving)


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
    for run in _runs(wide, weights):
        masters = list(wide[run])
        narrow = list(weights[run])
        flat = torch.cat([master.reshape(-1) for master in masters])
        rounded = torch.empty_like(flat, dtype=narrow[0].dtype)
        # weights in the masters' dtype lose nothing, so they draw no random bits
        exact = flat.dtype == rounded.dtype
        store_rounded(flat, rounded, WeightRounding.NEAREST if exact else rounding, generator)
        _copy_parts(rounded, narrow)
        _copy_parts(flat, masters)


def _copy_parts(flat: Tensor, tensors: list[Tensor]) -> None:
    """Copy consecutive parts of a flat tensor into tensors."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    shaped = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
    torch._foreach_copy_(tensors, shaped)


def _runs(wide: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[slice]:
    """Yield runs of neighbours that may be rounded as one tensor.

    The tensors of a run have the same device and dtypes, and at most `TOGETHER` numbers, unless the
    run is a single larger tensor.
    """
    first = 0
    count = 0
    kinds = [(w.device, m.dtype, w.dtype) for m, w in zip(wide, weights, strict=True)]
    for index, master in enumerate(wide):
        fits = kinds[index] == kinds[first] and count + master.numel() <= TOGETHER
        if index > first and not fits:
            yield slice(first, index)
            first = index
            count = 0
        count += master.numel()
    yield slice(first, len(wide))


def stochastic_bf16(values: Tensor, random_bits: Tensor) -> Tensor:
    """Round FP32 values as `round_tensor` does with Rounding.STOCHASTIC, in a few passes.

    Args:
        values: FP32 numbers.
        random_bits: 32 random bits for each number, as `random_bits_like` returns them.

    Returns:
        FP32 numbers that BF16 holds.
    """
    # BF16 is the upper 16 bits of FP32. Adding a random 16-bit number carries into them with a
    # probability equal to the dropped fraction of an ulp; the mask then clears the lower bits.
    random = (2**16 - 1) - (random_bits >> 16).to(torch.int32)
    carried = (values.view(torch.int32) + random).bitwise_and_(-(2**16)).view(torch.float32)
    return torch.where(values.isnan(), values, carried)


# bytes of a generator's state -> its kind of device
SIZES = {len(torch.Generator().get_state()): "a CPU", 16: "a GPU"}


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Set a generator's state; seed it from the state if that is of another kind of device.

    Raises:
        ValueError: the tensor is not the state of a generator.

    Warns:
        UserWarning: the state is of another kind of device.
    """
    state = state.cpu()
    own = len(generator.get_state())
    if state.dtype is not torch.uint8 or state.numel() not in (own, *SIZES):
        raise ValueError(
            f"expected the state of a random generator, {own} bytes, got {state.numel()} numbers "
            f"of {state.dtype}. Load an older checkpoint."
        )
    if state.numel() == own:
        generator.set_state(state)
        return
    # 4 bytes, which every kind of generator takes as a seed
    seed = int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:4], "little")
    generator.manual_seed(seed)
    warnings.warn(
        f"the random numbers of stochastic rounding were drawn on {SIZES[state.numel()]} when this "
        f"was saved, and are drawn on {SIZES.get(own, 'another device')} now: the generator is "
        "seeded again. The run continues, but not bit for bit.",
        stacklevel=2,
    )
