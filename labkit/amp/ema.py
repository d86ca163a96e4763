"""Exponential moving average of the master weights, in FP32.

Idea: with decay 0.999 each update is a thousandth of the distance to the weights. In FP16 such an
update rounds to zero while the weights are within about half of the average's size. So the average
is stored in FP32. It follows the master weights, because updates that their FP16 copies do not show
yet are in them.

Invariant: average = decay * average + (1 - decay) * master, in FP32, after every step that
happened.

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
from labkit.formats.arguments import require_kind


class Ema:
    """An exponential moving average of an engine's master weights.

    Args:
        engine: the engine whose masters are averaged.
        decay: the weight of the old average in each step, from 0 to below 1; 0.999 averages about
            1,000 steps.

    Raises:
        ValueError: decay is out of its range.

    >>> from functools import partial
    >>> from labkit.amp import RECIPES
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> engine = Engine(model, partial(torch.optim.SGD, lr=1.0), RECIPES["O2"])
    >>> with torch.no_grad():
    ...     _ = engine.model.weight.fill_(1.0); engine.weights.adopt()
    >>> ema = Ema(engine, decay=0.75)
    >>> engine.weights.step([torch.tensor([[-0.5]])]); ema.update()
    >>> ema.averages["weight"].item()
    1.125
    """

    def __init__(self, engine: Engine, decay: float = 0.999) -> None:
        require_kind(engine, Engine, "engine", "Make one: Engine(model, make_optimizer, recipe)")
        require_kind(decay, (int, float), "decay")
        if not 0 <= decay < 1:
            raise ValueError(f"expected 0 <= decay < 1, got {decay!r}; 0.999 is usual")
        self.engine = engine
        self.decay = decay
        self.averages: dict[str, Tensor] = {
            n: m.float().clone() for n, m in engine.weights.named_masters().items()
        }

    @torch.no_grad()
    def update(self, report: StepReport | None = None) -> None:
        """Average in the current master weights, unless `report` says that the step was skipped.

        Raises:
            ValueError: parameters were added to the optimizer since; make a new average.
        """
        if report is not None and not report.stepped:
            return
        masters = self.engine.weights.named_masters()
        if masters.keys() != self.averages.keys():
            raise ValueError(
                "the engine's trainable parameters are others than when this average began: make a "
                "new one"
            )
        new = [masters[name].to(torch.float32) for name in self.averages]
        torch._foreach_lerp_(list(self.averages.values()), new, 1 - self.decay)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Replace the model's weights by the averages for a `with` block that evaluates.

        The averages are rounded to the model's format.

        Raises:
            RuntimeError: inside the block, the engine steps or is saved.
        """
        with self.engine.weights.replaced_by(self.averages):
            yield

    def model(self) -> dict[str, Any]:
        """Return a plain FP32 state dict: the averages as weights, the model's current buffers."""
        return self.engine.fp32_model(self.averages)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes.

        A checkpoint may hold it: `save(path, engine, ema=...)`.
        """
        return {"decay": self.decay, "averages": self.averages}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state.

        Raises:
            ValueError: the state is of other parameters.
        """
        stored = state["averages"]
        if {n: t.shape for n, t in stored.items()} != {
            n: t.shape for n, t in self.averages.items()
        }:
            raise ValueError(
                "this average is of another network: names or shapes of its parameters differ"
            )
        self.decay = state["decay"]
        for name, average in self.averages.items():
            average.copy_(stored[name])
