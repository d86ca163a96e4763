"""torch.nn as in OneFlow: with Graph, and a cross entropy that takes targets[n,1]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.frameworks.oneflow.graph import Graph

__all__ = ["CrossEntropyLoss", "Graph"]


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """Cross entropy of input[n,classes] and target[n] or target[n,1]."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        # a floating-point target of this shape holds probabilities of one class
        is_column = input.dim() == 2 and target.shape == (len(input), 1)
        if is_column and not target.is_floating_point():
            target = target[:, 0]
        return super().forward(input, target)


def __getattr__(name: str) -> Any:
    return getattr(torch.nn, name)
