"""FP32 tensors with finite numbers that become infinite in a half format, such as masks.

A step whose forward pass cast such a tensor does not count: its infinities say nothing about the
loss scale. A tensor that is read makes the host wait for its device, so a step reads what it
assumed, in its one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labkit.amp.loss_scaling.unscale import largest_magnitude, read, stored

MOST_PENDING = 256


class RangeMemory:
    """A record of the kinds of FP32 tensors with finite numbers that a half format makes infinite.

    On a CPU, and while no gradients are recorded, each tensor is read. On another device the host
    waits for the first tensor of a kind. If it is within range, later ones are assumed to be, and
    their largest magnitudes stay on the device for the step to read (`pending`, `learn`). A kind
    beyond the range stays so. The magnitudes of a call of the model count only after a gradient has
    reached its outputs (`counts_with`), since some forward passes have no step.

    Args:
        look_always: wait for each tensor, on any device.
    """

    def __init__(self, *, look_always: bool = False) -> None:
        self.look_always = look_always
        self._beyond: dict[Hashable, bool] = {}
        self._pending: list[tuple[Hashable, torch.dtype, Tensor]] = []
        self._learnt = False  # a tensor beyond the range was found before `learn`

    def reaches(self, kind: Hashable, tensor: Any, dtype: torch.dtype) -> bool:
        """Return whether a kind of tensor, such as a first argument, exceeds a half format."""
        if not isinstance(tensor, Tensor) or tensor.dtype is not torch.float32 or tensor.is_meta:
            return False
        if self.look_always or tensor.device.type == "cpu" or not torch.is_grad_enabled():
            return reaches_beyond(tensor, dtype)
        known = self._beyond.get(kind)
        if known is None:
            known = reaches_beyond(tensor, dtype)
            self._beyond[kind] = known
        elif not known and stored(tensor).numel():
            # forward passes that no step follows
            if len(self._pending) >= MOST_PENDING:
                self._learnt = self.learn(read(self.pending))
            self._pending.append((kind, dtype, _largest_finite(tensor)))
        return known

    def counts_with(self, outputs: Iterable[Tensor], since: int) -> None:
        """Hold back magnitudes after the first `since` until a gradient reaches an output."""
        differentiable = [tensor for tensor in outputs if tensor.requires_grad]
        if len(self._pending) <= since or not differentiable:
            return
        held_back = self._pending[since:]
        del self._pending[since:]

        def count(_: Tensor) -> None:
            self._pending += held_back
            held_back.clear()

        for tensor in differentiable:
            tensor.register_hook(count)

    def forget(self) -> None:
        """Discard the magnitudes of a step whose gradients were cleared."""
        self._pending = []
        self._learnt = False

    @property
    def pending(self) -> list[Tensor]:
        """Magnitudes of tensors assumed to be within range, as scalars on their devices."""
        return [magnitude for _, _, magnitude in self._pending]

    def learn(self, magnitudes: Sequence[float]) -> bool:
        """Record the values of `pending` and clear it.

        Returns:
            Whether one of the tensors was beyond the range.
        """
        if not self._pending:
            any_beyond = self._learnt
            self._learnt = False
            return any_beyond
        both = zip(self._pending, magnitudes, strict=True)
        kinds = [kind for (kind, dtype, _), magnitude in both if magnitude >= infinite_from(dtype)]
        self._beyond.update(dict.fromkeys(kinds, True))
        any_beyond = bool(kinds) or self._learnt
        self._pending = []
        self._learnt = False
        return any_beyond


def reaches_beyond(mask: Any, dtype: torch.dtype) -> bool:
    """Whether an FP32 mask holds finite numbers that are infinite in a half format.

    >>> reaches_beyond(torch.tensor([0.0, torch.finfo(torch.float32).min]), torch.float16)
    True
    """
    if (
        not isinstance(mask, Tensor)
        or mask.dtype is not torch.float32
        or mask.is_meta
        or not stored(mask).numel()
    ):
        return False
    size = float(largest_magnitude(stored(mask.detach())))
    if not math.isfinite(size):
        size = float(_largest_finite(mask))
    return size >= infinite_from(dtype)


@cache
def infinite_from(dtype: torch.dtype) -> float:
    """Return the least number that becomes infinite in a half format.

    >>> infinite_from(torch.float16)
    65520.0
    """
    largest = torch.finfo(dtype).max
    # half an ulp: a tie goes to even
    return largest + math.ldexp(torch.finfo(dtype).eps, math.frexp(largest)[1] - 2)


@torch.no_grad()
def _largest_finite(tensor: Tensor) -> Tensor:
    """Return the largest magnitude among a tensor's finite numbers, a scalar on its device."""
    return largest_magnitude(stored(tensor.detach()).nan_to_num(0.0, 0.0, 0.0))
