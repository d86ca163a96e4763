"""Which weights did a step mean to move, and did not?

Idea: an optimizer moves every weight that has a gradient. A weight with a gradient that is the same number after the
step as before had its update swallowed: it was below half an ulp of the format that keeps the weight.

Invariant: between 0 and 1; weights without a gradient are not counted on either side.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def swallowed(before: Iterable[Tensor], after: Iterable[Tensor], gradients: Iterable[Tensor | None]) -> float:
    """Return the share of the weights with a non-zero gradient that did not change, 0 to 1; 0 if none has one.

    >>> weight, update = torch.ones(3).half(), torch.tensor([0.0, 2.0**-12, 2.0**-9]).half()
    >>> swallowed([weight], [weight - update], [update])  # 2^-12 is below half the spacing of FP16 under 1
    0.5

    Raises:
        ValueError: the three differ in length or in a shape.
    """
    meant = still = 0
    for old, new, gradient in zip(before, after, gradients, strict=True):
        if gradient is not None:
            these, unmoved = swallowed_counts(old, new, gradient)
            meant, still = meant + these, still + unmoved
    return still / meant if meant else 0.0


@torch.no_grad()
def swallowed_counts(before: Tensor, after: Tensor, gradient: Tensor) -> tuple[int, int]:
    """Return how many elements of a weight have a gradient other than zero, and how many of those did not change.

    Raises:
        ValueError: the three differ in shape.
    """
    if not before.shape == after.shape == gradient.shape:
        raise ValueError(
            "a weight before, after and its gradient have one shape; these are "
            f"{tuple(before.shape)}, {tuple(after.shape)} and {tuple(gradient.shape)}"
        )
    moves = gradient != 0
    return int(moves.sum()), int((moves & (before == after)).sum())
