"""Consultation: gradients are clipped while they are still scaled, and SGD makes steps 65,536 times too short."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .consultation import consultation


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if does != "as it came":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if does != "no step":
            scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "clip",
    "Nothing is learned, and nothing is said",
    "my_clip_training",
    train,
    diagnosis=("clip_grad_norm_", 2.0**-16),
    places=("autocast", "backward", "clip_grad_norm_", "scaler.step", "learning rate"),
    mistakes=(
        (
            "blames the learning rate",
            "",
            ("learning rate", 2.0**-16),
            "this names the learning rate. A larger one would hide the fault; the gradients are short before it acts.",
        ),
        (
            "gives the length that was meant",
            "",
            ("clip_grad_norm_", 1.0),
            "this is the length that clipping was to leave. The optimizer gets gradients that were unscaled after it.",
        ),
        (
            "forgets to step",
            "no step",
            None,
            "this clips what was unscaled, and then takes no step: `scaler.step(optimizer)`, and not the optimizer's.",
        ),
    ),
)
