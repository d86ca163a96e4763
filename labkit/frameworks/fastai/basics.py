"""What does a script of fastai's have after its first import? The names of this face, and those that came with them."""

import random
from collections.abc import Iterable
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
from labkit.frameworks.fastai.learner import SGD, Adam, DataLoaders, Learner, Optimizer, Recorder

__all__ = [
    "SGD", "Adam", "BatchNorm", "Callback", "CancelBackwardException", "CancelBatchException", "CancelEpochException",
    "CancelFitException", "CancelStepException", "CancelTrainException", "CancelValidException", "DataLoaders", "F",
    "Learner", "Optimizer", "Recorder", "Tensor", "TrainEvalCallback", "first", "nn", "partial",
    "set_seed", "tensor", "torch",
]  # fmt: skip


def first(values: Iterable[Any]) -> Any:
    """Return the first of some values, or None."""
    return next(iter(values), None)


def set_seed(s: int, reproducible: bool = False) -> None:
    """Let torch's, numpy's and Python's random numbers begin at a seed."""
    torch.manual_seed(s)
    np.random.seed(s % 2**32)  # noqa: NPY002  (a script's own calls draw from there)
    random.seed(s)


def BatchNorm(nf: int, ndim: int = 2, **kwargs: Any) -> nn.Module:
    """Return a batch norm of `nf` features for inputs of `ndim` dimensions, with fastai's first weights."""
    norm: nn.Module = getattr(nn, f"BatchNorm{ndim}d")(nf, **kwargs)
    if norm.affine:
        nn.init.constant_(norm.bias, 1e-3)  # type: ignore[arg-type]
    return norm
