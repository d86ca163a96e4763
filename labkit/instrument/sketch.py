"""Sketches of tensors: numbers that tell how far apart two trainings are.

Idea: 64 elements are drawn at places that depend on the number of elements only. So two runs draw
the same ones, and the distance of the drawn elements estimates that of the tensors. A digest over
the drawn elements and a sum of all bits shows a tensor that is the same.

Invariants: a tensor is not changed, and no random number is drawn. On a GPU one sketch waits for
the device once.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.instrument.sample import dense

DRAWN = 64
NO_ELEMENTS: NDArray[np.float32] = np.zeros(0, dtype=np.float32)
# magnitudes whose squares, and sums of a hundred million of them, FP32 holds
SMALLEST_SQUARED, LARGEST_SQUARED = 1e-12, 1e15
Elements: TypeAlias = NDArray[np.float32]

# constants of SplitMix64, a hash of whole numbers (Steele, Lea and Flood, OOPSLA 2014)
GOLDEN = 0x9E3779B97F4A7C15
FIRST_MIX = 0xBF58476D1CE4E5B9
SECOND_MIX = 0x94D049BB133111EB


@dataclass(frozen=True, eq=False)
class Sketch:
    """Summary of one tensor in one step; gradients are unscaled.

    shape       of the tensor
    dtype       such as "float32"
    norm        Euclidean length; to 8 bits where no elements are kept
    largest     largest magnitude; NaN where the tensor holds one
    projection  sum of the drawn elements with fixed signs
    digest      checksum of the bits as they were, scaled or not: 16 bits
    elements    the drawn elements, float32; empty where only the numbers above are kept
    lost        share of the numbers that FP16 rounds to zero or infinity at the scale in use
    """

    shape: tuple[int, ...]
    dtype: str
    norm: float
    largest: float
    projection: float
    digest: int
    elements: Elements
    lost: float = 0.0

    @property
    def size(self) -> int:
        """The number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def finite(self) -> bool:
        """Whether the tensor holds neither inf nor NaN."""
        return math.isfinite(self.largest)


@lru_cache(maxsize=4096)
def places(size: int) -> NDArray[np.int64]:
    """Return the places of the drawn elements of a tensor with `size` elements, in ascending order.

    >>> places(3).tolist(), len(places(10_000))
    ([0, 1, 2], 64)
    """
    if size <= DRAWN:
        return np.arange(size, dtype=np.int64)
    drawn: dict[int, None] = {}
    number = 0
    while len(drawn) < DRAWN:
        drawn[_hashed(number) % size] = None
        number += 1
    return np.sort(np.array(list(drawn), dtype=np.int64))


