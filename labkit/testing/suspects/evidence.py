"""What a hypothesis is tried on: a result, and the elements that rounding does not explain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from labkit.testing.bound import Floats
from labkit.testing.kernel_result import KernelResult
from labkit.testing.operation import Places

# names of faults, and the results before the final rounding that they predict
Candidates: TypeAlias = Iterator[tuple[str, Floats]]
# The share of the elements that a fault must explain to fit.
SHARE_EXPLAINED = 0.9


@dataclass(frozen=True, eq=False)
class Evidence:
    """A result that rounding does not explain.

    Attributes:
        result: what the kernel returned, beside the exact result.
        bound: bound of the error before the final rounding, of each element.
        wrong: places of the elements that rounding does not explain.
        tried: some of these places. What a fault predicts is computed for them alone, since it may
            take all terms of their sums.
    """

    result: KernelResult
    bound: Floats
    wrong: Places
    tried: Places

    @property
    def got(self) -> Floats:
        """The wrong elements of the result."""
        return self.result.got[self.wrong]

    @property
    def exact(self) -> Floats:
        """The exact results of the wrong elements."""
        return self.result.exact[self.wrong]

    def explains(self, predicted: Floats, places: Places, bounds: float = 2.0) -> bool:
        """Whether a fault that predicts these values explains nearly all elements at `places`.

        Args:
            predicted: results of a kernel with the fault, before the final rounding [places].
            places: places in the flattened result.
            bounds: how many times the error bound the kernel may be away from the prediction.
        """
        got = self.result.got[places]
        allowed = bounds * self.bound[places]
        low = self.result.stored(predicted - allowed)
        high = self.result.stored(predicted + allowed)
        return float(((low <= got) & (got <= high)).mean()) > SHARE_EXPLAINED
