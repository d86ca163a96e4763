"""Miniatures of a training step: a loop of single calls, and a scaled backward pass.

Invariant: every call is deterministic. No order of calls is refused: a wrong order computes what it
would compute in practice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHAPE = (4,)
LEARNING_RATE = 0.25


@dataclass(frozen=True)
class Knobs:
    """The settings of a scaler's rule, with any values.

    `labkit.amp.ScalerConfig` would refuse a factor of 1.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


@dataclass
class Loop:
    """A training loop between two steps.

    The loss of a batch is its dot product with the model weight, so its gradient is the batch.

    Attributes:
        batches: The batches of one step, each FP32 [4].
        master_weight: FP32 [4], the weight that the optimizer steps.
        model_weight: FP16 [4], the weight that the forward pass uses.
        gradient: [4], the sum of gradients: FP16 and scaled until `unscale`, then FP32.
        scale: The loss scale.
        max_norm: The largest norm of a clipped gradient.
        growth_tracker: The number of clean steps in a row. The third one doubles the scale.
        found_inf: Whether `unscale` found inf or NaN; reset by `update`.
    """

    batches: list[Tensor]
    master_weight: Tensor
    model_weight: Tensor
    gradient: Tensor
    scale: float
    max_norm: float
    growth_tracker: int = 0
    found_inf: bool = False

    def zero_grad(self) -> None:
        """Set the gradient to zero."""
        self.gradient = torch.zeros(SHAPE).half()

    def backward(self, batch: Tensor) -> None:
        """Run forward and backward pass of a batch, and add its scaled gradient in FP16."""
        mean = batch / len(self.batches)
        self.gradient = self.gradient + (mean * self.scale).half()

    def unscale(self) -> None:
        """Cast the gradient to FP32, divide it by the scale, and check it for inf and NaN."""
        self.gradient = self.gradient.float() / self.scale
        self.found_inf = not bool(torch.isfinite(self.gradient).all())

    def clip(self) -> None:
        """Clip the gradient to a norm of at most max_norm."""
        norm = float(self.gradient.float().norm())
        if norm > self.max_norm:
            self.gradient = self.gradient * (self.max_norm / norm)

    def step(self) -> None:
        """Step the master weight with the gradient, unless inf or NaN was found."""
        if not self.found_inf:
            self.master_weight = self.master_weight - LEARNING_RATE * self.gradient.float()

    def copy_back(self) -> None:
        """Round the master weight into the model."""
        self.model_weight = self.master_weight.half()

    def update(self) -> None:
        """Halve the scale after inf or NaN, double it after the third clean step in a row.

        Reset found_inf, as torch's GradScaler does.
        """
        self.growth_tracker = 0 if self.found_inf else self.growth_tracker + 1
        if self.found_inf:
            self.scale = self.scale / 2
        elif self.growth_tracker == 3:
            self.scale = self.scale * 2
            self.growth_tracker = 0
        self.found_inf = False


@dataclass(frozen=True)
class ScaledBackward:
    """A backward pass in miniature: it rounds scale * gradient to FP16.

    Attributes:
        gradient: FP32 [n], the gradient of the unscaled loss.

    >>> import torch
    >>> gradient = torch.tensor([2.0**-30])
    >>> ScaledBackward(gradient)(1.0), ScaledBackward(gradient)(2.0**20)
    (tensor([0.], dtype=torch.float16), tensor([0.0010], dtype=torch.float16))
    """

    gradient: Tensor

    def __call__(self, scale: float) -> Tensor:
        return (self.gradient * scale).half()
