"""Where do the weights live between two steps, in FP32 or in FP16?

Idea: the optimizer steps FP32 weights (the master), and the model computes with their FP16 rounding. Training without
master weights is the same procedure with a bad memory: after each step the FP32 weights forget what FP16 did not keep,
so an update below half an ulp of its weight is gone for good.

Invariant: after every step, model weights = master weights rounded to the model's dtype.

Source: arXiv:1710.03740, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn


class Weights:
    """The master weights of a model, its optimizer, and the copy back.

    A parameter that is already in the optimizer's dtype is its own master, so for an FP32 model all of this is nothing.

    Args:
        model: its trainable parameters are the model weights, in whatever dtype they are.
        make_optimizer: parameters -> torch optimizer, called once with the master weights.
        master: False makes the FP32 weights forget what the model's dtype does not hold, after each step.
        optimizer_dtype: dtype of master weights and optimizer state. FP16 is O3: no FP32 anywhere.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        *,
        master: bool = True,
        optimizer_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model_weights = [p for p in model.parameters() if p.requires_grad]
        self.master_weights = [
            p if p.dtype == optimizer_dtype else nn.Parameter(p.detach().to(optimizer_dtype))
            for p in self.model_weights
        ]
        self.optimizer = make_optimizer(self.master_weights)
        self.master = master

    def gradients(self) -> list[Tensor]:
        """Return the model's gradients as backward left them, scaled, in the model's dtype; a missing one is zeros."""
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.model_weights]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Step the master weights with unscaled gradients, then copy them back to the model."""
        for master, gradient in zip(self.master_weights, gradients, strict=True):
            master.grad = gradient.to(master.dtype)
        self.optimizer.step()
        self.copy_back()

    @torch.no_grad()
    def copy_back(self) -> None:
        """Round the master weights into the model; without a master, remember only what was rounded."""
        for weight, master in zip(self.model_weights, self.master_weights, strict=True):
            if weight is not master:
                weight.copy_(master)
                if not self.master:
                    master.copy_(weight)

    def zero_grad(self) -> None:
        """Forget the gradients of the last step, here and in the model."""
        for p in (*self.model_weights, *self.master_weights):
            p.grad = None
