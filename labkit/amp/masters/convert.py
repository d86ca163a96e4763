"""Conversion of a model's weights to FP16 or BF16, without its normalisation layers and buffers.

Idea: normalisation sums squares over many elements and divides by the result; its own weights are
few, so keeping them in FP32 costs nothing. A buffer is a mask, an angle, a position, a running
mean: FP32's lowest number would become -inf, and 4097 would be 4096. So buffers keep their dtype,
except those of torch's own layers, which compute with them and their weights. Parameters are cast
in place: they stay the same objects, so that ties, hooks and references remain.

Invariant: no finite number becomes inf. to_fp32 undoes the dtypes, not the rounding; complex
numbers, integers and booleans are never changed.

Source: apex `convert_network` (opt level O2; it keeps batch norm, we keep every normalisation
layer, and it casts every buffer); arXiv:1710.03740, section 3.3.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from labkit.formats import FP32, Format, FormatLike, as_format
from labkit.formats.arguments import require_kind
from labkit.interop import dtype_of, format_of

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
# a tensor's largest number keeps at least these bits; with fewer it is rounded by more than 1.5%
FEWEST_BITS = 5
# torch's, and what is in them is the user's
_NO_LAYERS = ("torch.nn.modules.module", "torch.nn.modules.container")


def to_model_format(model: nn.Module, format: FormatLike, *, keep_norms: bool = True) -> nn.Module:
    """Convert a network: cast its floating-point parameters to `format`, in place; return it.

    Buffers stay in the dtype they have, if it is the wider one: masks, angles, positions. Those of
    torch's own layers go along with the layer's weights (the vectors of spectral_norm, the running
    means of batch norm); apex casts all. Where such a buffer meets half weights, `Recipe.forward`
    makes the dtypes agree (see `mixed_dtype_ops`).

    keep_norms leaves normalisation layers as they are, and a parameter that one of them shares with
    another layer.

    Raises:
        ValueError: a finite number would become inf; the message names its tensor. Nothing is cast
            then.

    Warns: UserWarning: a tensor becomes coarse: it holds whole numbers that the format does not
        tell apart, or it is frozen and holds only numbers so small that few bits are left of them.

    >>> from labkit.formats import FP16
    >>> net = to_model_format(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), FP16)
    >>> net[0].weight.dtype, net[1].weight.dtype
    (torch.float16, torch.float32)
    """
    require_kind(model, nn.Module, "model")
    format = as_format(format)
    dtype = dtype_of(format)
    # at first, what is not cast: norms that are kept, wider buffers of the user's own
    done: dict[Tensor, Tensor] = {}
    for module in model.modules():
        kept = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if not (keep_norms and isinstance(module, NORM_LAYERS)):
            kept = [] if _is_torchs(module) else _wider_buffers(module, dtype)
        done |= {tensor: tensor for tensor in kept}
    _require_held(model, format, set(done))

    def cast(tensor: Tensor) -> Tensor:
        if tensor not in done:
            done[tensor] = tensor.to(dtype) if tensor.is_floating_point() else tensor
        # once each, so that a buffer which two modules share is still shared
        return done[tensor]

    for module in model.modules():
        # torch's own: it knows what else a module keeps, as an LSTM does
        module._apply(cast, recurse=False)
    return model


def narrows(source: torch.dtype, target: torch.dtype) -> bool:
    """Return whether a cast may change numbers: whether `target` lacks range or bits of `source`.

    Both count, not the size of an element: BF16 and FP16 have 16 bits each, and BF16 reaches
    3.4e38 where FP16 ends at 65504.

    >>> narrows(torch.bfloat16, torch.float16), narrows(torch.float16, torch.bfloat16)
    (True, True)
    >>> narrows(torch.float16, torch.float32), narrows(torch.int64, torch.float16)
    (False, False)
    """
    if not (source.is_floating_point and target.is_floating_point):
        return False
    of_source, of_target = torch.finfo(source), torch.finfo(target)
    loses_range = of_source.max > of_target.max or of_source.tiny < of_target.tiny
    return loses_range or of_source.eps < of_target.eps


def require_range(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """Raise an error if a finite number of a tensor becomes inf in a dtype.

    Args:
        name: what the message calls the tensor.
        tensor: numbers of any dtype.
        dtype: the dtype that they are to be cast to.

    Raises:
        ValueError: one does; the message has the number, and what to do.
    """
    beyond = _overflowing(tensor, dtype)
    if beyond.numel():
        raise ValueError(
            f"{name} holds {beyond[0].item():g}, which {format_of(dtype).name} cannot: "
            f"it ends at {torch.finfo(dtype).max:g}, and infinity would be trained with. Rescale "
            "it, keep the model in FP32 (autocast, O1), or take BF16."
        )


@torch.no_grad()
def _overflowing(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the finite numbers [n] of a tensor that a cast to `dtype` makes inf."""
    if tensor.is_meta or not narrows(tensor.dtype, dtype):
        return tensor.new_empty(0)
    # torch does not ask numbers of 8 bits whether they are finite
    wide = tensor if tensor.itemsize > 1 else tensor.float()
    held = wide.to(dtype).to(wide.dtype)
    return wide[wide.isfinite() & ~held.isfinite()]


