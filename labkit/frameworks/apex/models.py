"""How does a half model take FP32 input, give FP32 output, and keep its state dict in FP32?

Idea: the model's `forward` is wrapped where it stands, so that no other line of a script changes.

Source: apex.amp._initialize (patched forward, refusals, O2StateDictHook).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from labkit.amp import RECIPES, to_model_format
from labkit.amp.masters.half_beside_fp32 import reaches_beyond
from labkit.frameworks.apex.properties import Properties
from labkit.interop import format_of

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def require_plain(model: nn.Module, *, half_allowed: bool) -> None:
    """Refuse a model that is wrapped for several devices, or in FP16 already.

    Raises:
        RuntimeError: it is; the message says what comes first.
    """
    if isinstance(model, _WRAPPERS):
        raise RuntimeError(
            f"Incoming model is an instance of {type(model).__name__}. Parallel wrappers should only be applied to the "
            "model(s) AFTER the model(s) have been returned from amp.initialize."
        )
    for kind, named in (("param", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if tensor.dtype is torch.float16 and not half_allowed:
                raise RuntimeError(
                    f"Found {kind} {name} with type {tensor.dtype}, expected torch.float32. When using amp.initialize, "
                    "you do not need to call .half() on your model before passing it, no matter what optimization "
                    "level you choose. model.float() undoes it, but for what FP16 has rounded."
                )


def convert(model: nn.Module, properties: Properties, cast_model_outputs: torch.dtype | None) -> None:
    """Cast a model as its opt level says, and wrap its forward: tensors in and out are cast with it.

    Raises:
        ValueError: the format does not hold the model (`to_model_format`).
    """
    dtype = properties.cast_model_type
    if not isinstance(dtype, torch.dtype):
        if cast_model_outputs is not None:
            _wrap(model, lambda model, forward, args, kwargs: _cast(forward(*args, **kwargs), cast_model_outputs))
        return
    format, keep_norms = format_of(dtype), bool(properties.keep_batchnorm_fp32)
    to_model_format(model, format, keep_norms=keep_norms)
    recipe = replace(RECIPES["O2"], model=format, keep_norms=keep_norms)

    def inside(model: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with recipe.forward(device):
            out = forward(*_cast(args, dtype), **_cast(kwargs, dtype))
        return _cast(out, cast_model_outputs or torch.float32)

    _wrap(model, inside)
    if properties.master_weights:
        model.register_state_dict_post_hook(_in_fp32)


def _wrap(model: nn.Module, around: Callable[[nn.Module, Callable[..., Any], Any, Any], Any]) -> None:
    """Let a model's forward be called by `around(model, forward, args, kwargs)`; a copy of the model calls its own."""
    patched = model.__dict__.get("forward")  # somebody else patched it, on this very model

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(self, patched or MethodType(type(self).forward, self), args, kwargs)

    model.forward = MethodType(forward, model)


def _in_fp32(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Widen what is half in a state dict, so that a checkpoint does not tell the level it was trained at."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dtype is torch.float16:
            state[key] = value.float()


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Cast each floating-point tensor in containers of any kind, and each batch class of the user's that has `to`."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            masks = dtype is not torch.float32 and reaches_beyond(value, dtype)
            return value.to(dtype) if value.is_floating_point() and not masks else value
        return value.to(dtype) if hasattr(value, "to") and not isinstance(value, nn.Module) else value

    return tree_map(cast, values)
