"""The smallest fastai learner: a line fitted to points, as in fastai's own tests."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.frameworks.fastai.basics import SGD, DataLoaders, Learner


class Line(nn.Module):
    """A line of two random numbers: a * x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(1))
        self.b = nn.Parameter(torch.randn(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.a + self.b


def synth_learner(n_trn: int = 10, n_val: int = 2, **options: Any) -> Learner:
    """Return a learner of points near the line 2 * x + 3.

    Args:
        n_trn: The number of batches for training.
        n_val: The number of batches for validation.
        **options: Arguments of `Learner` that replace those of this function.
    """
    arguments = {
        "model": Line(),
        "loss_func": nn.MSELoss(),
        "opt_func": partial(SGD, mom=0.9),
        "lr": 1e-3,
    }
    return Learner(DataLoaders(_points(n_trn), _points(n_val)), **(arguments | options))


def _points(batches: int) -> DataLoader[Any]:
    """Return batches of 16 points."""
    x = torch.randn(16 * batches, 1)
    y = 2 * x + 3 + 0.1 * torch.randn(16 * batches, 1)
    return DataLoader(TensorDataset(x, y), batch_size=16)
