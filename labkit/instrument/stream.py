"""The stream of events of a training: forward passes, operations, scales, and optimizer steps, taken or skipped.

Idea: torch's hooks report forward passes, gradients and steps, but not a step that a scaler skips: the optimizer is
never called then. So the scaler's public methods are tapped while somebody listens. A source is what knows such
methods: torch's own scaler is one; `amp` and `frameworks` register theirs. A `Listener` is what all report to; it also
knows where one step ends and the next begins. A watch of one model and the diagnosis of a script are listeners.

Invariants: a new step begins with a forward pass behind an optimizer that has stepped in this one or was skipped, and
where such an optimizer steps again; what runs inside an optimizer's step or in a backward pass begins none. Once the
last listener is closed, each tapped class holds the very functions that it held before.
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
    """Say whether a backward pass is running: what is called then was called before."""
    return torch._C._current_graph_task_id() != -1


def no_scale() -> float:
    """Return what a loss is multiplied by that nobody scales."""
    return 1.0


class Listener:
    """What a training is reported to; a class of its own overrides the events that it looks at.

    step      the number of the step that is running, from 0
    stepped   ids of the optimizers that have stepped in this step, or were skipped
    stepping  an optimizer steps now
    """

    def __init__(self) -> None:
        self.step = 0
        self.stepped: set[int] = set()
        self.stepping = False
        self._scale: Callable[[], float] = no_scale

    def failed(self, where: str, error: Exception) -> None:
        """Report what failed in the listener or in a source: the run that it looks at goes on."""
        raise error

    # Steps

    def next_step(self) -> None:
        """Begin the next step."""

    def forward_begins(self) -> None:
        """Begin the next step with a forward pass, where an optimizer has stepped in this one."""
        if self.stepped and not self.stepping and torch.is_grad_enabled() and not in_backward():
            self.next_step()

    def step_begins(self, optimizer: Any) -> None:
        """Begin the next step with an optimizer that has stepped in this one."""
        if id(optimizer) in self.stepped:
            self.next_step()

    # Events, from torch's hooks and from sources

    def trains(self, model: nn.Module) -> bool:
        """Say whether an engine of this model is to be reported."""
        return True

    def holds(self, optimizer: Any) -> bool:
        """Say whether an optimizer is to be reported: whether it has parameters of the model."""
        return True

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Note what the loss of the next backward pass is multiplied by; it is called only where it is needed."""
        self._scale = scale

    def before_unscale(self, optimizer: Any) -> None:
        """Look at gradients that are scaled still, just before they are unscaled."""

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Note that an optimizer is about to step: from torch's own hooks, or where it is none of torch's."""

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Note that it has stepped."""

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights that a step is about to move, and at its unscaled gradients."""

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights after it."""

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Note that a step was not taken."""

    @contextmanager
    def step_by_scaler(self, optimizer: Any) -> Iterator[None]:
        """Be open while a scaler decides on a step of torch's own optimizer."""
        yield

    def step_by_engine(self, optimizer: Any) -> AbstractContextManager[None]:
        """Be open while an engine decides on a step, and reports it."""
        return self.step_by_scaler(optimizer)


class Modules:
    """The modules whose forward passes are running, the innermost last, by their names in a model."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.running: list[str] = []

    def learn(self, model: nn.Module, unnamed: str | None = None) -> None:
        """Learn the names in a model; its own is `unnamed`, or that of its class."""
        own = type(model).__name__ if unnamed is None else unnamed
        self.names |= {id(module): name or own for name, module in model.named_modules()}

    @property
    def innermost(self) -> str:
        """The name of the module that runs; "" outside of any."""
        return self.running[-1] if self.running else ""

    def enter(self, module: nn.Module) -> None:
        """Note that a module begins."""
        self.running.append(self.names.get(id(module), type(module).__name__))

    def leave(self) -> str:
        """Note that the innermost one has ended; return its name."""
        return self.running.pop() if self.running else ""


Look = Callable[[Any, Any, Any], Callable[[Any], None] | None]


class Operations(TorchDispatchMode):
    """Reports each operation below autocast, in the dtype that it is computed in.

    look    (operation, args, kwargs), before it runs -> what to do with its result, or None
    failed  reports what fails in looking; None: it is raised
    """

    def __init__(self, look: Look, failed: Failed | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look, self._failed = look, failed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation as it is, and look at it before and behind."""
        kwargs, then = kwargs or {}, None
        try:
            then = self._look(func, args, kwargs)
        except Exception as error:
            self._report("looking at what an operation takes", error)
        result = func(*args, **kwargs)
        try:
            if then is not None:
                then(result)
        except Exception as error:
            self._report("looking at what an operation returns", error)
        return result

    def _report(self, where: str, error: Exception) -> None:
        if self._failed is None:
            raise error
        self._failed(where, error)


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
