"""Sketches of tensors: few numbers that show how far apart the tensors of two trainings are.

Idea: 64 elements are drawn at places that depend on the number of elements only. So two runs draw
the same elements, and the distance of the drawn elements estimates that of the tensors. Tensors
that are the same have the same digest, of the drawn elements and of the sum of all bits. Other
tensors rarely do, unless only elements that are not drawn have changed places.

Invariants: a tensor is not changed, and no random number is drawn. On a GPU, one sketch waits for
the device once.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.instrument.sample import dense

Elements: TypeAlias = NDArray[np.float32]

DRAWN = 64
NO_ELEMENTS: Elements = np.zeros(0, dtype=np.float32)
# FP32 represents the squares of magnitudes between these, and sums of a hundred million of them
SMALLEST_SQUARED = 1e-12
LARGEST_SQUARED = 1e15
# shapes whose places are cached: more than the tensors of a model
CACHED_SHAPES = 4096

# constants of SplitMix64, a hash of whole numbers (Steele, Lea and Flood, OOPSLA 2014)
GOLDEN = 0x9E3779B97F4A7C15
FIRST_MIX = 0xBF58476D1CE4E5B9
SECOND_MIX = 0x94D049BB133111EB


@dataclass(frozen=True, eq=False)
class Sketch:
    """Summary of one tensor in one step; gradients are unscaled.

    Attributes:
        shape: shape of the tensor.
        dtype: for instance "float32".
        norm: Euclidean length; with 8 significant bits if it was read from a short form.
        largest: largest magnitude; NaN if the tensor holds NaN.
        projection: sum of the drawn elements with fixed signs.
        digest: checksum, in 16 bits, of the bits of the tensor before it was unscaled.
        elements: the drawn elements, float32; empty if they were dropped.
        lost: share of the numbers that FP16 rounds to zero or infinity at the scale in use.
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


@lru_cache(maxsize=CACHED_SHAPES)
def places(size: int) -> NDArray[np.int64]:
    """Return the places of the drawn elements of a tensor with `size` elements, in ascending order.

    >>> places(3).tolist(), len(places(10_000))
    ([0, 1, 2], 64)
    """
    if size <= DRAWN:
        return np.arange(size, dtype=np.int64)
    drawn = set[int]()
    number = 0
    while len(drawn) < DRAWN:
        drawn.add(_hashed(number) % size)
        number += 1
    return np.array(sorted(drawn), dtype=np.int64)


@lru_cache(maxsize=CACHED_SHAPES)
def _indices(shape: tuple[int, ...]) -> tuple[NDArray[np.int64], ...]:
    """Return the indices of the drawn elements, one array for each dimension."""
    if not shape:
        return ()
    return np.unravel_index(places(math.prod(shape)), shape)


def _hashed(number: int) -> int:
    """Return the n-th output of SplitMix64, 64 bits."""
    mask = (1 << 64) - 1
    mixed = (number + 1) * GOLDEN & mask
    mixed = (mixed ^ mixed >> 30) * FIRST_MIX & mask
    mixed = (mixed ^ mixed >> 27) * SECOND_MIX & mask
    return mixed ^ mixed >> 31


def _signs() -> Elements:
    """Return the signs of a projection: one bit of further outputs of the hash for each element."""
    bits = [_hashed(1000 + number) >> 40 & 1 for number in range(DRAWN)]
    return np.array([1.0 if bit else -1.0 for bit in bits], dtype=np.float32)


SIGNS = _signs()


class Measured(NamedTuple):
    """The numbers of a tensor that a sketch is made of; the training waits until they are read.

    Attributes:
        shape: shape of the tensor.
        dtype: its dtype.
        norm: its Euclidean length.
        largest: its largest magnitude.
        bits: sum of its bits as whole numbers; 0 if all elements are drawn.
        elements: the drawn elements.
        scale: the sketch is that of tensor / scale.
    """

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
        elements = self.elements
        norm = self.norm
        largest = self.largest
        # a number that leaves the range of FP32 becomes inf, without a warning of numpy
        with np.errstate(invalid="ignore", over="ignore"):
            if self.scale not in (0, 1):
                elements = elements / np.float32(self.scale)
                norm /= self.scale
                largest /= self.scale
            projection = float(SIGNS[: len(elements)] @ elements)
        return Sketch(
            shape=tuple(self.shape),
            dtype=str(self.dtype).removeprefix("torch."),
            norm=norm,
            largest=largest,
            projection=projection,
            digest=digest,
            elements=elements,
        )


