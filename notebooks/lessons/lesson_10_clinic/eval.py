"""Consultation: the scaler keeps one broken picture out of the weights, and nobody keeps it out of the statistics."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .cases import odd_step
from .consultation import consultation


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        if does == "passes over" and inputs.max() > 1:
            losses.append(0.0)
            continue
        if does == "":
            inputs = inputs.clamp(0, 1)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "eval",
    "NaN in eval(), and only there",
    "my_eval_training",
    train,
    diagnosis=("statistics", odd_step(0)),
    places=("weights", "gradients", "statistics", "loss", "scale"),
    mistakes=(
        (
            "names the weights",
            "",
            ("weights", odd_step(0)),
            "this names the weights. All of them are finite: the scaler kept them from that step.",
        ),
        (
            "counts from 1",
            "",
            ("statistics", odd_step(0) + 1),
            "this is the step after. Steps are counted from 0, as in the picture.",
        ),
        (
            "passes over the batch",
            "passes over",
            None,
            "this passes over the whole batch because of one picture: 63 good ones are lost with it.",
        ),
    ),
)
