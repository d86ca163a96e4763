"""How does an operation get a rule that the lists do not give it?

Idea: register it. An operation of torch changes list by name, for every way it can be called. A function that somebody
wrote in Python is wrapped: its arguments are cast at the door, and inside it the lists hold as everywhere. (That is
apex's meaning of a registered function; torch's `custom_fwd` switches autocast off inside instead.)

Invariant: what is undone leaves no trace, in whatever order registrations are undone; all threads see the same lists.

Source: apex.amp.half_function, float_function, promote_function, register_half_function (names and meaning).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any

from torch.overrides import resolve_name

from labkit.amp.casting.autocast import current
from labkit.amp.casting.lists import LISTS, Entry, Rule

WHY = "you registered it"


class Registered:
    """A rule that holds until it is undone, and the function it was given to, which can still be called.

    In a `with` statement it holds until the end of the block. It does nothing outside of autocast.
    """

    def __init__(self, target: str | Callable[..., Any], entry: Entry) -> None:
        self.entry = entry
        self.function = None if isinstance(target, str) else target
        self.name = target if isinstance(target, str) else _name_of(target)
        self.holds = True
        if self.function is not None:
            update_wrapper(self, self.function)
        self.of_torch = self.function is None or resolve_name(self.function) is not None
        if self.of_torch:
            LISTS.put(self, self.name, entry)

    def undo(self) -> None:
        """Take the rule back; twice is as good as once."""
        self.holds = False
        LISTS.take(self)

    def __enter__(self) -> Registered:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.undo()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.function is None:
            raise TypeError(
                f"{self.name!r} is the name of an operation, and was registered by it: call torch's function."
            )
        region = current() if self.holds and not self.of_torch else None
        if region is None:
            return self.function(*args, **kwargs)
        return region.call(self.function, self.name, self.entry, args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)  # registered inside a class: a method


def register(target: str | Callable[..., Any], rule: Rule, why: str = WHY) -> Registered:
    """Put a function on a list, until it is undone or the `with` block around it ends.

    Args:
        target: an operation of torch (`torch.relu`, or its name, "relu"), or a Python function of your own.
        rule: the list. SET_DTYPE and APPEND_DTYPE are for functions that take a `dtype`.
        why: the reason, as events tell it.

    Raises:
        TypeError: target can neither be called nor is it a name, or rule is none.

    >>> import torch
    >>> from labkit.amp.casting.autocast import autocast
    >>> with autocast(), register("sigmoid", Rule.DENY):
    ...     torch.ones(1).half().sigmoid().dtype
    torch.float32
    """
    if not (isinstance(target, str) or callable(target)):
        raise TypeError(f"a function or an operation's name is registered; it was given {target!r}")
    if not isinstance(rule, Rule):
        raise TypeError(f"rule is one of {', '.join(str(r) for r in Rule)}; it was given {rule!r}")
    if isinstance(target, Registered):
        raise TypeError(f"{target.name} is registered already ({target.entry.rule.value}): undo that first.")
    return Registered(target, Entry(rule, why))


def half_function(target: str | Callable[..., Any]) -> Registered:
    """Let a function run in the low-precision format: also as a decorator.

    >>> import torch
    >>> from labkit.amp.casting.autocast import autocast
    >>> @half_function
    ... def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    ...     return a * b
    >>> with autocast():
    ...     product(torch.ones(2), torch.ones(2)).dtype
    torch.float16
    >>> product(torch.ones(2), torch.ones(2)).dtype
    torch.float32
    """
    return register(target, Rule.ALLOW)


def float_function(target: str | Callable[..., Any]) -> Registered:
    """Let a function run in FP32: also as a decorator."""
    return register(target, Rule.DENY)


def promote_function(target: str | Callable[..., Any]) -> Registered:
    """Let a function run in the widest dtype of its tensors: also as a decorator."""
    return register(target, Rule.PROMOTE)


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__)).partition(".")[0]  # mm.default is mm