@lru_cache(maxsize=4096)
def _indices(shape: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    return np.unravel_index(places(math.prod(shape)), shape) if shape else ()


def _hashed(number: int) -> int:
    mask = (1 << 64) - 1
    mixed = (number + 1) * GOLDEN & mask
    mixed = (mixed ^ mixed >> 30) * FIRST_MIX & mask
    mixed = (mixed ^ mixed >> 27) * SECOND_MIX & mask
    return mixed ^ mixed >> 31


SIGNS: Elements = np.array(
    [1.0 if _hashed(1000 + number) >> 40 & 1 else -1.0 for number in range(DRAWN)],
    dtype=np.float32,
)


class Measured(NamedTuple):
    """Numbers that are read of a tensor while the training waits; a sketch follows later."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    norm: float
    largest: float
    bits: int
    elements: Elements
    scale: float

    def sketch(self) -> Sketch:
        """Return the sketch of tensor / scale."""
        bits = (self.bits & 0xFFFFFFFF).to_bytes(4, "little")
        digest = zlib.crc32(bits, zlib.crc32(self.elements.tobytes())) & 0xFFFF
        elements, norm, largest = self.elements, self.norm, self.largest
        if self.scale not in (0, 1):
            elements = elements / np.float32(self.scale)
            norm /= self.scale
            largest /= self.scale
        with np.errstate(invalid="ignore", over="ignore"):
            projection = float(SIGNS[: len(elements)] @ elements)
        name = str(self.dtype).removeprefix("torch.")
        return Sketch(tuple(self.shape), name, norm, largest, projection, digest, elements)


def sketch(tensor: Tensor, scale: float = 1.0) -> Sketch:
    """Return the sketch of tensor / scale.

    >>> one, other = sketch(torch.ones(3)), sketch(torch.tensor([1.0, 1.0, -2.0]))
    >>> other.norm == 6**0.5, other.largest, one.digest == other.digest
    (True, 2.0, False)
    """
    return measured(tensor, scale).sketch()


def measured(tensor: Tensor, scale: float = 1.0) -> Measured:
    """Return what a sketch is made of: a copy, so the tensor may change afterwards."""
    numbers = tensor.detach()
    if (
        type(numbers) is Tensor
        and numbers.dtype is torch.float32
        and numbers.is_cpu
        and numbers.layout is torch.strided
        and numbers.is_contiguous()
        and numbers.numel()
    ):
        # what most tensors are, at a fraction of the cost of the general case
        flat = numbers.numpy().reshape(-1)
        norm, largest = _norm_and_largest(flat)
        bits = 0
        if flat.size > DRAWN:
            bits = int(np.add.reduce(flat.view(np.int32), dtype=np.int32))
        drawn = flat[places(flat.size)]
        return Measured(numbers.shape, torch.float32, norm, largest, bits, drawn, scale)
    numbers = dense(tensor)
    if not numbers.numel():
        found = 0.0, 0.0, 0, np.zeros(0, dtype=np.float32)
    elif numbers.is_cpu:
        found = _on_cpu(numbers)
    else:
        found = _on_device(numbers)
    return Measured(numbers.shape, tensor.dtype, *found, scale)


def _norm_and_largest(flat: Elements) -> tuple[float, float]:
    high, low = float(np.maximum.reduce(flat)), -float(np.minimum.reduce(flat))
    # both are NaN where one number is
    largest = abs(high if high >= low else low)
    if SMALLEST_SQUARED < largest < LARGEST_SQUARED:
        return math.sqrt(np.dot(flat, flat)), largest
    # FP32 does not hold the squares
    wide = flat.astype(np.float64)
    return math.sqrt(np.dot(wide, wide)), largest


def _bits(numbers: Tensor) -> int:
    """Return the sum of an array's bits as whole numbers; 0 where all elements are drawn."""
    if numbers.numel() <= DRAWN:
        return 0
    whole = torch.int32 if numbers.itemsize == 4 else torch.int16
    return int(np.add.reduce(numbers.view(whole).numpy(), dtype=np.int32))


def _on_cpu(numbers: Tensor) -> tuple[float, float, int, Elements]:
    in_memory = numbers
    if not numbers.is_contiguous():
        # the norm, the largest and the sum of bits need no order: take that of the memory
        order = sorted(range(numbers.dim()), key=numbers.stride, reverse=True)
        in_memory = numbers.permute(order).contiguous()
    in_memory = in_memory.flatten()
    bits = _bits(in_memory)
    norm, largest = _norm_and_largest(in_memory.float().numpy())
    # a scalar has no index, and is its own element
    drawn = np.atleast_1d(numbers.float().numpy()[_indices(tuple(numbers.shape))])
    return norm, largest, bits, drawn.astype(np.float32)


def _on_device(numbers: Tensor) -> tuple[float, float, int, Elements]:
    whole = torch.int32 if numbers.itemsize == 4 else torch.int16
    bits = numbers.contiguous().view(whole).sum(dtype=torch.int64).remainder(1 << 32)
    if numbers.numel() <= DRAWN:
        bits.zero_()
    flat = numbers.reshape(-1).double()
    at = torch.from_numpy(places(numbers.numel())).to(numbers.device, non_blocking=True)
    summary = torch.stack([flat.norm(), flat.abs().max(), bits.double()])
    read: Any = torch.cat([summary, flat[at]]).cpu().numpy()
    return float(read[0]), float(read[1]), int(read[2]), read[3:].astype(np.float32)
