"""Consultation: a normalisation that somebody wrote adds up squares in FP16, and their sum is inf."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .consultation import consultation


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            features = model["body"](255 * inputs.flatten(1)).relu()
        if does in ("", "FP32"):
            features = features.float()
        length = (features * features).sum(1, keepdim=True).sqrt()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            loss = F.cross_entropy(model["head"](12 * features / length), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "overflow",
    "It learns in FP32, and hardly in FP16",
    "my_overflow_training",
    train,
    diagnosis=("sum", 256.0),
    places=("body", "relu", "sum", "sqrt", "head"),
    mistakes=(
        (
            "names the layer before",
            "",
            ("body", 256.0),
            "this names the layer before. Its features are large, and FP16 holds each of them.",
        ),
        (
            "names what follows",
            "",
            ("sqrt", 256.0),
            "this names the root. What goes into it is inf already, and the root of inf is inf.",
        ),
        (
            "gives the largest number",
            "",
            ("sum", 65504.0),
            "this is the largest number of FP16. Asked is the length, and the sum is its square.",
        ),
    ),
)
