"""Map of the gradients that each loss scale would lose and overflow at each step of a training.

Idea: a scale of 2^k moves the exponents of all gradients by k. So one histogram of FP32 gradients
for each step shows the effect of any scale at that step, without another training. The window of
safe scales is between those that lose gradients and those that overflow, and moves while a network
learns.

Invariant: `lost` and `overflowing` are shares of the finite gradients other than zero. The map is
about the weights of the run that was watched: with another scale, the training would have led to
other weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.formats import FP16, FormatLike
from labkit.formats.arguments import require_kind
from labkit.instrument.fate import fate
from labkit.instrument.histogram import ExponentHistogram, merge, shift
from labkit.instrument.probe import GradSnapshot

# scales from 1 to 2^40: FP16 has 40 powers of two from its smallest number to its largest
LOG2_SCALES = range(41)


@dataclass(frozen=True, eq=False)
class ScaleMap:
    """Shares of gradients by step and loss scale, 0 to 1.

    Attributes:
        steps: numbers of the steps [n].
        log2_scales: exponents of the scales [k].
        lost: share that is rounded to zero [n, k].
        overflowing: share that is rounded to infinity [n, k]; one such gradient makes a scaler skip
            the step.
    """

    steps: NDArray[np.int64]
    log2_scales: NDArray[np.int64]
    lost: NDArray[np.float64]
    overflowing: NDArray[np.float64]

    def safe(self, tolerated: float = 0.01) -> NDArray[np.bool_]:
        """Return a mask [n, k] of the scales that overflow nothing and lose at most `tolerated`."""
        result: NDArray[np.bool_] = (self.overflowing == 0) & (self.lost <= tolerated)
        return result


def scale_row(
    histogram: ExponentHistogram,
    log2_scales: Sequence[int] = LOG2_SCALES,
    format: FormatLike = FP16,
) -> tuple[list[float], list[float]]:
    """Return the shares of a histogram's numbers that are lost, and that overflow, at each scale.

    >>> import torch
    >>> from labkit.instrument import exponent_histogram
    >>> h = exponent_histogram(torch.tensor([2.0**-30, 2.0**-2]))
    >>> scale_row(h, (0, 10, 20))
    ([0.5, 0.0, 0.0], [0.0, 0.0, 0.5])
    """
    require_kind(log2_scales, Sequence, "log2_scales", "Pass whole exponents, as range(41).")
    fates = [fate(shift(histogram, log2_scale), format) for log2_scale in log2_scales]
    return [each.underflowed for each in fates], [each.overflowed for each in fates]


def scale_map(
    snapshots: Iterable[GradSnapshot],
    log2_scales: Sequence[int] = LOG2_SCALES,
    format: FormatLike = FP16,
) -> ScaleMap:
    """Return the shares that each scale would lose and overflow, at the step of each snapshot.

    Args:
        snapshots: histograms of FP32 gradients, as `labkit.train.train(..., watch=[...])` records
            them. All are of one kind, since the windows of activation and weight gradients differ.
        log2_scales: whole exponents of the scales.
        format: format that the scaled gradients would be rounded to.

    Raises:
        ValueError: `snapshots` is empty, or holds several kinds.
    """
    require_kind(snapshots, Iterable, "snapshots", "Pass those of a record: record.snapshots.")
    all_snapshots = list(snapshots)
    for snapshot in all_snapshots:
        require_kind(snapshot, GradSnapshot, "a snapshot")
    kinds = sorted({snapshot.kind for snapshot in all_snapshots})
    if len(kinds) != 1:
        raise ValueError(
            f"scale_map: expected snapshots of one kind of gradients, got {kinds or 'none'}. "
            'Take those of one kind: [s for s in record.snapshots if s.kind == "weight gradients"].'
        )
    rows = [
        scale_row(merge(snapshot.layers.values()), log2_scales, format)
        for snapshot in all_snapshots
    ]
    return ScaleMap(
        steps=np.array([snapshot.step for snapshot in all_snapshots], dtype=np.int64),
        log2_scales=np.array(log2_scales, dtype=np.int64),
        lost=np.array([lost for lost, _ in rows]),
        overflowing=np.array([overflowing for _, overflowing in rows]),
    )
