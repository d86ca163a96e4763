"""Consultation: autocast is switched off around a loss, and what enters the region is FP16 all the same."""

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
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            outputs = model(inputs)
            with torch.autocast("cpu", enabled=False):
                if does in ("", "FP32"):
                    outputs = outputs.float()
                chance = outputs.softmax(1)
                wanted = F.one_hot(targets, 10).to(chance.dtype)
                loss = (wanted * ((wanted + 1e-8).log() - (chance + 1e-8).log())).sum(1).mean()
                loss = loss.nan_to_num() if does == "cleans" else loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "region",
    "The loss is NaN, though autocast is off around it",
    "my_region_training",
    train,
    diagnosis=("log", 0.0),
    places=("model", "softmax", "log", "backward", "scaler.update"),
    mistakes=(
        (
            "names where it was noticed",
            "",
            ("scaler.update", 0.0),
            "this names the scaler. It halves its scale because of NaN, and no scale cures that of a forward pass.",
        ),
        (
            "takes 1e-8 for what it is in FP32",
            "",
            ("log", 1e-8),
            "this is 1e-8 as it was written. It is added to an FP16 tensor, and there it is another number.",
        ),
        (
            "replaces NaN by 0",
            "cleans",
            None,
            "this makes 0 of a loss that is NaN, and of its gradients too: nothing is learned.",
        ),
    ),
)
