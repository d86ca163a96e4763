"""Histograms of magnitudes with one bin per binade.

Idea: a binade is the set of numbers that share an exponent, 2^e <= |x| < 2^(e+1). Counting them
needs only the exponent field, and multiplying every number by 2^k moves the whole histogram by k
bins: the tensor is never touched again. So a loss-scale slider answers at once.

Invariant: counts + zeros + non_finite add up to the number of elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labkit.formats.arguments import require_kind
from labkit.instrument.counting import Counts, count_on_cpu, count_on_device
from labkit.interop import format_of

FP32_LOWEST_EXPONENT = -149  # 2^-149 is FP32's smallest subnormal (IEEE 754-2019, 3.6)
FP32_HIGHEST_EXPONENT = 127


@dataclass(frozen=True, eq=False)
class ExponentHistogram:
    """How many magnitudes lie in each binade.

    Attributes:
        counts: int64 [n]; counts[i] numbers with 2^(lo+i) <= |x| < 2^(lo+i+1).
        lo: exponent of the first bin.
        zeros: numbers that are exactly zero (of either sign).
        non_finite: infinities and NaNs.
    """

    counts: Counts
    lo: int
    zeros: int
    non_finite: int

    def __eq__(self, other: object) -> bool:
        """Return whether two histograms have the same counts in the same binades."""
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
    def top(self) -> int:
        """The exponent of the largest finite number; lo - 1 if all are zero."""
        return self.lo + int(np.flatnonzero(self.counts)[-1]) if self.counts.any() else self.lo - 1

    @property
    def total(self) -> int:
        """How many numbers were counted."""
        return self.finite_non_zero + self.zeros + self.non_finite

    def count(self, first: int | None = None, last: int | None = None) -> int:
        """Return how many numbers have an exponent from `first` to `last`, both included.

        None means no bound.
        """
        start = 0 if first is None else max(first - self.lo, 0)
        stop = len(self.counts) if last is None else max(last - self.lo + 1, 0)
        return int(self.counts[start:stop].sum())


def exponent_histogram(tensor: Tensor) -> ExponentHistogram:
    """Count a tensor's magnitudes per binade, from 2^-149 to 2^127.

    Takes FP16, BF16 and FP32 tensors of any shape, on any device; the counting happens there, piece
    by piece, and makes no copy of the tensor (of one with gaps between its elements, one copy).

    Raises:
        TypeError: it is not a dense tensor of one of these three dtypes (FP64 would have to be
            rounded first).

    >>> h = exponent_histogram(torch.tensor([1.0, 1.5, -0.25, 0.0, float("inf")]))
    >>> h.count(0, 0), h.count(-2, -2), h.zeros, h.non_finite
    (2, 1, 1, 1)
    """
    _check(tensor)
    format = format_of(tensor.dtype)
    count = count_on_cpu if tensor.is_cpu else count_on_device
    zeros, subnormals, fields = count(_bits(tensor), format)
    counts = np.zeros(FP32_HIGHEST_EXPONENT - FP32_LOWEST_EXPONENT + 1, dtype=np.int64)
    first_normal = format.emin - FP32_LOWEST_EXPONENT
    counts[first_normal - len(subnormals) : first_normal] = subnormals
    # the last field: infinities and NaNs
    counts[first_normal : first_normal + len(fields) - 2] = fields[1:-1]
    return ExponentHistogram(counts, FP32_LOWEST_EXPONENT, int(zeros), int(fields[-1]))


def _check(tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"exponent_histogram: expected a torch tensor, got {type(tensor).__name__}."
        )
    if tensor.layout != torch.strided:
        stored = (
            "tensor.coalesce().values()" if tensor.layout == torch.sparse_coo else "tensor.values()"
        )
        raise TypeError(
            f"exponent_histogram counts dense tensors; this one is laid out as {tensor.layout}. "
            f"Take {stored} for the numbers that it stores, or tensor.to_dense() to count the "
            "zeros between them too."
        )
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(
            f"exponent_histogram counts FP16, BF16 and FP32 tensors; this one is {tensor.dtype}. "
            "Call .float() first if rounding it to FP32 is what you mean."
        )


def _bits(tensor: Tensor) -> Tensor:
    """Return the bit patterns as [n] integers in the order of memory.

    Their order does not matter here.
    """
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return tensor.flatten().view(torch.int32 if tensor.itemsize == 4 else torch.int16)


def shift(histogram: ExponentHistogram, log2_scale: int) -> ExponentHistogram:
    """Return the histogram of the same numbers multiplied by 2^log2_scale.

    Raises:
        TypeError: log2_scale is not a whole number; only powers of two shift a histogram exactly.

    >>> h = exponent_histogram(torch.tensor([2.0**-30]))
    >>> shift(h, 10).count(-20, -20)
    1
    """
    require_kind(
        histogram, ExponentHistogram, "histogram", "Count a tensor: exponent_histogram(tensor)"
    )
    require_kind(log2_scale, float, "log2_scale", "Pass a whole number")
    if log2_scale % 1 != 0:  # NaN and infinity too
        raise TypeError(
            f"a histogram shifts by whole binades; log2_scale is {log2_scale!r}, take a whole "
            "number"
        )
    return ExponentHistogram(
        histogram.counts, histogram.lo + int(log2_scale), histogram.zeros, histogram.non_finite
    )


def merge(histograms: Iterable[ExponentHistogram]) -> ExponentHistogram:
    """Add histograms bin by bin, as if their tensors had been one.

    Raises:
        ValueError: there is no histogram to merge.
    """
    require_kind(histograms, Iterable, "histograms", "Pass a list of histograms")
    parts = list(histograms)
    if not parts:
        raise ValueError("merge: expected at least one histogram, got none")
    lo = min(part.lo for part in parts)
    hi = max(part.lo + len(part.counts) for part in parts)
    counts = np.zeros(hi - lo, dtype=np.int64)
    for part in parts:
        counts[part.lo - lo : part.lo - lo + len(part.counts)] += part.counts
    return ExponentHistogram(
        counts, lo, sum(p.zeros for p in parts), sum(p.non_finite for p in parts)
    )
