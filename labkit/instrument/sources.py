"""Who scales the loss of a loop that we did not write, and which of its steps are skipped?

Idea: torch's hooks tell of forward passes, gradients and steps, but not of a step that a scaler skips: there the
optimizer is never called. So the scaler's public methods are tapped while somebody watches. A source is what knows
such methods: torch's own scaler is one; `amp` and `frameworks` register theirs.

Invariant: once the last watch is closed, each tapped class holds the very functions that it held before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Gradients = dict[str, Tensor | None]  # parameter -> its unscaled gradient, None where none arrived
Around = Callable[..., AbstractContextManager[None]]  # gets the arguments of a call, and is open while it runs


class Listener(Protocol):
    """What a source tells: who scales, and what becomes of each step."""

    model: nn.Module

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Hear what the loss of the next backward pass is multiplied by; it is asked for only where it is needed."""

    def holds(self, optimizer: Any) -> bool:
        """Say whether an optimizer has parameters of the model."""

    def before_unscale(self, optimizer: Any) -> None:
        """Look at gradients that are scaled still, just before they are unscaled."""

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights that a step is about to move, and at its unscaled gradients."""

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights after it."""

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Hear that a step was not taken."""

    def step_by_scaler(self, optimizer: Any) -> AbstractContextManager[None]:
        """Be open while a scaler decides on a step of torch's own optimizer."""

    def step_by_engine(self) -> AbstractContextManager[None]:
        """Be open while an engine decides on a step, and tells of it."""


Source = Callable[[Listener], AbstractContextManager[None]]


@contextmanager
def tap(cls: type, method: str, around: Around) -> Iterator[None]:
    """Open `around(*arguments)` around each call of a class's method, until the block ends.

    >>> class Door:
    ...     def open(self, key): return key
    >>> @contextmanager
    ... def say(door, key):
    ...     print("before", key)
    ...     yield
    >>> with tap(Door, "open", say):
    ...     _ = Door().open("left")
    before left
    >>> Door().open("right")
    'right'
    """
    owner = next(base for base in cls.__mro__ if method in vars(base))
    tapped = vars(owner)[method]
    if not hasattr(tapped, "around"):
        tapped = _tapped(tapped)
        setattr(owner, method, tapped)
    tapped.around.append(around)
    try:
        yield
    finally:
        tapped.around.remove(around)
        if not tapped.around and vars(owner)[method] is tapped:
            setattr(owner, method, tapped.__wrapped__)


def _tapped(original: Callable[..., Any]) -> Any:
    @wraps(original)
    def tapped(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for around in tuple(tapped.around):  # type: ignore[attr-defined]
                stack.enter_context(around(*args, **kwargs))
            return original(*args, **kwargs)

    tapped.around = []  # type: ignore[attr-defined]
    return tapped


@contextmanager
def scaler_source(listener: Listener, scaler_class: type = torch.amp.GradScaler) -> Iterator[None]:
    """Tell of a scaler that has the methods of torch.amp.GradScaler."""

    @contextmanager
    def around_scale(scaler: Any, *_: Any, **__: Any) -> Iterator[None]:
        if scaler.is_enabled():
            listener.scaled_by(scaler.get_scale)
        yield

    @contextmanager
    def around_unscale(_: Any, optimizer: Any) -> Iterator[None]:
        if listener.holds(optimizer):
            listener.before_unscale(optimizer)
        yield

    @contextmanager
    def around_step(scaler: Any, optimizer: Any, *_: Any, **__: Any) -> Iterator[None]:
        if not (scaler.is_enabled() and listener.holds(optimizer)):
            yield
            return
        listener.scaled_by(scaler.get_scale)
        with listener.step_by_scaler(optimizer):
            yield

    with ExitStack() as stack:
        for method, around in (("scale", around_scale), ("unscale_", around_unscale), ("step", around_step)):
            stack.enter_context(tap(scaler_class, method, around))
        yield


CastSource = Callable[[Callable[[], AbstractContextManager[None]]], AbstractContextManager[None]]
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
def open_cast_sources(cast: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Hear of casts from all sources that are registered."""
    with ExitStack() as stack:
        for source in _CAST_SOURCES:
            stack.enter_context(source(cast))
        yield


@contextmanager
def open_sources(listener: Listener, *more: Source) -> Iterator[None]:
    """Listen to all sources that are registered, and to some more."""
    with ExitStack() as stack:
        for source in (*_SOURCES, *more):
            stack.enter_context(source(listener))
        yield
