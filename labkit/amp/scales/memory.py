"""What the scales of a training remember from one step to the next.

A delayed scale needs the largest magnitudes of earlier steps, unit scaling one number of the first backward pass,
stochastic rounding its random numbers. All of it is kept here, under the weights' names, and is part of a checkpoint.
Magnitudes and scales stay on the device that they were computed on; only a checkpoint waits for them.

Invariant: a step's magnitudes join the history when the next step begins; looking changes nothing.

Source: NVIDIA Transformer Engine, common/recipe/delayed_scaling.cu (a history of zeros keeps the scale as it is).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labkit.amp.masters.without_master import restore
from labkit.formats import FP32


class ScaleMemory:
    """The memory of one engine's scales.

    Args:
        steps: how many steps a history goes back.
        device: where the random numbers of stochastic rounding are drawn.
        seed: of stochastic rounding.
    """

    def __init__(self, steps: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.steps = steps
        self.loss_size = 0.0  # of UNIT: a gradient times the root of its layer's width, in the first backward pass
        self.generator = torch.Generator(device).manual_seed(seed)
        self.went_back = False  # a backward pass has come to a layer: the next region begins another step
        self._history: dict[str, Tensor] = {}  # by weight and operand: the largest magnitudes, the oldest first
        self._largest: dict[str, tuple[Tensor, float]] = {}  # in this step; and where the format ends
        self._scales: dict[str, Tensor] = {}  # that follow from the history

    def scale(self, key: str, top: float) -> Tensor | float:
        """Return the scale that brings an operand's largest magnitude of earlier steps to `top`; 1 if there is none."""
        if key not in self._scales and key in self._history:
            size = float(self._history[key].max())  # of a checkpoint: one look, in the first step after it
            value = float(np.float32(min(top / size, FP32.max))) if size else 1.0
            self._scales[key] = torch.full((), value, device=self._history[key].device)
        return self._scales.get(key, 1.0)

    def note(self, key: str, size: Tensor, top: float) -> None:
        """Note an operand's largest magnitude in this step, a scalar on its device."""
        before = self._largest.get(key)
        self._largest[key] = (size if before is None else torch.maximum(before[0], size), top)

    def end_step(self) -> None:
        """Append this step's largest magnitudes to the history, if its backward pass has begun."""
        if not self.went_back:
            return
        groups: dict[tuple[torch.device, float, int], list[str]] = {}
        for key, (size, top) in self._largest.items():
            known = len(self._history[key]) if key in self._history else 0
            groups.setdefault((size.device, top, known), []).append(key)
        for (device, top, known), keys in groups.items():
            self._append(keys, device, top, known)
        self._largest, self.went_back = {}, False

    @torch.no_grad()
    def _append(self, keys: list[str], device: torch.device, top: float, known: int) -> None:
        """Append magnitudes to histories of one length, all at once, and compute the scales that follow."""
        now = torch.stack([self._largest[key][0] for key in keys])[:, None]
        if known:
            before = torch.stack([self._history[key].to(device) for key in keys])
            now = torch.cat([before, now], 1)[:, -self.steps :]
        earlier = [self.scale(key, top) for key in keys]
        kept = torch.stack([s.to(device) if isinstance(s, Tensor) else torch.ones((), device=device) for s in earlier])
        largest = now.amax(1)
        scales = torch.where(largest > 0, quotient(top, largest), kept)
        for key, row, scale in zip(keys, now, scales, strict=True):
            self._history[key], self._scales[key] = row, scale

    @property
    def history(self) -> dict[str, list[float]]:
        """The largest magnitudes of earlier steps, by weight and operand, on the host."""
        return {key: row.tolist() for key, row in self._history.items()}

    @history.setter
    def history(self, values: Mapping[str, Sequence[float]]) -> None:
        devices = {key: scale.device for key, scale in self._scales.items()}
        self._history = {k: torch.tensor(list(v), device=devices.get(k, "cpu")) for k, v in values.items() if len(v)}
        self._scales = {key: scale for key, scale in self._scales.items() if not any(values.get(key, ()))}

    def remembered(self) -> dict[str, Any]:
        """Return what the processes of one training exchange: magnitudes of ended steps, and the loss's size."""
        self.end_step()
        return {"history": self.history, "loss_size": self.loss_size}

    def take_largest(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Take, step by step, the largest magnitude that any process remembers; afterwards all remember the same."""
        keys = dict.fromkeys(key for each in every for key in each["history"])
        backward = {key: [each["history"].get(key, ())[::-1] for each in every] for key in keys}
        self.history = {key: [*map(max, zip_longest(*lists, fillvalue=0.0))][::-1] for key, lists in backward.items()}
        self.loss_size = max(each["loss_size"] for each in every)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let a forward and a backward pass leave what the scales remember as it is."""
        kept = dict(self._history), dict(self._scales), dict(self._largest), self.loss_size, self.went_back
        random = self.generator.get_state()
        try:
            yield
        finally:
            self._history, self._scales, self._largest, self.loss_size, self.went_back = kept
            self.generator.set_state(random)

    def state_dict(self) -> dict[str, Any]:
        """Return what the scales remember, in plain values and tensors."""
        self.end_step()
        scales = {key: float(scale) for key, scale in self._scales.items() if not self._history[key].any()}
        kept = {"scales": scales} if scales else {}  # those that do not follow from their history, of zeros
        return self.remembered() | kept | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; what cannot be read raises, and nothing has changed."""
        history = {str(key): [float(value) for value in values] for key, values in state["history"].items()}
        scales = {str(key): torch.tensor(float(value)) for key, value in state.get("scales", {}).items()}
        loss_size = float(state["loss_size"])
        restore(self.generator, state["generator"])
        self.history, self.loss_size, self._largest, self.went_back = history, loss_size, {}, False
        self._scales = scales


def quotient(top: float, sizes: Tensor) -> Tensor:
    """Return top / sizes in FP32, rounded once and at most FP32's largest number; that of size 0, too."""
    return torch.div(_number(top, sizes.device), sizes).clamp_(max=FP32.max)


@cache
def _number(value: float, device: torch.device) -> Tensor:
    """Return a number on a device. One of the host's would be multiplied by the reciprocal of what divides it."""
    return torch.full((), value, device=device)
