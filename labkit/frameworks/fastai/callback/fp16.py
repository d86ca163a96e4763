"""Callbacks for mixed precision in a loop that is independent of precision.

Idea: `MixedPrecision` opens a region of autocast from before_batch to after_loss, scales the loss before_backward, and
steps before_step in the loop's place or cancels. `NonNativeMixedPrecision` does it with a half model and FP32 masters.
Casts, masters, unscaling and the rule of the scale are labkit.amp's, by `frameworks.torch_amp` in the first case, by
`frameworks.steps` in the second.

Invariant: when the training has ended, by an error too, the model is in FP32 and no region is open.

Source: fastai.callback.fp16 and fastai.fp16_utils, 2.8.12 (arguments, order, events); that one asks for a GPU, by name.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from labkit.amp import RECIPES, ScalerConfig, static, to_fp32, to_model_format
from labkit.amp.loss_scaling.clip import clip_
from labkit.formats import FP16
from labkit.frameworks.fastai.callback.core import (
    Callback,
    CancelBatchException,
    CancelStepException,
)
from labkit.frameworks.steps import LossScale, Steps
from labkit.frameworks.torch_amp import GradScaler, autocast

__all__ = ["MixedPrecision", "ModelToHalf", "NonNativeMixedPrecision"]


class MixedPrecision(Callback):
    """Autocast and a GradScaler, whose arguments it takes.

    Raises:
        ValueError: amp_mode is another one; or, when a training begins, another callback does the same.

    >>> from labkit.frameworks.fastai.basics import DataLoaders, Learner, nn
    >>> batch = torch.ones(2, 1), torch.zeros(2, 1)
    >>> learn = Learner(DataLoaders([batch]), nn.Linear(1, 1), nn.MSELoss(), cbs=MixedPrecision(init_scale=1024.0))
    >>> learn.fit(1)
    >>> set(learn.mixed_precision.scales)
    {1024.0}
    """

    order = 10

    def __init__(self, amp_mode: str = "fp16", **kwargs: Any) -> None:
        super().__init__()
        if amp_mode not in ("fp16", "bf16"):
            raise ValueError(f"expected amp_mode 'fp16' or 'bf16', got {amp_mode!r}")
        self.amp_mode, self.kwargs, self.region = amp_mode, kwargs, ExitStack()
        self.scales: list[float] = []

    def before_fit(self) -> None:
        _require_one_way(self.learn)
        low = torch.float16 if self.amp_mode == "fp16" else torch.bfloat16
        device = self.dls.device.type
        self.autocast, self.scales = autocast(device, low), []
        self.learn.scaler = GradScaler(device, **{"enabled": low is torch.float16, **self.kwargs})

    def before_batch(self) -> None:
        self.region.enter_context(self.autocast)

    def after_pred(self) -> None:
        self.learn.pred = _to(torch.float32, self.pred)

    def after_loss(self) -> None:
        self.region.close()

    def before_backward(self) -> None:
        self.learn.loss_grad = self.scaler.scale(self.loss_grad)

    def before_step(self) -> None:
        """Let the scaler step the loop's optimizer, for which this callback stands; where it does not, cancel."""
        self.skipped = True
        self.scaler.step(self)
        if self.skipped:
            raise CancelStepException
        self.scales.append(self.scaler.get_scale())

    @property
    def param_groups(self) -> Any:
        return self.opt.param_groups

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.skipped = False

    def after_step(self) -> None:
        self.scaler.update()

    def after_batch(self) -> None:
        self.region.close()  # if the batch was cancelled before its loss

    abandon = after_batch


class ModelToHalf(Callback):
    """Convert the model, but for its norms, to FP16 while it trains; goes with `NonNativeMixedPrecision`."""

    order = -50

    def before_fit(self) -> None:
        _require_one_way(self.learn)
        self.learn.model = to_model_format(self.model, FP16)

    def after_fit(self) -> None:
        self.learn.model = to_fp32(self.model)

    abandon = after_fit


