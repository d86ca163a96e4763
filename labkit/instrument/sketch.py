"""Sketches of tensors: a few numbers that tell whether two trainings still agree, and how far apart they are.

Idea: 64 elements are drawn at places that depend on the number of elements only. So two runs draw the
same ones, and the distance of the drawn elements estimates that of the tensors. A digest over the drawn
elements and a sum of all bits shows a tensor that is the same.

Invariants: a tensor is not changed, and no random number is drawn. On a GPU one sketch waits for the
device once.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.instrument.sample import dense, dtype_name

DRAWN = 64
Elements: TypeAlias = NDArray[np.float32]

# constants of SplitMix64, a hash of whole numbers (Steele, Lea and Flood, OOPSLA 2014)
GOLDEN = 0x9E3779B97F4A7C15
FIRST_MIX = 0xBF58476D1CE4E5B9
SECOND_MIX = 0x94D049BB133111EB


@dataclass(frozen=True, eq=False)
class Sketch:
    """What is kept of one tensor in one step; gradients are unscaled.

    shape       of the tensor
    dtype       such as "float32"
    norm        Euclidean length
    largest     largest magnitude; NaN where the tensor holds one
    projection  sum of the drawn elements with fixed signs
    digest      checksum of the bits as they were, scaled or not
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


def sketch(tensor: Tensor, scale: float = 1.0) -> Sketch:
    """Return the sketch of tensor / scale.

    >>> one, other = sketch(torch.ones(3)), sketch(torch.tensor([1.0, 1.0, -2.0]))
    >>> other.norm == 6**0.5, other.largest, one.digest == other.digest
    (True, 2.0, False)
    """
    numbers = dense(tensor)
    if not numbers.numel():
        norm, largest, bits = 0.0, 0.0, 0
        elements = np.zeros(0, dtype=np.float32)
    elif numbers.is_cpu:
        norm, largest, bits, elements = _on_cpu(numbers)
    else:
        norm, largest, bits, elements = _on_device(numbers)
    digest = zlib.crc32(elements.tobytes(), bits & 0xFFFFFFFF)
    if scale != 1:
        elements = elements / np.float32(scale) if scale else elements
        norm, largest = (norm / scale, largest / scale) if scale else (norm, largest)
    with np.errstate(invalid="ignore", over="ignore"):
        projection = float(SIGNS[: len(elements)] @ elements)
    return Sketch(
        tuple(numbers.shape), dtype_name(tensor), norm, largest, projection, digest, elements
    )


def _on_cpu(numbers: Tensor) -> tuple[float, float, int, Elements]:
    if not numbers.is_contiguous():
        # the norm, the largest and the sum of bits need no order: take that of the memory
        order = sorted(range(numbers.dim()), key=numbers.stride, reverse=True)
        in_memory = numbers.permute(order).contiguous().flatten()
    else:
        in_memory = numbers.flatten()
    whole = torch.int32 if numbers.itemsize == 4 else torch.int16
    bits = int(np.add.reduce(in_memory.view(whole).numpy(), dtype=np.int32))
    flat = in_memory.float().numpy()
    drawn = numbers.float().numpy()[_indices(tuple(numbers.shape))]
    with np.errstate(invalid="ignore", over="ignore"):
        square = float(np.dot(flat, flat))
        if square == 0 or math.isinf(square):
            # squares that FP32 does not hold
            square = float(np.dot(flat.astype(np.float64), flat.astype(np.float64)))
        # NaN wins, as in numpy
        largest = abs(float(np.maximum(np.max(flat), -np.min(flat))))
    return math.sqrt(square), largest, bits, np.atleast_1d(drawn).astype(np.float32, copy=False)


def _on_device(numbers: Tensor) -> tuple[float, float, int, Elements]:
    whole = torch.int32 if numbers.itemsize == 4 else torch.int16
    bits = numbers.contiguous().view(whole).sum(dtype=torch.int64).remainder(1 << 32)
    flat = numbers.reshape(-1).double()
    at = torch.from_numpy(places(numbers.numel())).to(numbers.device, non_blocking=True)
    summary = torch.stack([flat.norm(), flat.abs().max(), bits.double()])
    read: Any = torch.cat([summary, flat[at]]).cpu().numpy()
    return float(read[0]), float(read[1]), int(read[2]), read[3:].astype(np.float32)
