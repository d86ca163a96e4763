"""Accelerate in FP16 on any device: `from labkit.frameworks.accelerate import Accelerator`.

Idea: a subclass of Accelerate's class with the lab's scaler and autocast. On a CPU, the original
accepts mixed_precision="fp16" and trains in FP32 without a warning. Its schedules do not advance
when a step is skipped.

Source: accelerate.accelerator, optimizer and scheduler (1.15.0).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

import accelerate
import torch
from accelerate.utils import convert_outputs_to_fp32

from labkit.frameworks.torch_amp import GradScaler, autocast


class Accelerator(accelerate.Accelerator):
    """accelerate.Accelerator in FP16, on any device.

    GradScalerKwargs in `kwargs_handlers` set the options of its scaler, AutocastKwargs those of its
    autocast.

    Raises:
        ValueError: mixed_precision is not "fp16".
    """

    def __init__(self, *args: Any, mixed_precision: Any = "fp16", **kwargs: Any) -> None:
        if str(mixed_precision) != "fp16":
            raise ValueError(
                f"expected mixed_precision='fp16', got mixed_precision={mixed_precision!r}; use "
                "accelerate.Accelerator"
            )
        super().__init__(*args, mixed_precision=mixed_precision, **kwargs)
        knobs = self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {}
        self.scaler = GradScaler(self.device.type, **knobs)
        self.native_amp = True

    def prepare_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare a model, so that its forward pass runs under autocast and returns FP32."""
        if getattr(model, "_is_accelerate_prepared", False):
            return super().prepare_model(model, *args, **kwargs)
        forward = model.forward
        # accelerate's unwrap_model restores it
        model._original_forward = forward
        # a method is wrapped unbound, so that a copy of the model calls its own
        function = getattr(forward, "__func__", forward)
        wrapped = convert_outputs_to_fp32(self.autocast()(function))  # type: ignore[operator]
        model.forward = wrapped if function is forward else MethodType(wrapped, model)
        # else the original would open torch's autocast inside this one
        self.native_amp = False
        try:
            return super().prepare_model(model, *args, **kwargs)
        finally:
            self.native_amp = True

    def autocast(self, autocast_handler: Any = None) -> AbstractContextManager[Any]:
        """Return a context manager for a forward pass under autocast.

        Args:
            autocast_handler: AutocastKwargs, which may disable autocast or its cache; None: those
                of the constructor's `kwargs_handlers`.
        """
        if autocast_handler is None:
            autocast_handler = self.autocast_handler
        knobs = autocast_handler.to_kwargs() if autocast_handler is not None else {}
        return autocast(self.device.type, torch.float16, **knobs)
