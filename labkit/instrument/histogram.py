"""How large are these numbers? A histogram with one bin per binade.

Idea: a binade is the set of numbers that share an exponent, 2^e <= |x| < 2^(e+1). Counting them needs only the
exponent field, and multiplying every number by 2^k moves the whole histogram by k bins: the tensor is never touched
again. That is what makes a loss-scale slider answer while the hand moves.

Invariant: counts + zeros + non_finite add up to the number of elements that were looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import Format
from labkit.interop import PARALLEL_FROM, format_of

Counts: TypeAlias = NDArray[np.int64]

FP32_LOWEST_EXPONENT = -149  # 2^-149 is FP32's smallest subnormal (IEEE 754-2019, 3.6)
FP32_HIGHEST_EXPONENT = 127
GPU_PIECE = 1 << 24  # elements: enough to keep a GPU busy, and what is made of them is small


@dataclass(frozen=True, eq=False)
class ExponentHistogram:
    """How many magnitudes lie in each binade.

    counts      int64 [n]; counts[i] numbers with 2^(lo+i) <= |x| < 2^(lo+i+1)
    lo          exponent of the first bin
    zeros       numbers that are exactly zero (of either sign)
    non_finite  infinities and NaNs
    """

    counts: Counts
    lo: int
    zeros: int
    non_finite: int

    def __eq__(self, other: object) -> bool:
        """Say whether two histograms count the same numbers into the same binades."""
        if not isinstance(other, ExponentHistogram):
            return NotImplemented
        ours, theirs = ((h.lo, h.zeros, h.non_finite) for h in (self, other))
        return ours == theirs and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]  # it holds an array

    @property
    def finite_non_zero(self) -> int:
        """How many numbers lie in some binade."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """How many numbers were looked at."""
        return self.finite_non_zero + self.zeros + self.non_finite

    def count(self, first: int | None = None, last: int | None = None) -> int:
        """How many numbers have an exponent from `first` to `last`, both included; None means no bound."""
        start = 0 if first is None else max(first - self.lo, 0)
        stop = len(self.counts) if last is None else max(last - self.lo + 1, 0)
        return int(self.counts[start:stop].sum())


def exponent_histogram(tensor: Tensor) -> ExponentHistogram:
    """Count a tensor's magnitudes per binade, from 2^-149 to 2^127.

    Takes FP16, BF16 and FP32 tensors of any shape, on any device; the counting happens there, piece by piece, and makes
    no copy of the tensor (of one with gaps between its elements, one copy).

    Raises:
        TypeError: it is no dense tensor of one of those three dtypes (FP64 would have to be rounded first).

    >>> h = exponent_histogram(torch.tensor([1.0, 1.5, -0.25, 0.0, float("inf")]))
    >>> h.count(0, 0), h.count(-2, -2), h.zeros, h.non_finite
    (2, 1, 1, 1)
    """
    _check(tensor)
    format = format_of(tensor.dtype)
    count = _count_fp32 if tensor.dtype == torch.float32 else _count_16_bits
    zeros, subnormals, fields = count(_bits(tensor), format)
    counts = np.zeros(FP32_HIGHEST_EXPONENT - FP32_LOWEST_EXPONENT + 1, dtype=np.int64)
    first_normal = format.emin - FP32_LOWEST_EXPONENT
    counts[first_normal - len(subnormals) : first_normal] = subnormals
    counts[first_normal : first_normal + len(fields) - 2] = fields[1:-1]  # the last field: infinities and NaNs
    return ExponentHistogram(counts, FP32_LOWEST_EXPONENT, int(zeros), int(fields[-1]))


def _check(tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"exponent_histogram counts a torch tensor; it was given {type(tensor).__name__}.")
    if tensor.layout != torch.strided:
        stored = "tensor.coalesce().values()" if tensor.layout == torch.sparse_coo else "tensor.values()"
        raise TypeError(
            f"exponent_histogram counts dense tensors; this one is laid out as {tensor.layout}. Take {stored} for "
            "the numbers that it stores, or tensor.to_dense() to count the zeros between them too."
        )
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(
            f"exponent_histogram counts FP16, BF16 and FP32 tensors; this one is {tensor.dtype}. "
            "Call .float() first if rounding it to FP32 is what you mean."
        )


def _bits(tensor: Tensor) -> Tensor:
    """Return the bit patterns, [n] whole numbers, in the order in which they lie in memory: no order matters here."""
    in_memory = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.detach().permute(in_memory).flatten().view(torch.int32 if tensor.itemsize == 4 else torch.int16)


def _pieces(bits: Tensor) -> Iterator[Tensor]:
    """Yield the bits without their signs, piece by piece; on a CPU none is so large that torch would wake threads."""
    for piece in bits.split(PARALLEL_FROM if bits.is_cpu else GPU_PIECE):
        yield piece & torch.iinfo(bits.dtype).max


def _count_16_bits(bits: Tensor, format: Format) -> tuple[int, Counts, Counts]:
    """Return how many zeros there are, and how many in each binade of the subnormals and in each exponent field.

    Subnormals are counted by their code, each, and all others by their exponent field, in bins that come after those.
    """
    point = format.significand_bits
    small = 1 << point  # the first code that is no subnormal
    bins = torch.zeros(small + (1 << format.exponent_bits), dtype=torch.int64, device=bits.device)
    for piece in _pieces(bits):
        bins += torch.bincount(piece.clamp(max=small) + (piece >> point), minlength=len(bins))
    codes, fields = np.split(bins.cpu().numpy(), [small])
    subnormals = np.add.reduceat(codes, 1 << np.arange(point))  # codes from 2^i, below 2^(i+1)
    return codes[0], subnormals, fields


def _count_fp32(bits: Tensor, format: Format) -> tuple[int, Counts, Counts]:
    """Return the same for FP32. Exponent field 0 is looked into where there is something in it."""
    point = format.significand_bits
    fields = torch.zeros(1 << format.exponent_bits, dtype=torch.int64, device=bits.device)
    for piece in _pieces(bits):
        fields += torch.bincount(piece >> point, minlength=len(fields))
    small, zeros = int(fields[0]), 0
    if small:
        zeros = bits.numel() - sum(int(torch.count_nonzero(piece)) for piece in _pieces(bits))
    subnormals = torch.zeros(point, dtype=torch.int64, device=bits.device)
    for piece in _pieces(bits) if small > zeros else ():
        # As a number in FP32, a significand has its own exponent; 2^23 stands for all that is no subnormal.
        exponents = piece.clamp_(max=1 << point).float().view(torch.int32) >> point
        subnormals += torch.bincount(exponents, minlength=256)[format.bias : format.bias + point]
    return zeros, subnormals.cpu().numpy(), fields.cpu().numpy()


def shift(histogram: ExponentHistogram, log2_scale: int) -> ExponentHistogram:
    """Return the histogram of the same numbers multiplied by 2^log2_scale.

    Raises:
        TypeError: log2_scale is not a whole number; only powers of two shift a histogram exactly.

    >>> h = exponent_histogram(torch.tensor([2.0**-30]))
    >>> shift(h, 10).count(-20, -20)
    1
    """
    if log2_scale % 1 != 0:  # NaN and infinity too
        raise TypeError(f"a histogram shifts by whole binades; log2_scale is {log2_scale!r}, take a whole number")
    return ExponentHistogram(histogram.counts, histogram.lo + int(log2_scale), histogram.zeros, histogram.non_finite)


def merge(histograms: Iterable[ExponentHistogram]) -> ExponentHistogram:
    """Add histograms bin by bin, as if their tensors had been one.

    Raises:
        ValueError: there is no histogram to merge.
    """
    parts = list(histograms)
    if not parts:
        raise ValueError("merge needs at least one histogram; it was given none")
    lo = min(part.lo for part in parts)
    hi = max(part.lo + len(part.counts) for part in parts)
    counts = np.zeros(hi - lo, dtype=np.int64)
    for part in parts:
        counts[part.lo - lo : part.lo - lo + len(part.counts)] += part.counts
    return ExponentHistogram(counts, lo, sum(p.zeros for p in parts), sum(p.non_finite for p in parts))
