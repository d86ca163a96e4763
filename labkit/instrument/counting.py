"""Counts of exponents at the speed of memory.

Idea: only the exponent field of a number is looked at, shifted out of the middle of its bits, piece
by piece, so that all stays in the cache. Of many numbers, two fields at a time make one index: half
as many are counted, into a table of pairs. A CPU counts with numpy, whose calls cost little and
wake no thread; any other device counts where the tensor is.

Invariant: both ways count alike, and make no copy of the tensor.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import Format

Counts: TypeAlias = NDArray[np.int64]

# elements: enough to keep a GPU busy, and what is made of them is small
GPU_PIECE = 1 << 24
PIECE = 1 << 15  # elements: a few of these fit into a core's cache
PAIRS_FROM = 1 << 16  # elements from which on a table of pairs pays
LARGE = 1 << 18  # elements that are put into one


def count_on_cpu(bits: Tensor, format: Format) -> tuple[int, Counts, Counts]:
    """Count zeros, subnormals by binade, and the other values by exponent field.

    Args:
        bits: [n] the numbers as int16 or int32.
        format: theirs; its exponents have at most 8 bits.
    """
    values: NDArray[np.unsignedinteger] = bits.numpy().view(
        np.uint16 if bits.itemsize == 2 else np.uint32
    )
    point = format.significand_bits
    fields: Counts = np.zeros(1 << format.exponent_bits, dtype=np.int64)
    for start in range(0, len(values), LARGE):
        fields += _fields(values[start : start + LARGE], format)
    subnormals: Counts = np.zeros(point, dtype=np.int64)
    for start in range(0, len(values) if fields[0] else 0, PIECE):
        # without the sign, less 1: a zero becomes the largest unsigned number
        below = ((values[start : start + PIECE] << 1) >> 1) - 1
        small = below[below < (1 << point) - 1].astype(np.float32) + 1
        # exponents of significands: whole numbers
        subnormals += np.bincount(np.frexp(small)[1] - 1, minlength=point)
    return int(fields[0] - subnormals.sum()), subnormals, fields


def _fields(values: NDArray[np.unsignedinteger], format: Format) -> Counts:
    """Count the exponent fields of a piece, in pairs if there are many."""
    bins = 1 << format.exponent_bits
    shift = 1 + format.significand_bits
    if len(values) < PAIRS_FROM or len(values) % 2:
        counts: Counts = np.bincount((values << 1) >> shift, minlength=bins)
        return counts
    fields = np.empty(len(values), dtype=np.uint8)
    room = np.empty(PIECE, dtype=values.dtype)
    for start in range(0, len(values), PIECE):
        piece = values[start : start + PIECE]
        shifted = np.left_shift(piece, 1, out=room[: len(piece)])
        fields[start : start + PIECE] = np.right_shift(shifted, shift, out=shifted)
    pairs: Counts = np.bincount(fields.view(np.uint16), minlength=1 << 16).reshape(256, 256)
    both: Counts = pairs.sum(axis=0) + pairs.sum(axis=1)
    return both[:bins]


def count_on_device(bits: Tensor, format: Format) -> tuple[int, Counts, Counts]:
    """Return the same as `count_on_cpu`, counted by torch where the tensor is."""
    point = format.significand_bits
    fields = torch.zeros(1 << format.exponent_bits, dtype=torch.int64, device=bits.device)
    subnormals = torch.zeros(point, dtype=torch.int64, device=bits.device)
    zeros = torch.zeros((), dtype=torch.int64, device=bits.device)
    for piece in bits.split(GPU_PIECE):
        piece = piece & torch.iinfo(bits.dtype).max
        fields += torch.bincount(piece >> point, minlength=len(fields))
        zeros += (piece == 0).sum()
        # As a number in FP32, a significand has its own exponent; 2^point represents all that is
        # not subnormal.
        exponents = piece.clamp_(max=1 << point).float().view(torch.int32) >> 23
        subnormals += torch.bincount(exponents, minlength=256)[127 : 127 + point]
    return int(zeros), subnormals.cpu().numpy(), fields.cpu().numpy()
