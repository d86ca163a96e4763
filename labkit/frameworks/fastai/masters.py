"""How is a half model trained by hand, group by group, with FP32 masters?

Source: fastai.fp16_utils and fastai.callback.fp16, 2.8.12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp import to_fp32, to_model_format
from labkit.amp.masters.groups import cut, flat_gradient, flatten
from labkit.amp.step import finite
from labkit.interop import format_of

Groups = list[list[nn.Parameter]]


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a network in place, but for its norms; back to FP32, with them.

    >>> network = convert_network(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)), torch.float16)
    >>> network[0].weight.dtype, network[1].weight.dtype
    (torch.float16, torch.float32)
    """
    return to_fp32(network) if dtype is torch.float32 else to_model_format(network, format_of(dtype))


def get_master(opt: Any, flat_master: bool = False) -> tuple[Groups, Groups]:
    """Return the trainable parameters of an optimizer's groups, and their FP32 masters, or one for each group."""
    model = [[p for p in group if p.requires_grad] for group in opt.param_lists]
    if flat_master:
        return model, [[flatten(group, torch.float32)[0]] if group else [] for group in model]
    return model, [[nn.Parameter(p.detach().float().clone()) for p in group] for group in model]


def to_master_grads(model_pgs: Groups, master_pgs: Groups, flat_master: bool = False) -> None:
    """Copy gradients from parameters to their masters, in FP32."""
    for weights, masters in zip(model_pgs, master_pgs, strict=True):
        names = dict.fromkeys(weights, "of this group")
        gradients = [flat_gradient(weights, names)] if flat_master and weights else [p.grad for p in weights]
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = None if gradient is None else gradient.float().clone()


@torch.no_grad()
def to_model_params(model_pgs: Groups, master_pgs: Groups, flat_master: bool = False) -> None:
    """Round masters into their parameters."""
    for weights, masters in zip(model_pgs, master_pgs, strict=True):
        values: Sequence[Tensor] = cut(masters[0], weights) if flat_master and weights else masters
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)


def test_overflow(x: Tensor) -> bool:
    """Whether a tensor holds inf or NaN."""
    return not finite(x)


def grad_overflow(pgs: Groups) -> bool:
    """Whether some gradient does."""
    return any(test_overflow(p.grad) for group in pgs for p in group if p.grad is not None)
