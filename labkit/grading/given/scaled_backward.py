"""What does a learner's training step get instead of a network? A backward pass in miniature (scaling.static_step)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ScaledBackward:
    """A backward pass in miniature: it rounds scale x gradient to FP16, as the backward pass of a scaled loss would.

    gradient   FP32 [n], of the unscaled loss

    >>> import torch
    >>> ScaledBackward(torch.tensor([2.0**-30]))(1.0), ScaledBackward(torch.tensor([2.0**-30]))(2.0**20)
    (tensor([0.], dtype=torch.float16), tensor([0.0010], dtype=torch.float16))
    """

    gradient: Tensor

    def __call__(self, scale: float) -> Tensor:
        return (self.gradient * scale).half()
