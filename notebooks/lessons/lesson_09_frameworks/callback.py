"""Can you write fastai's mixed precision: a callback, whose events come in an order that you have to know?

The point: the loop calls `before_x`, does x, and calls `after_x`, whatever happened. Who does x in its place, cancels
it. So the scaler steps before_step, cancels the loop's own step, and moves its scale after_step, also of a skipped one.

Oracle in the tests: numpy, as for frameworks.translate, whose numbers these are.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from labkit.frameworks import GradScaler, autocast
from labkit.frameworks.fastai.basics import SGD, Callback, CancelStepException, DataLoaders, Learner
from labkit.grading.draws import Batches
from labkit.grading.exercise import Exercise, wrong

from .translate import CHECKS, LEARNING_RATE, Trained, a_layer


def reference(weight: Tensor, batches: Batches, max_norm: float) -> Trained:
    """Return the weight after a step for each batch, and the scale.

    >>> reference(torch.ones(1, 1), [(torch.ones(1, 1), torch.full((1, 1), 0.75))], 1000.0)
    (tensor([[0.9375]]), 65536.0)
    """
    return _train(weight, batches, max_norm)


class _Scaling(Callback):
    """Scale, unscale, clip, step and update; `says` names what is done otherwise."""

    order = 10

    def __init__(self, max_norm: float, says: str) -> None:
        super().__init__()
        self.scaler, self.max_norm, self.says = GradScaler("cpu"), max_norm, says

    def before_backward(self) -> None:
        scaled = self.scaler.scale(self.loss_grad)
        self.learn.loss_grad = self.loss_grad if "plain loss" in self.says else scaled

    def before_step(self) -> None:
        if "clips scaled" not in self.says:
            self.scaler.unscale_(self.opt)
        if "no clip" not in self.says:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        if "loop steps" in self.says:
            return
        self.scaler.step(self.opt)
        if "twice" not in self.says:
            raise CancelStepException

    def after_step(self) -> None:
        self.scaler.update()
        if "forgets" in self.says:
            self.scaler = GradScaler("cpu")


def _train(weight: Tensor, batches: Batches, max_norm: float, says: str = "") -> Trained:
    layer, scaling = a_layer(weight), _Scaling(max_norm, says)
    layer.forward = autocast("cpu", torch.float16)(layer.forward)  # type: ignore[method-assign]
    loaders, sgd = DataLoaders(batches, []), partial(SGD, mom=0.0)
    Learner(loaders, layer, nn.functional.mse_loss, sgd, lr=LEARNING_RATE, cbs=[scaling]).fit(1)
    return layer.weight.detach(), scaling.scaler.get_scale()


# fmt: off
MISTAKES = (
    wrong("steps twice", "this steps, and then the loop steps too, inf or not: raise CancelStepException at the end "
          "of before_step.", lambda weight, batches, max_norm: _train(weight, batches, max_norm, "twice")),
    wrong("lets the loop step", "this unscales, and lets the loop step, which looks for no inf: call "
          "`scaler.step(self.opt)` and cancel the loop's.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, "loop steps")),
    wrong("clips scaled gradients", "this clips the scaled gradients: `scaler.unscale_(self.opt)` comes before.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, "clips scaled")),
    wrong("never clips", "this does not clip. Between unscaling and the step is the place.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, "no clip")),
    wrong("never scales", "this leaves `learn.loss_grad` as it is, and that is what the loop calls backward of. "
          "(`learn.loss` is a copy, to be looked at.)",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, "plain loss")),
    wrong("forgets the scale", "this makes a new GradScaler for each batch, and it remembers nothing: make one, "
          "before the training.", lambda weight, batches, max_norm: _train(weight, batches, max_norm, "forgets")),
)
# fmt: on

EXERCISE = Exercise(
    id="frameworks.callback",
    title="Write the callback",
    entry="my_fastai_training",
    difficulty=3,
    minutes=12,
    reference=reference,
    checks=CHECKS,
    mistakes=MISTAKES,
    provides={"torch": torch},
)
