"""What do O0, O1, O2 and O3 stand for, and which overrides contradict them?

Idea: an opt level is a row of properties, and what `initialize` is given on top replaces some of them, one by one.

Source: apex.amp.frontend, Properties and O0 to O3 (values, checks).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Properties:
    """What `initialize` does to models and optimizers.

    cast_model_type        dtype of models and of what goes into them; None or False: they stay as they are
    patch_torch_functions  functions of torch are cast by apex's lists
    keep_batchnorm_fp32    normalisation layers stay in FP32
    master_weights         the optimizer steps FP32 copies of half weights
    loss_scale             a number, or "dynamic"
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
    """Return an opt level's properties, with the overrides, in the order of `OVERRIDES`, that are not None.

    Raises:
        RuntimeError: there is no such level, or an override contradicts it.
        ValueError: an override is none of its values.

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
    """Return an override as a value; the command line of a script hands over text."""
    if name == "keep_batchnorm_fp32":
        if value not in (True, False, "True", "False"):
            raise ValueError(f"keep_batchnorm_fp32 is a bool, 'True', 'False' or None; it was given {value!r}")
        return value in (True, "True")
    if name == "cast_model_type" and value not in (torch.float16, torch.bfloat16, torch.float32, False):
        raise ValueError(f"cast_model_type is torch.float16, bfloat16, float32, or False; it was given {value!r}")
    if name == "loss_scale" and value != "dynamic":
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ValueError(f"loss_scale is a number, such as 128.0, or 'dynamic'; it was given {value!r}") from None
    return value


def _contradiction(opt_level: str, name: str, value: Any) -> str:
    """Say why an override does not go with the level; nothing if it does."""
    if name == "patch_torch_functions" and value and opt_level != "O1":
        return "torch's functions are cast under O1 only. Take opt_level='O1'."
    if opt_level != "O1":
        return ""
    if name == "cast_model_type" and value not in (False, torch.float32):
        return "O1 casts what goes into functions, and the model's weights stay FP32. To cast them, take 'O2' or 'O3'."
    if name == "keep_batchnorm_fp32":
        return "under O1 batch norm's weights are FP32 as all others are. Leave it out, or take 'O2' or 'O3'."
    if name == "master_weights":
        return "under O1 the model's own weights are FP32 and need no master. Leave it out, or take 'O2'."
    return ""
