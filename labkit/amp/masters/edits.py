"""Edits of the model's weights, noticed by a checksum.

torch counts the changes of a tensor, but not those through `.data`, which is how published code
clips weights and loads vectors. To compare each weight with its rounded master costs a tenth of a
step; to remember what stood there, another copy of the model. So whole numbers are added up, 8
bytes at a time, row upon row of WIDTH, which leaves one row for each tensor. What does not fill a
row is remembered as it is, so small tensors are compared to the bit. Two checksums are compared on
their device: the answer is a flag there.

Invariant: equal weights have equal checksums. An edit of a single number always shows; one that
only swaps numbers hides if each of them goes a multiple of 8 * WIDTH bytes away.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# 8-byte integers in a row. It is prime, so that a layer's own rows do not line up with it.
WIDTH = 2039
ROW = 8 * WIDTH  # bytes
Checksum = list[Tensor]


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> Checksum:
    """Return, for each device, sums of rows and what did not fill one.

    Small tensors are put together first.

    >>> weight = torch.ones(3).half()
    >>> before = checksum([weight])
    >>> _ = weight.data.clamp_(max=0.5)
    >>> differences(before, checksum([weight]))
    [tensor(4, dtype=torch.uint8)]
    """
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for tensor in tensors:
        small, large = groups.setdefault((tensor.device, tensor.dtype), ([], []))
        (small if tensor.nbytes < 4 * ROW else large).append(tensor)
    found: dict[torch.device, list[Tensor]] = {}
    for (device, _), (small, large) in groups.items():
        parts = found.setdefault(device, [])
        if small:  # of a single tensor, flattening makes no copy
            flat = (
                torch._C._nn.flatten_dense_tensors(small)
                if len(small) > 1
                else small[0].reshape(-1).clone()
            )
            parts += _rows(flat.detach().view(torch.uint8))
        # its memory in one dimension, whatever the order of its own; a view, unless it has gaps
        for tensor in large:
            reach = 1 + sum(
                (size - 1) * stride
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            dense = (
                tensor.as_strided((reach,), (1,))
                if tensor.numel() == reach
                else tensor.contiguous().view(-1)
            )
            parts += _rows(dense.view(torch.uint8))
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in found.values()]


def differences(before: Checksum, after: Checksum) -> list[Tensor] | None:
    """Return flags, one on each device: not 0 where two checksums differ.

    It is None if they are of other weights.
    """
    if [(part.device, part.shape) for part in before] != [
        (part.device, part.shape) for part in after
    ]:
        return None
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one.numel()]
    # ne().any() takes seven times as long
    return [torch.bitwise_xor(one, other).max() for one, other in pairs]


def _rows(content: Tensor) -> tuple[Tensor, ...]:
    if len(content) < 4 * ROW:
        return (content,)
    filled = len(content) - len(content) % ROW
    numbers = content[:filled].view(
        torch.int64 if content.storage_offset() % 8 == 0 else torch.uint8
    )
    return numbers.view(-1, WIDTH).sum(0, dtype=torch.int64).view(torch.uint8), content[filled:]
