"""Shared parts of the faults: the digits, a small network, its accuracy, and two training loops.

`plain` and `scaled` are the loops of most faults. `labkit.faults.snippet` shows them inside of the
fault's own code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.faults.fault import Training
from labkit.train.data import Data, single_digits
from labkit.train.networks import mlp

Batch = tuple[Tensor, Tensor]


def digits() -> Data:
    """Return handwritten digits: inputs [n, 1, 8, 8] between 0 and 1, targets [n]."""
    return single_digits()


def network(depth: int = 2, seed: int = 0) -> nn.Module:
    """Return a multi-layer perceptron for digits, the same at every call with the same seed."""
    torch.manual_seed(seed)
    return mlp(depth=depth)


def batches(steps: int, size: int = 64, seed: int = 0) -> list[Batch]:
    """Return batches of digits, with replacement: inputs [size, 1, 8, 8], targets [size]."""
    data = digits()
    generator = torch.Generator().manual_seed(seed)
    rows = (
        torch.randint(len(data.train_inputs), (size,), generator=generator) for _ in range(steps)
    )
    return [(data.train_inputs[row], data.train_targets[row]) for row in rows]


def accuracy(
    model: Callable[[Tensor], Tensor], cast: Callable[[Tensor], Tensor] = Tensor.float
) -> float:
    """Return the share of test digits that a model classifies correctly; NaN for inf or NaN.

    Args:
        model: inputs -> a row of scores for each.
        cast: converts the inputs to the model's dtype.
    """
    data = digits()
    with torch.no_grad():
        outputs = model(cast(data.test_inputs)).float()
    if not outputs.isfinite().all():
        return math.nan
    return float((outputs.argmax(1) == data.test_targets).float().mean())


def plain(
    loss_of: Callable[..., Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Any],
    score: Callable[[], float],
) -> Training:
    """Return a training without a loss scaler; `loss_of` takes the parts of a batch."""

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss

    return Training(step, batches, score, model, optimizer)


def scaled(
    loss_of: Callable[..., Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batches: Iterable[Any],
    score: Callable[[], float],
    before_step: Callable[[], object] = lambda: None,
) -> Training:
    """Return a training under FP16 autocast with a loss scaler.

    Args:
        loss_of: takes the parts of a batch.
        model: the trained model.
        optimizer: its optimizer.
        scaler: its loss scaler.
        batches: the arguments of `loss_of`, one tuple after another.
        score: quality of the result.
        before_step: runs after each backward pass, before the optimizer's step.
    """

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(*batch)
        scaler.scale(loss).backward()
        before_step()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Training(step, batches, score, model, optimizer, scaler)
