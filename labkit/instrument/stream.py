"""The stream of events of a training: forward passes, operations, scales, and optimizer steps, taken or skipped.

Idea: torch's hooks report forward passes, gradients and steps, but not a step that a scaler skips: the optimizer is
not called then. So the scaler's public methods are tapped while a listener is open. A source knows such methods:
torch's own scaler is one; `amp` and `frameworks` register theirs. A `Listener` receives the events, and keeps count of
the steps. A watch of one model and the diagnosis of a script are listeners.

Invariants: a new step begins with the first forward pass after an optimizer has stepped or was skipped, and when such
an optimizer steps again. Forward passes inside an optimizer's step or in a backward pass begin none. Once the last
listener is closed, each tapped class holds its original functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.instrument.guard import Failed, guarded, guarded_around, guarded_context, name_of

Gradients = dict[str, Tensor | None]  # parameter -> its unscaled gradient, None where none arrived


def in_backward() -> bool:
    """Return whether a backward pass is running; checkpointing repeats forward passes in it."""
    return torch._C._current_graph_task_id() != -1


def no_scale() -> float:
    """Return the scale of a loss without a scaler."""
    return 1.0


class Listener:
    """Receiver of the events of a training; a subclass overrides the events that it needs.

    step      number of the current step, from 0
    stepped   ids of the optimizers that have stepped in this step, or were skipped
    stepping  an optimizer is stepping
    scaled    a scaler or an engine has scaled a loss
    """

    def __init__(self) -> None:
        self.step = 0
        self.stepped: set[int] = set()
        self.stepping = self.scaled = False
        self._scale: Callable[[], float] = no_scale

    def failed(self, where: str, error: Exception) -> None:
        """Report a failure of the listener or of a source; the training goes on."""
        raise error

    # Steps

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

    # Events, from torch's hooks and from sources

    def observes_model(self, model: nn.Module) -> bool:
        """Return whether engines of a model are reported."""
        return True

    def observes_optimizer(self, optimizer: Any) -> bool:
        """Return whether an optimizer is reported: whether it has parameters of the model."""
        return True

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Record the scale of the next backward pass, as a function that is called only when needed."""
        self._scale, self.scaled = scale, True

    def before_unscale(self, optimizer: Any) -> None:
        """Check the scaled gradients just before they are unscaled."""

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Observe an optimizer that is about to step."""

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Observe an optimizer that has stepped."""

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Observe the weights and the unscaled gradients before a step."""

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Observe the weights after a step."""

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Observe a step that was not taken."""

    @contextmanager
    def step_by_scaler(self, optimizer: Any) -> Iterator[None]:
        """Enclose a scaler's decision on a step of a torch optimizer."""
        yield

    def step_by_engine(self, optimizer: Any) -> AbstractContextManager[None]:
        """Enclose an engine's decision on a step, which the engine reports itself."""
        return self.step_by_scaler(optimizer)


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


Around = Callable[..., Any]  # gets a method and the arguments of a call, and calls it
Source = Callable[[Listener], AbstractContextManager[None]]


@contextmanager
def tap(cls: type | ModuleType, method: str, around: Around, failed: Failed | None = None) -> Iterator[None]:
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


@contextmanager
def scaler_source(listener: Listener, scaler_class: type = torch.amp.GradScaler) -> Iterator[None]:
    """Report a scaler that has the methods of torch.amp.GradScaler."""

    def around_scale(scale: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        if scaler.is_enabled():
            listener.scaled_by(scaler.get_scale)
        return scale(scaler, *args, **kwargs)

    def around_unscale(unscale: Any, scaler: Any, optimizer: Any) -> Any:
        if listener.observes_optimizer(optimizer):
            listener.before_unscale(optimizer)
        return unscale(scaler, optimizer)

    def around_step(step: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not (scaler.is_enabled() and listener.observes_optimizer(optimizer)):
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
    """Add a source to every watch that is opened from now on.

    Args:
        source: open while a watch is open; it reports scales, steps and skips.
        casts: open while the model runs in a sampled step; it opens its first argument around each cast it makes.
    """
    _SOURCES.append(source)
    _CAST_SOURCES.extend([casts] if casts is not None else [])


@contextmanager
def open_cast_sources(cast: Callable[[], AbstractContextManager[None]], failed: Failed) -> Iterator[None]:
    """Open the cast sources that are registered."""
    with ExitStack() as stack:
        for source in _CAST_SOURCES:
            stack.enter_context(guarded_context(source(cast, failed), failed, name_of(source)))
        yield


@contextmanager
def open_sources(listener: Listener, scaler: Any = None) -> Iterator[None]:
    """Open all registered sources, and one for a scaler whose class none of them knows."""
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
