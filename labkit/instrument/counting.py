"""Counts of exponents at the speed of memory.

Idea: only the exponent field of a number matters. It is shifted out of the number's bits, piece by
piece, so that each piece stays in the cache. In a large tensor, two neighbouring fields of 8 bits
form one index of 16 bits into a table of pairs, which halves the number of increments. A tensor on
a CPU is counted with numpy, whose calls cost little and wake no thread; a tensor on any other
device is counted there by torch.

Invariant: both ways return the same counts, and neither copies the whole tensor.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import Format

Counts: TypeAlias = NDArray[np.int64]

# All sizes are in elements.
# enough to keep a GPU busy; the temporaries of a piece stay small
GPU_PIECE = 1 << 24
# a few of these fit into a core's cache
PIECE = 1 << 15
# the shortest array for which a table of pairs is faster
PAIRS_FROM = 1 << 16
# the most that one table of pairs counts
LARGE = 1 << 18


def count_on_cpu(bits: Tensor, format: Format) -> tuple[int, Counts, Counts]:
    """Count zeros, subnormals by binade, and all values by exponent field.

    Args:
        bits: [n] the codes of the numbers as int16 or int32.
        format: format of the numbers; its exponents have at most 8 bits.

    Returns:
        The number of zeros of either sign; [significand_bits] the subnormals by binade, the
        smallest first; and [2^exponent_bits] the numbers by exponent field. Field 0 includes zeros
        and subnormals, the last field inf and NaN.
    """
    unsigned = np.uint16 if bits.itemsize == 2 else np.uint32
    values: NDArray[np.unsignedinteger] = bits.numpy().view(unsigned)
    point = format.significand_bits
    fields: Counts = np.zeros(1 << format.exponent_bits, dtype=np.int64)
    for start in range(0, len(values), LARGE):
        fields += _exponent_fields(values[start : start + LARGE], format)
    subnormals: Counts = np.zeros(point, dtype=np.int64)
    if not fields[0]:
        return 0, subnormals, fields
    for start in range(0, len(values), PIECE):
        # Remove the sign and subtract 1. A zero wraps around to the largest unsigned number, so one
        # comparison selects the subnormals.
        below = ((values[start : start + PIECE] << 1) >> 1) - 1
        significands = below[below < (1 << point) - 1].astype(np.float32) + 1
        # significands are whole numbers, so their exponents from frexp begin at 1
        exponents = np.frexp(significands)[1] - 1
        subnormals += np.bincount(exponents, minlength=point)
    return int(fields[0] - subnormals.sum()), subnormals, fields


def _exponent_fields(values: NDArray[np.unsignedinteger], format: Format) -> Counts:
    """Count the exponent fields of a piece, in pairs if there are many."""
    bins = 1 << format.exponent_bits
    shift = 1 + format.significand_bits
    if len(values) < PAIRS_FROM or len(values) % 2:
        counts: Counts = np.bincount((values << 1) >> shift, minlength=bins)
        return counts
    fields = np.empty(len(values), dtype=np.uint8)
    # one buffer for all pieces, which stays in the cache
    buffer = np.empty(PIECE, dtype=values.dtype)
    for start in range(0, len(values), PIECE):
        piece = values[start : start + PIECE]
        shifted = np.left_shift(piece, 1, out=buffer[: len(piece)])
        fields[start : start + PIECE] = np.right_shift(shifted, shift, out=shifted)
    # a pair of bytes is one index; the sums over rows and columns count each byte of a pair once
    pairs: Counts = np.bincount(fields.view(np.uint16), minlength=1 << 16).reshape(256, 256)
    both: Counts = pairs.sum(axis=0) + pairs.sum(axis=1)
    return both[:bins]


def count_on_device(bits: Tensor, format: Format) -> tuple[int, Counts, Counts]:
    """Count as `count_on_cpu` does, with torch on the tensor's own device."""
    point = format.significand_bits
    fields = torch.zeros(1 << format.exponent_bits, dtype=torch.int64, device=bits.device)
    subnormals = torch.zeros(point, dtype=torch.int64, device=bits.device)
    zeros = torch.zeros((), dtype=torch.int64, device=bits.device)
    for piece in bits.split(GPU_PIECE):
        # without the sign
        piece = piece & torch.iinfo(bits.dtype).max
        fields += torch.bincount(piece >> point, minlength=len(fields))
        zeros += (piece == 0).sum()
        # The binade of a subnormal is the exponent of its significand, which is a whole number.
        # Converted to FP32, that exponent is in bits 23 to 30, with a bias of 127 (IEEE 754-2019,
        # 3.6). Numbers that are not subnormal become 2^point, one binade above the last.
        exponents = piece.clamp_(max=1 << point).float().view(torch.int32) >> 23
        subnormals += torch.bincount(exponents, minlength=256)[127 : 127 + point]
    return int(zeros), subnormals.cpu().numpy(), fields.cpu().numpy()
