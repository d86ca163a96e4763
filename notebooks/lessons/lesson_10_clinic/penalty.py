"""Consultation: a gradient penalty is made from gradients that are still multiplied by the loss scale."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .consultation import consultation


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        inputs = inputs.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            loss = F.cross_entropy(model(inputs), targets)
        if does == "no penalty":
            scaler.scale(loss).backward()
        else:
            (gradient,) = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
            if does != "as it came":
                gradient = gradient / scaler.get_scale()
            penalty = gradient.flatten(1).norm(dim=1).square().mean()
            scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "penalty",
    "A penalty that outweighs the loss",
    "my_penalty_training",
    train,
    diagnosis=("penalty", 2.0**32),
    places=("autocast", "loss", "penalty", "scaler.step", "learning rate"),
    mistakes=(
        (
            "forgets the square",
            "",
            ("penalty", 2.0**16),
            "this is by how much the gradients are too large. The penalty is made of their squares.",
        ),
        (
            "blames the loss",
            "",
            ("loss", 2.0**32),
            "this blames the loss, which is as it should be. What is added to it is not.",
        ),
        (
            "takes the penalty away",
            "no penalty",
            None,
            "this learns, without the penalty. Its author wants one; it is to be made of the true gradients.",
        ),
    ),
    difficulty=3,
)
