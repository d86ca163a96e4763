"""What happens in a training step, operation by operation, and where was it written?

Idea: a dispatch mode sees each operation below autocast, in the dtype it is really computed in; taps hear backward,
scalers, schedules and regions; hooks see modules and optimizers. What is remarkable becomes an event, with the line of
the user's code it came from. What the events mean is said elsewhere.

Invariant: no number is changed, and when the block ends, by an exception too, no hook and no tap is left.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from labkit.amp import Engine
from labkit.clinic.lines import user_line
from labkit.clinic.operations import Operations
from labkit.instrument.guard import described, guarded
from labkit.instrument.sample import finite
from labkit.instrument.sources import scaler_classes, tap

SURELY_SCALED = 2.0**8  # a factor of a loss from which on, as a power of two, it is a loss scale and no weight


@dataclass(frozen=True)
class Event:
    """Something remarkable: of which kind, in which step, on which line, in which module, and what was seen."""

    kind: str
    step: int
    line: str
    module: str
    seen: str

    @property
    def where(self) -> str:
        """The line and the module, as far as they are known."""
        return ", ".join(filter(None, (self.line, self.module and f"in {self.module}")))


@dataclass
class Attempt:
    """An optimizer's step: taken, or skipped by a scaler, and under which scale (1 without a scaler)."""

    step: int
    optimizer: int
    scale: float = 1.0
    taken: bool = False


