"""The stream of events of a training: forward and backward passes, operations, scales, and steps, taken or skipped.

Idea: `STREAM` is the one place that is hooked into torch. A listener that subscribes receives the events for which it
has a method; a hook or a tap is open while a listener observes its event. Torch's hooks report modules, parameters and
optimizer steps, but not a step that a scaler skips: the optimizer is not called then. So the scaler's public methods
are tapped. A source knows such methods: torch's own scaler is one; `amp` and `frameworks` register theirs. A watch of
one model and the diagnosis of a script are listeners, and count steps alike.

Invariants: a new step begins with the first forward pass after an optimizer has stepped or was skipped, and when such
an optimizer steps again. Forward passes inside an optimizer's step or in a backward pass begin none. A listener's
failure is reported to that listener, and the training goes on. Once the last listener has left, each tapped class holds
its original functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial, wraps
from threading import RLock
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from labkit.instrument.guard import (
    Failed,
    described,
    guarded_around,
    guarded_context,
    name_of,
    reporting,
)
from labkit.modes import nested_contexts

Gradients = dict[str, Tensor | None]  # parameter -> its unscaled gradient, None where none arrived


def in_backward() -> bool:
    """Return whether a backward pass is running; checkpointing repeats forward passes in it."""
    return torch._C._current_graph_task_id() != -1


def no_scale() -> float:
    """Return the scale of a loss without a scaler."""
    return 1.0


class Listener:
    """Receiver of the events of a training, which counts its steps; a subclass has a method for each event it observes.

    before_module         (module, args): a forward pass of a module begins
    after_module          (module, args, output): it has ended; an exception has no output
    parameter_registered  (module, name, parameter): a module gets a parameter
    before_backward       (tensors, ...): torch.autograd.backward, which a tensor's own backward calls
    after_backward        (None): it has ended; () if it raised
    before_grad           (outputs, ...): torch.autograd.grad
    after_grad            (found, ...): its gradients; () if it raised
    before_clip           (parameters, ...): gradients are clipped
    before_schedule       (schedule, ...): a schedule of the learning rate steps
    autocast_begins       (region): a region of torch.autocast opens
    autocast_ends         (region, ...): it closes
    scaled_by             (scale): a loss is scaled, by what `scale()` returns
    before_unscale        (optimizer): the gradients of an optimizer are unscaled
    before_optimizer      (optimizer, ...): an optimizer steps
    after_optimizer       (optimizer, ...): it has stepped
    step_by_scaler        (optimizer): a context around a scaler's decision on a step
    step_by_engine        (optimizer): a context around an engine's step, in which it reports the next three
    before_step           (optimizer, weights, gradients): the weights and the unscaled gradients before a step
    after_step            (optimizer, weights, gradients): the same after it
    skipped               (optimizer, gradients, why): a step is not taken

    Scalers and engines report only optimizers and models of which `observes_optimizer` and `observes_model` are true.

    step      number of the current step, from 0
    stepped   ids of the optimizers that have stepped in this step, or were skipped
    stepping  an optimizer is stepping
    scaled    a scaler or an engine has scaled a loss
    failures  of the listener and of sources: (place, type of error) -> message
    """

    def __init__(self) -> None:
        self.step = 0
        self.failures: dict[tuple[str, str], str] = {}
        self.stepped: set[int] = set()
        self.stepping = self.scaled = False
        self._scale: Callable[[], float] = no_scale

    def failed(self, where: str, error: Exception) -> None:
        """Record a failure of the listener or of a source, once for each place; the training goes on."""
        what = f"{described(where, error)} (first in step {self.step})"
        self.failures.setdefault((where, type(error).__name__), what)

    def observes_model(self, model: nn.Module) -> bool:
        """Return whether engines of a model are reported."""
        return True

    def observes_optimizer(self, optimizer: Any) -> bool:
        """Return whether scalers report an optimizer: whether it has parameters of the model."""
        return True

    def next_step(self) -> None:
        """Begin the next step."""

    def forward_begins(self) -> None:
        """Begin the next step with a forward pass, if an optimizer has stepped in this one."""
        if self.stepped and not self.stepping and torch.is_grad_enabled() and not in_backward():
            self.next_step()

    def step_begins(self, optimizer: Any) -> None:
        """Begin the next step if an optimizer has stepped in this one already."""
        if id(optimizer) in self.stepped:
            self.next_step()

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Record the scale of the next backward pass, as a function that is called only when needed."""
        self._scale, self.scaled = scale, True


class Modules:
    """Stack of the modules whose forward passes are running, by their names in a model."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.running: list[str] = []

    def add_names(self, model: nn.Module, unnamed: str | None = None) -> None:
        """Add the names of a model's modules; the model itself is called `unnamed`, or by its class."""
        own = type(model).__name__ if unnamed is None else unnamed
        self.names |= {id(module): name or own for name, module in model.named_modules()}

    @property
    def innermost(self) -> str:
        """The name of the module that runs; "" outside all modules."""
        return self.running[-1] if self.running else ""

    def enter(self, module: nn.Module) -> None:
        """Push a module."""
        self.running.append(self.names.get(id(module), type(module).__name__))

    def leave(self) -> str:
        """Pop the innermost module, and return its name."""
        return self.running.pop() if self.running else ""


