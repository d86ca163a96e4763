"""Sources of the stream: the scalers of a loop that the lab did not write, and the steps that they skip.

Idea: torch's hooks tell of forward passes, gradients and steps, but not of a step that a scaler skips: there the
optimizer is never called. So the scaler's public methods are tapped while somebody watches. A source is what knows
such methods: torch's own scaler is one; `amp` and `frameworks` register theirs.

Invariant: once the last listener is closed, each tapped class holds the very functions that it held before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from labkit.instrument.guard import Failed, guarded, guarded_around, guarded_context, name_of
from labkit.instrument.stream import Listener

Around = Callable[..., Any]  # gets a method and the arguments of a call, and is to call it


Source = Callable[[Listener], AbstractContextManager[None]]


@contextmanager
def tap(cls: type | ModuleType, method: str, around: Around, failed: Failed | None = None) -> Iterator[None]:
    """Call `around(method, object, *arguments)` for each call of a class's method, until the block ends.

    A module's function is tapped as well: `around(function, *arguments)`. Who taps last is outermost.
    With `failed`, an exception of `around` itself is reported there, and the method is called all the same.

    >>> class Door:
    ...     def open(self, key): return key
    >>> def say(original, door, key):
    ...     print("before", key)
    ...     return original(door, key)
    >>> with tap(Door, "open", say):
    ...     Door().open("left")
    before left
    'left'
    >>> Door().open("right")
    'right'
    """
    if not hasattr(vars(cls).get(method), "arounds"):
        setattr(cls, method, _tapped(getattr(cls, method), vars(cls).get(method)))
    tapped: Any = vars(cls)[method]
    own = tapped.own
    if failed is not None:
        around = partial(guarded_around, around, failed)
    tapped.arounds.append(around)
    try:
        yield
    finally:
        tapped.arounds.remove(around)
        if not tapped.arounds and vars(cls).get(method) is tapped:
            delattr(cls, method) if own is None else setattr(cls, method, own)


def _tapped(original: Callable[..., Any], own: Any) -> Any:
    @wraps(original)
    def tapped(*args: Any, **kwargs: Any) -> Any:
        call = original
        for around in arounds:
            call = partial(around, call)
        return call(*args, **kwargs)

    arounds: list[Around] = []
    tapped.arounds, tapped.own = arounds, own  # type: ignore[attr-defined]
    return tapped


@contextmanager
def scaler_source(listener: Listener, scaler_class: type = torch.amp.GradScaler) -> Iterator[None]:
    """Report a scaler that has the methods of torch.amp.GradScaler."""

    def around_scale(scale: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            listener.scaled_by(scaler.get_scale)
        return scale(scaler, *args, **kwargs)

    def around_unscale(unscale: Any, scaler: Any, optimizer: Any) -> Any:
        if listener.holds(optimizer):
            listener.before_unscale(optimizer)
        return unscale(scaler, optimizer)

    def around_step(step: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not (scaler.is_enabled() and listener.holds(optimizer)):
            return step(scaler, optimizer, *args, **kwargs)
        listener.scaled_by(scaler.get_scale)
        with listener.step_by_scaler(optimizer):
            return step(scaler, optimizer, *args, **kwargs)

    with ExitStack() as stack:
        for method, around in (("scale", around_scale), ("unscale_", around_unscale), ("step", around_step)):
            stack.enter_context(tap(scaler_class, method, around, listener.failed))
        yield


CastSource = Callable[[Callable[[], AbstractContextManager[None]], Failed], AbstractContextManager[None]]
_SOURCES: list[Source] = [scaler_source]
_CAST_SOURCES: list[CastSource] = []


def register_source(source: Source, casts: CastSource | None = None) -> None:
    """Have every watch that is opened from now on listen to a source, too.

    Args:
        source: open while a watch is; it tells of scales, steps and skips.
        casts: open while the model runs in a sampled step; it opens what it is given around each cast it makes.
    """
    _SOURCES.append(source)
    _CAST_SOURCES.extend([casts] if casts is not None else [])


@contextmanager
def open_cast_sources(cast: Callable[[], AbstractContextManager[None]], failed: Failed) -> Iterator[None]:
    """Listen to casts of all sources that are registered."""
    with ExitStack() as stack:
        for source in _CAST_SOURCES:
            stack.enter_context(guarded_context(source(cast, failed), failed, name_of(source)))
        yield


@contextmanager
def open_sources(listener: Listener, scaler: Any = None) -> Iterator[None]:
    """Listen to all sources that are registered, and to a scaler whose class none of them knows."""
    known = [each.keywords.get("scaler_class") for each in _SOURCES if isinstance(each, partial)]
    sources = list(_SOURCES)
    if scaler is not None and not isinstance(scaler, (torch.amp.GradScaler, *filter(None, known))):
        sources.append(partial(scaler_source, scaler_class=type(scaler)))
    with ExitStack() as stack:
        for source in sources:
            stack.enter_context(guarded_context(source(listener), listener.failed, name_of(source)))
        yield


@contextmanager
def optimizer_hooks(listener: Listener) -> Iterator[None]:
    """Report the steps of torch's own optimizers."""
    before, after = (guarded(hook, listener.failed) for hook in (listener.before_optimizer, listener.after_optimizer))
    with ExitStack() as stack:
        stack.callback(register_optimizer_step_pre_hook(before).remove)
        stack.callback(register_optimizer_step_post_hook(after).remove)
        yield