class Listener:
    """Hears what happens while `listening`, and writes it down: events and attempts."""

    def __init__(self) -> None:
        self.step = 0
        self.events: list[Event] = []
        self.attempts: list[Attempt] = []
        self.failures: dict[tuple[str, str], str] = {}  # of the listener itself: where, type of error -> what
        self.optimizers: dict[int, Any] = {}
        self.made: list[tuple[Tensor, str]] = []  # parameters made during this step, and where
        self.scaled_gradients: list[Tensor] = []  # of torch.autograd.grad, or views of them
        self.regions: list[bool] = []  # autocast regions that are open: whether each is on
        self.stepping = False
        self._unscaled, self._scaler, self._by_scaler = True, False, False
        self._factors: set[float] = set()
        self._modules: list[str] = []
        self._names: dict[int, str] = {}

    def name_modules(self, model: nn.Module) -> None:
        """Learn what the modules of a model are called."""
        self._names |= {id(module): name or type(module).__name__ for name, module in model.named_modules()}

    def note(self, kind: str, seen: str, module: str | None = None) -> None:
        """Write an event down, unless it is of our own making."""
        line = user_line(sys._getframe(1))
        if line is not None:
            inside = self._modules[-1] if self._modules and module is None else module or ""
            self.events.append(Event(kind, self.step, line, inside, seen))

    def failed(self, where: str, error: Exception) -> None:
        """Note what failed in the listener itself: the report says so, and the training goes on."""
        self.failures.setdefault((where, type(error).__name__), f"{described(where, error)}, first in step {self.step}")

    def held(self) -> Iterator[Tensor]:
        """Yield the parameters of all optimizers that are known."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                yield from group["params"]

    def still_scaled(self) -> list[Tensor]:
        """Return the gradients that a scaler has not unscaled yet."""
        if self._unscaled or not self._scaler:
            return []
        return [p.grad for p in self.held() if p.grad is not None]

    def attempted(self, attempt: Attempt) -> None:
        """Hear that an optimizer's step is over, taken or not."""

    def end_step(self) -> None:
        """Look back at a step that is over: at what was made in it and trained by nobody."""
        held = {id(p) for p in self.held()}
        for parameter, line in self.made:
            if parameter.grad is not None and id(parameter) not in held:
                seen = f"a parameter of shape {tuple(parameter.shape)} was made in the step and no optimizer holds it"
                self.events.append(Event("layer made in the step", self.step, line, "", seen))
        self.made, self.scaled_gradients, self._modules = [], [], []

    # What the hooks and taps tell

    def before_module(self, module: nn.Module, _: Any) -> None:
        self._modules.append(self._names.get(id(module), type(module).__name__))

    def after_module(self, *_: Any) -> None:
        if self._modules:
            self._modules.pop()

    def registered(self, _: nn.Module, __: str, parameter: Tensor | None) -> None:
        line = user_line(sys._getframe(1))
        if parameter is not None and line:
            self.made.append((parameter, line))

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        with _disable_current_modes():
            self._note_step(optimizer)
        self.stepping = True

    def _note_step(self, optimizer: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        found = getattr(optimizer, "found_inf", None)  # of a fused one, which skips by itself
        if not self._by_scaler:
            self.attempts.append(Attempt(self.step, id(optimizer)))
        self.attempts[-1].taken = found is None or not float(found)
        if self.attempts[-1].taken and not all(map(finite, _gradients(optimizer))):
            self.note("a step with inf or NaN", "the optimizer was given gradients that hold inf or NaN")
        if any(self.regions):
            self.note("a step inside autocast", "optimizer.step() was called in an autocast region that is still open")

    def after_optimizer(self, *_: Any) -> None:
        self.stepping, self._factors = False, set()
        self.attempted(self.attempts[-1])

    def backward(self, call: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if user_line(sys._getframe(1)) is not None:  # else it is watch's own, of a copy
            with _disable_current_modes():
                self.before_backward(tensors if isinstance(tensors, Tensor) else next(iter(tensors)))
        return call(tensors, *args, **kwargs)

    def before_backward(self, root: Tensor) -> None:
        factor = loss_scale(root)
        if any(self.regions):
            self.note("backward inside autocast", "backward() was called in an autocast region that is still open")
        fresh = not any(bool(g.any()) for o in self.optimizers.values() for g in _gradients(o))
        self._factors = {factor} if fresh else {*self._factors, factor}
        if len(self._factors) > 1 and 1.0 not in self._factors:
            shown = " and ".join(f"{factor:g}" for factor in sorted(self._factors))
            self.note("scale changed between", f"gradients that were scaled by {shown} were added up")
        self._unscaled = factor == 1

    def grad(self, call: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes():
            scaled = loss_scale(outputs if isinstance(outputs, Tensor) else next(iter(outputs))) > 1
        found = call(outputs, *args, **kwargs)
        if scaled and kwargs.get("create_graph"):
            self.scaled_gradients += [g for g in found if g is not None]
        return found

    def scale(self, call: Any, scaler: Any, *args: Any, **kwargs: Any) -> Any:
        self._scaler = self._scaler or scaler.is_enabled()
        return call(scaler, *args, **kwargs)

    def unscale(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        self._unscaled = True
        return call(*args, **kwargs)

    def scaler_step(self, call: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if not scaler.is_enabled():
            return call(scaler, optimizer, *args, **kwargs)
        self.optimizers[id(optimizer)] = optimizer
        self.attempts.append(Attempt(self.step, id(optimizer), scaler.get_scale()))
        self._unscaled = self._by_scaler = True
        try:
            return call(scaler, optimizer, *args, **kwargs)
        finally:
            self._by_scaler, self._factors = False, set()
            if not self.attempts[-1].taken:
                self.attempted(self.attempts[-1])

    def engine_step(self, call: Any, engine: Engine, *args: Any, **kwargs: Any) -> Any:
        """Hear of an engine's step, which it takes or skips by itself."""
        self.optimizers[id(engine.optimizer)] = engine.optimizer
        attempt = Attempt(self.step, id(engine.optimizer), engine.scaler.scale)
        self.attempts.append(attempt)
        self._unscaled = self._by_scaler = True
        try:
            return call(engine, *args, **kwargs)
        finally:
            self._by_scaler, self._factors = False, set()
            if not attempt.taken:
                self.attempted(attempt)

    def schedule(self, call: Any, schedule: Any, *args: Any, **kwargs: Any) -> Any:
        last = next((a for a in reversed(self.attempts) if a.optimizer == id(schedule.optimizer)), None)
        if last is not None and not last.taken:
            self.note(
                "schedule counts skips", f"it went on after a step that was skipped, at a scale of {last.scale:g}"
            )
        return call(schedule, *args, **kwargs)

    def enter(self, call: Any, region: Any) -> Any:
        self.regions.append(bool(region._enabled))
        return call(region)

    def exit(self, call: Any, region: Any, *args: Any) -> Any:
        if self.regions:
            self.regions.pop()
        return call(region, *args)


def _gradients(optimizer: Any) -> list[Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def loss_scale(loss: Tensor) -> float:
    """Return the power of two that a loss was multiplied by last; 1 where there is none.

    >>> weight = torch.ones((), requires_grad=True)
    >>> loss_scale(65536.0 * (3 * weight)), loss_scale(3 * weight)
    (65536.0, 1.0)
    """
    try:
        saved = [getattr(loss.grad_fn, name, None) for name in ("_saved_other", "_saved_self")]
    except RuntimeError:  # its graph was freed: backward will say so
        return 1.0
    factor = next((value for value in saved if isinstance(value, Tensor)), None)
    if factor is None or factor.numel() != 1 or factor.requires_grad:
        return 1.0
    value = float(factor)
    return value if value >= SURELY_SCALED and math.frexp(value)[0] == 0.5 else 1.0


@contextmanager
def listening(listener: Listener, scaler: Any = None) -> Iterator[Listener]:
    """Have a listener hear all that happens, until the block ends; `scaler` is one whose class no source knows."""
    autocast, scalers = torch.amp.autocast_mode.autocast, scaler_classes()
    if scaler is not None and not isinstance(scaler, tuple(scalers)):
        scalers.append(type(scaler))
    hook = partial(guarded, failed=listener.failed)
    with ExitStack() as stack:
        taps: list[tuple[Any, str, Any]] = [
            (torch.autograd, "backward", listener.backward),
            (torch.autograd, "grad", listener.grad),
            *((each, "scale", listener.scale) for each in scalers),
            *((each, "unscale_", listener.unscale) for each in scalers),
            *((each, "step", listener.scaler_step) for each in scalers),
            (Engine, "step", listener.engine_step),
            (LRScheduler, "step", listener.schedule),
            (autocast, "__enter__", listener.enter),
            (autocast, "__exit__", listener.exit),
        ]
        for owner, name, around in taps:
            stack.enter_context(tap(owner, name, around, listener.failed))
        for handle in (
            hooks.register_module_forward_pre_hook(hook(listener.before_module)),
            hooks.register_module_forward_hook(hook(listener.after_module), always_call=True),
            hooks.register_module_parameter_registration_hook(hook(listener.registered)),
            register_optimizer_step_pre_hook(hook(listener.before_optimizer)),
            register_optimizer_step_post_hook(hook(listener.after_optimizer)),
        ):
            stack.callback(handle.remove)
        stack.enter_context(Operations(listener))
        yield listener
