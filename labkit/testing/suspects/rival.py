"""A known fault that fits a result within its bound far better than rounding lets it.

Let t be the exact result, h that of a fault, and s the size of a right kernel's error at an
element, of its orders and its final rounding. The part c of the fault in a result is the least
squares fit of got - t by h - t, each divided by s. It is near 0 for a right kernel and near 1 for
the fault. With I = sum ((h - t) / s)^2, errors that are independent change c by 1 / sqrt(I). A
fault is named if

- sqrt(I) >= 16, and 3/4 <= c <= 5/4: a right kernel of independent errors is 12 standard deviations
  away from that;
- |c| <= 1/4 for each replay in another order, for errors that are not independent: c is three times
  what they reach;
- the rest, got - h, is at most twice as large as the error of the worst replay.

Elements with the same exact result may have the same error, so they count once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from labkit.formats import FP64, Format, ulp
from labkit.testing.bound import Floats
from labkit.testing.operation import Operation, Places
from labkit.testing.suspects.measures import root_mean_square
from labkit.testing.suspects.sums import other_sums

# The smallest number of elements whose fit is evidence.
FEWEST = 32
# The largest number of terms of the sums of faults that are computed.
WORK = 2**17
# The least sqrt(I) of the module's text.
DEVIATIONS = 16.0
# Of the part of a fault, around 1; the largest part of a right kernel.
TOLERANCE = 0.25


@dataclass(frozen=True)
class Rival:
    """A known fault that fits a result better than the exact result does.

    Attributes:
        name: the fault.
        part: share of the fault in the result: 0 in a right one, 1 if it is the fault.
        reached: the largest part in a replay of the operation in other orders.
        times: how many times nearer than the exact result it is, in root mean square; inf if the
            result is that of the fault, to the bit.
    """

    name: str
    part: float
    reached: float
    times: float

    def __str__(self) -> str:
        fits = f"{self.times:.3g} times better than the exact result"
        if math.isinf(self.times):
            fits = "exactly"
        return (
            f"{self.name}; it fits {fits}: its part in the difference is {self.part:.3g}, "
            f"and at most {self.reached:.1g} in other orders"
        )


def rival(
    got: Floats,
    exact: Floats,
    replays: Floats,
    places: Places,
    operation: Operation,
    out: Format,
) -> Rival | None:
    """Return the known fault that fits a result far better than rounding lets it, if there is one.

    Args:
        got: the result, at some places that were drawn at random.
        exact: the exact result there.
        replays: results of right kernels there, as they are stored, in several orders [orders, n].
        places: the places in the flattened result.
        operation: what the kernel was to compute.
        out: format of the output.
    """
    with np.errstate(all="ignore"):
        usable = _distinct_and_finite(got, exact, replays)
        if usable.size < FEWEST:
            return None
        got = got[usable]
        exact = exact[usable]
        errors = replays[:, usable] - exact
        size = _error_size(errors, exact, out)
        nearest: tuple[float, Rival] | None = None
        for name, at, values in _rival_results(operation, places[usable]):
            found = _fit(
                name,
                difference=got[at] - exact[at],
                effect=values - exact[at],
                errors=errors[:, at],
                size=size[at],
            )
            if found is not None and (nearest is None or found[0] < nearest[0]):
                nearest = found
    return None if nearest is None else nearest[1]


def _distinct_and_finite(got: Floats, exact: Floats, replays: Floats) -> Places:
    """Return which elements to use: finite everywhere, each exact result once."""
    _, first = np.unique(exact, return_index=True)
    finite = np.isfinite(exact[first]) & np.isfinite(got[first])
    return first[finite & np.isfinite(replays[:, first]).all(0)]


def _error_size(errors: Floats, exact: Floats, out: Format) -> Floats:
    """Return s of the module's text; inf where no replay has an error.

    A rounding's error is distributed evenly over one unit in the last place, so its variance is
    ulp^2 / 12.
    """
    of_rounding = (exact * 2.0**-52) ** 2 if out == FP64 else ulp(exact, out) ** 2 / 12
    size = np.sqrt((errors**2).mean(0) + of_rounding)
    return np.where(size > 0, size, np.inf)


def _fit(
    name: str, difference: Floats, effect: Floats, errors: Floats, size: Floats
) -> tuple[float, Rival] | None:
    """Return how much of the difference a fault leaves, and the fault, or None if it does not fit.

    Args:
        name: the fault.
        difference: got - t [n].
        effect: h - t [n].
        errors: errors of the replays [orders, n].
        size: s [n].
    """
    scaled_effect = effect / size
    information = float((scaled_effect * scaled_effect).sum())
    if not np.isfinite(information) or information < DEVIATIONS**2:
        return None
    part = float((difference / size * scaled_effect).sum() / information)
    if abs(part - 1) > TOLERANCE:
        return None
    scaled_errors = errors / size
    reached = float(np.abs(scaled_errors @ scaled_effect / information).max())
    rest = root_mean_square(difference / size - scaled_effect)
    if reached > TOLERANCE or rest > 2 * max(map(root_mean_square, scaled_errors)):
        return None
    left = root_mean_square(difference - effect)
    times = root_mean_square(difference) / left if left else math.inf
    return rest, Rival(name, part, reached, times)


def _rival_results(operation: Operation, places: Places) -> Iterator[tuple[str, slice, Floats]]:
    """Yield names of faults, which of the places they are computed at, and their results."""
    if operation.others is not None:
        for name, values in operation.others(places).items():
            yield name, slice(None), values
    few = min(len(places), WORK // max(1, operation.terms))
    if operation.pairs is not None and few >= FEWEST:
        for name, values in other_sums(*operation.pairs(places[:few]), operation.formats):
            yield name, slice(0, few), values
