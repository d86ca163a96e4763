"""Results that are finite and wrong: rounded differences, stagnant sums, bounds that round to 1.

Idea: some operations forgive no rounding of their input. The exponential of a difference of two
log-probabilities turns one ulp of them into a factor. To know that an input is such a difference,
or was bounded by a constant, the results of a few operations are followed through the next ones.

Invariant: a tensor is followed by a weak reference only, and through at most three operations.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

MOST_FOLLOWED = 3
# operations behind which a result is still followed
FOLLOWED = frozenset(
    (
        "_to_copy",
        "mul",
        "neg",
        "div",
        "clamp",
        "clamp_min",
        "clamp_max",
        "add",
        "sub",
        "rsub",
        "view",
        "_unsafe_view",
        "squeeze",
        "unsqueeze",
        "expand",
        "select",
        "slice",
        "alias",
        "sum",
    )
)
EXPONENTIALS = frozenset(
    (
        "exp",
        "exp2",
        "expm1",
        "log_sigmoid_forward",
        "sigmoid",
        "softplus",
        "binary_cross_entropy_with_logits",
    )
)
LEAST_ULP = 2.0**-4  # a smaller one changes an exponential by less than 6%
FEW_ULPS = 4
SCALAR_SUMS = frozenset(("add", "add_"))
# the operations that are looked at here at all
FORGIVES_NO_ROUNDING = FOLLOWED | EXPONENTIALS | SCALAR_SUMS


@dataclass(frozen=True)
class Origin:
    """Where a tensor comes from.

    Attributes:
        kind: "rounded" (cast from 16 bits), "difference" (of two rounded tensors) or "constant"
            (bounded by one).
        what: a description, with its line of code.
        ulp: the ulp of a difference's operands.
        left: the number of further operations that it is followed through.
    """

    kind: str
    what: str
    ulp: float = 0.0
    left: int = MOST_FOLLOWED


class Origins:
    """The origins of the tensors of a step."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Origin]] = {}

    def clear(self) -> None:
        """Forget all, at the end of a step."""
        self._known.clear()

    def note(self, tensor: Tensor, origin: Origin) -> None:
        """Record the origin of a tensor."""
        self._known[id(tensor)] = weakref.ref(tensor), origin

    def of(self, tensor: Tensor) -> Origin | None:
        """Return the origin of a tensor, or None."""
        reference, origin = self._known.get(id(tensor), (None, None))
        return origin if reference is not None and reference() is tensor else None

    def follow(self, name: str, inputs: list[Tensor], output: Tensor) -> None:
        """Pass the origin of an operation's inputs on to its result."""
        if name not in FOLLOWED:
            return
        for tensor in inputs:
            origin = self.of(tensor)
            if origin is not None and origin.left > 0 and self.of(output) is None:
                self.note(output, replace(origin, left=origin.left - 1))


def ulp_of(tensor: Tensor, dtype: torch.dtype) -> float:
    """Return the distance of the numbers of a dtype at a tensor's largest magnitude.

    >>> ulp_of(torch.tensor([-700.0, 1.0]), torch.bfloat16)
    4.0
    """
    largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
    if largest == 0 or not math.isfinite(largest):
        return 0.0
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest))


def difference(first: Tensor, second: Tensor, result: Tensor, dtype: torch.dtype) -> float:
    """Return the ulp of two rounded operands if their difference is mostly rounding, else 0."""
    ulp = max(ulp_of(first, dtype), ulp_of(second, dtype))
    if ulp < LEAST_ULP or not result.numel():
        return 0.0
    typical = float(result.detach().abs().float().median())
    return ulp if typical <= FEW_ULPS * ulp and bool(result.any()) else 0.0


def stagnates(before: float, added: float, after: float) -> bool:
    """Return whether adding a number that is not 0 has changed nothing."""
    return added != 0 and before != 0 and before == after and math.isfinite(before)


def rounds_to_one(number: float, dtype: torch.dtype) -> bool:
    """Return whether a bound just below or above 1 is 1 in a dtype.

    >>> rounds_to_one(1 - 1e-4, torch.float16), rounds_to_one(1 - 1e-3, torch.float16)
    (True, False)
    """
    return number != 1 and float(torch.tensor(number, dtype=dtype)) == 1
