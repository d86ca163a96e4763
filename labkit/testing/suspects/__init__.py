"""Explanations of a difference that rounding does not explain.

Each known fault is a hypothesis: another result, computed from the same operands. A hypothesis that
fits the kernel's result much better than the operation itself is a suspect. It is a hint, not a
proof.

- `search` asks all hypotheses about a result that is outside of its bound;
- `values`, `sums` and `noise` hold the hypotheses, by what they are computed from;
- `rival` looks for a fault where the result is within the bound.

Invariant: a hypothesis is named only if the differing elements that it was tried on fit it.
"""

from labkit.testing.suspects.rival import Rival, rival
from labkit.testing.suspects.search import suspects

__all__ = ["Rival", "rival", "suspects"]