Look = Callable[[Any, Any, Any], Callable[[Any], None] | None]


class Operations(TorchDispatchMode):
    """A mode that reports each operation below autocast, in the dtype that it is computed in.

    look    (operation, args, kwargs), called before it runs -> a function of its result, or None
    failed  receives an exception of these functions; None: it is raised
    """

    def __init__(self, look: Look, failed: Failed | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look, self._failed = look, failed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unchanged, between the calls of the observer."""
        kwargs, then = kwargs or {}, None
        try:
            then = self._look(func, args, kwargs)
        except Exception as error:
            self._report("observing the inputs of an operation", error)
        result = func(*args, **kwargs)
        try:
            if then is not None:
                then(result)
        except Exception as error:
            self._report("observing the result of an operation", error)
        return result

    def _report(self, where: str, error: Exception) -> None:
        if self._failed is None:
            raise error
        self._failed(where, error)


def outside_modes() -> AbstractContextManager[Any]:
    """Return a context without dispatch modes, in which an observer's own operations are not observed."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


Around = Callable[..., Any]  # gets a method and the arguments of a call, and calls it


@contextmanager
def tap(
    cls: type | ModuleType, method: str, around: Around, failed: Failed | None = None
) -> Iterator[None]:
    """Call `around(method, object, *arguments)` for each call of a class's method, until the block ends.

    A function of a module can be tapped too: `around(function, *arguments)`. The last tap is outermost.
    With `failed`, an exception of `around` itself is reported there, and the method is still called.

    >>> class Safe:
    ...     def open(self, key): return key
    >>> def log(original, safe, key):
    ...     print("before", key)
    ...     return original(safe, key)
    >>> with tap(Safe, "open", log):
    ...     Safe().open("left")
    before left
    'left'
    >>> Safe().open("right")
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


class Listeners:
    """Several listeners, as one: `listeners.skipped(...)` sends the event `skipped` to those that observe it."""

    def __init__(self, listeners: tuple[Any, ...] = ()) -> None:
        self.listeners = listeners

    def __getattr__(self, event: str) -> Callable[..., Any]:
        """Return the function that sends an event of sources; one that encloses a block returns a context."""
        if event not in OF_SOURCES:
            raise AttributeError(
                f"expected one of the events {', '.join(OF_SOURCES)}; got {event!r}"
            )
        return partial(self._around if event.startswith("step_by") else self.emit, event)

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each listener; its exception is reported to that listener."""
        for listener in self.listeners:
            if (method := getattr(listener, event, None)) is not None:
                try:
                    method(*args, **kwargs)
                except Exception as error:
                    listener.failed(name_of(method), error)

    def _around(self, event: str, *args: Any) -> AbstractContextManager[None]:
        contexts: list[AbstractContextManager[None]] = []
        for listener in self.listeners:
            if (method := getattr(listener, event, None)) is not None:
                with reporting(listener.failed, method):
                    contexts.append(guarded_context(method(*args), listener.failed, method))
        return contexts[0] if len(contexts) == 1 else nested_contexts(lambda: contexts)

    def those(self, condition: str, subject: Any) -> Listeners:
        """Return those of whom `observes_model` or `observes_optimizer` is true of a model or an optimizer."""
        found: list[Any] = []
        for listener in self.listeners:
            try:
                if (is_true := getattr(listener, condition, None)) is not None and is_true(subject):
                    found.append(listener)
            except Exception as error:
                listener.failed(condition, error)
        return Listeners(tuple(found))

    def failed(self, where: str, error: Exception) -> None:
        """Report a failure of the stream or of a source to each listener."""
        for listener in self.listeners:
            listener.failed(where, error)


@contextmanager
def scaler_source(
    listeners: Listeners, scaler_class: type = torch.amp.GradScaler
) -> Iterator[None]:
    """Report a scaler that has the methods of torch.amp.GradScaler."""

    def around_scale(scale: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            listeners.scaled_by(scaler.get_scale)
        return scale(scaler, *args, **kwargs)

    def around_unscale(unscale: Any, scaler: Any, optimizer: Any) -> Any:
        listeners.those("observes_optimizer", optimizer).before_unscale(optimizer)
        return unscale(scaler, optimizer)

    def around_step(step: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return step(scaler, optimizer, *args, **kwargs)
        observers = listeners.those("observes_optimizer", optimizer)
        observers.scaled_by(scaler.get_scale)
        with observers.step_by_scaler(optimizer):
            return step(scaler, optimizer, *args, **kwargs)

    with ExitStack() as stack:
        for method, around in (
            ("scale", around_scale),
            ("unscale_", around_unscale),
            ("step", around_step),
        ):
            stack.enter_context(tap(scaler_class, method, around, listeners.failed))
        yield


Source = Callable[[Listeners], AbstractContextManager[None]]
CastSource = Callable[
    [Callable[[], AbstractContextManager[None]], Failed], AbstractContextManager[None]
]
_SOURCES: list[Source] = [scaler_source]
_CAST_SOURCES: list[CastSource] = []


def register_source(source: Source, casts: CastSource | None = None) -> None:
    """Add a source to the stream, from the next subscription on.

    Args:
        source: open while a listener is subscribed; it reports scales, steps and skips to its argument.
        casts: open while the model runs in a sampled step; it opens its first argument around each cast it makes.
    """
    _SOURCES.append(source)
    _CAST_SOURCES.extend([casts] if casts is not None else [])


@contextmanager
def open_cast_sources(
    cast: Callable[[], AbstractContextManager[None]], failed: Failed
) -> Iterator[None]:
    """Open the cast sources that are registered."""
    with ExitStack() as stack:
        for source in _CAST_SOURCES:
            stack.enter_context(guarded_context(source(cast, failed), failed, source))
        yield


# Event -> torch's registration of a hook for it, and its options; and the functions before which it occurs.
HOOKS: dict[str, tuple[Callable[..., Any], dict[str, bool]]] = {
    "before_module": (module_hooks.register_module_forward_pre_hook, {}),
    "after_module": (module_hooks.register_module_forward_hook, {"always_call": True}),
    "parameter_registered": (module_hooks.register_module_parameter_registration_hook, {}),
    "before_optimizer": (register_optimizer_step_pre_hook, {}),
    "after_optimizer": (register_optimizer_step_post_hook, {}),
}
TAPPED: dict[str, tuple[tuple[Any, str], ...]] = {
    "before_backward": ((torch.autograd, "backward"),),
    "before_grad": ((torch.autograd, "grad"),),
    "before_clip": ((nn.utils, "clip_grad_norm_"), (nn.utils, "clip_grad_value_")),
    "before_schedule": ((LRScheduler, "step"),),
    "autocast_begins": ((torch.amp.autocast_mode.autocast, "__enter__"),),
    "autocast_ends": ((torch.amp.autocast_mode.autocast, "__exit__"),),
}
OF_SOURCES = (
    "scaled_by",
    "before_unscale",
    "before_optimizer",
    "after_optimizer",
    "before_step",
    "after_step",
    "skipped",
    "step_by_scaler",
    "step_by_engine",
)


class Stream(Listeners):
    """The events of the trainings of this process: its hooks, taps and sources are open while a listener needs them."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = RLock()  # models may be trained in several threads
        self._open: dict[Any, ExitStack] = {}  # an event or a source -> what closes it
        self._own_sources: dict[
            type, Source
        ] = {}  # of scalers whose class no registered source knows

    @contextmanager
    def subscribed(self, listener: Any, scaler: Any = None) -> Iterator[None]:
        """Send a listener the events until the block ends; `scaler` is one whose class no source may know."""
        known = [
            each.keywords.get("scaler_class") for each in _SOURCES if isinstance(each, partial)
        ]
        if scaler is not None and not isinstance(
            scaler, (torch.amp.GradScaler, *filter(None, known))
        ):
            self._own_sources.setdefault(
                type(scaler), partial(scaler_source, scaler_class=type(scaler))
            )
        try:
            with self._lock:
                self.listeners = (*self.listeners, listener)
                self._open_for(self.listeners)
            yield
        finally:
            with self._lock:
                others = tuple(each for each in self.listeners if each is not listener)
                # a source that fails to close reports it to the listener, too
                self._open_for(others)
                self.listeners = others

    def _open_for(self, listeners: tuple[Any, ...]) -> None:
        """Open the hooks, taps and sources that these listeners need and that are closed, and close the others."""
        sources = (*_SOURCES, *self._own_sources.values()) if listeners else ()
        events = (
            event for event in (*HOOKS, *TAPPED) if any(hasattr(each, event) for each in listeners)
        )
        needed: list[Any] = [*sources, *events]
        for key in [key for key in self._open if key not in needed]:
            self._open.pop(key).close()
        for key in (key for key in needed if key not in self._open):
            self._open[key] = stack = ExitStack()
            if key in HOOKS:
                register, options = HOOKS[key]
                stack.callback(register(partial(self.emit, key), **options).remove)
            elif key in TAPPED:
                around = partial(self._around_call, key)
                for owner, name in TAPPED[key]:
                    stack.enter_context(tap(owner, name, around, self.failed))
            else:
                stack.enter_context(guarded_context(key(self), self.failed, key))
        if not listeners:
            self._own_sources.clear()

    def _around_call(self, event: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Send an event before a call, and the one that ends it, with its result, to those that observe the first."""
        self.emit(event, *args, **kwargs)
        if not event.startswith("before"):
            return call(*args, **kwargs)
        found: Any = ()
        try:
            found = call(*args, **kwargs)
        finally:
            self.emit(event.replace("before", "after"), found, **kwargs)
        return found


STREAM = Stream()
