"""Sources of a watch: the scalers of a loop that the lab did not write, and the steps that they skip.

Idea: torch's hooks tell of forward passes, gradients and steps, but not of a step that a scaler skips: there the
optimizer is never called. So the scaler's public methods are tapped while somebody watches. A source is what knows
such methods: torch's own scaler is one; `amp` and `frameworks` register theirs.

Invariant: once the last watch is closed, each tapped class holds the very functions that it held before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from labkit.instrument.guard import Failed, guarded_around, guarded_context, name_of

Gradients = dict[str, Tensor | None]  # parameter -> its unscaled gradient, None where none arrived
Around = Callable[..., Any]  # gets a method and the arguments of a call, and is to call it


class Listener(Protocol):
    """What a source tells: who scales, and what becomes of each step."""

    model: nn.Module

    def failed(self, where: str, error: Exception) -> None:
        """Report what failed in a source: the run that it looks at goes on."""

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Note what the loss of the next backward pass is multiplied by; it is called only where it is needed."""

    def holds(self, optimizer: Any) -> bool:
        """Say whether an optimizer has parameters of the model."""

    def before_unscale(self, optimizer: Any) -> None:
        """Look at gradients that are scaled still, just before they are unscaled."""

    def before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note that an optimizer is about to step: from torch's own hooks, or where it is none of torch's."""

    def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note that it has stepped."""

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights that a step is about to move, and at its unscaled gradients."""

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights after it."""

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Note that a step was not taken."""

    def step_by_scaler(self, optimizer: Any) -> AbstractContextManager[None]:
        """Be open while a scaler decides on a step of torch's own optimizer."""

    def step_by_engine(self) -> AbstractContextManager[None]:
        """Be open while an engine decides on a step, and tells of it."""


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


def scaler_classes() -> list[type]:
    """Return the classes of scalers that sources tell of: torch's own, and those that were registered."""
    known = [source.keywords.get("scaler_class") for source in _SOURCES if isinstance(source, partial)]
    return [torch.amp.GradScaler, *(each for each in known if each is not None)]


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
def open_sources(listener: Listener, *more: Source) -> Iterator[None]:
    """Listen to all sources that are registered, and to some more."""
    with ExitStack() as stack:
        for source in (*_SOURCES, *more):
            stack.enter_context(guarded_context(source(listener), listener.failed, name_of(source)))
        yield
