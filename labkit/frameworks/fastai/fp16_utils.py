"""Conversion of a network, and copies between half weights and FP32 masters, as in fastai.

Source: fastai.fp16_utils, 2.8.12, which is apex's file of that name (names, arguments). The
conversion is `labkit.amp.to_model_format`: it keeps every normalisation layer in FP32, and buffers
of the user's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labkit.amp import to_fp32, to_model_format
from labkit.amp.masters.groups import cut, flat_gradient
from labkit.interop import format_of

__all__ = ["convert_network", "master_params_to_model_params", "model_grads_to_master_grads"]


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a network in place and return it; a cast to a half format leaves its norms in FP32.

    Raises:
        ValueError: no format has this dtype, or a finite number would become inf.

    >>> network = convert_network(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), torch.float16)
    >>> network[0].weight.dtype, network[1].weight.dtype
    (torch.float16, torch.float32)
    """
    if dtype is torch.float32:
        return to_fp32(network)
    return to_model_format(network, format_of(dtype))


def model_grads_to_master_grads(
    model_params: Sequence[nn.Parameter],
    master_params: Sequence[nn.Parameter],
    flat_master: bool = False,
) -> None:
    """Copy the gradients of parameters to their masters, in FP32.

    A parameter without a gradient clears the gradient of its master.

    Raises:
        RuntimeError: with `flat_master`, only some of the parameters have a gradient.
    """
    gradients: list[Tensor | None] = [p.grad for p in model_params]
    if flat_master:
        names = {p: f"{i} of its group" for i, p in enumerate(model_params)}
        gradients = [flat_gradient(model_params, names)] if model_params else []
    for master, gradient in zip(master_params, gradients, strict=True):
        master.grad = None if gradient is None else gradient.detach().float().clone()


@torch.no_grad()
def master_params_to_model_params(
    model_params: Sequence[nn.Parameter],
    master_params: Sequence[nn.Parameter],
    flat_master: bool = False,
) -> None:
    """Copy masters to their parameters, rounded to the parameters' dtype."""
    values: Sequence[Tensor] = master_params
    if flat_master and model_params:
        values = cut(master_params[0], model_params)
    for weight, value in zip(model_params, values, strict=True):
        weight.copy_(value)
