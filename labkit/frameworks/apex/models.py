"""The properties of O0, O1, O2 and O3, and a model whose `forward` casts accordingly.

Idea: an opt level is a row of properties, and the arguments of `initialize` override some of them.
The `forward` of a half model is wrapped in place: it casts FP32 inputs to FP16 and outputs to FP32,
so that no other line of a script changes.

Source: apex.amp.frontend, Properties and O0 to O3 (values, checks); apex.amp._initialize (patched
forward, refusals, O2StateDictHook).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from labkit.amp import RECIPES, to_model_format
from labkit.amp.masters.convert import restored_after_error
from labkit.amp.ranges import reaches_beyond
from labkit.interop import format_of


@dataclass(frozen=True)
class Properties:
    """The changes that `initialize` makes to models and optimizers.

    Attributes:
        enabled: whether amp does anything.
        opt_level: the level that these properties are of.
        cast_model_type: dtype of models and their inputs; None or False: they are not cast.
        patch_torch_functions: cast the inputs of torch's functions by apex's lists.
        keep_batchnorm_fp32: keep normalisation layers in FP32.
        master_weights: the optimizer steps FP32 copies of half weights.
        loss_scale: a number, or "dynamic".
    """

    enabled: bool = False
    opt_level: str | None = None
    cast_model_type: torch.dtype | bool | None = None
    patch_torch_functions: bool = False
    keep_batchnorm_fp32: bool | None = None
    master_weights: bool | None = None
    loss_scale: float | str = 1.0


LEVELS = {
    "O0": Properties(
        enabled=True,
        opt_level="O0",
        cast_model_type=torch.float32,
        patch_torch_functions=False,
        keep_batchnorm_fp32=None,
        master_weights=False,
        loss_scale=1.0,
    ),
    "O1": Properties(
        enabled=True,
        opt_level="O1",
        cast_model_type=None,
        patch_torch_functions=True,
        keep_batchnorm_fp32=None,
        master_weights=None,
        loss_scale="dynamic",
    ),
    "O2": Properties(
        enabled=True,
        opt_level="O2",
        cast_model_type=torch.float16,
        patch_torch_functions=False,
        keep_batchnorm_fp32=True,
        master_weights=True,
        loss_scale="dynamic",
    ),
    "O3": Properties(
        enabled=True,
        opt_level="O3",
        cast_model_type=torch.float16,
        patch_torch_functions=False,
        keep_batchnorm_fp32=False,
        master_weights=False,
        loss_scale=1.0,
    ),
}


def properties_of(opt_level: str, **overrides: Any) -> Properties:
    """Return an opt level's properties, with the overrides that are not None.

    Args:
        opt_level: "O0", "O1", "O2" or "O3".
        overrides: values of properties, by their names; a command line may pass them as text.

    Raises:
        RuntimeError: there is no such level, or an override contradicts it.
        ValueError: an override has a value that is not allowed.

    >>> properties_of("O2", keep_batchnorm_fp32="False").keep_batchnorm_fp32
    False
    """
    if not isinstance(opt_level, str) or opt_level not in LEVELS:
        raise RuntimeError(
            f"Unexpected optimization level {opt_level}. Options are 'O0', 'O1', 'O2', 'O3'. "
            "The O in front is the letter, not the number zero."
        )
    parsed = {name: _parse(name, value) for name, value in overrides.items() if value is not None}
    for name, value in parsed.items():
        contradiction = _contradiction(opt_level, name, value)
        if contradiction:
            raise RuntimeError(f"opt_level {opt_level!r} with {name}={value!r}: {contradiction}")
    return replace(LEVELS[opt_level], **parsed)


def _parse(name: str, value: Any) -> Any:
    """Return the value of an override, which a command line passes as text.

    Raises:
        ValueError: the value is not allowed.
    """
    if name == "keep_batchnorm_fp32":
        if value not in (True, False, "True", "False"):
            raise ValueError(
                f"expected keep_batchnorm_fp32 as a bool, 'True', 'False' or None, got {value!r}"
            )
        return value in (True, "True")
    allowed = (torch.float16, torch.bfloat16, torch.float32, False)
    if name == "cast_model_type" and value not in allowed:
        raise ValueError(
            f"expected cast_model_type torch.float16, bfloat16, float32, or False, got {value!r}"
        )
    if name == "loss_scale" and value != "dynamic":
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"expected loss_scale as a number, such as 128.0, or 'dynamic', got {value!r}"
            ) from None
    return value


def _contradiction(opt_level: str, name: str, value: Any) -> str:
    """Return why an override contradicts the level, or an empty string."""
    if name == "patch_torch_functions" and value and opt_level != "O1":
        return "torch's functions are cast under O1 only. Use opt_level='O1'."
    if opt_level != "O1":
        return ""
    if name == "cast_model_type" and value not in (False, torch.float32):
        return (
            "O1 casts the inputs of functions, and the model's weights stay FP32. To cast the "
            "weights, use 'O2' or 'O3'."
        )
    if name == "keep_batchnorm_fp32":
        return (
            "under O1 all weights are FP32, those of batch norm included. Leave the argument out, "
            "or use 'O2' or 'O3'."
        )
    if name == "master_weights":
        return (
            "under O1 the model's own weights are FP32 and need no masters. Leave the argument "
            "out, or use 'O2'."
        )
    return ""


def convert(
    models: Sequence[nn.Module], properties: Properties, cast_model_outputs: torch.dtype | None
) -> None:
    """Cast models as their opt level says, and wrap their forward to cast tensors in and out.

    Raises:
        ValueError: a finite number would become inf. No model has changed then.
    """
    dtype = properties.cast_model_type
    if isinstance(dtype, torch.dtype):
        with ExitStack() as restoring:
            for model in models:
                restoring.enter_context(restored_after_error(model))
            for model in models:
                keep_norms = bool(properties.keep_batchnorm_fp32)
                to_model_format(model, format_of(dtype), keep_norms=keep_norms)
    for model in models:
        _wrap(model, properties, cast_model_outputs)


def require_outputs(cast_model_outputs: object) -> None:
    """Raise a TypeError unless the dtype of outputs is a dtype or None."""
    if not isinstance(cast_model_outputs, torch.dtype | None):
        raise TypeError(
            "expected cast_model_outputs as a dtype, such as torch.float16, got "
            f"{cast_model_outputs!r}"
        )


def _wrap(model: nn.Module, properties: Properties, cast_model_outputs: torch.dtype | None) -> None:
    """Wrap a model's forward to cast tensors in and out, and its state dict to be in FP32."""
    dtype = properties.cast_model_type
    if not isinstance(dtype, torch.dtype):
        if cast_model_outputs is not None:
            model.forward = _Forward(
                model, dtype=None, keep_norms=False, outputs=cast_model_outputs
            )
        return
    keep_norms = bool(properties.keep_batchnorm_fp32)
    outputs = torch.float32 if cast_model_outputs is None else cast_model_outputs
    model.forward = _Forward(model, dtype=dtype, keep_norms=keep_norms, outputs=outputs)
    # on each module, since in apex the state dict of a part is FP32, too, also under O3
    for module in model.modules():
        module.register_state_dict_post_hook(_in_fp32)