class NonNativeMixedPrecision(Callback):
    """A half model, FP32 masters and a loss scale.

    Args:
        loss_scale: of all steps, if it is not dynamic; then gradients are not checked for inf and NaN.
        flat_master: one master for each group.
        dynamic: begin at `max_loss_scale`, divide it by `div_factor` and leave the batch out at inf or NaN, multiply it
            after `scale_wait` clean steps.
        clip: the greatest length of a group's gradients; None: any.

    Raises:
        ValueError: one of them is out of its range.
    """

    order = 10

    def __init__(
        self,
        loss_scale: float = 512,
        flat_master: bool = False,
        dynamic: bool = True,
        max_loss_scale: float = 2.0**24,
        div_factor: float = 2.0,
        scale_wait: int = 500,
        clip: float | None = None,
    ) -> None:
        super().__init__()
        given = (
            f"{loss_scale=}, {dynamic=}, {max_loss_scale=}, {div_factor=}, {scale_wait=}, {clip=}"
        )
        if not (div_factor > 1 and (clip is None or clip > 0)):
            raise ValueError(
                f"div_factor is more than 1, and clip a length above 0 or None; given: {given}"
            )
        try:
            rule = ScalerConfig(
                max_loss_scale, div_factor, 1 / div_factor, scale_wait, restart_on_inf=False
            )
            self.config = rule if dynamic else static(loss_scale, skip_on_inf=False)
        except ValueError as error:
            raise ValueError(f"{given}: {error}") from None
        self.scale, self.flat_master, self.clip = LossScale(self.config), flat_master, clip
        self.steps: Any = None  # `Steps`, during a training
        self.region = ExitStack()

    @property
    def loss_scale(self) -> float:
        """The current loss scale."""
        return self.scale.state.scale

    @property
    def master_pgs(self) -> list[list[Tensor]]:
        """The stepped tensors of each group, during a training."""
        return [group["params"] for group in self.opt.param_groups]

    def before_fit(self) -> None:
        _require_one_way(self.learn)
        names = {p: name for name, p in self.model.named_parameters()}
        self.steps = Steps(self.opt, names, masters=True, flat=self.flat_master)
        self.recipe = replace(RECIPES["O2"], scaler=self.config)

    def before_batch(self) -> None:
        self.learn.xb = _to(torch.float16, self.xb)
        self.region.enter_context(self.recipe.forward(self.dls.device))

    def after_pred(self) -> None:
        self.region.close()
        self.learn.pred = _to(torch.float32, self.pred)

    def before_backward(self) -> None:
        self.steps.before_backward()
        self.learn.loss_grad = self.loss_grad * self.loss_scale

    def before_step(self) -> None:
        """Unscale the gradients into the masters; at inf or NaN, leave the rest of the batch out."""
        found_inf = self.steps.unscale(self.loss_scale)
        self.learn.loss_grad = self.loss_grad / self.loss_scale  # what is told of it is not scaled
        if self.scale.must_skip(found_inf):
            self.model.zero_grad()
            self.opt.zero_grad()
            raise CancelBatchException
        if self.clip is not None:
            for group in self.master_pgs:
                clip_([p.grad for p in group if p.grad is not None], self.clip)

    def after_step(self) -> None:
        self.model.zero_grad()
        self.steps.copy_back()

    def after_batch(self) -> None:
        self.region.close()

    def after_fit(self) -> None:
        self.region.close()
        if self.steps is not None:
            self.steps.give_back()
            self.steps = None

    abandon = after_fit


def _require_one_way(learn: Any) -> None:
    """Refuse callbacks that would scale the same loss twice, or of which each lacks the other."""
    kinds = [
        kind.__name__
        for kind in (MixedPrecision, ModelToHalf, NonNativeMixedPrecision)
        for cb in learn.cbs
        if isinstance(cb, kind)
    ]
    if kinds not in (["MixedPrecision"], ["ModelToHalf", "NonNativeMixedPrecision"]):
        raise ValueError(
            f"this learner has {', '.join(kinds)}. Give it MixedPrecision alone, as to_fp16() does, or ModelToHalf and "
            "NonNativeMixedPrecision, as to_non_native_fp16(); to_fp32() and to_non_native_fp32() take them away."
        )


def _to(dtype: torch.dtype, values: Any) -> Any:
    """Cast the floating-point tensors in containers of any kind."""
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)
