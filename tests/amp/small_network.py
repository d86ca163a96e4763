"""A small network for tests of the engine: its batches, its losses, and its recipes."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import Engine, Recipe, ScalerConfig, static
from labkit.formats import FP16

SGD = partial(torch.optim.SGD, lr=0.1)
ADAM = partial(torch.optim.Adam, lr=1e-2)
O2 = Recipe("O2", model=FP16, scaler=ScalerConfig(init_scale=2.0**10, growth_interval=3))
STATIC_SCALE = Recipe("FP16 static", model=FP16, scaler=static(2.0**10))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))


def batch(step: int, rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, 6, generator=generator), torch.randint(3, (rows,), generator=generator)


def loss_of(engine: Engine, step: int, **size: int) -> Tensor:
    inputs, targets = batch(step, **size)
    with engine.forward():
        return F.cross_entropy(engine(inputs), targets)


def train(engine: Engine, steps: int, *, same_batch: bool = False) -> list[float]:
    """Train some steps and return their losses; the loop is the same for all precisions."""
    losses = []
    for step in range(steps):
        engine.zero_grad()
        loss = loss_of(engine, 0 if same_batch else step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def unchanged(before: list[Tensor], after: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
