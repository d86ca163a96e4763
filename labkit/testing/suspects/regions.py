"""A part of the result that alone is wrong, such as one tile of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.testing.kernel_result import KernelResult
from labkit.testing.operation import Places
from labkit.testing.suspects.measures import root_mean_square

# `FEWEST` places or more that are drawn at random lie within three quarters of a dimension with a
# probability below 1e-3
FEWEST = 32
WIDEST = 0.75


@dataclass(frozen=True)
class Region:
    """Some indices of one dimension, from `first` to `end - 1`."""

    axis: int
    first: int
    end: int

    def __str__(self) -> str:
        return (
            f"a fault in a part: only dimension {self.axis}, index {self.first} to {self.end - 1}, "
            "is wrong"
        )


def wrong_region(wrong: Places, shape: tuple[int, ...]) -> Region | None:
    """Return the region that contains all wrong elements, or None if they are everywhere.

    Each index of the region must have a wrong element. So a single row with a wrong variance, or a
    few that are scattered, are not a region.
    """
    if wrong.size < FEWEST:
        return None
    for axis, index in enumerate(np.unravel_index(wrong, shape)):
        first = int(index.min())
        end = int(index.max()) + 1
        has_no_gaps = len(np.unique(index)) == end - first
        if has_no_gaps and 2 <= end - first <= WIDEST * shape[axis]:
            return Region(axis, first, end)
    return None


def uncleared_accumulator(result: KernelResult, region: Region) -> str | None:
    """Return a remark if the region's errors are a multiple of the elements before the region."""
    width = region.end - region.first
    if region.first < width:
        return None
    shape = result.operation.value.shape
    exact = np.moveaxis(result.exact.reshape(shape), region.axis, 0)
    got = np.moveaxis(result.got.reshape(shape), region.axis, 0)
    here = slice(region.first, region.end)
    errors = (got[here] - exact[here]).reshape(-1)
    before = exact[region.first - width : region.first].reshape(-1)
    if not (before.any() and np.isfinite(before).all() and np.isfinite(errors).all()):
        return None
    # the least squares fit of the errors by the elements before them
    multiple = float((errors * before).sum() / (before * before).sum())
    if root_mean_square(errors - multiple * before) >= 0.5 * root_mean_square(errors):
        return None
    return (
        f"{multiple:.3g} times the part before it was added: an accumulator that was not cleared, "
        f"from index {region.first} of dimension {region.axis} on"
    )
