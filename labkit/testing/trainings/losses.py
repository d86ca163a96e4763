"""Losses of trainings side by side: the band of healthy runs, and the step where two losses part.

Runs from other seeds have other losses in each step, but similar means over several steps. So the
band is one of means over windows of steps. It reaches 5 standard deviations of the healthy runs to
both sides of their mean. Since a few runs may agree in one window by chance, the deviation of a
window is at least the root mean square of all windows' deviations, relative to their means.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from labkit.instrument.recording import RecordedStep, Recording

# The largest number of windows of a training.
WINDOWS = 8
# The half width of the band, in standard deviations.
DEVIATIONS = 5.0
# The smallest margin, as a share of the mean loss.
LEAST_MARGIN = 0.02
# The smallest number of losses that show a trend.
FEWEST = 6
# Losses have parted if their distance exceeds this share of the mean loss.
PARTED = 0.5


@dataclass(frozen=True, eq=False)
class LossBand:
    """The losses of healthy runs in windows of steps.

    Attributes:
        starts: The first step of each window, and the end of the last one.
        low: The lower edge in each window.
        high: The upper edge in each window.
    """

    starts: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def contains(self, run: Recording) -> bool:
        """Return whether the losses of a run are within the band."""
        return self.first_outside(run) is None

    def first_outside(self, run: Recording) -> int | None:
        """Return the first step of the first window in which the losses of a run are outside."""
        means = _means(run, self.starts)
        for start, mean, low, high in zip(
            self.starts[:-1], means, self.low, self.high, strict=True
        ):
            # A window without a loss is not judged; one with NaN is outside.
            if mean is not None and not low <= mean <= high:
                return start
        return None


def loss_band(healthy: Sequence[Recording]) -> LossBand | None:
    """Return the band of healthy runs, or None if they have no losses."""
    numbers = sorted(
        {step.step for run in healthy for step in run.sampled if step.loss is not None}
    )
    if not numbers:
        return None
    parts = np.array_split(numbers, min(WINDOWS, len(numbers)))
    starts = (*(int(part[0]) for part in parts), numbers[-1] + 1)
    # For each window, the finite means of the healthy runs.
    windows = [
        np.array([mean for mean in means if mean is not None and math.isfinite(mean)])
        for means in zip(*(_means(run, starts) for run in healthy), strict=True)
    ]
    relative = [_deviation(w) / abs(np.mean(w)) for w in windows if len(w) > 1 and np.mean(w)]
    pooled = math.sqrt(float(np.mean(np.square(relative)))) if relative else 0.0
    low = []
    high = []
    for window in windows:
        if not len(window):
            low.append(-math.inf)
            high.append(math.inf)
            continue
        mean = float(np.mean(window))
        # A further run deviates from a mean of n runs by sqrt(1 + 1/n) standard deviations.
        deviation = max(_deviation(window), pooled * abs(mean)) * math.sqrt(1 + 1 / len(window))
        margin = max(DEVIATIONS * deviation, LEAST_MARGIN * abs(mean))
        low.append(mean - margin)
        high.append(mean + margin)
    return LossBand(starts, tuple(low), tuple(high))


def _deviation(values: NDArray[np.float64]) -> float:
    """Return the standard deviation of a sample, 0.0 for a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _means(run: Recording, starts: Sequence[int]) -> list[float | None]:
    """Return the mean loss of a run in each window, None for a window without a loss."""
    means: list[float | None] = []
    for start, end in pairwise(starts):
        losses = [s.loss for s in run.sampled if start <= s.step < end and s.loss is not None]
        means.append(sum(losses) / len(losses) if losses else None)
    return means


def losses_part(
    steps: Iterable[tuple[RecordedStep, RecordedStep]],
) -> tuple[int, str] | None:
    """Return the step from which two losses stay far apart, and a sentence; None if they do not.

    Both trainings have the same batches, so their losses rise and fall together. They part where
    one is inf or NaN, or if their mean difference in the last third exceeds half of the loss and
    five times its own standard error.
    """
    both = [
        (ours.step, ours.loss, theirs.loss)
        for ours, theirs in steps
        if ours.loss is not None and theirs.loss is not None
    ]
    for step, one, other in both:
        if math.isfinite(one) != math.isfinite(other):
            which = "the other run" if math.isfinite(one) else "the baseline"
            return step, f"the loss is inf or NaN in {which} only"
    finite = [each for each in both if math.isfinite(each[1]) and math.isfinite(each[2])]
    if len(finite) < 3 * FEWEST:
        return None
    last = finite[-(len(finite) // 3) :]
    ours: NDArray[np.float64] = np.array([each[1] for each in last])
    theirs: NDArray[np.float64] = np.array([each[2] for each in last])
    apart = theirs - ours
    mean = float(np.mean(np.abs(np.stack([ours, theirs]))))
    noise = float(np.std(apart)) / math.sqrt(len(apart))
    gap = abs(float(np.mean(apart)))
    if gap <= PARTED * mean or gap <= DEVIATIONS * noise:
        return None
    apart_at = [
        step for step, one, other in finite if abs(other - one) > PARTED * max(abs(one), abs(other))
    ]
    begins = apart_at[0] if apart_at else last[0][0]
    reason = (
        f"the losses part: in the last third {float(np.mean(theirs)):.3g} instead of "
        f"{float(np.mean(ours)):.3g}, and no sampled tensor shows where it began"
    )
    return begins, reason
