"""Callbacks for the real fastai that train by a recipe, on a CPU too.

For example: `learn.add_cb(ByRecipe("O2"))`.

Idea: the lab's engine does the casts, the masters and the scale. The learner keeps its loop and its
optimizer, which steps the engine's masters during a training. fastai's own callback requires a GPU.

Invariant: after a training the model is in FP32, with the full precision of its masters and of its
frozen weights.

Source: fastai.learner, fastai.optimizer, fastai.callback.fp16 (2.8.12).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from fastai.callback.core import Callback, CancelBackwardException, CancelStepException
from fastai.callback.fp16 import MixedPrecision
from fastai.optimizer import Optimizer, OptimWrapper
from fastcore.foundation import L
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.amp import RECIPES, Engine, Recipe, StepReport, to_fp32
from labkit.frameworks.watching import Watching, optimizer_source
from labkit.interop import dtype_of


class ByRecipe(Callback):
    """Train a Learner by one of the lab's recipes.

    Args:
        recipe: a name such as "O1" or "O2", or a `Recipe`.
        clip: the largest norm of all gradients together; None: they are not clipped. It replaces
            fastai's GradientClip, which would run when the engine has stepped already.

    Attributes:
        reports: a `StepReport` for each step of the last training.
    """

    order = 10

    def __init__(self, recipe: Recipe | str = "O1", clip: float | None = None) -> None:
        super().__init__()
        self.recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
        self.clip = clip
        self.region = ExitStack()
        self.engine: Engine | None = None
        self.frozen: dict[str, Tensor] = {}
        self.reports: list[StepReport] = []

    def before_fit(self) -> None:
        """Make the engine, and hand the learner's optimizer its masters.

        Raises:
            ValueError: the learner clips gradients by a callback of its own.
        """
        if any(type(callback).__name__ == "GradientClip" for callback in self.learn.cbs):
            raise ValueError(
                "GradientClip would see no unscaled gradients: remove it, and use "
                "ByRecipe(clip=1.0)"
            )
        # a training that ended with an error did not reach its after_fit
        self.after_fit()
        optimizer = self.learn.opt
        groups = [{"params": list(params)} for params in optimizer.param_lists]
        named = self.learn.model.named_parameters()
        self.frozen = {name: p.detach().clone() for name, p in named if not p.requires_grad}
        self.engine = Engine(
            self.learn.model, lambda stepped: _Steps(stepped, optimizer), self.recipe, groups=groups
        )
        self.reports = []
        weights = self.engine.weights
        masters = dict(zip(weights.model_weights, weights.optimizer_weights, strict=True))
        _hand_over(optimizer, masters)

    def before_batch(self) -> None:
        """Enter autocast, and cast the inputs to the model's format."""
        if self.engine is not None:
            self.learn.xb = _to(dtype_of(self.recipe.model), self.learn.xb)
            self.region.enter_context(self.engine.forward())

    def after_pred(self) -> None:
        if self.engine is not None:
            self.learn.pred = _to(torch.float32, self.learn.pred)

    def after_loss(self) -> None:
        self.region.close()

    after_cancel_batch = after_loss

    def before_backward(self) -> None:
        if self.engine is not None:
            self.engine.backward(self.learn.loss_grad)
            raise CancelBackwardException

    def before_step(self) -> None:
        if self.engine is not None:
            if self.clip is not None:
                self.engine.clip(self.clip)
            self.reports.append(self.engine.step())
            raise CancelStepException

    def after_step(self) -> None:
        if self.engine is not None:
            self.engine.zero_grad()

    def after_fit(self) -> None:
        """Restore the optimizer, and an FP32 model with the full precision of its weights."""
        self.region.close()
        if self.engine is None:
            return
        weights = self.engine.weights
        full_precision = self.frozen | weights.named_masters()
        trained = dict(zip(weights.optimizer_weights, weights.model_weights, strict=True))
        to_fp32(self.learn.model)
        _hand_over(self.learn.opt, trained)
        with torch.no_grad():
            for name, parameter in self.learn.model.named_parameters():
                parameter.copy_(full_precision[name])
        self.engine = None


class _Steps(torch.optim.Optimizer):
    """Adapter of the learner's optimizer to the class of torch that an engine steps."""

    def __init__(self, groups: Any, stepped: Any) -> None:
        super().__init__(groups, {})
        self.stepped = stepped

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.stepped.step()


def _hand_over(optimizer: Any, replacements: Mapping[nn.Parameter, nn.Parameter]) -> None:
    """Replace the tensors that an optimizer steps, and move their state, such as momentum.

    The state takes the format of the new tensor; counters, which are 0-dimensional, keep theirs.
    """
    optimizer.param_lists = L(
        L(replacements.get(p, p) for p in params) for params in optimizer.param_lists
    )
    # An optimizer of torch keeps its own state inside fastai's wrapper.
    state = optimizer.opt.state if isinstance(optimizer, OptimWrapper) else optimizer.state
    for old, new in replacements.items():
        if old in state:
            state[new] = _to(new.dtype, state.pop(old), keep_scalars=True)


def _to(dtype: torch.dtype, values: Any, keep_scalars: bool = False) -> Any:
    """Cast the floating-point tensors in containers of any kind.

    Args:
        dtype: the dtype that they get.
        values: a tensor, or containers of tensors.
        keep_scalars: whether 0-dimensional tensors keep their dtype.
    """

    def cast(tensor: Tensor) -> Tensor:
        kept = not tensor.is_floating_point() or (keep_scalars and tensor.dim() == 0)
        return tensor if kept else tensor.to(dtype)

    return tree_map_only(Tensor, cast, values)


class Watch(Watching, Callback):
    """`labkit.instrument.watch` as a callback: `Learner(..., cbs=Watch(every=10))`.

    Call `close()` after an error.
    """

    # ByRecipe, with order 10, converts the model after this
    order = 5
    sources = (optimizer_source(Optimizer, stand_in=MixedPrecision),)

    def before_fit(self) -> None:
        self.open(self.learn.model)

    def after_fit(self) -> None:
        self.close()
