"""Callbacks for the real fastai that train by a recipe, on a CPU too.

For example: `learn.add_cb(ByRecipe("O2"))`.

Idea: the lab's engine does the casts, the masters and the scale. The learner keeps its loop and its
optimizer, which steps the engine's masters during a training. fastai's own callback requires a GPU.

Invariant: after a training the model is in FP32, with the full precision of its masters and of its
frozen weights.

Source: fastai.learner, fastai.optimizer, fastai.callback.fp16 (2.8.12).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from fastai.callback.core import Callback, CancelBackwardException, CancelStepException
from fastai.callback.fp16 import MixedPrecision
from fastai.optimizer import Optimizer
from fastcore.foundation import L
from torch import Tensor
from torch.utils._pytree import tree_map_only

from labkit.amp import RECIPES, Engine, Recipe, StepReport, to_fp32
from labkit.frameworks.watching import Watching, optimizer_source
from labkit.interop import dtype_of


class ByRecipe(Callback):
    """Train a Learner by one of the lab's recipes.

    `reports` has a `StepReport` for each step of the last training.

    Args:
        recipe: "O1", "O2" ..., or a `Recipe` of one's own.
        clip: the greatest length of all gradients; None: any. fastai's GradientClip would come too
            late.
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
                "GradientClip would see no unscaled gradients: remove it, and say "
                "ByRecipe(clip=1.0)"
            )
        self.after_fit()  # what an error left
        optimizer = self.learn.opt
        groups = [{"params": list(params)} for params in optimizer.param_lists]
        named = self.learn.model.named_parameters()
        self.frozen = {name: p.detach().clone() for name, p in named if not p.requires_grad}
        self.engine = Engine(
            self.learn.model, lambda stepped: _Steps(stepped, optimizer), self.recipe, groups=groups
        )
        weights = self.engine.weights
        self.reports = []
        _hand_over(
            optimizer, dict(zip(weights.model_weights, weights.optimizer_weights, strict=True))
        )

    def before_batch(self) -> None:
        """Open the region, and give a half model halves."""
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
        """Give the learner its optimizer and its FP32 model back, in which no digit is lost."""
        self.region.close()
        if self.engine is None:
            return
        weights = self.engine.weights
        digits = self.frozen | self.engine.weights.named_masters()
        _hand_over(
            self.learn.opt, dict(zip(weights.optimizer_weights, weights.model_weights, strict=True))
        )
        to_fp32(self.learn.model)
        with torch.no_grad():
            for name, parameter in self.learn.model.named_parameters():
                parameter.copy_(digits[name])
        self.engine = None


class _Steps(torch.optim.Optimizer):
    """The learner's optimizer, as an engine holds one."""

    def __init__(self, groups: Any, stepped: Any) -> None:
        super().__init__(groups, {})
        self.stepped = stepped

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.stepped.step()


def _hand_over(optimizer: Any, instead: dict[Tensor, Tensor]) -> None:
    """Let an optimizer step other tensors, with what it remembers of the old ones."""
    optimizer.param_lists = L(
        L(instead.get(p, p) for p in params) for params in optimizer.param_lists
    )
    for old, new in instead.items():
        if old is not new and old in optimizer.state:
            optimizer.state[new] = _to(torch.float32, optimizer.state.pop(old))


def _to(dtype: torch.dtype, values: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)


class Watch(Watching, Callback):
    """`labkit.instrument.watch` as a callback: `Learner(..., cbs=Watch(every=10))`.

    Call `close()` after an error.
    """

    order = 5  # before the model is converted
    sources = (optimizer_source(Optimizer, stand_in=MixedPrecision),)

    def before_fit(self) -> None:
        self.open(self.learn.model)

    def after_fit(self) -> None:
        self.close()
