"""Detection of edits of the model's weights, by a checksum.

torch counts the changes of a tensor, but not those through `.data`, which published code uses to
clip weights and load vectors. Comparing each weight with its rounded master costs a tenth of a
step; comparing it with an earlier copy costs the memory of another model. So the bytes of a tensor
are read as 8-byte integers in rows of WIDTH, and the rows are added up to a single one. Bytes that
do not fill a row are stored, so small tensors are compared to the bit. Two checksums are compared
on their device, and the result is a flag there.

Invariant: equal weights have equal checksums. An edit of a single number is always detected. An
edit that only swaps numbers is not detected if each moves by a multiple of 8 * WIDTH bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# 8-byte integers in a row. It is prime, so that the rows of a layer do not align with it.
WIDTH = 2039
# bytes in a row
ROW = 8 * WIDTH
# Smaller tensors are stored, since their checksum would save little.
SMALL = 4 * ROW
# one tensor of bytes for each device
Checksum = list[Tensor]


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> Checksum:
    """Return the checksum of tensors: for each device, sums of rows and bytes that fill none.

    >>> weight = torch.ones(3).half()
    >>> before = checksum([weight])
    >>> _ = weight.data.clamp_(max=0.5)
    >>> differences(before, checksum([weight]))
    [tensor(4, dtype=torch.uint8)]
    """
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for tensor in tensors:
        small, large = groups.setdefault((tensor.device, tensor.dtype), ([], []))
        if tensor.nbytes < SMALL:
            small.append(tensor)
        else:
            large.append(tensor)
    parts: dict[torch.device, list[Tensor]] = {}
    for (device, _), (small, large) in groups.items():
        of_device = parts.setdefault(device, [])
        if len(small) > 1:
            together = torch._C._nn.flatten_dense_tensors(small)
            of_device += _rows(together.detach().view(torch.uint8))
        elif small:
            # `flatten_dense_tensors` of one tensor makes no copy, which an edit would change
            copied = small[0].reshape(-1).clone()
            of_device += _rows(copied.detach().view(torch.uint8))
        for tensor in large:
            of_device += _rows(_in_memory_order(tensor).view(torch.uint8))
    return [torch.cat(part) if len(part) > 1 else part[0] for part in parts.values()]


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in one dimension: a view, unless its memory has gaps."""
    reach = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        reach += (size - 1) * stride
    if tensor.numel() == reach:
        return tensor.as_strided((reach,), (1,))
    return tensor.contiguous().view(-1)


def differences(before: Checksum, after: Checksum) -> list[Tensor] | None:
    """Return flags, one on each device: not 0 where two checksums differ.

    It is None if the checksums are of tensors of other shapes or devices.
    """
    places_before = [(part.device, part.shape) for part in before]
    places_after = [(part.device, part.shape) for part in after]
    if places_before != places_after:
        return None
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one.numel()]
    # This takes a seventh of the time of ne().any().
    return [torch.bitwise_xor(one, other).max() for one, other in pairs]


def _rows(content: Tensor) -> tuple[Tensor, ...]:
    """Return the sum of the rows in bytes, and the bytes that do not fill a row."""
    if len(content) < SMALL:
        return (content,)
    filled = len(content) - len(content) % ROW
    # torch reads 8-byte integers only at multiples of 8; elsewhere, single bytes are added up
    aligned = content.storage_offset() % 8 == 0
    numbers = content[:filled].view(torch.int64 if aligned else torch.uint8)
    row_sum = numbers.view(-1, WIDTH).sum(0, dtype=torch.int64).view(torch.uint8)
    return row_sum, content[filled:]
