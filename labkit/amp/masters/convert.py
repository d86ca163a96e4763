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

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from labkit.amp.loss_scaling.magnitudes import stored_values
from labkit.formats import FP32, Format, FormatLike, as_format
from labkit.formats.arguments import require_kind
from labkit.interop import dtype_of, format_of

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
# a tensor's largest number keeps at least these bits; with fewer it is rounded by more than 1.5%
FEWEST_BITS = 5
# modules of torch whose classes are containers of the user's layers
_NO_LAYERS = ("torch.nn.modules.module", "torch.nn.modules.container")


def to_model_format(model: nn.Module, format: FormatLike, *, keep_norms: bool = True) -> nn.Module:
    """Convert a network: cast its floating-point parameters to `format`, in place; return it.

    Buffers of a wider dtype, such as masks, angles and positions, are not cast. Buffers of torch's
    own layers are cast with the layer's weights (the vectors of spectral_norm, the running means of
    batch norm); apex casts all buffers. Where an FP32 buffer is an operand beside half weights,
    `Recipe.forward` makes the dtypes agree (see `mixed_dtype_ops`).

    Args:
        model: the network.
        format: a format with a dtype of torch, such as FP16, BF16 or FP32.
        keep_norms: whether normalisation layers are not cast, nor parameters that they share with
            other layers.

    Raises:
        ValueError: torch has no dtype for the format, or a finite number would become inf; the
            message names its tensor. Nothing is cast then.

    Warns:
        UserWarning: a tensor becomes coarse: it holds whole numbers that the format rounds, or it
            is frozen and holds only numbers so small that few significant bits are left.

    >>> from labkit.formats import FP16
    >>> net = to_model_format(nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)), FP16)
    >>> net[0].weight.dtype, net[1].weight.dtype
    (torch.float16, torch.float32)
    """
    require_kind(model, nn.Module, "model")
    format = as_format(format)
    dtype = dtype_of(format)
    # tensor -> its cast; at first the tensors that are not cast: norms, wider buffers of the user's
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
        _apply_to(module, cast)
    return model


def _apply_to(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change a module's own tensors by torch's method.

    The method also updates what a module derives from its weights (nn.LSTM).
    """
    if "recurse" in inspect.signature(module._apply).parameters:
        module._apply(change, recurse=False)
    else:
        # a user's class may override the method of an older torch, which reaches all submodules
        module._apply(change)


@contextmanager
def restored_after_error(model: nn.Module) -> Iterator[None]:
    """Restore the dtypes, devices and numbers of a model's tensors if the `with` block raises.

    The block holds the tensors from before, so a model takes the memory of both until its end.
    """
    parameters = [(p, p.data, p.grad, _data_of(p.grad)) for p in model.parameters()]
    buffers = [(module._buffers, dict(module._buffers)) for module in model.modules()]
    try:
        yield
    except BaseException:
        for p, data, gradient, gradient_data in parameters:
            # A gradient has the dtype of its parameter, so it is taken off while that changes.
            p.grad = None
            p.data = data
            if gradient is not None and gradient_data is not None:
                gradient.data = gradient_data
                p.grad = gradient
        for own, before in buffers:
            own.update(before)
        for module in model.modules():
            _apply_to(module, lambda tensor: tensor)
        raise


def _data_of(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.data


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
    of_source = torch.finfo(source)
    of_target = torch.finfo(target)
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
    values = stored_values(tensor)
    # torch's isfinite has no kernel for numbers of 8 bits
    wide = values if values.itemsize > 1 else values.float()
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
    """Return a list of one sentence on how a tensor becomes coarse, or an empty list."""
    values = stored_values(tensor)
    rounded = values.to(dtype_of(format)).to(values.dtype)
    size = values.abs()
    # the format holds every whole number up to this one
    largest_whole = 2.0**format.precision
    changed = (size > largest_whole) & (rounded != values)
    if changed.any():
        before = values[changed][0].item()
        after = rounded[changed][0].item()
        return [f"{name} holds {before:.7g} and gets {after:.7g}"]
    few = float(format.smallest_subnormal) * 2**FEWEST_BITS
    # a trained weight has a master, and does not stay so small
    if not tensor.requires_grad and values.numel() and 0 < size.max() < few:
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
    """Return the module that torch.compile wrapped; any other module is returned itself."""
    return getattr(model, "_orig_mod", model)
