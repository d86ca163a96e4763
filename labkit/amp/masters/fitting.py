"""Which parameters and optimizers can have master weights?"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

NOT_ELEMENTWISE = (torch.optim.Adafactor, torch.optim.Muon)  # what they do depends on where a tensor ends


def require_shapes(names: Mapping[nn.Parameter, str]) -> None:
    """Refuse a lazy layer's parameters, which have no shape before the first batch."""
    lazy = [name for parameter, name in names.items() if nn.parameter.is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"parameter {lazy[0]!r} of a lazy layer has no shape yet, so it can have no master. Call the model once, "
            "on one batch, before this."
        )


def require_fitting(optimizer: torch.optim.Optimizer, flat: bool, given: Sequence[Tensor] = ()) -> None:
    """Refuse an optimizer whose step needs a closure, that does not step what it was given, or not a flat master."""
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"{name} evaluates the loss several times inside its step, and a scaled loss cannot be unscaled or skipped "
            "in there. Take an optimizer that steps once (SGD, Adam ...), or train in FP32 with a plain torch loop."
        )
    stepped, own = {id(p) for group in optimizer.param_groups for p in group["params"]}, {id(p) for p in given}
    if own - stepped and stepped - own:
        raise ValueError(
            f"this {name} steps {len(stepped - own)} tensors that it was not given, the model's own perhaps, and not "
            f"{len(own - stepped)} masters, which would never move. Make it of what comes in: lambda weights: "
            f"{name}(weights, lr=0.1)."
        )
    if flat and isinstance(optimizer, NOT_ELEMENTWISE):
        raise ValueError(
            f"{name} looks at each parameter's shape, so one flat tensor is another problem to it. Take flat=False."
        )
