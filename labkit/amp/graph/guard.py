"""What did a trace take for granted, and does it still hold?

Idea: what `forward` may have looked at is kept as it was: the attributes of every module, parameters, hooks and
submodules among them, of the plain objects that they hold (a configuration), and the global values that `forward`
names. Lists and dicts are copied, for they may change where they stand. A comparison is one of dicts, in C.

Invariant: whatever is kept and has changed is noticed before a graph runs. A weight's numbers are no part of it.

What it does not do: see what a function that `forward` calls looks up, or what lies deeper in an object.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getattr_static
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, str, list, dict, tuple, type(None))
_LOOKED_AT = (*_PLAIN, nn.Module, Tensor, FunctionType, ModuleType, type)  # already, or without anything to look at


class Guard:
    """The circumstances of a trace: dicts as they are now, and as they were."""

    def __init__(self, model: nn.Module) -> None:
        self.names = [(vars(module), name) for name, module in model.named_modules()]
        objects = [v for attributes, _ in self.names for v in attributes.values() if not isinstance(v, _LOOKED_AT)]
        self.names += [(vars(v), type(v).__name__) for v in objects if hasattr(v, "__dict__")]
        self.whole = [(now, _copied(now)) for now, _ in self.names]
        self.parts = [(now, {key: _copied(now[key]) for key in keys}) for now, keys in _globals(model) if keys]

    def holds(self) -> bool:
        """Whether everything is as it was."""
        try:
            return all(now == then for now, then in self.whole) and all(
                then.items() <= now.items() for now, then in self.parts
            )
        except (RuntimeError, ValueError):  # a tensor, or an array, that is another one
            return False

    def changed(self) -> str:
        """Name something that is another than it was; "" if all is as it was."""
        names = {id(now): name for now, name in self.names}
        for now, then in (*self.whole, *self.parts):
            keys = then.keys() | now.keys() if id(now) in names else then.keys()
            for key in keys:
                if not _equal(now.get(key), then.get(key)):
                    return f"{names.get(id(now), 'the global value')} {key}".strip()
        return ""


def described(leaf: Any) -> Any:
    """Return what a trace takes for granted of an argument: of a tensor, all but its numbers."""
    if isinstance(leaf, Tensor):
        return type(leaf), leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad
    return (type(leaf), leaf) if isinstance(leaf, int | float | str | bool | None) else id(leaf)


def hooked(model: nn.Module) -> str:
    """Say which module has a hook, which is Python that has to run each time."""
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return f"module {name!r} has a hook, which is Python and has to run each time; without it there is a graph"
    return ""


def aliased(inputs: list[Tensor], model: nn.Module) -> str:
    """Say that one tensor has two roles in a call; "" where none has."""
    own = {id(tensor) for tensor in (*inputs, *model.parameters(), *model.buffers())}
    known = len({id(t) for t in (*model.parameters(), *model.buffers())})
    return "" if len(own) == known + len(inputs) else "an input is given twice, or is a weight of the network"


def _globals(model: nn.Module) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield, for each class among a network's modules, the global values of plain kinds that its forward names."""
    for kind in {type(module) for module in model.modules()}:
        forward = getattr_static(kind, "forward", None)
        if isinstance(forward, FunctionType) and not forward.__module__.startswith("torch."):
            known = forward.__globals__
            yield known, [n for n in forward.__code__.co_names if n in known and isinstance(known[n], _PLAIN)]


def _copied(value: Any) -> Any:
    """Return a container with the containers in it copied, and everything else as it is."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool([one] == [other])  # in a list, what is the same object is not asked
    except (RuntimeError, ValueError):
        return False
