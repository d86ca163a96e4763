"""The smallest learner, a line through points, and checks of values, for tests of loops.

pytest would collect functions of these names as tests; their `__test__` is False, so it does not.

Source: fastai.test_utils, 2.8.12; fastcore.test (the checks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from labkit.frameworks.fastai.learner import DataLoaders, Learner
from labkit.frameworks.fastai.optimizer import SGD

__all__ = [
    "RegModel",
    "synth_dbunch",
    "synth_learner",
    "test_close",
    "test_eq",
    "test_fail",
    "test_is",
    "test_ne",
]


class RegModel(nn.Module):
    """A line of two random numbers: a * x + b."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(1))
        self.b = nn.Parameter(torch.randn(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return y[n,1] of x[n,1]."""
        return x * self.a + self.b


def synth_dbunch(
    a: float = 2,
    b: float = 3,
    bs: int = 16,
    n_train: int = 10,
    n_valid: int = 2,
    cuda: bool = False,
) -> DataLoaders:
    """Return batches of points x[bs,1], y[bs,1] near the line a * x + b.

    Args:
        a: the slope.
        b: the intercept.
        bs: the size of a batch.
        n_train: the number of training batches.
        n_valid: the number of validation batches.
        cuda: use a GPU if one is available.
    """

    def points(batches: int) -> TensorDataset:
        x = torch.randn(bs * batches, 1)
        return TensorDataset(x, a * x + b + 0.1 * torch.randn(bs * batches, 1))

    train = points(n_train)
    valid = points(n_valid)
    device = "cuda" if cuda and torch.cuda.is_available() else "cpu"
    return DataLoaders(
        DataLoader(train, batch_size=bs, shuffle=True),
        DataLoader(valid, batch_size=bs),
        device=device,
    )


def synth_learner(
    n_trn: int = 10,
    n_val: int = 2,
    cuda: bool = False,
    lr: Any = 1e-3,
    data: DataLoaders | None = None,
    model: nn.Module | None = None,
    **kwargs: Any,
) -> Learner:
    """Return a learner of a line through points.

    Args:
        n_trn: the number of training batches.
        n_val: the number of validation batches.
        cuda: use a GPU if one is available.
        lr: the learning rate.
        data: the data; None: `synth_dbunch`.
        model: the model; None: `RegModel`.
        kwargs: further arguments of `Learner`.
    """
    options = {"loss_func": nn.MSELoss(), "opt_func": partial(SGD, mom=0.9), **kwargs}
    if data is None:
        data = synth_dbunch(n_train=n_trn, n_valid=n_val, cuda=cuda)
    return Learner(data, RegModel() if model is None else model, lr=lr, **options)


def test_eq(a: Any, b: Any) -> None:
    """Assert that two values are equal: all elements of tensors, and all members of collections."""
    assert _all(a, b, _equal), f"==:\n{a}\n{b}"


def test_ne(a: Any, b: Any) -> None:
    """Assert that two values are not equal."""
    assert not _all(a, b, _equal), f"!=:\n{a}\n{b}"


def test_close(a: Any, b: Any, eps: float = 1e-5) -> None:  # noqa: PT028
    """Assert that two numbers, or all in tensors or collections, differ by less than `eps`."""
    assert _all(a, b, partial(_close, eps=eps)), f"close:\n{a}\n{b}"


def test_is(a: Any, b: Any) -> None:
    """Assert that two names have the same object."""
    assert a is b, f"is:\n{a}\n{b}"


def test_fail(
    f: Callable[[], Any],
    msg: str = "",  # noqa: PT028
    contains: str = "",  # noqa: PT028
    exc: type[BaseException] = Exception,  # noqa: PT028
) -> None:
    """Assert that a function raises an error, with a text in its message if one is given."""
    try:
        f()
    except exc as error:
        if contains not in str(error):
            raise AssertionError(f"{contains!r} is not in {error}. {msg}") from error
        return
    raise AssertionError(f"Expected {exc.__name__} but none raised. {msg}")


_checks: list[Any] = [test_eq, test_ne, test_close, test_is, test_fail]
for _check in _checks:
    # pytest collects functions of such names, in a script's own tests, too
    _check.__test__ = False


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        try:
            one = torch.as_tensor(one)
            other = torch.as_tensor(other)
        except (RuntimeError, TypeError, ValueError):
            # None, a text and the like are not numbers
            return False
        return one.shape == other.shape and bool((one.to(other.device) == other).all())
    return bool(one == other)


def _close(one: Any, other: Any, eps: float) -> bool:
    if isinstance(one, str | None) or isinstance(other, str | None):
        return bool(one == other)
    distance = abs(_as_tensor(one) - _as_tensor(other))
    return bool((distance < eps).all())


def _as_tensor(value: Any) -> Tensor:
    """Return a tensor of a value, exact for a Python float, of which torch makes FP32."""
    return torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)


def _all(a: Any, b: Any, same: Callable[[Any, Any], bool]) -> bool:
    """Compare two values, or the members of two collections, which have the same number of them."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_all(a[key], b[key], same) for key in a)
    if _is_collection(a) and _is_collection(b):
        one = list(a)
        other = list(b)
        return len(one) == len(other) and all(map(partial(_all, same=same), one, other))
    return same(a, b)


def _is_collection(value: Any) -> bool:
    # an array without dimensions is a number, although it has __iter__
    if getattr(value, "ndim", None) == 0:
        return False
    return isinstance(value, Iterable) and not isinstance(value, Tensor | str | bytes | dict | set)
