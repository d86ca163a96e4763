"""How do a script's own models and optimizers come to do what amp does, with no other line of it changed?

Source: apex.amp._initialize and apex.amp._process_optimizer (what is refused, in-place patches).
"""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import Any

from torch import nn

from labkit.frameworks.apex.models import convert
from labkit.frameworks.apex.optimizers import Prepared
from labkit.frameworks.apex.properties import Properties


def change(models: list[nn.Module], optimizers: list[Any], properties: Properties, outputs: Any) -> None:
    """Change models, and let their optimizers go through what was prepared for them, as an opt level says."""
    for model in models:
        convert(model, properties, outputs)
    several = len(models) > 1
    named = [(f"{i}.{name}" if several else name, p) for i, m in enumerate(models) for name, p in m.named_parameters()]
    for optimizer in optimizers:
        patch(optimizer, Prepared(optimizer, {p: n for n, p in named}, masters=bool(properties.master_weights)))


def listed_optimizers(optimizers: Any) -> list[Any]:
    """Return the optimizers that `initialize` was given, as a list.

    Raises:
        TypeError: it was given something else.
        RuntimeError: one of them was here before.
    """
    listed = [] if optimizers is None else optimizers if isinstance(optimizers, list) else [optimizers]
    for optimizer in listed:
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
            raise TypeError(
                f"optimizers must be either a single optimizer or a list of optimizers; it was given {optimizer!r}."
            )
        if hasattr(optimizer, "_amp_stash"):
            raise RuntimeError(
                "A given optimizer should only be passed through amp.initialize once. Make a new one, over "
                "model.parameters() of a model in FP32."
            )
    return listed


def patch(optimizer: Any, prepared: Prepared) -> None:
    """Let the optimizer's own methods go through what was prepared, as apex patches them.

    Raises:
        RuntimeError: it was patched before.
    """
    optimizer._amp_stash = prepared

    @wraps(optimizer.step)  # with the mark that a schedule has left on it, if there was one before
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return prepared.step(*args, **kwargs)

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        prepared.zero_grad(*args, **kwargs)

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        prepared.add_param_group(param_group)

    for method in (step, zero_grad, add_param_group):  # bound, as schedulers of torch expect them
        if hasattr(optimizer, method.__name__):
            setattr(optimizer, method.__name__, MethodType(method, optimizer))
