"""What is the smallest learner? A line through points, as fastai's own tests train it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, TensorDataset

from labkit.frameworks.fastai.learner import SGD, DataLoaders, Learner

__all__ = ["RegModel", "synth_dbunch", "synth_learner", "test_close", "test_eq", "test_is"]


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
    lr: float = 1e-3,
    data: DataLoaders | None = None,
    model: nn.Module | None = None,
    **kwargs: Any,
) -> Learner:
    """Return a learner that has everything; `cuda` asks for a GPU, and a CPU will do."""
    data = data or synth_dbunch(n_train=n_trn, n_valid=n_val, cuda=cuda and torch.cuda.is_available())
    return Learner(data, model or RegModel(), nn.MSELoss(), **{"opt_func": partial(SGD, mom=0.9), "lr": lr, **kwargs})


def test_eq(a: Any, b: Any) -> None:
    """Assert that two values are equal; of tensors in containers, all elements.

    >>> test_eq([torch.ones(2), 3], [torch.ones(2), 3])
    """
    _test(a, b, torch.equal, "==")


def test_close(a: Any, b: Any, eps: float = 1e-5) -> None:  # noqa: PT028 (it is none of pytest's)
    """Assert that no two numbers are further apart than `eps`."""
    _test(a, b, lambda one, other: bool(((one - other).abs() <= eps).all()), "close")


def test_is(a: Any, b: Any) -> None:
    """Assert that it is the same object."""
    assert a is b, f"is\n{a}\n{b}"


def _test(a: Any, b: Any, same: Callable[[Tensor, Tensor], bool], says: str) -> None:
    (ours, one), (theirs, other) = tree_flatten(a), tree_flatten(b)
    alike = [same(torch.as_tensor(x), torch.as_tensor(y)) if isinstance(x, Tensor | float) else x == y
             for x, y in zip(ours, theirs, strict=False)]  # fmt: skip
    assert one == other, f"{says}\n{a}\n{b}"
    assert all(alike), f"{says}\n{a}\n{b}"


for _check in (test_eq, test_close, test_is):
    _check.__test__ = False  # type: ignore[attr-defined]  # pytest takes what is named so for a test
