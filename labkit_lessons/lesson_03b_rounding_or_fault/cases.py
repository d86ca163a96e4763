"""The six kernels of the lesson, one of which has a fault."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.gemm import SPECS, emulate

ROWS = 16
"""How many rows a block of kernel D's output has."""


def six_operands(seed: int = 8) -> tuple[Tensor, Tensor]:
    """Return A[60, 1001] and B[1001, 256] in FP16; the rows of A shrink from about 2^8 to 2^-10.

    >>> [tuple(each.shape) for each in six_operands()]
    [(60, 1001), (1001, 256)]
    """
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(60, 1001, generator=generator)
    b = torch.randn(1001, 256, generator=generator)
    return (a * torch.logspace(8, -10, 60, base=2)[:, None]).half(), b.half()


def _one_by_one(a: Tensor, b: Tensor) -> Tensor:
    """Add in FP32, one product after the other; the bits are the same on every processor."""
    total = torch.zeros(len(a), b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k, None].float() * b[k].float()
    return total


def _slices(a: Tensor, b: Tensor) -> Tensor:
    parts = [_one_by_one(x, y) for x, y in zip(a.split(251, 1), b.split(251), strict=True)]
    return torch.stack(parts).sum(0).half()


def _blocks(a: Tensor, b: Tensor) -> Tensor:
    """Compute block by block, with a fault: the last, partial block leaves out the last product."""
    end = len(a) // ROWS * ROWS
    whole = [rows.double() @ b.double() for rows in a[:end].split(ROWS)]
    rest = a[end:, :-1].double() @ b[:-1].double()
    return torch.cat([*whole, rest]).float().half()


def _tree(a: Tensor, b: Tensor) -> Tensor:
    terms = a.float().T[:, :, None] * b.float()[:, None]
    while len(terms) > 1:
        half = len(terms) // 2
        terms = torch.cat([terms[:half] + terms[half : 2 * half], terms[2 * half :]])
    return terms[0].half()


SIX: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "A": lambda a, b: _one_by_one(a, b).half(),
    "B": lambda a, b: _one_by_one(a.flip(1), b.flip(0)).half(),
    "C": _slices,
    "D": _blocks,
    "E": _tree,
    "F": lambda a, b: emulate(a, b, None, SPECS["H100"]).half(),
}
