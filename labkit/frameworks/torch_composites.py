"""Functions that torch composes in C++ from operations on autocast's lists.

CUDA's autocast sees the operations inside of such a function, and casts at each of them. A mode in Python sees only the
function itself. Here the functions are written out, so that `torch_autocast` meets the same operations as torch's, in
the same order. Most of what they compute is the same either way; two things are not:

- `cross_entropy` calls `log_softmax` with the dtype of the logits. Autocast respects a dtype that is named, so FP16
  logits get an FP16 `log_softmax`, although torch's documentation lists `cross_entropy` among the operations that run
  in FP32. The loss is FP32, made of log-probabilities that were rounded to FP16.
- `pairwise_distance` subtracts in the dtype of its inputs, and takes the norm of the difference in FP32.

Source: ATen/native, torch 2.13: LossNLL.cpp, Distance.cpp, BinaryOps.cpp, UnaryOps.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.modes import body_of

_NONE, _MEAN, _SUM = 0, 1, 2  # torch's at::Reduction
_nn: Any = torch._C._nn  # its stubs name a reduction by a string


def cross_entropy(*args: Any, **kwargs: Any) -> Any:
    """Call the Python body of torch.nn.functional.cross_entropy."""
    return body_of(F.cross_entropy)(*args, **kwargs)


def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross entropy of logits and classes, or of logits and probabilities where the shapes are equal."""
    dim = 0 if input.dim() == 1 else 1
    soft = input.shape == target.shape
    if label_smoothing > 1 or (soft and (not target.is_floating_point() or ignore_index >= 0)):
        with torch._C.DisableTorchFunction():  # torch refuses these, in its own words
            return _nn.cross_entropy_loss(input, target, weight, reduction, ignore_index, label_smoothing)
    log_probabilities = torch.log_softmax(input, dim, dtype=input.dtype)
    if soft:
        return _of_probabilities(log_probabilities, target, weight, reduction, label_smoothing, dim)
    nll = _nn.nll_loss_nd(log_probabilities, target, weight, reduction, ignore_index)
    if label_smoothing == 0:
        return nll
    smooth = _smooth(log_probabilities, target, weight, reduction, ignore_index, dim)
    return (1 - label_smoothing) * nll + smooth * (label_smoothing / input.shape[dim])


def _of_probabilities(
    log_probabilities: Tensor, target: Tensor, weight: Tensor | None, reduction: int, label_smoothing: float, dim: int
) -> Tensor:
    classes = log_probabilities.shape[dim]
    if label_smoothing > 0:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    terms = log_probabilities * target
    if weight is not None:
        terms = terms * _beside(weight, log_probabilities, dim)
    if reduction == _NONE:
        return -terms.sum(dim)
    return -terms.sum() / (terms.numel() // classes) if reduction == _MEAN else -terms.sum()


def _smooth(
    log_probabilities: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, dim: int
) -> Tensor:
    """Return the part of the loss in which every class counts alike."""
    weighted = log_probabilities if weight is None else log_probabilities * _beside(weight, log_probabilities, dim)
    ignored = target == ignore_index
    smooth = (-weighted.sum(dim)).masked_fill(ignored, 0.0)
    if reduction == _NONE:
        return smooth
    if reduction == _SUM:
        return smooth.sum()
    counted = (~ignored).sum() if weight is None else weight.gather(0, target.masked_select(~ignored).flatten()).sum()
    return smooth.sum() / counted


def _beside(weight: Tensor, input: Tensor, dim: int) -> Tensor:
    """Return the weights of the classes in a shape that broadcasts with the logits."""
    return weight.view([-1 if axis == dim else 1 for axis in range(input.dim())])


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """Return the norm of the differences of two batches of vectors."""
    distance: Tensor = torch.norm(x1 - x2 + eps, p, dim=max(x1.dim(), x2.dim()) - 1, keepdim=keepdim)
    return distance


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """Return `input * 2 ** other`."""
    return input * torch.pow(2.0, other)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function of dimension p."""
    halves = torch.arange(-p / 2 + 0.5, 0.5, 0.5, dtype=input.dtype, device=input.device)
    return (halves + input.unsqueeze(-1)).lgamma().sum(-1).add(p * (p - 1) * math.log(math.pi) / 4)


COMPOSITES: dict[str, Callable[..., Any]] = {
    "cross_entropy": cross_entropy,
    "cross_entropy_loss": cross_entropy_loss,
    "pairwise_distance": pairwise_distance,
    "ldexp": ldexp,
    "mvlgamma": mvlgamma,
    "special_multigammaln": mvlgamma,
}
