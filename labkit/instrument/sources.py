"""Sources of the stream's events: torch's hooks, and taps on methods that have no hook.

A source is open while a listener observes one of its events. Engines, scalers and casts of the lab
need no source: they send their events themselves.

Torch's hooks report modules, parameters and optimizer steps, but not a step that a scaler skips:
the optimizer is not called then. So the public methods of scalers are tapped. A tap replaces an
attribute of a class or module. It does not see a function that was imported by its own name before
it opened, as by `from torch.autograd import grad`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from labkit.instrument.events import (
    AutocastBegins,
    AutocastEnds,
    BackwardBegins,
    BackwardEnded,
    ClipBegins,
    Event,
    GradBegins,
    GradEnded,
    GradScalerLike,
    LossScaled,
    ModuleBegins,
    ModuleEnded,
    OptimizerBegins,
    OptimizerEnded,
    OptimizerLike,
    ParameterRegistered,
    ScalerStepBegins,
    ScalerStepEnded,
    ScheduleSteps,
    UnscaleBegins,
)
from labkit.instrument.taps import Around, tap

# the beginning of torch's warning, as a regular expression
ABOUT_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks"


class Sender(Protocol):
    """Receiver of events: the stream."""

    def emit(self, event: Event) -> None:
        """Send an event to the listeners that observe its type."""


class Emitter(Sender, Protocol):
    """Receiver of a source's events and failures."""

    def failed(self, where: str, error: Exception) -> None:
        """Report a failure of the source."""


@dataclass(frozen=True)
class Source:
    """A source of events.

    Attributes:
        emits: the types of its events.
        open: returns a context, which is entered while the source is open.
    """

    emits: tuple[type[Event], ...]
    open: Callable[[Emitter], AbstractContextManager[None]]


class _NoWarningAboutHooks:
    """Context that suppresses torch's warning about global hooks at the call of a compiled module.

    The hooks are those of this module, and change nothing. The context may be entered several
    times.
    """

    def __init__(self) -> None:
        self._open = 0
        # the entry of warnings.filters that this context added
        self._own: object = None

    def __enter__(self) -> None:
        self._open += 1
        if self._open == 1:
            warnings.filterwarnings("ignore", message=ABOUT_HOOKS, category=UserWarning)
            self._own = warnings.filters[0]

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if self._open == 0:
            # by identity: a script may have added an equal filter meanwhile
            others = [each for each in warnings.filters if each is not self._own]
            warnings.filters[:] = others  # type: ignore[index]


# shared by all sources; the stream's lock guards it
_no_warning_about_hooks = _NoWarningAboutHooks()


@contextmanager
def _module_begins(stream: Emitter) -> Iterator[None]:
    def hook(module: nn.Module, args: Any) -> None:
        stream.emit(ModuleBegins(module, args))

    with _no_warning_about_hooks, module_hooks.register_module_forward_pre_hook(hook):
        yield


@contextmanager
def _module_ended(stream: Emitter) -> Iterator[None]:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        stream.emit(ModuleEnded(module, args, output))

    registered = module_hooks.register_module_forward_hook(hook, always_call=True)
    with _no_warning_about_hooks, registered:
        yield


