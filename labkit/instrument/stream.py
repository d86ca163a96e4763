"""Stream of a training's events: forward and backward passes, operations, scales and steps.

Idea: torch's hooks, scalers and engines all report to one object, `STREAM`. A listener subscribes
with a function for each type of event that it observes (`labkit.instrument.events`). A source of
events is open while a listener observes one of its events (`labkit.instrument.sources`). A watch of
one model, the diagnosis of a script and the listener of an engine are all listeners.

Invariants: a listener's failure is reported to that listener, and the training continues. After the
last subscription has ended, each tapped class holds its original functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from labkit.instrument.events import Event, LossScaled, OptimizerLike
from labkit.instrument.guard import Failed, describe_failure, guarded_context, name_of, on_purpose
from labkit.instrument.operations import in_backward
from labkit.instrument.sources import SOURCES, Source
from labkit.instrument.taps import tap

__all__ = ["STREAM", "Gradients", "Listener", "StepObserver", "Stream", "register_source", "tap"]

# parameter -> its unscaled gradient; None if none arrived
Gradients = dict[str, Tensor | None]
# called with an event of the type that it handles
Handler = Callable[[Any], None]
EventT = TypeVar("EventT", bound=Event)


def no_scale() -> float:
    """Return the scale of a loss without a scaler."""
    return 1.0


class Listener:
    """Receiver of events: a function for each type that it observes.

    Args:
        failed: receives the place and the exception of a function that fails; None: the exception
            is raised in the training, unless a subclass overrides the method `failed`.

    >>> from labkit.instrument.events import ClipBegins
    >>> listener = Listener(lambda where, error: print(where, "failed"))
    >>> with STREAM.subscribed(listener.on(ClipBegins, lambda event: print("clipping"))):
    ...     _ = nn.utils.clip_grad_norm_([nn.Parameter(torch.ones(1))], 1.0)
    clipping
    """

    def __init__(self, failed: Failed | None = None) -> None:
        self.handlers: dict[type[Event], Handler] = {}
        self._report = failed

    def on(self, event: type[EventT], handle: Callable[[EventT], None]) -> Self:
        """Call a function for each event of a type, from the next subscription on.

        Returns:
            The listener.
        """
        self.handlers[event] = handle
        return self

    def failed(self, where: str, error: Exception) -> None:
        """Receive a failure of a function of this listener, or of a source."""
        if self._report is None:
            raise error
        self._report(where, error)


class StepObserver(Listener):
    """Listener that counts the steps of a training.

    A new step begins with the first forward pass after an optimizer has stepped or was skipped. It
    also begins when such an optimizer steps again. A forward pass inside an optimizer's step or in
    a backward pass does not begin a step.

    Attributes:
        step: number of the current step, from 0.
        stepped: ids of the optimizers that have stepped in this step, or were skipped.
        stepping: an optimizer is stepping.
        scaled: a scaler or an engine has scaled a loss.
        failures: failures of the listener and of sources: (place, type of error) -> message.
    """

    def __init__(self) -> None:
        super().__init__()
        self.step = 0
        self.failures: dict[tuple[str, str], str] = {}
        self.stepped: set[int] = set()
        self.stepping = False
        self.scaled = False
        self._scale: Callable[[], float] = no_scale
        self.on(LossScaled, self.loss_scaled)

    def failed(self, where: str, error: Exception) -> None:
        """Record a failure of the listener or of a source, once for each place.

        The training continues.
        """
        what = f"{describe_failure(where, error)} (first in step {self.step})"
        self.failures.setdefault((where, type(error).__name__), what)

    def observes_model(self, model: nn.Module) -> bool:
        """Return whether the steps of a model's engine are observed."""
        return True

    def observes_optimizer(self, optimizer: OptimizerLike) -> bool:
        """Return whether the steps of an optimizer are observed."""
        return True

    def next_step(self) -> None:
        """Begin the next step."""

    def forward_begins(self) -> None:
        """Begin the next step with a forward pass, if an optimizer has stepped in this one."""
        if self.stepped and not self.stepping and torch.is_grad_enabled() and not in_backward():
            self.next_step()

    def step_begins(self, optimizer: OptimizerLike) -> None:
        """Begin the next step if an optimizer has stepped in this one already."""
        if id(optimizer) in self.stepped:
            self.next_step()

    def loss_scaled(self, event: LossScaled) -> None:
        """Record the scale of the next backward pass."""
        self.scaled_by(event.scale)

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Record a function for the scale of the next backward pass, called only if needed."""
        self._scale = scale
        self.scaled = True


class Stream:
    """The events of the trainings of this process.

    Its sources are open while a listener needs them.
    """

    def __init__(self, sources: tuple[Source, ...]) -> None:
        self.sources = sources
        self.listeners: tuple[Listener, ...] = ()
        self._observed: frozenset[type[Event]] = frozenset()
        # models may be trained in several threads
        self._lock = RLock()
        self._subscriptions: list[tuple[Listener, tuple[Source, ...]]] = []
        self._open: dict[Source, ExitStack] = {}

    def observes(self, event: type[Event]) -> bool:
        """Return whether a listener observes a type of events; else they need not be sent."""
        return event in self._observed

    def emit(self, event: Event) -> None:
        """Call the function of each listener that observes the event.

        An exception of the function is reported to that listener. If the listener raises it, as
        that of an engine does, it is raised here after all other listeners have received the event.
        """
        kind = type(event)
        to_raise: Exception | None = None
        for listener in self.listeners:
            handle = listener.handlers.get(kind)
            if handle is None:
                continue
            try:
                handle(event)
            except Exception as error:
                raised = _report_failure(listener, name_of(handle), error)
                if raised is not None:
                    to_raise = raised
        if to_raise is not None:
            # a tap that sends the event lets it pass
            raise on_purpose(to_raise)

    @contextmanager
    def subscribed(self, listener: Listener, *sources: Source) -> Iterator[None]:
        """Send a listener the events until the block ends.

        Args:
            listener: the listener.
            sources: further sources that are open for this listener.
        """
        subscription = (listener, sources)
        try:
            with self._lock:
                self.listeners = (*self.listeners, listener)
                self._subscriptions.append(subscription)
                self._open_needed_sources()
            yield
        finally:
            with self._lock:
                self._subscriptions.remove(subscription)
                self._open_needed_sources()
                # only now: a source that fails to close reports it to this listener, too
                self.listeners = tuple(each for each, _ in self._subscriptions)

    def _open_needed_sources(self) -> None:
        """Open the sources that the subscribed listeners need, and close the others."""
        listeners = [listener for listener, _ in self._subscriptions]
        self._observed = frozenset(event for each in listeners for event in each.handlers)
        # a dict keeps the order of the sources, and each of them once
        known = dict.fromkeys(self.sources)
        for _, sources in self._subscriptions:
            known.update(dict.fromkeys(sources))
        needed = [source for source in known if not self._observed.isdisjoint(source.emits)]
        for source in list(self._open):
            if source not in needed:
                self._open.pop(source).close()
        for source in needed:
            if source in self._open:
                continue
            stack = ExitStack()
            self._open[source] = stack
            emitter = _Emitter(self, source)
            opened = _opened(source, emitter)
            stack.enter_context(guarded_context(opened, emitter.failed, source.open))


@contextmanager
def _opened(source: Source, emitter: _Emitter) -> Iterator[None]:
    """Open a source for a block.

    `source.open` is called when the context is entered, so that `guarded_context` also reports an
    exception of this call.
    """
    with source.open(emitter):
        yield


class _Emitter:
    """Receiver of a source's events.

    A failure of the source goes to the listeners that observe one of its events.
    """

    def __init__(self, stream: Stream, source: Source) -> None:
        self._stream = stream
        self._source = source
        self.emit = stream.emit

    def failed(self, where: str, error: Exception) -> None:
        """Report a failure of the source; it never ends the training."""
        for listener in self._stream.listeners:
            if not listener.handlers.keys().isdisjoint(self._source.emits):
                _report_failure(listener, where, error)


def _report_failure(listener: Listener, where: str, error: Exception) -> Exception | None:
    """Report a failure to a listener; return the exception if the listener raises one."""
    try:
        listener.failed(where, error)
    except Exception as raised:
        return raised
    return None


STREAM = Stream(SOURCES)


def register_source(source: Source) -> None:
    """Add a source of events, which opens from the next subscription on.

    A library for training calls it once, when it is imported, so that `watch` observes its scaler.

    Args:
        source: for a scaler with the methods of torch.amp.GradScaler, `scaler_source(its class)`.
    """
    if not isinstance(source, Source):
        raise TypeError(
            f"source: expected a Source, got {type(source).__name__}. "
            "Write Source(emits=(OptimizerBegins, ...), open=a function that returns a context)."
        )
    STREAM.sources = (*STREAM.sources, source)
