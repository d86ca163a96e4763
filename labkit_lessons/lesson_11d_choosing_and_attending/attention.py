"""Attention that reads the keys block by block, as fast kernels do, with a format for each of its
four numbers.

Source: arXiv:1805.02867 (online softmax); arXiv:2205.14135 (FlashAttention).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from labkit.formats import FP32, Format
from labkit.interop import round_tensor

BLOCK = 64
"""How many columns of the scores a block has."""


def blockwise_attention(
    scores: Tensor,
    values: Tensor,
    *,
    weights_in: Format = FP32,
    maximum_in: Format = FP32,
    sum_in: Format = FP32,
    output_in: Format = FP32,
    factor: float = 1.0,
) -> Tensor:
    """Return softmax(scores) @ values, [m, d], computed over blocks of 64 columns.

    Args:
        scores: FP32, [m, n].
        values: FP32, [n, d].
        weights_in: Format of the weights P = exp(scores - maximum), the operand of the product.
        maximum_in: Format of the largest score so far.
        sum_in: Format of the sum of the weights so far.
        output_in: Format of the weighted sum of the values so far.
        factor: What the weights are multiplied by before they are rounded.

    >>> scores, values = torch.zeros(1, 128), torch.arange(128.0)[:, None]
    >>> blockwise_attention(scores, values)
    tensor([[63.5000]])
    """
    rows = scores.shape[0]
    maximum = torch.full((rows, 1), -math.inf)
    total = torch.zeros(rows, 1)
    output = torch.zeros(rows, values.shape[1])
    for start in range(0, scores.shape[1], BLOCK):
        part = scores[:, start : start + BLOCK]
        largest = torch.maximum(maximum, part.max(dim=1, keepdim=True).values)
        largest = round_tensor(largest, maximum_in)
        # Of a row that is masked so far, the largest score is -inf, and -inf - -inf is NaN.
        shift = largest.masked_fill(largest == -math.inf, 0.0)
        weights = torch.exp(part - shift)
        # The sums so far refer to the former maximum; the correction refers them to the new one.
        correction = torch.exp(maximum - shift)
        total = round_tensor(correction * total + weights.sum(dim=1, keepdim=True), sum_in)
        rounded = round_tensor(factor * weights, weights_in) / factor
        product = rounded @ values[start : start + BLOCK]
        output = round_tensor(correction * output + product, output_in)
        maximum = largest
    return output / total
