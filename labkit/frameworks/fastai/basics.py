"""The names that `from fastai.basics import *` gives a script.

These are the loop, the optimizers and the checks of values, some of fastai's small functions, and
torch, nn, F, partial and tensor.

Source: fastai.basics, fastai.torch_core and fastai.layers, 2.8.12; fastcore.basics (first,
    listify).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn, tensor

from labkit.frameworks.fastai.callback.core import (
    Callback,
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    CancelStepException,
    CancelTrainException,
    CancelValidException,
    TrainEvalCallback,
)
from labkit.frameworks.fastai.callback.fp16 import to_float, to_half
from labkit.frameworks.fastai.learner import DataLoaders, Learner, Recorder, trainable_params
from labkit.frameworks.fastai.optimizer import SGD, Adam, Optimizer
from labkit.frameworks.fastai.test_utils import test_close, test_eq, test_fail, test_is, test_ne

__all__ = [
    "SGD",
    "Adam",
    "BatchNorm",
    "Callback",
    "CancelBackwardException",
    "CancelBatchException",
    "CancelEpochException",
    "CancelFitException",
    "CancelStepException",
    "CancelTrainException",
    "CancelValidException",
    "DataLoaders",
    "F",
    "Learner",
    "Module",
    "Optimizer",
    "Recorder",
    "Tensor",
    "TrainEvalCallback",
    "first",
    "listify",
    "nn",
    "partial",
    "set_seed",
    "tensor",
    "test_close",
    "test_eq",
    "test_fail",
    "test_is",
    "test_ne",
    "to_float",
    "to_half",
    "torch",
    "trainable_params",
]


class _Prepared(type):
    """Metaclass of `Module`, which calls nn.Module's `__init__` before the class's own."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        module: Any = cls.__new__(cls)  # type: ignore[call-overload]
        nn.Module.__init__(module)
        module.__init__(*args, **kwargs)
        return module


class Module(nn.Module, metaclass=_Prepared):
    """An nn.Module whose subclasses need not call `super().__init__()`.

    >>> class Double(Module):
    ...     def __init__(self):
    ...         self.factor = nn.Parameter(torch.full((1,), 2.0))
    ...     def forward(self, x):
    ...         return self.factor * x
    >>> Double()(torch.ones(1)).item()
    2.0
    """

    def __init__(self) -> None:
        """Do nothing: the metaclass has called nn.Module's `__init__`."""


def BatchNorm(nf: int, ndim: int = 2, **kwargs: Any) -> nn.Module:
    """Return a batch norm with fastai's initial weights.

    >>> norm = BatchNorm(30, ndim=1)
    >>> type(norm).__name__, norm.num_features
    ('BatchNorm1d', 30)
    """
    norm: nn.Module = getattr(nn, f"BatchNorm{ndim}d")(nf, **kwargs)
    if norm.affine:
        nn.init.constant_(norm.bias, 1e-3)  # type: ignore[arg-type]
    return norm


def first(values: Iterable[Any], f: Callable[[Any], Any] | None = None) -> Any:
    """Return the first of some values, or the first for which `f` is true, or None."""
    for value in values:
        if f is None or f(value):
            return value
    return None


def listify(values: Any = None) -> list[Any]:
    """Return a collection as a list, None as an empty one, and anything else as a list of it.

    >>> listify(None), listify((1, 2)), listify("ab")
    ([], [1, 2], ['ab'])
    """
    if values is None:
        return []
    single = isinstance(values, str | bytes | Tensor | np.ndarray | Mapping)
    if single or not isinstance(values, Iterable):
        return [values]
    return list(values)


def set_seed(s: int, reproducible: bool = False) -> None:
    """Seed the random numbers of torch, numpy and Python.

    Args:
        s: the seed.
        reproducible: also restrict cuDNN to deterministic kernels.
    """
    torch.manual_seed(s)
    # the global generator, from which a script's own calls draw
    np.random.seed(s % (2**32 - 1))  # noqa: NPY002
    random.seed(s)
    if reproducible:
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
