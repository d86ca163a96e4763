"""Mapping of a function over the tensors of any container: what a model takes and returns.

Idea: models take and return dataclasses, named tuples, subclasses of dict (Hugging Face's
`ModelOutput`) and namespaces. Each is copied with new tensors in the same places; other attributes
of it stay. A container in which no tensor changed is returned as it is.

Invariant: what cannot be entered is not changed, and `closed_values` names it: generators, and
objects of other classes that hold tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

Change = Callable[[Tensor], Tensor]


def mapped_anywhere(change: Change, values: Any) -> Any:
    """Return values with `change` applied to each tensor in any container.

    For plain tensors all modes are disabled.

    >>> mapped_anywhere(torch.Tensor.half, {"logits": torch.ones(2), "n": 2})["logits"].dtype
    torch.float16
    """
    with torch._C.DisableTorchFunction():
        if type(values) is Tensor:
            return change(values)
        if type(values) is tuple and all(type(value) is Tensor for value in values):
            return tuple([change(value) for value in values])
    return _mapped(change, values)


def _mapped(change: Change, value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    inside = _inside(value)
    if inside is None:
        return value
    new = {key: _mapped(change, item) for key, item in inside.items()}
    if all(new[key] is item for key, item in inside.items()):
        return value
    return _with(value, new)


def _inside(value: Any) -> dict[Any, Any] | None:
    """Return place -> what a container holds there; None for a value that is not entered."""
    if isinstance(value, dict | MutableMapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if _is_dataclass(value):
        names = [field.name for field in fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, SimpleNamespace):
        return dict(vars(value))
    if type(value) in _pytree.SUPPORTED_NODES:
        items, _ = _pytree.SUPPORTED_NODES[type(value)].flatten_fn(value)
        return dict(enumerate(items))
    return None


def _with(value: Any, new: dict[Any, Any]) -> Any:
    """Return a copy of a container with new values in the places that `_inside` named."""
    if isinstance(value, tuple):
        return _tuple_like(value, list(new.values()))
    if not isinstance(value, dict | MutableMapping | list | SimpleNamespace) and not _is_dataclass(
        value
    ):
        node = _pytree.SUPPORTED_NODES[type(value)]
        _, context = node.flatten_fn(value)
        return node.unflatten_fn(list(new.values()), context)
    copied = copy.copy(value)
    if isinstance(copied, dict | MutableMapping | list):
        for key, item in new.items():
            copied[key] = item
        return copied
    # a frozen dataclass refuses setattr, and slots have no __dict__
    for name, item in new.items():
        object.__setattr__(copied, name, item)
    return copied


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> Any:
    if hasattr(value, "_make"):
        return type(value)._make(items)
    # torch.return_types and subclasses of tuple are made of one sequence
    return type(value)(items)


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def closed_values(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each value that `mapped_anywhere` leaves as it is though it may hold tensors.

    These are generators and other iterators, and objects with a tensor among their attributes.

    >>> [place for place, _ in closed_values({"states": iter([1]), "loss": torch.ones(1)})]
    ["['states']"]
    """
    yield from _closed("", values)


def _closed(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | nn.Module | str | bytes | int | float | type(None)):
        return
    inside = _inside(value)
    if inside is not None:
        by_name = _is_dataclass(value) or isinstance(value, SimpleNamespace)
        for key, item in inside.items():
            yield from _closed(f"{place}.{key}" if by_name else f"{place}[{key!r}]", item)
    elif isinstance(value, Iterator) or _holds_tensor(value):
        yield place, value


def _holds_tensor(value: Any) -> bool:
    attributes = getattr(value, "__dict__", {})
    return any(isinstance(item, Tensor) for item in attributes.values())
