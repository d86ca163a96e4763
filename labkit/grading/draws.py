"""Draws of cases that several exercises share.

Invariant: the same generator state gives the same numbers on every machine with the same version of
Python. They come from `random.Random`, and never from torch.
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
    numbers = [
        float(random.choice((-1, 1)) * random.randrange(low, high)) for _ in range(math.prod(shape))
    ]
    return torch.tensor(numbers).reshape(shape)


def always(*cases: Case) -> Callable[[Random], list[Case]]:
    """Return a draw of these cases for every seed."""
    return lambda _: list(cases)
