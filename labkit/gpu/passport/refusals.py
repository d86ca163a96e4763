"""Calls that CUDA is expected to refuse and the CPU takes, and one that both take. Data, for the items of a passport.

The name of a row is what the report says of it: "layer_norm with mixed dtypes: refused, as expected".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Refusal:
    """One call, and whether CUDA refuses it.

    call     device -> anything; raises where it is refused
    words    that torch's message contains where it is refused for this reason
    refused  on CUDA; the CPU takes every row
    """

    name: str
    call: Callable[[str], object]
    words: str
    source: str
    refused: bool = True


def _half(device: str, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, device=device).half()


REFUSALS = (
    Refusal(
        "layer_norm with mixed dtypes",
        lambda device: nn.LayerNorm(8).to(device)(_half(device, 2, 8)),
        "but found Float",
        "aten layer_norm_kernel.cu, `gamma.const_data_ptr<T>()`; pytorch#135969",
    ),
    Refusal(
        "group_norm with mixed dtypes",
        lambda device: nn.GroupNorm(2, 4).to(device)(_half(device, 2, 4, 4)),
        "but found Float",
        "aten group_norm_kernel.cu, `gamma.const_data_ptr<T>()`; pytorch#135969",
    ),
    Refusal(
        "batch_norm with mixed dtypes",
        lambda device: nn.BatchNorm1d(4).to(device)(_half(device, 8, 4)),
        "",
        "aten Normalization.cu: weights of the accumulator's type beside a half input",
        refused=False,
    ),
    Refusal(
        "igamma of half",
        lambda device: torch.igamma(_half(device, 4), _half(device, 4)),
        "not implemented for 'Half'",
        "torch.testing's OpInfo: dtypes of CUDA lack float16",
    ),
    Refusal(
        "igammac of half",
        lambda device: torch.igammac(_half(device, 4), _half(device, 4)),
        "not implemented for 'Half'",
        "torch.testing's OpInfo: dtypes of CUDA lack float16",
    ),
    Refusal(
        "histc of half",
        lambda device: torch.histc(_half(device, 4), 2),
        "not implemented for 'Half'",
        "torch.testing's OpInfo: dtypes of CUDA lack float16",
    ),
    Refusal(
        "cross_entropy of half with targets on the CPU",
        lambda device: F.cross_entropy(_half(device, 4, 3), torch.zeros(4, dtype=torch.long)),
        "same device",
        "aten TensorIterator: operands on one device",
    ),
)
BY_NAME = {row.name: row for row in REFUSALS}


def reason_of(message: str) -> str:
    """Return the name of the first expected refusal whose words a message contains; "" where there is none.

    >>> reason_of("RuntimeError: expected scalar type Half but found Float")
    'layer_norm with mixed dtypes'
    """
    return next((row.name for row in REFUSALS if row.words and row.words in message), "")