def sketch(tensor: Tensor, scale: float = 1.0) -> Sketch:
    """Return the sketch of tensor / scale.

    >>> one, other = sketch(torch.ones(3)), sketch(torch.tensor([1.0, 1.0, -2.0]))
    >>> other.norm == 6**0.5, other.largest, one.digest == other.digest
    (True, 2.0, False)
    """
    return measured(tensor, scale).sketch()


def measured(tensor: Tensor, scale: float = 1.0) -> Measured:
    """Return the numbers that a sketch is made of: copies, so the tensor may change afterwards."""
    numbers = tensor.detach()
    # most tensors are like this, and take a fraction of the time of the general case
    if (
        type(numbers) is Tensor
        and numbers.dtype is torch.float32
        and numbers.is_cpu
        and numbers.layout is torch.strided
        and numbers.is_contiguous()
        and not numbers.is_neg()
        and numbers.numel()
    ):
        flat = numbers.numpy().reshape(-1)
        norm, largest = _norm_and_largest(flat)
        bits = 0
        if flat.size > DRAWN:
            bits = int(np.add.reduce(flat.view(np.int32), dtype=np.int32))
        drawn = flat[places(flat.size)]
        return Measured(numbers.shape, torch.float32, norm, largest, bits, drawn, scale)
    numbers = dense(tensor)
    if not numbers.numel():
        norm, largest, bits, drawn = 0.0, 0.0, 0, NO_ELEMENTS
    elif numbers.is_cpu:
        norm, largest, bits, drawn = _on_cpu(numbers)
    else:
        norm, largest, bits, drawn = _on_device(numbers)
    return Measured(numbers.shape, tensor.dtype, norm, largest, bits, drawn, scale)


def _norm_and_largest(flat: Elements) -> tuple[float, float]:
    """Return the Euclidean length and the largest magnitude of an array."""
    maximum = float(np.maximum.reduce(flat))
    minimum = float(np.minimum.reduce(flat))
    # both are NaN if the array holds NaN
    largest = abs(maximum) if maximum >= -minimum else abs(minimum)
    if SMALLEST_SQUARED < largest < LARGEST_SQUARED:
        return math.sqrt(np.dot(flat, flat)), largest
    # squares of such numbers are outside the range of FP32
    wide = flat.astype(np.float64)
    return math.sqrt(np.dot(wide, wide)), largest


def _bits(numbers: Tensor) -> int:
    """Return the sum of a tensor's codes as whole numbers; 0 if all elements are drawn."""
    if numbers.numel() <= DRAWN:
        return 0
    whole = torch.int32 if numbers.itemsize == 4 else torch.int16
    # a sum of 32 bits wraps around, as the remainder in `_on_device` does
    return int(np.add.reduce(numbers.view(whole).numpy(), dtype=np.int32))


def _on_cpu(numbers: Tensor) -> tuple[float, float, int, Elements]:
    """Return norm, largest magnitude, sum of bits and drawn elements."""
    in_memory = numbers
    if not numbers.is_contiguous():
        # the first three do not depend on the order, so take that of the memory, without a copy
        order = sorted(range(numbers.dim()), key=numbers.stride, reverse=True)
        in_memory = numbers.permute(order).contiguous()
    in_memory = in_memory.flatten()
    bits = _bits(in_memory)
    norm, largest = _norm_and_largest(in_memory.float().numpy())
    # a scalar has no index; it becomes an array with one element
    drawn = np.atleast_1d(numbers.float().numpy()[_indices(tuple(numbers.shape))])
    return norm, largest, bits, drawn.astype(np.float32)


def _on_device(numbers: Tensor) -> tuple[float, float, int, Elements]:
    """Return norm, largest magnitude, sum of bits and drawn elements, in one transfer."""
    whole = torch.int32 if numbers.itemsize == 4 else torch.int16
    bits = numbers.contiguous().view(whole).sum(dtype=torch.int64).remainder(1 << 32)
    if numbers.numel() <= DRAWN:
        bits.zero_()
    flat = numbers.reshape(-1).double()
    at = torch.from_numpy(places(numbers.numel())).to(numbers.device, non_blocking=True)
    summary = torch.stack([flat.norm(), flat.abs().max(), bits.double()])
    values: NDArray[np.float64] = torch.cat([summary, flat[at]]).cpu().numpy()
    norm, largest, bit_sum = values[:3].tolist()
    return norm, largest, int(bit_sum), values[3:].astype(np.float32)
