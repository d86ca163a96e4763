"""What is the smallest learner? A line through points, as fastai's own tests train it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.frameworks.fastai.learner import DataLoaders, Learner

__all__ = ["RegModel", "synth_dbunch", "synth_learner"]


class RegModel(nn.Module):
    """A line of two random numbers: a * x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(1)), nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return y[n,1] of x[n,1]."""
        return x * self.a + self.b


def synth_dbunch(
    a: float = 2, b: float = 3, bs: int = 16, n_train: int = 10, n_valid: int = 2, cuda: bool = False
) -> DataLoaders:
    """Return batches of points x[bs,1], y[bs,1] near the line a * x + b."""

    def points(batches: int) -> TensorDataset:
        x = torch.randn(bs * batches, 1)
        return TensorDataset(x, a * x + b + 0.1 * torch.randn(bs * batches, 1))

    train = DataLoader(points(n_train), batch_size=bs, shuffle=True)
    return DataLoaders(train, DataLoader(points(n_valid), batch_size=bs), device="cuda" if cuda else "cpu")


def synth_learner(
    n_trn: int = 10,
    n_val: int = 2,
    cuda: bool = False,
    data: DataLoaders | None = None,
    model: nn.Module | None = None,
    **kwargs: Any,
) -> Learner:
    """Return a learner that has everything; `cuda` asks for a GPU, and a CPU will do."""
    data = data or synth_dbunch(n_train=n_trn, n_valid=n_val, cuda=cuda and torch.cuda.is_available())
    return Learner(data, model or RegModel(), nn.MSELoss(), **kwargs)
