"""How is one number that is far larger than its neighbours spread over all of them?

Idea: 16 random signs and an orthogonal Hadamard matrix turn each 16 numbers into sums and differences of all 16.

Invariant: both operands of a product that are rotated along the axis it sums over have the same product as before.

Source: arXiv:2404.00456 (QuaRot), arXiv:2509.25149 (where NVFP4 training rotates).
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

ROTATED = 16  # numbers that a Hadamard matrix rotates at a time
# 16 random signs, drawn once (torch.manual_seed(0)): with the matrix they spread an outlier over 16 numbers.
_SIGNS = (-1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 1.0)


def rotate(tensor: Tensor, axis: int) -> Tensor:
    """Multiply each 16 numbers along an axis (-1 or -2) by signs and a Hadamard matrix; zeros fill it up.

    >>> one, two = torch.randn(2, 20), torch.randn(20, 3)
    >>> torch.allclose(rotate(one, -1) @ rotate(two, -2), one @ two, atol=1e-5)
    True
    """
    if axis == -1:
        return rotate(tensor.mT, -2).mT
    more = -tensor.shape[-2] % ROTATED
    full = F.pad(tensor, (0, 0, 0, more)) if more else tensor
    cut = full.unflatten(-2, (-1, ROTATED))
    rotated: Tensor = _rotation(tensor.device) @ cut
    return rotated.flatten(-3, -2)


@cache
def _rotation(device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1, device=device)
    while len(matrix) < ROTATED:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.mul(torch.tensor(_SIGNS, device=device)).div(math.sqrt(ROTATED))
