"""How does a half model take FP32 input, give FP32 output, and keep its state dict in FP32?

Idea: the model's `forward` is wrapped where it stands, so that no other line of a script changes.

Source: apex.amp._initialize (patched forward, refusals, O2StateDictHook).
"""

from __future__ import annotations

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
        TypeError: cast_model_outputs is no dtype.
    """
    if not isinstance(cast_model_outputs, torch.dtype | None):
        raise TypeError(f"cast_model_outputs is a dtype, such as torch.float16; it was given {cast_model_outputs!r}")
    dtype = properties.cast_model_type
    if not isinstance(dtype, torch.dtype):
        if cast_model_outputs is not None:
            model.forward = _Forward(model, None, False, cast_model_outputs)
        return
    keep_norms = bool(properties.keep_batchnorm_fp32)
    to_model_format(model, format_of(dtype), keep_norms=keep_norms)
    model.forward = _Forward(model, dtype, keep_norms, cast_model_outputs or torch.float32)
    for module in model.modules():  # each: apex's state dicts of parts are FP32 too, and O3's
        module.register_state_dict_post_hook(_in_fp32)


class _Forward:
    """A model's forward between two casts, that of its inputs (None: they stay) and that of its outputs.

    It is copied and written to a file with the model.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None, keep_norms: bool, outputs: torch.dtype) -> None:
        self.model, self.dtype, self.keep_norms, self.outputs = model, dtype, keep_norms, outputs
        self.patched = model.__dict__.get("forward")  # somebody else patched it, on this very model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.patched or MethodType(type(self.model).forward, self.model)
        if self.dtype is None:
            return _cast(forward(*args, **kwargs), self.outputs)
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        recipe = replace(RECIPES["O2"], model=format_of(self.dtype), keep_norms=self.keep_norms)
        with recipe.forward(device):
            out = forward(*_cast(args, self.dtype), **_cast(kwargs, self.dtype))
        return _cast(out, self.outputs)


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


def listed_models(models: Any, half_allowed: bool) -> list[nn.Module]:
    """Return the models that `initialize` was given, as a list.

    Raises:
        TypeError: it was given something else.
        RuntimeError: one of them is half already, or wrapped for several devices.
    """
    listed = models if isinstance(models, list) else [models]
    if not listed or not all(isinstance(model, nn.Module) for model in listed):
        raise TypeError(f"models must be either a single model or a list of models; it was given {models!r}.")
    for model in listed:
        require_plain(model, half_allowed=half_allowed)
    return listed


def device_of(models: list[nn.Module]) -> torch.device:
    """Return the device of the first weight."""
    return next((p.device for model in models for p in model.parameters()), torch.device("cpu"))
