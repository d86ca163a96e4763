"""Decisions and casts of autocast in a form that torch.compile can trace.

Idea: torch.compile traces the mode's own Python as a part of the model, and supports no
thread-local state, locks or caches there. So the rule of an operation is looked up by a function
that the compiler calls while it traces; the result is a constant of the graph. The edition of the
lists is an argument, so that a registration compiles the model again.

Invariant: the casts are those of the eager mode, except that a weight's cast is not cached, which
changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.amp.casting.lists import LISTS, rule_for
from labkit.modes import (
    ATTRIBUTE,
    calls_any,
    constant_in_graphs,
    is_composite,
    mapped,
    tensors_in,
)

_Change = Callable[[Tensor], Tensor]

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
CASTABLE = frozenset((torch.float16, torch.bfloat16, torch.float32, *EIGHT_BITS))


@constant_in_graphs
def rule_in_graphs(func: Callable[..., Any], edition: int) -> str:
    """Return the value of an operation's rule.

    Args:
        func: the operation.
        edition: `LISTS.edition`, so that torch.compile calls this again after a registration.
    """
    if type(func) is ATTRIBUTE:
        return "keep"
    return rule_for(getattr(func, "__name__", "")).rule.value


@constant_in_graphs
def looks_inside(func: Callable[..., Any], edition: int) -> bool:
    """Return whether a function of torch is Python code that may call an operation of the lists."""
    return is_composite(func) and calls_any(func, LISTS.names)


def cast_in_graph(rule: str, low: torch.dtype, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of an operation, cast by its rule.

    Args:
        rule: the value of the rule.
        low: the dtype that operations on the allow list are cast to.
        args: the arguments.
        kwargs: the keyword arguments.
    """
    to = torch.float32
    if rule == "allow":
        to = low
    elif rule == "promote":
        dtypes = [tensor.dtype for tensor in floats_in(args, kwargs)]
        if all(dtype == dtypes[0] for dtype in dtypes):
            return args, kwargs
    elif rule != "deny" and (
        kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args)
    ):
        # the call specifies a dtype, by name or by position
        return args, kwargs

    def change(tensor: Tensor) -> Tensor:
        return tensor.to(to) if tensor.dtype in CASTABLE else tensor

    return changed_in(args, kwargs, change)


def changed_in(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: _Change | None
) -> tuple[Any, dict[str, Any]]:
    """Return arguments with their tensors changed; a fast path, since this runs for each call."""
    if change is None:
        return args, kwargs
    changed = tuple(
        [change(value) if isinstance(value, Tensor) else mapped(value, change) for value in args]
    )
    if not kwargs:
        return changed, kwargs
    return changed, {key: mapped(value, change) for key, value in kwargs.items()}


def floats_in(args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that a rule applies to, in order."""
    return [tensor for tensor in tensors_in((*args, *kwargs.values())) if tensor.dtype in CASTABLE]
