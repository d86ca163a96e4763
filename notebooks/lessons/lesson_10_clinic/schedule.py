"""Consultation: the learning rate falls while the scaler still looks for its scale, and skips."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .consultation import consultation


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=40)
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=2.0**40), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            loss = F.cross_entropy(model(inputs), targets)
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if does == "as it came" or (scaler.get_scale() >= before and does != "no schedule"):
            schedule.step()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "schedule",
    "It learns, and stops too early",
    "my_schedule_training",
    train,
    diagnosis=("schedule.step", 21.0),
    places=("autocast", "backward", "scaler.step", "scaler.update", "schedule.step"),
    mistakes=(
        (
            "blames the scaler",
            "",
            ("scaler.step", 21.0),
            "this blames the scaler. It looks for its scale, and skips meanwhile: that is its work.",
        ),
        (
            "counts all steps",
            "",
            ("schedule.step", 64.0),
            "this counts all steps. Those that were skipped are asked for: where the scale fell.",
        ),
        (
            "takes the schedule away",
            "no schedule",
            None,
            "this never lowers the learning rate. It was meant to fall to 0, over the steps that are taken.",
        ),
    ),
)
