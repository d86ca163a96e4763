"""Which parameters and optimizers can have master weights?"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch
from torch import nn

NOT_ELEMENTWISE = (torch.optim.Adafactor, torch.optim.Muon)  # what they do depends on where a tensor ends


def require_shapes(names: Mapping[nn.Parameter, str]) -> None:
    """Refuse a lazy layer's parameters, which have no shape before the first batch."""
    lazy = [name for parameter, name in names.items() if nn.parameter.is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"parameter {lazy[0]!r} of a lazy layer has no shape yet, so it can have no master. Call the model once, "
            "on one batch, before this."
        )


def require_fitting(optimizer: torch.optim.Optimizer, flat: bool) -> None:
    """Refuse an optimizer whose step needs a closure, or that a flat master would give another problem."""
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{name} evaluates the loss several times inside its step, and a scaled loss cannot be unscaled or skipped "
            "in there. Take an optimizer that steps once (SGD, Adam ...), or train in FP32 with a plain torch loop."
        )
    if flat and isinstance(optimizer, NOT_ELEMENTWISE):
        raise ValueError(
            f"{name} looks at each parameter's shape, so one flat tensor is another problem to it. Take flat=False."
        )
