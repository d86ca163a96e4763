"""What does a script of fastai's have after its first import? The names of this face, and those that came with them."""

from functools import partial

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
)
from labkit.frameworks.fastai.learner import DataLoaders, Learner, Recorder, TrainEvalCallback
from labkit.frameworks.fastai.optimizer import SGD, Adam, Optimizer

__all__ = [
    "SGD", "Adam", "Callback", "CancelBackwardException", "CancelBatchException", "CancelEpochException",
    "CancelFitException", "CancelStepException", "CancelTrainException", "CancelValidException", "DataLoaders", "F",
    "Learner", "Optimizer", "Recorder", "Tensor", "TrainEvalCallback", "nn", "partial", "tensor", "torch",
]  # fmt: skip
