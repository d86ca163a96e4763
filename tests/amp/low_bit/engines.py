"""Engines with 8- and 4-bit products, and a step of one."""

from functools import partial

import torch
from torch import nn

from labkit.amp import RECIPES, Engine, ProductFormat, Recipe

SGD = partial(torch.optim.SGD, lr=0.1)
DELAYED = RECIPES["FP8 delayed"].products


def engine_with(
    format: ProductFormat | None, model: nn.Module, seed: int = 0, lr: float = 0.1
) -> Engine:
    """Return an engine whose recipe has these products, or those of FP32 for None."""
    recipe = Recipe("mine", products=format)
    return Engine(model, partial(torch.optim.SGD, lr=lr), recipe, seed=seed)


def step(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    """Take a step on the mean square of the output, and return the output before it."""
    engine.zero_grad()
    with engine.forward():
        y = engine(x)
        loss = y.square().mean()
    engine.backward(loss)
    engine.step()
    return y.detach()