def _is_torchs(module: nn.Module) -> bool:
    """Return whether a module is a layer of torch, which computes with its own buffers."""
    home = type(module).__module__
    return home.startswith("torch.") and home not in _NO_LAYERS


def _wider_buffers(module: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    """Return a module's own buffers of a larger dtype, or with numbers that `dtype` cannot hold."""
    return [
        buffer
        for buffer in module.buffers(recurse=False)
        if buffer.itemsize > dtype.itemsize or _overflowing(buffer, dtype).numel()
    ]


def _require_held(model: nn.Module, format: Format, stay: set[Tensor]) -> None:
    """Refuse what would become inf, and warn of what becomes coarse, before anything is cast."""
    dtype = dtype_of(format)
    coarse = []
    tensors: list[tuple[str, Tensor]] = []
    tensors += [(f"parameter {name!r}", p) for name, p in model.named_parameters()]
    tensors += [(f"buffer {name!r}", b) for name, b in model.named_buffers()]
    for name, tensor in tensors:
        if tensor in stay or nn.parameter.is_lazy(tensor) or tensor.is_meta:
            continue
        if narrows(tensor.dtype, dtype):
            require_range(name, tensor, dtype)
            coarse += _coarse(name, tensor, format)
    if coarse:
        more = f" (and {len(coarse) - 3} more)" if len(coarse) > 3 else ""
        warnings.warn(
            f"{format.name} makes this model coarse: {'; '.join(coarse[:3])}{more}. Numbers like "
            "these belong in a buffer (register_buffer), which stays as it is, or under autocast "
            "(O1), which keeps the model in FP32.",
            stacklevel=4,
        )


@torch.no_grad()
def _coarse(name: str, tensor: Tensor, format: Format) -> list[str]:
    """Return a sentence on how a tensor becomes coarse, if it does."""
    held = tensor.to(dtype_of(format)).to(tensor.dtype)
    size = tensor.abs()
    wide = 2.0**format.precision  # up to here every whole number is there
    moved = (size > wide) & (held != tensor)
    if moved.any():
        return [f"{name} holds {tensor[moved][0].item():.7g} and gets {held[moved][0].item():.7g}"]
    few = float(format.smallest_subnormal) * 2**FEWEST_BITS
    # what is trained has a master, and moves
    if not tensor.requires_grad and tensor.numel() and 0 < size.max() < few:
        return [
            (
                f"all of {name} lies below {few:.2g}, where fewer than {FEWEST_BITS} significant "
                "bits are left"
            )
        ]
    return []


def to_fp32(model: nn.Module) -> nn.Module:
    """Convert a network back to FP32, norms included, in place; return it.

    What FP16 has rounded stays rounded.

    >>> from labkit.formats import FP16
    >>> to_fp32(to_model_format(nn.Linear(1, 1), FP16)).weight.dtype
    torch.float32
    """
    return to_model_format(model, FP32, keep_norms=False)


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped, whose parameters have the plain names.

    Any other as it is.
    """
    return getattr(model, "_orig_mod", model)
