"""Consultation: the weights that are trained were made FP16, and the scaler refuses their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .consultation import consultation


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    if does in ("as it came", "no scaler"):
        model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler, losses = torch.amp.GradScaler("cpu", enabled=does != "no scaler"), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "unscale",
    "Attempting to unscale FP16 gradients",
    "my_unscale_training",
    train,
    diagnosis=("weights", 2.0**-14),
    places=("inputs", "weights", "loss", "gradients", "scale"),
    mistakes=(
        (
            "names what the error names",
            "",
            ("gradients", 2.0**-14),
            "this names the gradients, as the error does. They are FP16 because something else is.",
        ),
        (
            "takes a whole spacing",
            "",
            ("weights", 2.0**-13),
            "this is the distance to the next number. What is not more than half of it rounds back.",
        ),
        (
            "throws the scaler away",
            "no scaler",
            None,
            "this is no longer refused: nobody looks. The weights are still FP16, and small updates are swallowed.",
        ),
    ),
    difficulty=1,
)
