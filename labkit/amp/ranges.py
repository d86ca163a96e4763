"""FP32 tensors with finite numbers that become infinite in a half format, such as masks.

A step whose forward pass cast such a tensor is left out, because its infinities say nothing about
the loss scale. Reading a tensor makes the host wait for its device. So the forward pass assumes
that tensors are within range, and the step checks these assumptions in its one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labkit.amp.loss_scaling.magnitudes import largest_magnitude, stored_values
from labkit.amp.loss_scaling.readings import read_scalars

# magnitudes that wait for a step, before they are read without one
MOST_PENDING = 256


class RangeMemory:
    """A record of the kinds of FP32 tensors with finite numbers that a half format makes infinite.

    On a CPU, and while no gradients are recorded, each tensor is read. On another device the host
    waits for the first tensor of a kind. If it is within range, later ones are assumed to be, and
    their largest magnitudes stay on the device for the step to read (`pending`, `record`). A kind
    that has exceeded the range once is not assumed to be within it again. The magnitudes of a call
    of the model count only after a gradient has reached its outputs (`hold_until_backward`), since
    some forward passes have no step.

    Args:
        check_every_tensor: wait for each tensor, on any device.
    """

    def __init__(self, *, check_every_tensor: bool = False) -> None:
        self.check_every_tensor = check_every_tensor
        # kind -> whether a tensor of this kind was beyond the range
        self._beyond: dict[Hashable, bool] = {}
        self._pending: list[tuple[Hashable, torch.dtype, Tensor]] = []
        # whether `reaches` has read a pending tensor beyond the range, which the next `record`
        # reports
        self._read_beyond = False

    def reaches(self, kind: Hashable, tensor: Any, dtype: torch.dtype) -> bool:
        """Return whether a tensor exceeds a half format, or is assumed to by its kind.

        Args:
            kind: what the tensor is used for, such as the first argument.
            tensor: the tensor; False is returned for anything but an FP32 tensor with data.
            dtype: the half dtype.
        """
        if not isinstance(tensor, Tensor) or tensor.dtype is not torch.float32 or tensor.is_meta:
            return False
        if self.check_every_tensor or tensor.device.type == "cpu" or not torch.is_grad_enabled():
            return reaches_beyond(tensor, dtype)
        if kind not in self._beyond:
            self._beyond[kind] = reaches_beyond(tensor, dtype)
        elif not self._beyond[kind] and stored_values(tensor).numel():
            # After many forward passes without a step, read what is pending, so that memory is
            # bounded.
            if len(self._pending) >= MOST_PENDING:
                self._read_beyond = self.record(read_scalars(self.pending))
            self._pending.append((kind, dtype, _largest_finite(tensor)))
            return False
        return self._beyond[kind]

    def hold_until_backward(self, outputs: Iterable[Tensor], since: int) -> None:
        """Remove the magnitudes after the first `since`, until a gradient reaches an output."""
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        if len(self._pending) <= since or not differentiable:
            return
        held_back = self._pending[since:]
        del self._pending[since:]

        def restore(_: Tensor) -> None:
            self._pending += held_back
            # a gradient that reaches another output adds nothing
            held_back.clear()

        for tensor in differentiable:
            tensor.register_hook(restore)

    def forget(self) -> None:
        """Discard the magnitudes of a step whose gradients were cleared."""
        self._pending = []
        self._read_beyond = False

    @property
    def pending(self) -> list[Tensor]:
        """Magnitudes of tensors assumed to be within range, as scalars on their devices."""
        return [magnitude for _, _, magnitude in self._pending]

    def record(self, magnitudes: Sequence[float]) -> bool:
        """Record the values of `pending` and clear it.

        Returns:
            Whether a tensor since the last step was beyond the range.
        """
        any_beyond = self._read_beyond
        for (kind, dtype, _), magnitude in zip(self._pending, magnitudes, strict=True):
            if magnitude >= infinite_from(dtype):
                self._beyond[kind] = True
                any_beyond = True
        self._pending = []
        self._read_beyond = False
        return any_beyond


def reaches_beyond(mask: Any, dtype: torch.dtype) -> bool:
    """Return whether an FP32 mask holds finite numbers that are infinite in a half format.

    Anything but an FP32 tensor with data has none.

    >>> reaches_beyond(torch.tensor([0.0, torch.finfo(torch.float32).min]), torch.float16)
    True
    """
    if (
        not isinstance(mask, Tensor)
        or mask.dtype is not torch.float32
        or mask.is_meta
        or not stored_values(mask).numel()
    ):
        return False
    size = float(largest_magnitude(stored_values(mask.detach())))
    if not math.isfinite(size):
        size = float(_largest_finite(mask))
    return size >= infinite_from(dtype)


@cache
def infinite_from(dtype: torch.dtype) -> float:
    """Return the least number that becomes infinite in a half format.

    >>> infinite_from(torch.float16)
    65520.0
    """
    # Half an ulp above the largest number is a tie, and a tie goes to even: to infinity.
    info = torch.finfo(dtype)
    _, exponent = math.frexp(info.max)
    return info.max + math.ldexp(info.eps, exponent - 2)


@torch.no_grad()
def _largest_finite(tensor: Tensor) -> Tensor:
    """Return the largest magnitude among a tensor's finite numbers, a scalar on its device."""
    return largest_magnitude(stored_values(tensor.detach()).nan_to_num(0.0, 0.0, 0.0))