class _Forward:
    """A model's forward between a cast of its inputs and one of its outputs.

    It is a class rather than a closure, so that it is copied and pickled with the model.

    Args:
        model: the model.
        dtype: the dtype of its inputs; None: they are not cast.
        keep_norms: whether its normalisation layers are FP32.
        outputs: the dtype of its outputs.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        dtype: torch.dtype | None,
        keep_norms: bool,
        outputs: torch.dtype,
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.keep_norms = keep_norms
        self.outputs = outputs
        # a `forward` that something else has set on this object, or None
        self.patched = model.__dict__.get("forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.patched
        if forward is None:
            # bound here, and not stored: a copy of the model has to call its own
            forward = MethodType(type(self.model).forward, self.model)
        if self.dtype is None:
            return _cast(forward(*args, **kwargs), self.outputs)
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        recipe = replace(RECIPES["O2"], model=format_of(self.dtype), keep_norms=self.keep_norms)
        with recipe.forward(device):
            out = forward(*_cast(args, self.dtype), **_cast(kwargs, self.dtype))
        return _cast(out, self.outputs)


def _in_fp32(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Convert FP16 tensors of a state dict to FP32, so that checkpoints fit every opt level."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dtype is torch.float16:
            state[key] = value.float()


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Cast each floating-point tensor in containers, and each batch object that has `to`."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.is_floating_point():
                return value
            # a mask may hold numbers that become inf in a half format
            if dtype is not torch.float32 and reaches_beyond(value, dtype):
                return value
            return value.to(dtype)
        if hasattr(value, "to") and not isinstance(value, nn.Module):
            return value.to(dtype)
        return value

    return tree_map(cast, values)


def listed_models(models: nn.Module | list[nn.Module], half_allowed: bool) -> list[nn.Module]:
    """Return models as a list.

    Raises:
        TypeError: something is not a model.
        RuntimeError: a model is wrapped for several devices, or is FP16 and `half_allowed` is
            False.
    """
    listed = models if isinstance(models, list) else [models]
    if not listed or not all(isinstance(model, nn.Module) for model in listed):
        raise TypeError(
            f"models must be either a single model or a list of models; got {models!r}."
        )
    for model in listed:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise RuntimeError(
                f"Incoming model is an instance of {type(model).__name__}. Parallel wrappers "
                "should only be applied to the model(s) AFTER the model(s) have been returned from "
                "amp.initialize."
            )
        tensors: list[tuple[str, str, Tensor]] = []
        tensors += [("param", name, tensor) for name, tensor in model.named_parameters()]
        tensors += [("buffer", name, tensor) for name, tensor in model.named_buffers()]
        for kind, name, tensor in tensors:
            if tensor.dtype is torch.float16 and not half_allowed:
                raise RuntimeError(
                    f"Found {kind} {name} with type {tensor.dtype}, expected torch.float32. When "
                    "using amp.initialize, you do not need to call .half() on your model before "
                    "passing it, no matter what optimization level you choose. model.float() "
                    "undoes it, except for the rounding to FP16."
                )
    return listed
