"""Exponential moving average of the master weights, in FP32.

Idea: with decay 0.999 each update is a thousandth of the distance to the weights. In FP16 such an
update rounds to zero while the distance is below a quarter to a half of the average's size. So the
average is stored in FP32. It follows the master weights, because they hold updates that are too
small to change their FP16 copies.

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
        decay: the weight of the old average in each step, 0 <= decay < 1; 0.999 averages about
            1,000 steps.

    Raises:
        ValueError: decay is outside of its range.

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
        _require_decay(decay)
        self.engine = engine
        # torch.load refuses a checkpoint with a number of numpy
        self.decay = float(decay)
        self.averages: dict[str, Tensor] = {
            name: master.float().clone() for name, master in engine.weights.named_masters().items()
        }

    @torch.no_grad()
    def update(self, report: StepReport | None = None) -> None:
        """Add the current master weights to the average.

        Args:
            report: the report of the last step. If the step was skipped, the average stays.

        Raises:
            ValueError: parameters were added to the optimizer after the average was constructed.
        """
        if report is not None and not report.stepped:
            return
        masters = self.engine.weights.named_masters()
        if masters.keys() != self.averages.keys():
            raise ValueError(
                "the engine's trainable parameters have changed since this average was "
                "constructed: construct a new one"
            )
        new = [masters[name].to(torch.float32) for name in self.averages]
        torch._foreach_lerp_(list(self.averages.values()), new, 1 - self.decay)

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Replace the model's weights by the averages for a `with` block that evaluates.

        The averages are rounded to the model's format.

        Raises:
            RuntimeError: the engine is stepped or saved inside the block.
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
            ValueError: the names or shapes of the parameters differ, or the decay is out of its
                range; nothing has changed then.
        """
        _require_decay(state["decay"])
        new_averages = state["averages"]
        new_shapes = {name: average.shape for name, average in new_averages.items()}
        own_shapes = {name: average.shape for name, average in self.averages.items()}
        if new_shapes != own_shapes:
            raise ValueError(
                "this average is of another network: names or shapes of its parameters differ"
            )
        self.decay = float(state["decay"])
        for name, average in self.averages.items():
            average.copy_(new_averages[name])


def _require_decay(decay: float) -> None:
    """Raise an error unless a decay is a number from 0 to below 1."""
    require_kind(decay, (int, float), "decay")
    if not 0 <= decay < 1:
        raise ValueError(f"expected 0 <= decay < 1, got {decay!r}; 0.999 is usual")
