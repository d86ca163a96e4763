"""Calls that CUDA is expected to refuse and the CPU takes, and one that both take. Data, for the items of a passport.

The name of a row is what the report says of it: "layer_norm of Half with weights of Float: refused, as expected".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def _norm(kind: str, norm: Callable[[], nn.Module], source: str, refused: bool = True) -> Iterator[Refusal]:
    for dtype, word in ((torch.float16, "Half"), (torch.bfloat16, "BFloat16")):
        yield Refusal(
            f"{kind} of {word} with weights of Float",
            lambda device, dtype=dtype: norm().to(device)(torch.rand(2, 4, device=device).to(dtype)),  # type: ignore[misc]
            f"expected scalar type {word} but found Float" if refused else "",
            source,
            refused,
        )


REFUSALS = (
    *_norm(
        "layer_norm",
        lambda: nn.LayerNorm(4),
        "aten/src/ATen/native/cuda/layer_norm_kernel.cu, LayerNormKernelImpl; pytorch#135969",
    ),
    *_norm(
        "group_norm",
        lambda: nn.GroupNorm(2, 4),
        "aten/src/ATen/native/cuda/group_norm_kernel.cu, GroupNormKernelImplInternal; pytorch#135969",
    ),
    *_norm(
        "batch_norm",
        lambda: nn.BatchNorm1d(4),
        "aten/src/ATen/native/cuda/Normalization.cuh: weights of the accumulator's type beside a half input",
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
    'layer_norm of Half with weights of Float'
    """
    return next((row.name for row in REFUSALS if row.words and row.words in message), "")
