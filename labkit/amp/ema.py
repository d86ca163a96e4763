"""Which weights does an average follow, and in what is it kept?

Idea: an exponential moving average moves by a thousandth of the distance to the weights. That is a small update if
there ever was one: kept in FP16 with decay 0.999 it stands still while the weights are within about half of its own
size. So it is kept in FP32, and it follows the master weights, which move where their FP16 copies still wait.

Invariant: average = decay * average + (1 - decay) * master, in FP32, after every step that happened.

Source: Polyak and Juditsky 1992 (averaging); torch.optim.swa_utils.get_ema_multi_avg_fn (the rule).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from labkit.amp.engine import Engine
from labkit.amp.loss_scaling.scaler import StepReport


class Ema:
    """An exponential moving average of an engine's master weights.

    Args:
        engine: whose.
        decay: how much of the average stays in each step, 0 to below 1; 0.999 forgets over about 1,000 steps.

    Raises:
        ValueError: decay is out of its range.

    >>> from functools import partial
    >>> from labkit.amp import RECIPES
    >>> engine = Engine(torch.nn.Linear(1, 1, bias=False), partial(torch.optim.SGD, lr=1.0), RECIPES["O2"])
    >>> with torch.no_grad():
    ...     _ = engine.model.weight.fill_(1.0); engine.weights.adopt()
    >>> ema = Ema(engine, decay=0.75)
    >>> engine.weights.step([torch.tensor([[-0.5]])]); ema.update()
    >>> ema.averages["weight"].item()
    1.125
    """

    def __init__(self, engine: Engine, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay is 0 or more and below 1; it was given {decay!r}. 0.999 is usual.")
        self.engine, self.decay = engine, decay
        self.averages: dict[str, Tensor] = {n: m.float().clone() for n, m in engine.weights.named_masters().items()}

    @torch.no_grad()
    def update(self, report: StepReport | None = None) -> None:
        """Follow the master weights by one step; after a report of a step that did not happen, stay.

        Raises:
            ValueError: parameters were added to the optimizer since; make a new average.
        """
        if report is not None and not report.stepped:
            return
        masters = self.engine.weights.named_masters()
        if masters.keys() != self.averages.keys():
            raise ValueError(
                "the engine's trainable parameters are others than when this average began: make a new one"
            )
        followed = [masters[name].to(torch.float32) for name in self.averages]
        torch._foreach_lerp_(list(self.averages.values()), followed, 1 - self.decay)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Put the averages into the model, rounded to its format, and the weights back afterwards: to evaluate with.

        Raises:
            RuntimeError: inside, the engine steps or is saved.
        """
        with self.engine.weights.replaced_by(self.averages):
            yield

    def model(self) -> dict[str, Any]:
        """Return a plain FP32 state dict with the averages for weights; buffers are the model's of now."""
        return self.engine.fp32_model(self.averages)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes; it may stand in a checkpoint: `save(path, engine, ema=...)`."""
        return {"decay": self.decay, "averages": self.averages}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was saved.

        Raises:
            ValueError: it is of other parameters.
        """
        stored = state["averages"]
        if {n: t.shape for n, t in stored.items()} != {n: t.shape for n, t in self.averages.items()}:
            raise ValueError("this average is of another network: names or shapes of its parameters differ")
        self.decay = state["decay"]
        for name, average in self.averages.items():
            average.copy_(stored[name])
