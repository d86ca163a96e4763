"""Callbacks and functions for mixed precision in a loop that is independent of precision.

Idea: `MixedPrecision` opens a region of autocast from before_batch to after_loss, scales the loss
before_backward, and steps before_step in the loop's place or cancels. `NonNativeMixedPrecision`
trains a half model with FP32 masters, by the functions of this file: `get_master` makes the
masters, `to_master_grads` brings them the gradients, the optimizer steps them, and
`to_model_params` rounds them into the model. Casts, masters, unscaling and the rule of the scale
are labkit.amp's.

Invariant: when the training has ended, also with an error, the model is in FP32, no region is open,
and no gradient is scaled.

Source: fastai.callback.fp16 and fastai.fp16_utils, 2.8.12 (arguments, order, events). fastai itself
    requires a GPU.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.amp import RECIPES, ScalerConfig, decide, initial, static, unscale
from labkit.amp.loss_scaling.clip import clip_
from labkit.amp.loss_scaling.readings import read_scalars
from labkit.amp.masters.edits import Checksum, checksum, differences
from labkit.amp.masters.groups import cut, flatten
from labkit.frameworks.fastai.callback.core import (
    Callback,
    CancelBatchException,
    CancelStepException,
)
from labkit.frameworks.fastai.fp16_utils import (
    convert_network,
    master_params_to_model_params,
    model_grads_to_master_grads,
)
from labkit.frameworks.fastai.optimizer import Optimizer, hand_over
from labkit.frameworks.torch_amp import GradScaler, autocast
from labkit.instrument.events import StandInStepped
from labkit.instrument.stream import STREAM

__all__ = [
    "AMPMode",
    "MixedPrecision",
    "ModelToHalf",
    "NonNativeMixedPrecision",
    "convert_network",
    "get_master",
    "grad_overflow",
    "master_params_to_model_params",
    "model_grads_to_master_grads",
    "test_overflow",
    "to_float",
    "to_half",
    "to_master_grads",
    "to_model_params",
]

Groups = list[list[nn.Parameter]]


class AMPMode(StrEnum):
    """The low-precision formats of autocast."""

    FP16 = "fp16"
    BF16 = "bf16"


# --- functions ------------------------------------------------------------------------------------


def to_half(values: Any) -> Any:
    """Cast the floating-point tensors in containers of any kind to FP16."""
    return _to(torch.float16, values)


def to_float(values: Any) -> Any:
    """Cast the floating-point tensors in containers of any kind to FP32."""
    return _to(torch.float32, values)


def get_master(opt: Optimizer, flat_master: bool = False) -> tuple[Groups, Groups]:
    """Return the trainable parameters of an optimizer's groups, and their FP32 masters.

    Args:
        opt: an optimizer with `param_lists`.
        flat_master: make one vector of masters for each group; a group without trainable parameters
            has none.

    Returns:
        The trainable parameters and the masters, each as a list of groups.

    >>> from labkit.frameworks.fastai.optimizer import SGD
    >>> layer = nn.Linear(3, 2).half()
    >>> model_pgs, master_pgs = get_master(SGD(layer.parameters(), lr=0.1), flat_master=True)
    >>> len(model_pgs[0]), len(master_pgs[0]), master_pgs[0][0].shape, master_pgs[0][0].dtype
    (2, 1, torch.Size([8]), torch.float32)
    """
    model_pgs: Groups = [[p for p in group if p.requires_grad] for group in opt.param_lists]
    master_pgs: Groups = []
    for group in model_pgs:
        if flat_master:
            vectors = [flatten(group, torch.float32, views=False)[0]] if group else []
            master_pgs.append(vectors)
        else:
            master_pgs.append([nn.Parameter(p.detach().float().clone()) for p in group])
    return model_pgs, master_pgs


def to_master_grads(model_pgs: Groups, master_pgs: Groups, flat_master: bool = False) -> None:
    """Copy gradients from the parameters to their masters, in FP32, group by group."""
    for model_params, master_params in zip(model_pgs, master_pgs, strict=True):
        model_grads_to_master_grads(model_params, master_params, flat_master)


def to_model_params(model_pgs: Groups, master_pgs: Groups, flat_master: bool = False) -> None:
    """Round the masters into their parameters, group by group."""
    for model_params, master_params in zip(model_pgs, master_pgs, strict=True):
        master_params_to_model_params(model_params, master_params, flat_master)


def test_overflow(x: Tensor) -> bool:
    """Return whether the sum of a tensor in FP32 is inf or NaN.

    It is if the tensor holds one; as in fastai, a sum of finite numbers may also overflow.

    >>> test_overflow(torch.tensor([1.0, math.inf, -math.inf]))
    True
    """
    return not math.isfinite(float(x.float().sum()))


# pytest would collect it as a test of a script that imports it
test_overflow.__test__ = False  # type: ignore[attr-defined]


def grad_overflow(pgs: Sequence[Sequence[Tensor]]) -> bool:
    """Return whether a gradient in groups of parameters holds inf or NaN."""
    return any(test_overflow(p.grad) for group in pgs for p in group if p.grad is not None)


# --- callbacks ------------------------------------------------------------------------------------


class MixedPrecision(Callback):
    """Autocast, and in FP16 a GradScaler.

    Args:
        amp_mode: "fp16" or "bf16".
        kwargs: arguments of `GradScaler`.

    Raises:
        ValueError: amp_mode is neither of them; or, when a training begins, the learner has another
            callback of mixed precision.
        TypeError: GradScaler has no such argument.

    >>> from labkit.frameworks.fastai.test_utils import synth_learner
    >>> learn = synth_learner(cbs=MixedPrecision(init_scale=1024.0))
    >>> learn.fit(1)
    >>> set(learn.mixed_precision.scales)
    {1024.0}
    """

    order = 10

    def __init__(self, amp_mode: AMPMode | str = AMPMode.FP16, **kwargs: Any) -> None:
        super().__init__()
        if amp_mode not in tuple(AMPMode):
            raise ValueError(f"expected amp_mode 'fp16' or 'bf16', got {amp_mode!r}")
        unknown = set(kwargs) - set(inspect.signature(GradScaler).parameters)
        if unknown:
            raise TypeError(
                f"expected arguments of GradScaler, got {min(unknown)!r}; loss_scale, "
                "max_loss_scale, flat_master and the like are NonNativeMixedPrecision's."
            )
        self.amp_mode = AMPMode(amp_mode)
        self.kwargs = kwargs
        self.region = ExitStack()
        self.scales: list[float] = []

    def before_fit(self) -> None:
        _require_one_way(self.learn)
        low = torch.float16 if self.amp_mode is AMPMode.FP16 else torch.bfloat16
        device = self.dls.device.type
        self.autocast = autocast(device, low)
        self.scales = []
        options = {"device": device, "enabled": low is torch.float16, **self.kwargs}
        self.learn.scaler = GradScaler(**options)

    def before_batch(self) -> None:
        self.region.enter_context(self.autocast)

    def after_pred(self) -> None:
        self.learn.pred = to_float(self.pred)

    def after_loss(self) -> None:
        self.region.close()

    def before_backward(self) -> None:
        self.learn.loss_grad = self.scaler.scale(self.loss_grad)

    def before_step(self) -> None:
        """Cancel the loop's step if the scaler skips it.

        The scaler steps this callback in the optimizer's place, so `step` tells whether it would
        step. The loop then steps the optimizer itself.
        """
        self.skipped = True
        if self.scaler.is_enabled() and self.scaler._scale is None:
            # every backward so far was cancelled before its loss was scaled
            raise CancelStepException
        self.scaler.step(self)
        if self.skipped:
            raise CancelStepException
        self.scales.append(self.scaler.get_scale())

    @property
    def param_groups(self) -> Any:
        return self.opt.param_groups

    def step(self, *args: Any, **kwargs: Any) -> None:
        STREAM.emit(StandInStepped(self))
        self.skipped = False

    def after_step(self) -> None:
        """Update the scale if the scaler saw the gradients, since callbacks may cancel a step."""
        states = self.scaler._per_optimizer_states.values()
        if any(state["found_inf_per_device"] for state in states):
            self.scaler.update()

    def after_batch(self) -> None:
        # the batch may have been cancelled before its loss
        self.region.close()
        # or between the scaler's step and the loop's
        self.after_step()

    # an exception that cancels the training, the validation or the epoch skips after_batch
    after_train = after_batch
    after_validate = after_batch
    after_epoch = after_batch

    def after_fit(self) -> None:
        self.region.close()
        # a batch that was cancelled after its backward leaves scaled gradients
        self.model.zero_grad()

    abandon = after_fit


class ModelToHalf(Callback):
    """Convert the model, but for its norms, to FP16 while it trains.

    Use it with `NonNativeMixedPrecision`.
    """

    order = -50

    def before_fit(self) -> None:
        _require_one_way(self.learn)
        self.learn.model = convert_network(self.model, torch.float16)

    def after_fit(self) -> None:
        self.learn.model = convert_network(self.model, torch.float32)

    abandon = after_fit


class NonNativeMixedPrecision(Callback):
    """A half model, FP32 masters and a loss scale.

    A dynamic scale begins at `max_loss_scale`. At inf or NaN it is divided by `div_factor`, and the
    rest of the batch is skipped. After `scale_wait` clean steps it is multiplied by `div_factor`.

    Args:
        loss_scale: the scale of all steps if it is not dynamic; then gradients are not checked for
            inf and NaN.
        flat_master: make one vector of masters for each group.
        dynamic: whether the scale changes.
        max_loss_scale: the first scale, if it is dynamic.
        div_factor: the factor of a change; more than 1.
        scale_wait: the number of clean steps after which the scale grows. An overflow does not
            restart the count.
        clip: the largest norm of a group's gradients; None: they are not clipped.

    Attributes:
        model_pgs: during a training, the trainable parameters of each group.
        master_pgs: during a training, their masters, which the optimizer steps.

    Raises:
        ValueError: an argument is out of its range.
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
        arguments = (
            f"{loss_scale=}, {dynamic=}, {max_loss_scale=}, {div_factor=}, {scale_wait=}, {clip=}"
        )
        if not (div_factor > 1 and (clip is None or clip > 0)):
            raise ValueError(
                f"expected div_factor above 1, and clip above 0 or None, got {arguments}"
            )
        try:
            rule = ScalerConfig(
                max_loss_scale, div_factor, 1 / div_factor, scale_wait, restart_on_inf=False
            )
            self.config = rule if dynamic else static(loss_scale, skip_on_inf=False)
        except ValueError as error:
            raise ValueError(f"{arguments}: {error}") from None
        self.state = initial(self.config)
        self.flat_master = flat_master
        self.clip = clip
        self.model_pgs: Groups = []
        self.master_pgs: Groups = []
        # the optimizer's own groups, during a training
        self.old_pgs: Groups | None = None
        # the optimizer's state of frozen parameters, which have no master, during a training
        self._frozen: dict[Tensor, Any] = {}
        self.region = ExitStack()
        self.recipe = replace(RECIPES["O2"], scaler=self.config)
        self._noted: Checksum = []

    @property
    def loss_scale(self) -> float:
        """The current loss scale."""
        return self.state.scale

    def before_fit(self) -> None:
        _require_one_way(self.learn)
        self.old_pgs = self.opt.param_lists
        self.model_pgs, self.master_pgs = get_master(self.opt, self.flat_master)
        trained = {p for group in self.model_pgs for p in group}
        frozen = {p for group in self.old_pgs for p in group} - trained
        self._frozen = {p: self.opt.state.pop(p) for p in frozen & set(self.opt.state)}
        hand_over(self.opt, self.model_pgs, self.master_pgs)
        self._note_weights()

    def before_batch(self) -> None:
        self.learn.xb = to_half(self.xb)
        self.region.enter_context(self.recipe.forward(self.dls.device))

    def after_pred(self) -> None:
        self.region.close()
        self.learn.pred = to_float(self.pred)

    def before_backward(self) -> None:
        self.learn.loss_grad = self.loss_grad * self.loss_scale

    def before_step(self) -> None:
        """Unscale the gradients into the masters; at inf or NaN, cancel the batch.

        Raises:
            RuntimeError: a parameter without a master has a gradient: it was frozen when the
                training began.
        """
        self._require_masters()
        self._adopt_edits()
        to_master_grads(self.model_pgs, self.master_pgs, self.flat_master)
        masters = [m for group in self.master_pgs for m in group if m.grad is not None]
        gradients, found_inf = unscale(
            [m.grad for m in masters if m.grad is not None], self.loss_scale, in_place=True
        )
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient
        # callbacks see the loss without the scale
        self.learn.loss_grad = self.loss_grad / self.loss_scale
        decision = decide(self.state, found_inf, self.config)
        self.state = decision.after
        if decision.skip:
            self.model.zero_grad()
            self.opt.zero_grad()
            raise CancelBatchException
        if self.clip is not None:
            for group in self.master_pgs:
                clip_([m.grad for m in group if m.grad is not None], self.clip)

    def after_step(self) -> None:
        self.model.zero_grad()
        to_model_params(self.model_pgs, self.master_pgs, self.flat_master)
        self._note_weights()

    def after_batch(self) -> None:
        self.region.close()

    # a part of the training that was cancelled in a batch ends without that batch's after_batch
    after_train = after_batch
    after_validate = after_batch
    after_epoch = after_batch

    def after_fit(self) -> None:
        self.region.close()
        if self.old_pgs is None:
            return
        # a batch that was cancelled after its backward leaves scaled gradients
        self.model.zero_grad()
        hand_over(self.opt, self.master_pgs, self.model_pgs)
        self.opt.param_lists = self.old_pgs
        self.opt.state.update(self._frozen)
        self.model_pgs = []
        self.master_pgs = []
        self.old_pgs = None

    abandon = after_fit

    def _require_masters(self) -> None:
        """Refuse gradients of parameters that were frozen when the masters were made."""
        known = {p for group in self.model_pgs for p in group}
        for group in self.old_pgs or ():
            if any(p.grad is not None and p not in known for p in group):
                raise RuntimeError(
                    "expected gradients of the parameters that were trainable when fit() began, "
                    "got one of a parameter that was frozen then and has no master. Unfreeze "
                    "between two calls of fit()."
                )

    def _note_weights(self) -> None:
        self._noted = checksum(p for group in self.model_pgs for p in group)

    @torch.no_grad()
    def _adopt_edits(self) -> None:
        """Copy edits of the model's weights, by a callback for instance, to the masters."""
        flags = differences(self._noted, checksum(p for group in self.model_pgs for p in group))
        if flags is not None and not any(read_scalars(flags)):
            return
        for model_params, master_params in zip(self.model_pgs, self.master_pgs, strict=True):
            masters: Sequence[Tensor] = master_params
            if self.flat_master and model_params:
                masters = cut(master_params[0], model_params)
            for weight, master in zip(model_params, masters, strict=True):
                # an element is edited if it is not its master, rounded
                unchanged = master.to(weight.dtype) == weight
                master.copy_(torch.where(unchanged, master, weight.float()))


def _require_one_way(learn: Any) -> None:
    """Refuse callbacks that would scale a loss twice, and one of two that need each other."""
    kinds = []
    for kind in (MixedPrecision, ModelToHalf, NonNativeMixedPrecision):
        kinds += [kind.__name__ for callback in learn.cbs if isinstance(callback, kind)]
    if kinds not in (["MixedPrecision"], ["ModelToHalf", "NonNativeMixedPrecision"]):
        raise ValueError(
            f"this learner has {', '.join(kinds)}. Give it MixedPrecision alone, as to_fp16() "
            "does, or ModelToHalf and NonNativeMixedPrecision, as to_non_native_fp16(); to_fp32() "
            "and to_non_native_fp32() remove them."
        )


def _to(dtype: torch.dtype, values: Any) -> Any:
    """Cast the floating-point tensors in containers of any kind."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_only(Tensor, cast, values)
