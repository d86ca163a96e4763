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
    """Return a learner of batches of points near the line 2 * x + 3.

    Args:
        n_trn: number of batches for training.
        n_val: number of batches for validation.
        options: arguments of the learner; they replace the defaults of this function.
    """

    def points(batches: int) -> DataLoader[Any]:
        x = torch.randn(16 * batches, 1)
        return DataLoader(
            TensorDataset(x, 2 * x + 3 + 0.1 * torch.randn(16 * batches, 1)), batch_size=16
        )

    defaults = {
        "model": Line(),
        "loss_func": nn.MSELoss(),
        "opt_func": partial(SGD, mom=0.9),
        "lr": 1e-3,
    }
    return Learner(DataLoaders(points(n_trn), points(n_val)), **{**defaults, **options})
