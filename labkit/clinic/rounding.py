"""Results that are finite and wrong: rounded differences, stagnant sums, bounds that round to 1.

Idea: some operations amplify the rounding of their input. The exponential of a difference of two
log-probabilities turns one ulp of them into a factor. To know that an input is such a difference,
or was bounded by a constant, the origin of a few results is passed on to what is computed from
them.

Invariant: a tensor is followed by a weak reference only, and through at most three operations.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace

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
# a smaller ulp changes an exponential by less than 7%, since exp(2^-4) is 1.064
LEAST_ULP = 2.0**-4
# a difference of at most this many ulps is mostly rounding
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
        left: the number of further operations through which it is passed on.
    """

    kind: str
    what: str
    ulp: float = 0.0
    left: int = MOST_FOLLOWED


class Origins:
    """The origins of the tensors of a step."""

    def __init__(self) -> None:
        # id of a tensor -> a reference to it, which tells it from a later tensor of the same id
        self._known: dict[int, tuple[weakref.ref[Tensor], Origin]] = {}

    def clear(self) -> None:
        """Forget all, at the end of a step."""
        self._known.clear()

    def note(self, tensor: Tensor, origin: Origin) -> None:
        """Record the origin of a tensor."""
        self._known[id(tensor)] = (weakref.ref(tensor), origin)

    def of(self, tensor: Tensor) -> Origin | None:
        """Return the origin of a tensor, or None."""
        if id(tensor) not in self._known:
            return None
        reference, origin = self._known[id(tensor)]
        if reference() is not tensor:
            return None
        return origin

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
    """Return the ulp of two rounded operands if their difference is mostly rounding, else 0.

    Args:
        first: the first operand.
        second: the second operand.
        result: their difference.
        dtype: the 16-bit dtype to which the operands were rounded.
    """
    ulp = max(ulp_of(first, dtype), ulp_of(second, dtype))
    if ulp < LEAST_ULP or not result.numel():
        return 0.0
    typical = float(result.detach().abs().float().median())
    # of a result with NaN the median is NaN, which no comparison holds for
    is_mostly_rounding = typical <= FEW_ULPS * ulp
    # a difference of equal tensors is exact
    if not is_mostly_rounding or not bool(result.any()):
        return 0.0
    return ulp


def stagnates(before: float, added: float, after: float) -> bool:
    """Return whether a sum is the same before and after a number other than 0 was added."""
    return added != 0 and before != 0 and before == after and math.isfinite(before)


def rounds_to_one(number: float, dtype: torch.dtype) -> bool:
    """Return whether a bound just below or above 1 is 1 in a dtype.

    >>> rounds_to_one(1 - 1e-4, torch.float16), rounds_to_one(1 - 1e-3, torch.float16)
    (True, False)
    """
    return number != 1 and float(torch.tensor(number, dtype=dtype)) == 1
