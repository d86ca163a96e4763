"""Faults without a prediction of each element: only the size of their errors is known.

The operation is replayed with a narrower accumulator, or with another rounding of its additions. If
the errors of a replay have the size of the result's errors, the fault is named.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from labkit.formats import BF16, FP16, Rounding
from labkit.testing import orders
from labkit.testing.bound import Arithmetic, Floats
from labkit.testing.kernel_result import KernelResult
from labkit.testing.operation import Places
from labkit.testing.suspects.measures import root_mean_square

# Terms of the longest sums that are replayed with other accumulators.
LONGEST = 2**14
# The largest ratio of the errors of a result and of a fault's replay.
LARGEST_RATIO = 2.0


def fault_of_this_noise(result: KernelResult, places: Places) -> Iterator[str]:
    """Yield the fault whose errors have the size of the result's, if there is one.

    Args:
        result: the result of a kernel.
        places: places of finite elements, drawn at random, right and wrong ones.
    """
    got = result.got[places]
    exact = result.exact[places]
    size = root_mean_square(got - exact)
    if size == 0:
        # all drawn elements are exact, so the wrong ones are few and not errors of additions
        return
    share_wrong = float((got != result.stored(exact)).mean())
    # by how much the errors of a fault differ in size, as |log(ratio)|
    distances: dict[str, float] = {}
    for name, replays in _replays(result, places).items():
        for replay in replays:
            stored = result.stored(replay)
            distance = float(abs(np.log(root_mean_square(stored - exact) / size)))
            # errors of additions are in all elements: a fault in a few of them is another one
            share = float((stored != result.stored(exact)).mean())
            if share < 2 * share_wrong and np.isfinite(distance):
                distances[name] = min(distance, distances.get(name, np.inf))
    nearest = min(distances, key=distances.__getitem__, default="")
    if nearest and distances[nearest] < np.log(LARGEST_RATIO):
        yield f"{nearest}: the errors have this size"


def _replays(result: KernelResult, places: Places) -> dict[str, Floats]:
    """Return replays with each fault, [orders, places] before the final rounding, by name."""
    operation = result.operation
    replays: dict[str, Floats] = {}
    if operation.pairs is not None and operation.terms <= LONGEST:
        x, y = operation.pairs(places)
        for name, arithmetic in _other_accumulators(result.arithmetic).items():
            replays[name] = np.stack(list(orders.sums(x, y, arithmetic)))
    if operation.noisy is not None:
        replays |= operation.noisy(result.arithmetic, places)
    return replays


def _other_accumulators(how: Arithmetic) -> dict[str, Arithmetic]:
    """Return the arithmetic of narrower sums, and of sums that round toward zero, by name."""
    found = {
        f"sums in {format.name} instead of {how.format.name}": Arithmetic("", format)
        for format in (FP16, BF16)
        if format.precision < how.format.precision
    }
    # the additions of Tensor Cores round toward zero anyway
    if how.spec is None:
        toward_zero = Arithmetic("", how.format, Rounding.TOWARD_ZERO)
        found[f"additions that round toward zero in {how.format.name}"] = toward_zero
    return found
