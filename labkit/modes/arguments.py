"""Tensors in the arguments of a call: collecting them, and mapping a function over them.

Invariant: values that are not tensors are returned unchanged; a list or tuple is returned as a new
one of the same type, and a dict of any type as a plain dict.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among values, in order, including those in lists, tuples and dicts.

    >>> import torch
    >>> [len(tensor) for tensor in tensors_in((torch.ones(2), 3, [torch.ones(4)]))]
    [2, 4]
    """
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += tensors_in(value)
        elif isinstance(value, dict):
            tensors += tensors_in(value.values())
    return tensors


def are_plain(types: Iterable[type]) -> bool:
    """Return whether no class in `types` has a `__torch_function__` of its own.

    torch passes Tensor itself in `types` for functions written in Python, but not for those written
    in C.
    """
    return all(kind in (Tensor, nn.Parameter) for kind in types)


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Apply `change` to every tensor in the arguments, including those in lists, tuples and dicts.

    >>> import torch
    >>> mapped(([torch.ones(2)], 3), lambda t: t.dtype)
    ([torch.float32], 3)
    """
    if isinstance(value, Tensor):
        return change(value)
    if value is None:
        return None
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        items = [mapped(item, change) for item in value]
        if type(value) is list:
            return items
        # the class may take other arguments than a list
        same_type = copy.copy(value)
        same_type[:] = items
        return same_type
    if isinstance(value, tuple):
        items = [mapped(item, change) for item in value]
        is_named_tuple = hasattr(value, "_fields")
        return type(value)(*items) if is_named_tuple else type(value)(items)
    return value


def require_one_device(what: str, values: Iterable[Any], error: RuntimeError) -> None:
    """Raise an error that names the devices of tensors, if torch's error is about devices.

    Args:
        what: the name of the operation or the model.
        values: its arguments, and the model's weights.
        error: the error that torch raised.

    Raises:
        RuntimeError: `error` is about devices, and the tensors are on several.
    """
    devices = dict.fromkeys(str(tensor.device) for tensor in tensors_in(values))
    if len(devices) < 2 or error.__cause__ is not None or "device" not in str(error):
        return
    first, *others = devices
    where = (
        f"expected all tensors on one device, got some on {first} and others on {', '.join(others)}"
    )
    remedy = "Move the batch to where the weights are: batch.to(next(model.parameters()).device)."
    if "meta" in devices:
        remedy += (
            " Tensors on meta have shapes but no data: call model.to_empty(device=...), then load "
            "a state dict."
        )
    raise RuntimeError(f"{what}: {where}. {remedy}") from error
