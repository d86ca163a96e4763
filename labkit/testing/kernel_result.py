"""The result of a kernel beside the exact result, and what rounding allows of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.formats import FP16, FP32, FP64, Format, Overflow, Rounding, round_to, ulp
from labkit.testing.bound import Arithmetic, Floats
from labkit.testing.operation import Operation, Places


@dataclass(frozen=True, eq=False)
class KernelResult:
    """What a kernel returned.

    Attributes:
        got: the elements, flattened.
        exact: the exact result in FP64, flattened.
        operation: what the kernel was to compute.
        arithmetic: how it adds.
        out: format in which it stores.
        rounding: direction of the final rounding.
        overflow: what the final rounding makes of values beyond the format.
    """

    got: Floats
    exact: Floats
    operation: Operation
    arithmetic: Arithmetic
    out: Format
    rounding: Rounding
    overflow: Overflow

    def stored(self, values: Floats) -> Floats:
        """Round values as the kernel does when it stores."""
        if self.out == FP64:
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            # numpy's own rounding is faster
            if (
                self.out in (FP16, FP32)
                and self.rounding is Rounding.NEAREST_EVEN
                and self.overflow is Overflow.TO_INFINITY
            ):
                dtype = np.float16 if self.out == FP16 else np.float32
                return values.astype(dtype).astype(np.float64)
            return np.asarray(round_to(values, self.out, self.rounding, self.overflow), np.float64)

    def needs(self, got: Floats, exact: Floats) -> Floats:
        """Return the least errors before the final rounding that explain results.

        They are inf where none explains them.
        """
        with np.errstate(invalid="ignore"):
            needs = np.abs(got - exact)
            if self.out != FP64:
                needs = np.maximum(needs - self._rounds_from(got, exact), 0.0)
        # the difference of equal infinities is NaN, too
        same = np.isnan(got) & np.isnan(exact) | (got == exact)
        return np.where(np.isnan(needs), np.where(same, 0.0, np.inf), needs)

    def _rounds_from(self, got: Floats, exact: Floats) -> Floats:
        """Return from how far away, in the direction of the exact results, values round to `got`.

        In a direction that the final rounding does not come from, it is 0.
        """
        inward = np.where(got > 0, exact < got, exact > got) & (got != 0)
        # below a power of two, the values are half as far apart
        is_power = (np.frexp(np.abs(got))[0] == 0.5) & (np.abs(got) > self.out.smallest_normal)
        spacing = ulp(got, self.out) * np.where(inward & is_power, 0.5, 1.0)
        match self.rounding:
            case Rounding.TOWARD_ZERO:
                return np.where(inward, 0.0, spacing)
            case Rounding.TOWARD_POSITIVE:
                return np.where(exact < got, spacing, 0.0)
            case Rounding.TOWARD_NEGATIVE:
                return np.where(exact > got, spacing, 0.0)
            case Rounding.STOCHASTIC:
                return spacing
        return spacing / 2

    def outside(self, places: Places, bound: Floats) -> Places:
        """Return which of some elements lie outside of what rounding allows.

        Args:
            places: the elements to look at.
            bound: bound of the error before the final rounding, of all elements.
        """
        # an error within the bound cannot lie outside, and most errors are
        with np.errstate(invalid="ignore"):
            within_bound = np.abs(self.got[places] - self.exact[places]) <= bound[places]
        places = places[~within_bound]
        got = self.got[places]
        exact = self.exact[places]
        low = self.stored(exact - bound[places])
        high = self.stored(exact + bound[places])
        allowed = (low <= got) & (got <= high)
        # an end that overflows is NaN in a format without infinities, and so may the result be
        allowed |= np.isnan(got) & (np.isnan(low) | np.isnan(high))
        allowed |= np.isnan(high) & (low <= got)
        allowed |= np.isnan(low) & (got <= high)
        # where the exact result is NaN, NaN alone is right
        return places[~np.where(np.isnan(exact), np.isnan(got), allowed)]

    def wrong_zero_signs(self, nearest: Floats) -> int:
        """Return how many zeros have another sign than the exact result rounded once."""
        zeros = np.flatnonzero((self.got == 0) & (nearest == 0))
        differs = np.signbit(self.got[zeros]) != np.signbit(nearest[zeros])
        # the sign of a sum that is exactly 0 depends on the order of its terms
        is_known = (self.exact[zeros] != 0) | (self.operation.terms == 1)
        return int((differs & is_known).sum())
