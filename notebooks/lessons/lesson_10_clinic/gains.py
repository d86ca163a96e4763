"""Consultation: the gains of a norm begin at 1, and in BF16 they stay there."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .consultation import consultation


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    if does != "FP32":
        model.bfloat16()
    if does == "":
        model.norm.float()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2 if does == "rate" else 1e-3)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        flat = inputs.flatten(1).to(model.norm.weight.dtype)
        outputs = model.linear(model.norm(flat).to(model.linear.weight.dtype))
        loss = F.cross_entropy(outputs.float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "gains",
    "A little worse than it should be",
    "my_gains_training",
    train,
    diagnosis=("norm.weight", 2.0**-8),
    places=("norm.weight", "norm.bias", "linear.weight", "linear.bias"),
    mistakes=(
        (
            "names the bias",
            "",
            ("norm.bias", 2.0**-8),
            "this names the bias of the norm. It begins at 0, where BF16 has numbers of any size, and it moves.",
        ),
        (
            "takes a whole spacing",
            "",
            ("norm.weight", 2.0**-7),
            "this is the distance to the next number above 1. What is more than half of it is rounded up.",
        ),
        (
            "raises the learning rate",
            "rate",
            None,
            "this moves the gains, by leaps of a hundredth, and everything else ten times too fast. Keep 1e-3.",
        ),
    ),
)
