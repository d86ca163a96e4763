"""The properties of O0, O1, O2 and O3, and a model whose `forward` casts accordingly.

Idea: an opt level is a row of properties, of which `initialize` replaces some. A half model takes
FP32 input and gives FP32 output by a `forward` that is wrapped in place, so that no other
line of a script changes.

Source: apex.amp.frontend, Properties and O0 to O3 (values, checks); apex.amp._initialize (patched
forward, refusals, O2StateDictHook).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from labkit.amp import RECIPES, to_model_format
from labkit.amp.ranges import reaches_beyond
from labkit.interop import format_of


@dataclass(frozen=True)
class Properties:
    """The changes that `initialize` makes to models and optimizers.

    Attributes:
        cast_model_type: dtype of models and of what goes into them; None or False: they stay as
            they are.
        patch_torch_functions: functions of torch are cast by apex's lists.
        keep_batchnorm_fp32: normalisation layers stay in FP32.
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
    "O0": Properties(True, "O0", torch.float32, False, None, False, 1.0),
    "O1": Properties(True, "O1", None, True, None, None, "dynamic"),
    "O2": Properties(True, "O2", torch.float16, False, True, True, "dynamic"),
    "O3": Properties(True, "O3", torch.float16, False, False, False, 1.0),
}


OVERRIDES = [field.name for field in fields(Properties)][2:]


def properties_of(opt_level: str, *overrides: Any) -> Properties:
    """Return an opt level's properties, with the overrides that are not None.

    They are in the order of `OVERRIDES`.

    Raises:
        RuntimeError: there is no such level, or an override contradicts it.
        ValueError: an override has a value that is not allowed.

    >>> properties_of("O2", None, None, "False").keep_batchnorm_fp32
    False
    """
    if opt_level not in LEVELS:
        raise RuntimeError(
            f"Unexpected optimization level {opt_level}. Options are 'O0', 'O1', 'O2', 'O3'. "
            "The O in front is the letter, not the number zero."
        )
    named = zip(OVERRIDES, overrides, strict=False)
    given = {name: _read(name, value) for name, value in named if value is not None}
    for name, value in given.items():
        if wrong := _contradiction(opt_level, name, value):
            raise RuntimeError(f"opt_level {opt_level!r} with {name}={value!r}: {wrong}")
    return replace(LEVELS[opt_level], **given)


def _read(name: str, value: Any) -> Any:
    """Return an override as a value; a script's command line passes text."""
    if name == "keep_batchnorm_fp32":
        if value not in (True, False, "True", "False"):
            raise ValueError(
                f"expected keep_batchnorm_fp32 as a bool, 'True', 'False' or None, got {value!r}"
            )
        return value in (True, "True")
    if name == "cast_model_type" and value not in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        False,
    ):
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
        return "torch's functions are cast under O1 only. Take opt_level='O1'."
    if opt_level != "O1":
        return ""
    if name == "cast_model_type" and value not in (False, torch.float32):
        return (
            "O1 casts what goes into functions, and the model's weights stay FP32. To cast them, "
            "take 'O2' or 'O3'."
        )
    if name == "keep_batchnorm_fp32":
        return (
            "under O1 batch norm's weights are FP32 as all others are. Leave it out, or take 'O2' "
            "or 'O3'."
        )
    if name == "master_weights":
        return (
            "under O1 the model's own weights are FP32 and need no master. Leave it out, or take "
            "'O2'."
        )
    return ""


def convert(
    model: nn.Module, properties: Properties, cast_model_outputs: torch.dtype | None
) -> None:
    """Cast a model as its opt level says, and wrap its forward to cast tensors in and out."""
    if not isinstance(cast_model_outputs, torch.dtype | None):
        raise TypeError(
            "expected cast_model_outputs as a dtype, such as torch.float16, got "
            f"{cast_model_outputs!r}"
        )
    dtype = properties.cast_model_type
    if not isinstance(dtype, torch.dtype):
        if cast_model_outputs is not None:
            model.forward = _Forward(model, None, False, cast_model_outputs)
        return
    keep_norms = bool(properties.keep_batchnorm_fp32)
    to_model_format(model, format_of(dtype), keep_norms=keep_norms)
    model.forward = _Forward(model, dtype, keep_norms, cast_model_outputs or torch.float32)
    # each: apex's state dicts of parts are FP32 too, and O3's
    for module in model.modules():
        module.register_state_dict_post_hook(_in_fp32)


class _Forward:  # a class, so that it is copied and pickled with the model
    """A model's forward between a cast of its inputs and one of its outputs; None casts nothing."""

    def __init__(
        self, model: nn.Module, dtype: torch.dtype | None, keep_norms: bool, outputs: torch.dtype
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.keep_norms = keep_norms
        self.outputs = outputs
        # somebody else patched it, on this very model
        self.patched = model.__dict__.get("forward")

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
    """Convert FP16 tensors of a state dict to FP32, so that checkpoints fit every opt level."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.dtype is torch.float16:
            state[key] = value.float()


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Cast each floating-point tensor in containers, and each batch object that has `to`."""

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            masks = dtype is not torch.float32 and reaches_beyond(value, dtype)
            return value.to(dtype) if value.is_floating_point() and not masks else value
        return (
            value.to(dtype) if hasattr(value, "to") and not isinstance(value, nn.Module) else value
        )

    return tree_map(cast, values)


def listed_models(models: Any, half_allowed: bool) -> list[nn.Module]:
    """Return models as a list; raise an error for one in FP16, or wrapped for several devices."""
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
        tensors = [("param", *named) for named in model.named_parameters()]
        for kind, name, tensor in (
            *tensors,
            *(("buffer", *named) for named in model.named_buffers()),
        ):
            if tensor.dtype is torch.float16 and not half_allowed:
                raise RuntimeError(
                    f"Found {kind} {name} with type {tensor.dtype}, expected torch.float32. When "
                    "using amp.initialize, you do not need to call .half() on your model before "
                    "passing it, no matter what optimization level you choose. model.float() "
                    "undoes it, but for what FP16 has rounded."
                )
    return listed
