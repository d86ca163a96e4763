"""Conversion of a model's weights to FP16 or BF16, without its normalisation layers and buffers.

Idea: normalisation sums squares over many elements and divides by the result; its own weights are few, so keeping them
in FP32 costs nothing. A buffer is a mask, an angle, a position, a running mean: FP32's lowest number would become -inf,
and 4097 would be 4096. So buffers keep their dtype, except those of torch's own layers, which compute with them and
their weights. Parameters are cast in place: they stay the same objects, so that ties, hooks and references remain.

Invariant: no finite number becomes inf. to_fp32 undoes the dtypes, not the rounding; complex numbers, integers and
booleans are never changed.

Source: apex `convert_network` (opt level O2; it keeps batch norm, we keep every normalisation layer, and it casts every
buffer); arXiv:1710.03740, section 3.3.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from labkit.formats import FP32, Format
from labkit.interop import dtype_of

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
FEWEST_BITS = 5  # of the largest number in a tensor; with fewer, it is rounded by more than 1.5%
# torch's, and what is in them is the user's
_NO_LAYERS = ("torch.nn.modules.module", "torch.nn.modules.container")


def to_model_format(model: nn.Module, format: Format, *, keep_norms: bool = True) -> nn.Module:
    """Convert a network: cast its floating-point parameters to `format`, in place; return it.

    Buffers stay in the dtype they have, if it is the wider one: masks, angles, positions. Those of torch's own layers
    go along with the layer's weights (the vectors of spectral_norm, the running means of batch norm); apex casts all.
    Where such a buffer meets half weights, `Recipe.forward` makes the dtypes agree (see `mixed_dtype_ops`).

    keep_norms leaves normalisation layers as they are, and a parameter that one of them shares with another layer.

    Raises:
        ValueError: a finite number would become inf; the message names its tensor. Nothing is cast then.

    Warns:
        UserWarning: a tensor becomes coarse: it holds whole numbers that the format does not tell apart, or it is
            frozen and holds only numbers so small that few bits are left of them.

    >>> from labkit.formats import FP16
    >>> net = to_model_format(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), FP16)
    >>> net[0].weight.dtype, net[1].weight.dtype
    (torch.float16, torch.float32)
    """
    dtype = dtype_of(format)
    done: dict[
        Tensor, Tensor
    ] = {}  # at first, what is not cast: norms that are kept, wider buffers of the user's own
    for module in model.modules():
        kept_norm, home = keep_norms and isinstance(module, NORM_LAYERS), type(module).__module__
        torchs = home.startswith("torch.") and home not in _NO_LAYERS
        done |= {p: p for p in module.parameters(recurse=False) if kept_norm}
        wide = [
            b for b in module.buffers(recurse=False) if b.itemsize > dtype.itemsize and not torchs
        ]
        done |= {b: b for b in (module.buffers(recurse=False) if kept_norm else wide)}
    _require_held(model, format, set(done))

    def cast(tensor: Tensor) -> Tensor:
        if tensor not in done:
            done[tensor] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        return done[tensor]  # once each, so that a buffer which two modules share is still shared

    for module in model.modules():
        # torch's own: it knows what else a module keeps, as an LSTM does
        module._apply(cast, recurse=False)
    return model


def _require_held(model: nn.Module, format: Format, stay: set[Tensor]) -> None:
    """Refuse what would become inf, and warn of what becomes coarse, before anything is cast."""
    dtype, coarse = dtype_of(format), []
    parameters = [(f"parameter {name!r}", p) for name, p in model.named_parameters()]
    for name, tensor in (
        *parameters,
        *((f"buffer {name!r}", b) for name, b in model.named_buffers()),
    ):
        narrows = (
            tensor.is_floating_point() and tensor.itemsize > dtype.itemsize and tensor not in stay
        )
        if narrows and not tensor.is_meta and not nn.parameter.is_lazy(tensor):
            coarse += _coarse(name, tensor, format)
    if coarse:
        more = f" (and {len(coarse) - 3} more)" if len(coarse) > 3 else ""
        warnings.warn(
            f"{format.name} makes this model coarse: {'; '.join(coarse[:3])}{more}. Numbers like these belong in a "
            "buffer (register_buffer), which stays as it is, or under autocast (O1), which keeps the model in FP32.",
            stacklevel=4,
        )


@torch.no_grad()
def _coarse(name: str, tensor: Tensor, format: Format) -> list[str]:
    """Say how a tensor becomes coarse, if it does.

    Raises:
        ValueError: a finite number in it becomes inf.
    """
    held, size = tensor.to(dtype_of(format)).to(tensor.dtype), tensor.abs()
    overflowed = tensor.isfinite() & ~held.isfinite()
    if overflowed.any():
        raise ValueError(
            f"{name} holds {tensor[overflowed][0].item():g}, which {format.name} cannot: it ends at "
            f"{float(format.max):g}, and infinity would be trained with. Rescale it, keep the model in FP32 (autocast, "
            "O1), or take BF16."
        )
    wide = 2.0**format.precision  # up to here every whole number is there
    moved = (size > wide) & (held != tensor)
    if moved.any():
        return [f"{name} holds {tensor[moved][0].item():.7g} and gets {held[moved][0].item():.7g}"]
    few = float(format.smallest_subnormal) * 2**FEWEST_BITS
    # what is trained has a master, and moves
    if not tensor.requires_grad and tensor.numel() and 0 < size.max() < few:
        return [
            f"all of {name} lies below {few:.2g}, where fewer than {FEWEST_BITS} significant bits are left"
        ]
    return []


def to_fp32(model: nn.Module) -> nn.Module:
    """Convert a network back to FP32, norms included, in place; return it. What FP16 has rounded stays rounded.

    >>> from labkit.formats import FP16
    >>> to_fp32(to_model_format(nn.Linear(1, 1), FP16)).weight.dtype
    torch.float32
    """
    return to_model_format(model, FP32, keep_norms=False)


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped, whose parameters have the plain names; any other as it is."""
    return getattr(model, "_orig_mod", model)
