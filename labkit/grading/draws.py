"""Random cases that several exercises draw.

Invariant: the same generator state gives the same numbers on every machine. They come from `random.Random`, whose
sequences Python guarantees, and never from torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.grading.exercise import Case


def whole(random: Random, shape: tuple[int, ...], low: int, high: int) -> Tensor:
    """Return whole numbers, low <= |n| < high, of either sign, in FP32.

    >>> numbers = whole(Random(0), (2, 3), 5, 8)
    >>> numbers.shape, sorted(set(numbers.abs().flatten().tolist()) - {5, 6, 7})
    (torch.Size([2, 3]), [])
    """
    numbers = [float(random.choice((-1, 1)) * random.randrange(low, high)) for _ in range(math.prod(shape))]
    return torch.tensor(numbers).reshape(shape)


def always(*cases: Case) -> Callable[[Random], list[Case]]:
    """Return a draw of these cases for every seed."""
    return lambda _: list(cases)


Batches = list[tuple[Tensor, Tensor]]


def trainings(random: Random, factors: tuple[float, ...], max_norm: float) -> list[Case]:
    """Return one training: (weight[3,4], batches of x[8,4] and y[8,3], max_norm); a factor for each batch's targets.

    FP16 must round every number. At a scale of 2^16 a factor of 1 overflows nowhere, and one of 500 everywhere.
    """
    weight = whole(random, (3, 4), 1, 700) / 1401
    pairs = [(whole(random, (8, 4), 1, 1000) / 1001, whole(random, (8, 3), 1, 1000) / 1001) for _ in factors]
    return [(weight, [(x, factor * y) for factor, (x, y) in zip(factors, pairs, strict=True)], max_norm)]
