"""Parts of gradients: the backward passes that added to them, and the loss scale of each.

Idea: each parameter has a list of the passes that have added to its gradient since it was cleared.
A pass has the number that its loss was multiplied by; a scaler's `unscale_` divides by it. When an
optimizer steps, the remaining factor must be 1, and no earlier step may have used the pass.

Invariant: a pass whose scale cannot be read from its graph is judged only where its gradients were
divided by the number that its loss was multiplied by (labkit.clinic.events looks for that).
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# the smallest power of two that is taken for a loss scale, and not for a weight
SURELY_SCALED = 2.0**8
# nodes of a graph between a loss that was scaled and the tensor that backward begins at, such as a
# sum of two losses
MOST_NODES = 40
# operations that such a tensor may have passed through
PASSED_THROUGH = frozenset(
    [
        *("Add", "Sub", "Div", "Mul", "Sum", "Mean", "ToCopy", "Stack"),
        *("View", "UnsafeView", "Squeeze", "Unsqueeze"),
    ]
)


@dataclass(frozen=True)
class Pass:
    """A backward pass.

    Attributes:
        scale: the loss scale, found near the tensor that backward began at; 1 without one, None if
            unknown.
        step: the number of the training step.
        line: the line of the user's code.
        last_factor: the number that the last operation before backward multiplied by, which may be
            a scale or a weight; None if it did not multiply by a number.
    """

    scale: float | None
    step: int
    line: str
    last_factor: float | None = None


@dataclass
class Part:
    """What one backward pass has added to the gradient of a parameter.

    Attributes:
        backward: the pass.
        divided: the number that scalers have divided the part by since.
        used: ids of the optimizers that have stepped with it, or skipped it.
    """

    backward: Pass
    divided: float = 1.0
    used: set[int] = field(default_factory=set)

    @property
    def remaining_scale(self) -> float | None:
        """The factor by which the part is too large; None if unknown."""
        if self.backward.scale is None:
            return None
        return self.backward.scale / self.divided


class GradientParts:
    """The parts of all gradients, by parameter."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Part]] = {}
        # of the gradients that a step has used: which tensor, and its version
        self._versions: dict[int, tuple[int, int]] = {}
        # ids of the parameters that ever got a gradient
        self.reached: set[int] = set()

    def of_parameter(self, parameter: Tensor) -> list[Part]:
        """Return the parts that were added to a gradient since it was last cleared."""
        return self._parts.get(id(parameter), [])

    def of_optimizer(self, optimizer: Any) -> Iterator[Part]:
        """Yield the parts of an optimizer's gradients."""
        for parameter in _parameters(optimizer):
            yield from self.of_parameter(parameter)

    def add(self, backward: Pass, reached: Iterable[Tensor], fresh: set[int]) -> None:
        """Add a pass to the parameters it reached.

        Args:
            backward: the pass.
            reached: the parameters.
            fresh: ids of the parameters whose gradient was clear before the pass.
        """
        for parameter in reached:
            if id(parameter) in fresh:
                self._parts.pop(id(parameter), None)
            if parameter.grad is not None:
                self.reached.add(id(parameter))
                self._parts.setdefault(id(parameter), []).append(Part(backward))

    def divide(self, optimizer: Any, scale: float) -> None:
        """Divide the gradients of an optimizer, as a scaler's `unscale_` does."""
        for part in self.of_optimizer(optimizer):
            part.divided *= scale

    def mark_used(self, optimizer: Any) -> None:
        """Mark the gradients of an optimizer as used by a step, or skipped."""
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                gradient = parameter.grad
                self._versions[id(parameter)] = (id(gradient), gradient._version)
            for part in self.of_parameter(parameter):
                part.used.add(id(optimizer))

    def forget_changed(self, parameters: Iterable[Tensor]) -> None:
        """Drop the parts of gradients that the script changed in place since a step used them.

        A script may decay its gradients on purpose, rather than clear them.
        """
        for parameter in parameters:
            tensor, version = self._versions.get(id(parameter), (0, 0))
            gradient = parameter.grad
            if gradient is None or id(gradient) != tensor or gradient._version == version:
                continue
            if all(part.used for part in self.of_parameter(parameter)):
                self._parts.pop(id(parameter), None)

    def forget(self, optimizer: Any) -> None:
        """Drop the parts of an optimizer's gradients, so that they are not judged.

        An engine unscales its gradients itself.
        """
        for parameter in _parameters(optimizer):
            self._parts.pop(id(parameter), None)

    def find_outlived(self, optimizer: Any) -> tuple[Pass, Pass] | None:
        """Return a pass that a step has used, and a later one that was added to it, or None."""
        for parameter in _parameters(optimizer):
            parts = self.of_parameter(parameter)
            used = [part for part in parts if id(optimizer) in part.used]
            new = [part for part in parts if id(optimizer) not in part.used]
            if used and new:
                return used[0].backward, new[-1].backward
        return None

    def find_mixed_scales(self, optimizer: Any) -> tuple[float, float] | None:
        """Return two powers of two by which one line multiplied the losses of one gradient."""
        for parameter in _parameters(optimizer):
            factor_of_line: dict[str, float] = {}
            for part in self.of_parameter(parameter):
                factor = part.backward.last_factor
                if id(optimizer) in part.used or factor is None or not _is_power_of_two(factor):
                    continue
                first = factor_of_line.setdefault(part.backward.line, factor)
                if first != factor:
                    return first, factor
        return None

    def find_scaled(self, optimizer: Any) -> Part | None:
        """Return a part that is too large or too small for the step that begins, or None."""
        for part in self.of_optimizer(optimizer):
            if id(optimizer) not in part.used and part.remaining_scale not in (None, 1):
                return part
        return None


