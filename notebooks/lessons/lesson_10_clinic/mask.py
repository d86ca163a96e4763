"""Consultation: one example of one batch has no token at all, and its row of a softmax is 0 / 0."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from .cases import odd_step
from .consultation import consultation

LOWEST = torch.finfo(torch.float16).min


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for inputs, targets, padding in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            hidden = model["embed"](inputs)
            query, key, value = model["mix"](hidden).chunk(3, dim=2)
            scores = query @ key.mT / 32**0.5
            no_token = padding[:, None]
            if does in ("as it came", "skips"):
                mask = no_token.half() * LOWEST
                scores = scores + mask + mask
            elif does != "no mask":
                scores = scores.masked_fill(no_token, LOWEST)
            loss = F.cross_entropy(model["head"]((scores.softmax(-1) @ value).mean(1)), targets)
        if does == "skips" and loss.isnan():
            losses.append(0.0)
            continue
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "mask",
    "NaN, from one batch on",
    "my_mask_training",
    train,
    diagnosis=("softmax", odd_step(0)),
    places=("embed", "mix", "scores", "softmax", "head", "loss"),
    mistakes=(
        (
            "names where it was noticed",
            "",
            ("loss", odd_step(0)),
            "this names the loss. There NaN was noticed; it was born earlier in the forward pass.",
        ),
        (
            "names the first inf",
            "",
            ("scores", odd_step(0)),
            "this names the scores. -inf is what a mask is for. Who makes NaN of a row of it?",
        ),
        (
            "counts the step after",
            "",
            ("softmax", odd_step(0) + 1),
            "this is the step after: NaN weights were in the model by then. Batches are counted from 0.",
        ),
        (
            "takes the mask away",
            "no mask",
            None,
            "this has no NaN and no mask: it attends to what stands where there is no token, and that is litter.",
        ),
        ("skips the step", "skips", None, "this passes over the loss that is NaN, and with it over 63 good examples."),
    ),
)