@contextmanager
def _parameter_registered(stream: Emitter) -> Iterator[None]:
    def hook(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        stream.emit(ParameterRegistered(module, name, parameter))

    with module_hooks.register_module_parameter_registration_hook(hook):
        yield


@contextmanager
def _optimizer_begins(stream: Emitter) -> Iterator[None]:
    def hook(optimizer: Any, *_: Any) -> None:
        stream.emit(OptimizerBegins(optimizer))

    with register_optimizer_step_pre_hook(hook):
        yield


@contextmanager
def _optimizer_ended(stream: Emitter) -> Iterator[None]:
    def hook(optimizer: Any, *_: Any) -> None:
        stream.emit(OptimizerEnded(optimizer))

    with register_optimizer_step_post_hook(hook):
        yield


def _first_argument(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the first argument of a call, and all arguments, with a tuple if it is an iterator.

    A listener that reads an iterator would leave nothing of it to torch.

    Args:
        name: the name of the first argument.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    first = args[0] if args else kwargs.get(name, ())
    if not isinstance(first, Iterator):
        return first, args, kwargs
    first = tuple(first)
    if args:
        return first, (first, *args[1:]), kwargs
    return first, args, {**kwargs, name: first}


def _backward(stream: Emitter) -> AbstractContextManager[None]:
    def around(call: Any, *args: Any, **kwargs: Any) -> Any:
        roots, args, kwargs = _first_argument("tensors", args, kwargs)
        stream.emit(BackwardBegins(roots))
        try:
            return call(*args, **kwargs)
        finally:
            stream.emit(BackwardEnded())

    return tap(torch.autograd, "backward", around, stream.failed)


def _grad(stream: Emitter) -> AbstractContextManager[None]:
    def around(call: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, args, kwargs = _first_argument("outputs", args, kwargs)
        stream.emit(GradBegins(outputs))
        # the fifth parameter of torch.autograd.grad
        create_graph = args[4] if len(args) > 4 else kwargs.get("create_graph", False)
        gradients: tuple[Tensor | None, ...] = ()
        try:
            result = call(*args, **kwargs)
            gradients = tuple(result.values() if isinstance(result, dict) else result)
        finally:
            stream.emit(GradEnded(gradients, bool(create_graph)))
        return result

    return tap(torch.autograd, "grad", around, stream.failed)


def _before(event: Callable[[Any], Event], stream: Emitter) -> Around:
    """Return a function around a method that sends an event about its object before each call."""

    def around(call: Any, *args: Any, **kwargs: Any) -> Any:
        stream.emit(event(args[0] if args else None))
        return call(*args, **kwargs)

    return around


@contextmanager
def _clip(stream: Emitter) -> Iterator[None]:
    around = _before(lambda _: ClipBegins(), stream)
    with (
        tap(nn.utils, "clip_grad_norm_", around, stream.failed),
        tap(nn.utils, "clip_grad_value_", around, stream.failed),
    ):
        yield


def _schedule(stream: Emitter) -> AbstractContextManager[None]:
    return tap(LRScheduler, "step", _before(ScheduleSteps, stream), stream.failed)


def _autocast_begins(stream: Emitter) -> AbstractContextManager[None]:
    region = torch.amp.autocast_mode.autocast
    return tap(region, "__enter__", _before(AutocastBegins, stream), stream.failed)


def _autocast_ends(stream: Emitter) -> AbstractContextManager[None]:
    def around(call: Any, region: torch.autocast, *args: Any) -> Any:
        try:
            stream.emit(AutocastEnds(region))
        finally:
            # the region closes, also if a listener raises an exception in the training
            result = call(region, *args)
        return result

    return tap(torch.amp.autocast_mode.autocast, "__exit__", around, stream.failed)


class reported_step:
    """Context that sends the two events around a scaler's decision on a step.

    It is a class: a generator would add a frame of contextlib between a listener and the line of
    the user's code, which the listener looks for.
    """

    def __init__(
        self, stream: Sender, optimizer: OptimizerLike, scale: Callable[[], float]
    ) -> None:
        self.stream = stream
        self.optimizer = optimizer
        self.scale = scale

    def __enter__(self) -> None:
        self.stream.emit(ScalerStepBegins(self.optimizer, self.scale))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stream.emit(ScalerStepEnded(self.optimizer, raised=kind is not None))


def scaler_source(scaler_class: type = torch.amp.GradScaler) -> Source:
    """Return the source for scalers that have the methods of torch.amp.GradScaler.

    A class has one source: two would send each event twice.
    """
    return _scaler_source(scaler_class)


@cache
def _scaler_source(scaler_class: type) -> Source:
    @contextmanager
    def opened(stream: Emitter) -> Iterator[None]:
        def around_scale(scale: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                stream.emit(LossScaled(scaler.get_scale))
            return scale(scaler, *args, **kwargs)

        def around_unscale(
            unscale: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
        ) -> Any:
            stream.emit(UnscaleBegins(optimizer))
            return unscale(scaler, optimizer, *args, **kwargs)

        def around_step(step: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return step(scaler, optimizer, *args, **kwargs)
            with reported_step(stream, optimizer, scaler.get_scale):
                return step(scaler, optimizer, *args, **kwargs)

        with ExitStack() as stack:
            for method, around in (
                ("scale", around_scale),
                ("unscale_", around_unscale),
                ("step", around_step),
            ):
                stack.enter_context(tap(scaler_class, method, around, stream.failed))
            yield

    return Source((LossScaled, UnscaleBegins, ScalerStepBegins, ScalerStepEnded), opened)


SOURCES: tuple[Source, ...] = (
    scaler_source(),
    Source((ModuleBegins,), _module_begins),
    Source((ModuleEnded,), _module_ended),
    Source((ParameterRegistered,), _parameter_registered),
    Source((OptimizerBegins,), _optimizer_begins),
    Source((OptimizerEnded,), _optimizer_ended),
    Source((BackwardBegins, BackwardEnded), _backward),
    Source((GradBegins, GradEnded), _grad),
    Source((ClipBegins,), _clip),
    Source((ScheduleSteps,), _schedule),
    Source((AutocastBegins,), _autocast_begins),
    Source((AutocastEnds,), _autocast_ends),
)


def sources_of(scaler: GradScalerLike | None) -> tuple[Source, ...]:
    """Return a source for a scaler that is not torch's; () if the standard sources cover it."""
    if scaler is None or isinstance(scaler, torch.amp.GradScaler):
        return ()
    return (scaler_source(type(scaler)),)
