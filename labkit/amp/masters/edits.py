"""Has somebody changed the model's weights since they were copied back?

Idea: torch counts the changes of a tensor, but not those through `.data`, which is how published code clips weights and
loads vectors. To compare each weight with its rounded master costs a tenth of a step; to remember what stood there,
another copy of the model. So whole numbers are added up, 8 bytes at a time, row upon row of WIDTH, which leaves one row
for each tensor. What does not fill a row is remembered as it is, so small tensors are compared to the bit.

Invariant: equal weights have equal checksums. An edit of a single number always shows; one that only swaps numbers
hides if each of them goes a multiple of 8 * WIDTH bytes away.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

WIDTH = 2039  # of a row, in whole numbers of 8 bytes; a prime, so that a layer's rows lie no multiple of it apart
ROW = 8 * WIDTH  # bytes
Checksum = list[Tensor]


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> Checksum:
    """Return, for each device, sums of rows and what did not fill one; small tensors are put together first.

    >>> weight = torch.ones(3).half()
    >>> before = checksum([weight])
    >>> _ = weight.data.clamp_(max=0.5)
    >>> same(before, checksum([weight]))
    False
    """
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for tensor in tensors:
        small, large = groups.setdefault((tensor.device, tensor.dtype), ([], []))
        (small if tensor.nbytes < 4 * ROW else large).append(_as_it_lies(tensor))
    pieces = [piece for small, large in groups.values() for piece in (*([torch.cat(small)] if small else []), *large)]
    found: dict[torch.device, list[Tensor]] = {}
    for piece in pieces:
        found.setdefault(piece.device, []).extend(_rows(piece.view(torch.uint8)))
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in found.values()]


def _as_it_lies(tensor: Tensor) -> Tensor:
    """Return a tensor's memory in one dimension, whatever the order of its own; a view, unless it has gaps."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach,), (1,)) if tensor.numel() == reach else tensor.contiguous().view(-1)


def _rows(content: Tensor) -> tuple[Tensor, ...]:
    if len(content) < 4 * ROW:
        return (content,)
    filled = len(content) - len(content) % ROW
    numbers = content[:filled].view(torch.int64 if content.storage_offset() % 8 == 0 else torch.uint8)
    return numbers.view(-1, WIDTH).sum(0, dtype=torch.int64).view(torch.uint8), content[filled:]


def same(before: Checksum, after: Checksum) -> bool:
    """Whether two checksums are of the same weights."""
    places = [[(part.device, part.shape) for part in parts] for parts in (before, after)]
    return places[0] == places[1] and all(map(_equal, before, after))


def _equal(one: Tensor, other: Tensor) -> bool:
    filled = len(one) - len(one) % 8  # eight bytes at a time, for torch compares one number after the other
    rest = filled < len(one) and not torch.equal(one[filled:], other[filled:])
    return not rest and torch.equal(one[:filled].view(torch.int64), other[:filled].view(torch.int64))
