"""What do the scales of a training remember from one step to the next?

Idea: a delayed scale needs the largest magnitudes of earlier steps, unit scaling one number of the first backward pass,
stochastic rounding its random numbers. All of it is here, under the weights' names, and is part of a checkpoint.

Invariant: a step's magnitudes join the history when the next step begins; looking changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import torch


class ScaleMemory:
    """The memory of one engine's scales.

    Args:
        steps: how many steps a history goes back.
        device: where the random numbers of stochastic rounding are drawn.
        seed: of stochastic rounding.
    """

    def __init__(self, steps: int, device: torch.device | str = "cpu", seed: int = 0) -> None:
        self.steps = steps
        self.history: dict[str, list[float]] = {}  # by weight and operand: the largest magnitudes, the oldest first
        self.largest: dict[str, float] = {}  # in this step
        self.loss_size = 0.0  # of UNIT: a gradient times the root of its layer's width, in the first backward pass
        self.generator = torch.Generator(device).manual_seed(seed)
        self.went_back = False  # a backward pass has come to a layer: the next region begins another step

    def earlier(self, key: str) -> float:
        """Return an operand's largest magnitude in earlier steps, 0 if there were none."""
        return max(self.history.get(key, ()), default=0.0)

    def note(self, key: str, size: float) -> None:
        """Note an operand's largest magnitude in this step."""
        self.largest[key] = max(size, self.largest.get(key, 0.0))

    def end_step(self) -> None:
        """Append this step's largest magnitudes to the history, if its backward pass has begun."""
        if not self.went_back:
            return
        for key, largest in self.largest.items():
            self.history[key] = [*self.history.get(key, ()), largest][-self.steps :]
        self.largest, self.went_back = {}, False

    def remembered(self) -> dict[str, Any]:
        """Return what other processes of one training are told: magnitudes of ended steps, and the loss's size."""
        self.end_step()
        return {"history": {key: list(values) for key, values in self.history.items()}, "loss_size": self.loss_size}

    def take_largest(self, every: Sequence[Mapping[str, Any]]) -> None:
        """Take, step by step, the largest magnitude that any process remembers; afterwards all remember the same."""
        keys = dict.fromkeys(key for each in every for key in each["history"])
        backward = {key: [each["history"].get(key, ())[::-1] for each in every] for key in keys}
        joined = {key: [*map(max, zip_longest(*lists, fillvalue=0.0))][::-1] for key, lists in backward.items()}
        self.history, self.loss_size = joined, max(each["loss_size"] for each in every)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let a forward and a backward pass leave what the scales remember as it is."""
        kept = self.history.copy(), self.largest.copy(), self.loss_size, self.went_back
        random = self.generator.get_state()
        try:
            yield
        finally:
            self.history, self.largest, self.loss_size, self.went_back = kept
            self.generator.set_state(random)

    def state_dict(self) -> dict[str, Any]:
        """Return what the scales remember, in plain values and tensors."""
        return self.remembered() | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; what cannot be read raises, and nothing has changed."""
        history = {str(key): [float(value) for value in values] for key, values in state["history"].items()}
        loss_size = float(state["loss_size"])
        self.generator.set_state(state["generator"].cpu())
        self.history, self.largest, self.loss_size, self.went_back = history, {}, loss_size, False