def _parameters(optimizer: Any) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def is_cleared(parameter: Tensor) -> bool:
    """Return whether a gradient is None or zero everywhere."""
    gradient = parameter.grad
    if gradient is None:
        return True
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return not bool(values.any())


def scale_of(root: Tensor, known: Iterable[float]) -> float | None:
    """Return the loss scale in a graph: the scale of a scaler, or a power of two from 2^8 on.

    Args:
        root: the tensor that backward begins at.
        known: the scales that scalers have used in this step.

    Returns:
        1.0 if no multiplication by a number is near the root; None if one is, by a number that
        may be a scale or a weight of the loss.

    >>> weight = torch.ones((), requires_grad=True)
    >>> scale_of(1000.0 * (3 * weight), [1000.0]), scale_of(65536.0 * weight + 65536.0 * weight, [])
    (1000.0, 65536.0)
    >>> scale_of(3 * weight.sin().sum(), []), scale_of(weight.sin().sum(), [])
    (None, 1.0)
    >>> linear = torch.nn.Linear(1, 1)  # a factor inside of the network is not a loss scale
    >>> scale_of(linear(512.0 * weight[None]).sum(), [])
    1.0
    """
    scales = set(known)
    ahead = deque([root.grad_fn])
    seen = 0
    multiplied = False
    while ahead and seen < MOST_NODES:
        node: Any = ahead.popleft()
        if node is None:
            continue
        seen += 1
        name = operation_of(node)
        if name == "Mul":
            number = factor_of(node)
            if number is not None:
                surely = number >= SURELY_SCALED and _is_power_of_two(number)
                if number in scales or surely:
                    return number
                multiplied = True
        if name in PASSED_THROUGH:
            ahead.extend(following for following, _ in node.next_functions)
    return None if multiplied else 1.0


def last_factor_of(root: Tensor) -> float | None:
    """Return the number that a tensor was multiplied by last, or None.

    >>> last_factor_of(64.0 * torch.ones((), requires_grad=True))
    64.0
    """
    node = root.grad_fn
    if node is None or operation_of(node) != "Mul":
        return None
    return factor_of(node)


def operation_of(node: Any) -> str:
    """Return the operation of a node: "Sum" for SumBackward0 and SumBackward1."""
    return re.sub(r"Backward\d+$", "", node.name())


def factor_of(node: Any) -> float | None:
    """Return the number that a product's node multiplies by.

    It is None if both factors require gradients, if the other factor has several elements, or if
    the graph was freed.
    """
    try:
        saved = [getattr(node, name, None) for name in ("_saved_other", "_saved_self")]
    except RuntimeError:
        # the graph was freed; the backward pass itself will raise an error for that
        return None
    for value in saved:
        if isinstance(value, Tensor) and value.numel() == 1 and not value.requires_grad:
            return float(value)
        if isinstance(value, float | int) and not isinstance(value, bool):
            return float(value)
    return None


def _is_power_of_two(number: float) -> bool:
    # the significand of frexp is in [0.5, 1)
    return math.frexp(number)[0] == 0.5


def ratio_of(before: Tensor, after: Tensor) -> float | None:
    """Return the number that a gradient was multiplied by; None if it was not by a single one.

    >>> ratio_of(torch.tensor([2.0, 0.0, 4.0]), torch.tensor([1.0, 0.0, 2.0]))
    0.5
    >>> ratio_of(torch.ones(3), torch.zeros(3)), ratio_of(torch.ones(3), torch.tensor([0.0, 0, 1]))
    (0.0, None)
    """
    if before.shape != after.shape:
        return None
    if before.is_complex():
        before = torch.view_as_real(before)
        after = torch.view_as_real(after)
    old = before.detach().double()
    new = after.detach().double()
    # 0 stays 0, whatever it is multiplied by
    counted = old != 0
    if not bool(counted.any()) or bool((new[~counted] != 0).any()):
        return None
    ratios = new[counted] / old[counted]
    first = float(ratios.median())
    if not math.isfinite(first):
        return None
    # the others cannot be compared with 0 by division
    if first == 0:
        return None if bool(ratios.any()) else 0.0
    # each of the two FP16 gradients is rounded by up to 2^-11 of its size
    if bool((ratios / first - 1).abs().max() > 2.0**-10):
        return None
    return first
