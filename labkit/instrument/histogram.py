"""Histograms of magnitudes with one bin per binade.

Idea: a binade is the set of numbers that share an exponent, 2^e <= |x| < 2^(e+1). Counting them
needs only the exponent field. Multiplying every number by 2^k moves the whole histogram by k bins,
without another look at the tensor. So a loss-scale slider answers at once.

Invariant: counts + zeros + non_finite add up to the number of elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from labkit.formats.arguments import require_kind
from labkit.instrument.counting import Counts, count_on_cpu, count_on_device
from labkit.interop import format_of

# exponents of FP32's smallest subnormal and of its largest number (IEEE 754-2019, 3.6)
FP32_LOWEST_EXPONENT = -149
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
        """Return whether two histograms have the same bins, empty ones included."""
        if not isinstance(other, ExponentHistogram):
            return NotImplemented
        return (
            self.lo == other.lo
            and self.zeros == other.zeros
            and self.non_finite == other.non_finite
            and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]  # it holds an array

    @property
    def finite_non_zero(self) -> int:
        """The number of finite values other than zero."""
        return int(self.counts.sum())

    @property
    def top(self) -> int:
        """The exponent of the largest finite number; lo - 1 if every bin is empty."""
        occupied = np.flatnonzero(self.counts)
        return self.lo + int(occupied[-1]) if len(occupied) else self.lo - 1

    @property
    def total(self) -> int:
        """The number of elements that were counted."""
        return self.finite_non_zero + self.zeros + self.non_finite

    def count(self, first: int | None = None, last: int | None = None) -> int:
        """Return how many numbers have an exponent from `first` to `last`, both included.

        None means that there is no bound on that side.
        """
        start = 0 if first is None else max(first - self.lo, 0)
        stop = len(self.counts) if last is None else max(last - self.lo + 1, 0)
        return int(self.counts[start:stop].sum())


def exponent_histogram(tensor: Tensor) -> ExponentHistogram:
    """Count a tensor's magnitudes per binade, from 2^-149 to 2^127.

    Accepts FP16, BF16 and FP32 tensors of any shape, on any device. The tensor is counted on its
    own device, piece by piece and without a copy; one with gaps between its elements is copied
    once.

    Raises:
        TypeError: `tensor` is not a dense tensor of one of these three dtypes (FP64 would have to
            be rounded first).

    >>> h = exponent_histogram(torch.tensor([1.0, 1.5, -0.25, 0.0, float("inf")]))
    >>> h.count(0, 0), h.count(-2, -2), h.zeros, h.non_finite
    (2, 1, 1, 1)
    """
    _require_countable(tensor)
    format = format_of(tensor.dtype)
    count = count_on_cpu if tensor.is_cpu else count_on_device
    zeros, subnormals, fields = count(_bits(tensor), format)
    counts = np.zeros(FP32_HIGHEST_EXPONENT - FP32_LOWEST_EXPONENT + 1, dtype=np.int64)
    first_normal = format.emin - FP32_LOWEST_EXPONENT
    counts[first_normal - len(subnormals) : first_normal] = subnormals
    # the first field holds zeros and subnormals, the last one infinities and NaNs
    counts[first_normal : first_normal + len(fields) - 2] = fields[1:-1]
    return ExponentHistogram(
        counts, lo=FP32_LOWEST_EXPONENT, zeros=zeros, non_finite=int(fields[-1])
    )


def _require_countable(tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"exponent_histogram: expected a torch tensor, got {type(tensor).__name__}."
        )
    if tensor.layout != torch.strided:
        numbers = "tensor.values()"
        if tensor.layout == torch.sparse_coo:
            numbers = "tensor.coalesce().values()"
        raise TypeError(
            f"exponent_histogram: expected a dense tensor, got one of layout {tensor.layout}. "
            f"Take {numbers} to count the numbers that it stores, or tensor.to_dense() to count "
            "the zeros between them too."
        )
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        remedy = "Call .float() first if it may be rounded to FP32."
        if tensor.is_complex():
            remedy = "Take torch.view_as_real(tensor) to count real and imaginary parts."
        raise TypeError(
            f"exponent_histogram: expected FP16, BF16 or FP32, got {tensor.dtype}. {remedy}"
        )


def _bits(tensor: Tensor) -> Tensor:
    """Return the codes of a tensor's elements as integers [n], in any order."""
    # the sign of a lazily negated view, such as x.conj().imag, is not among its bits
    tensor = tensor.detach().resolve_neg()
    if not tensor.is_contiguous():
        # dimensions in the order of memory, so that a transposed tensor is not copied
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return tensor.flatten().view(torch.int32 if tensor.itemsize == 4 else torch.int16)


def shift(histogram: ExponentHistogram, log2_scale: int) -> ExponentHistogram:
    """Return the histogram of the same numbers multiplied by 2^log2_scale.

    Raises:
        TypeError: log2_scale is not a whole number. Only a power of two moves all numbers of a
            binade to the same binade.

    >>> h = exponent_histogram(torch.tensor([2.0**-30]))
    >>> shift(h, 10).count(-20, -20)
    1
    """
    require_kind(
        histogram, ExponentHistogram, "histogram", "Count a tensor: exponent_histogram(tensor)"
    )
    require_kind(log2_scale, float, "log2_scale", "Pass a whole number")
    # also true of NaN and infinity, whose remainder is NaN
    if log2_scale % 1 != 0:
        raise TypeError(
            f"log2_scale: expected a whole number, got {log2_scale!r}; a histogram shifts by whole "
            "binades"
        )
    return replace(histogram, lo=histogram.lo + int(log2_scale))


def merge(histograms: Iterable[ExponentHistogram]) -> ExponentHistogram:
    """Add histograms bin by bin, as if their tensors had been one.

    Raises:
        ValueError: `histograms` is empty.
    """
    require_kind(histograms, Iterable, "histograms", "Pass a list of histograms")
    parts = list(histograms)
    for part in parts:
        require_kind(part, ExponentHistogram, "a histogram", "Count a tensor first")
    if not parts:
        raise ValueError("merge: expected at least one histogram, got none")
    lo = min(part.lo for part in parts)
    end = max(part.lo + len(part.counts) for part in parts)
    counts = np.zeros(end - lo, dtype=np.int64)
    for part in parts:
        start = part.lo - lo
        counts[start : start + len(part.counts)] += part.counts
    return ExponentHistogram(
        counts,
        lo=lo,
        zeros=sum(part.zeros for part in parts),
        non_finite=sum(part.non_finite for part in parts),
    )
