"""Mapping of a function over the tensors of any container: what a model takes and returns.

Idea: models take and return dataclasses, named tuples, subclasses of dict (Hugging Face's
`ModelOutput`) and namespaces. Each is copied with new tensors in the same places; its other
attributes stay. A container in which no tensor changed is returned itself.

Invariant: generators, and objects of other classes that hold tensors, are not changed, and
`closed_values` names them.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Copied:
    """A copied dataclass or namespace: the original, its copy, and the copy's first content."""

    original: Any
    copy: Any
    fields: dict[str, Any]

    def write_back(self, change: Change) -> None:
        """Set the fields that were replaced in the copy in the original, with `change` applied."""
        for name, first in self.fields.items():
            now = getattr(self.copy, name, first)
            if now is not first:
                # a frozen dataclass refuses setattr
                object.__setattr__(self.original, name, mapped_anywhere(change, now))


def mapped_anywhere(change: Change, values: Any, copies: list[Copied] | None = None) -> Any:
    """Return values with `change` applied to each tensor in any container.

    For plain tensors all modes are disabled.

    Args:
        change: a function of a tensor.
        values: tensors, containers of them, and anything else.
        copies: receives the dataclasses and namespaces that were copied.

    >>> mapped_anywhere(torch.Tensor.half, {"logits": torch.ones(2), "n": 2})["logits"].dtype
    torch.float16
    """
    with torch._C.DisableTorchFunction():
        if type(values) is Tensor:
            return change(values)
        if type(values) is tuple and all(type(value) is Tensor for value in values):
            return tuple([change(value) for value in values])
    return _mapped(change, values, [] if copies is None else copies, ())


def _mapped(change: Change, value: Any, copies: list[Copied], path: tuple[int, ...]) -> Any:
    """Return a value with its tensors changed.

    Args:
        change: a function of a tensor.
        value: the value.
        copies: receives the dataclasses and namespaces that were copied.
        path: the ids of the containers that the value is inside of.
    """
    if isinstance(value, Tensor):
        return change(value)
    inside = _inside(value)
    # an id in the path is a cycle, such as a node and its parent
    if inside is None or id(value) in path:
        return value
    path = (*path, id(value))
    new = {key: _mapped(change, item, copies, path) for key, item in inside.items()}
    changed = {key: item for key, item in new.items() if item is not inside[key]}
    if not changed:
        return value
    copied = _with(value, new, changed)
    if _has_fields(value):
        copies.append(Copied(value, copied, new))
    return copied


def _inside(value: Any) -> dict[Any, Any] | None:
    """Return key -> item of a container, or None for a value that is not a known container."""
    if isinstance(value, dict | UserDict) or _copies_itself(value):
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


def _copies_itself(value: Any) -> bool:
    """Return whether a mapping defines `__copy__`.

    A copy of another mapping would share its storage with the original.
    """
    return isinstance(value, MutableMapping) and hasattr(type(value), "__copy__")


def _with(value: Any, new: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    """Return a copy of a container with new values in the places that `_inside` named."""
    if isinstance(value, tuple):
        return _tuple_like(value, list(new.values()))
    if not isinstance(value, MutableMapping | list) and not _has_fields(value):
        node = _pytree.SUPPORTED_NODES[type(value)]
        _, context = node.flatten_fn(value)
        return node.unflatten_fn(list(new.values()), context)
    copied = _copy(value)
    if isinstance(copied, MutableMapping | list):
        # a dict whose items are its attributes
        if getattr(value, "__dict__", None) is value:
            copied.__dict__ = copied  # type: ignore[assignment]
        for key, item in changed.items():
            _set_item(copied, key, item)
        return copied
    # a frozen dataclass refuses setattr, and slots have no __dict__
    for name, item in changed.items():
        object.__setattr__(copied, name, item)
    return copied


def _copy(container: Any) -> Any:
    """Return a shallow copy, also of a subclass of dict or list that refuses to be filled."""
    try:
        return copy.copy(container)
    except Exception:
        if not isinstance(container, dict | list):
            raise
    kind: Any = type(container)
    copied = kind.__new__(kind)
    fill = dict.update if isinstance(container, dict) else list.extend
    fill(copied, container)
    copied.__dict__.update(vars(container))
    return copied


def _set_item(container: Any, key: Any, item: Any) -> None:
    """Set an item, also of a subclass of dict or list that refuses it."""
    try:
        container[key] = item
    except Exception:
        if isinstance(container, dict):
            dict.__setitem__(container, key, item)
        elif isinstance(container, list):
            list.__setitem__(container, key, item)
        else:
            raise


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> Any:
    # a type of torch.return_types takes the items as one sequence
    if hasattr(type(value), "n_sequence_fields"):
        return type(value)(items)
    # the constructor of a subclass may have other parameters
    copied = tuple.__new__(type(value), items)
    if hasattr(value, "__dict__"):
        copied.__dict__.update(value.__dict__)
    return copied


def _has_fields(value: Any) -> bool:
    return _is_dataclass(value) or isinstance(value, SimpleNamespace)


def _is_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def closed_values(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each value that may hold tensors but that `mapped_anywhere` skips.

    These are generators and other iterators, and objects with a tensor among their attributes.

    >>> [place for place, _ in closed_values({"states": iter([1]), "loss": torch.ones(1)})]
    ["['states']"]
    """
    yield from _closed("", values, ())


def _closed(place: str, value: Any, path: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor | nn.Module | str | bytes | int | float | type(None)):
        return
    inside = _inside(value)
    if id(value) in path:
        return
    path = (*path, id(value))
    if inside is not None:
        for key, item in inside.items():
            where = f"{place}.{key}" if _has_fields(value) else f"{place}[{key!r}]"
            yield from _closed(where, item, path)
    elif isinstance(value, Iterator) or _holds_tensor(value):
        yield place, value


def _holds_tensor(value: Any) -> bool:
    attributes = getattr(value, "__dict__", {})
    return any(isinstance(item, Tensor) for item in attributes.values())
