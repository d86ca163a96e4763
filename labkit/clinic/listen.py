"""Events of a training step, operation by operation, each with the line of the user's code that it came from.

Idea: a dispatch mode sees each operation below autocast, in the dtype it is really computed in; taps report backward,
scalers, schedules and regions; hooks report modules and optimizers. An operation is remarkable by its inputs and
outputs alone: inf from numbers that are finite, a constant that its format does not have, whole numbers that a
conversion makes equal. What the events mean is decided in labkit.clinic.diagnose.

Invariant: no number is changed, and when the block ends, by an exception too, no hook and no tap is left.
"""

from __future__ import annotations

import copy
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from labkit.clinic.constants import misfit
from labkit.instrument.guard import described, guarded
from labkit.instrument.records import Finding
from labkit.instrument.sample import dtype_name, finite, floats, largest, non_finite
from labkit.instrument.stream import Listener, Modules, Operations, in_backward, open_sources, optimizer_hooks, tap

SURELY_SCALED = 2.0**8  # a factor of a loss from which on, as a power of two, it is a loss scale and no weight
HALF = (torch.float16, torch.bfloat16)
KINDS = {  # operation -> what it is called when inf or NaN begins there
    "log of 0": {"log", "log2", "log10", "log1p", "log_"},
    "exp overflows": {"exp", "exp2", "expm1", "exp_"},
    "division by 0": {"div", "div_", "reciprocal", "rsqrt", "true_divide"},
    "sum overflows": {"sum", "mean", "cumsum", "add_", "_foreach_add_", "norm", "linalg_vector_norm"},
    "softmax of a masked row": {"_softmax", "_safe_softmax", "_log_softmax"},
}
WITH_CONSTANT = {"add", "sub", "rsub", "add_", "sub_", "clamp", "clamp_min", "clamp_max", "masked_fill", "where"}
CASTS = {"_to_copy", "copy_"}
VIEWS = {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "detach", "alias",
         "slice", "select", "split", "unbind", "as_strided", "clone", *CASTS}  # fmt: skip
SQUARES = {"pow", "norm", "linalg_vector_norm", "square"}
NORMS = {"norm", "linalg_vector_norm", "_foreach_norm"}
ALMOST_LOWEST = -60_000  # what masks in FP16 are made of: that two add up to -inf does no harm
LAB = Path(__file__).parents[1]
# Files of torch and of the lab that looks on; while those AT_WORK run, nothing is the user's.
LOOKING = ("replay", "sample", "histogram", "probe")
AT_WORK = tuple(str(LAB / "instrument" / f"{name}.py") for name in LOOKING)
NOBODYS = ("<", copy.__file__, str(Path(torch.__file__).parent), *(str(LAB / name) for name in ("instrument", "modes")))
NOBODYS += tuple(str(LAB / "clinic" / f"{name}.py") for name in ("diagnose", "listen", "script"))


@dataclass
class Attempt:
    """An optimizer's step: taken, or skipped by a scaler, and under which scale (1 without a scaler)."""

    step: int
    optimizer: int
    scale: float = 1.0
    taken: bool = False


class TrainingListener(Listener):
    """Notes what happens while `listening`: events and attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Finding] = []
        self.attempts: list[Attempt] = []
        self.failures: dict[tuple[str, str], str] = {}  # of the listener itself: where, type of error -> what
        self.optimizers: dict[int, Any] = {}
        self.modules = Modules()
        self.made: list[tuple[Tensor, str]] = []  # parameters made during this step, and where
        self.scaled_gradients: list[Tensor] = []  # of torch.autograd.grad, or views of them
        self.regions: list[bool] = []  # autocast regions that are open: whether each is on
        self._unscaled, self._scaled, self._by_scaler = True, False, False
        self._factors: set[float] = set()

    def note(self, kind: str, seen: str) -> None:
        """Write an event down, unless it is of our own making."""
        line = user_line(sys._getframe(1))
        if line is not None:
            self.events.append(Finding(kind, self.modules.innermost, self.step, seen, line))

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
        if self._unscaled or not self._scaled:
            return []
        return [p.grad for p in self.held() if p.grad is not None]

    def end_step(self) -> None:
        """Look back at a step that is over: at what was made in it and trained by nobody."""
        held = {id(p) for p in self.held()}
        for parameter, line in self.made:
            if parameter.grad is not None and id(parameter) not in held:
                seen = f"a parameter of shape {tuple(parameter.shape)} was made in the step and no optimizer holds it"
                self.events.append(Finding("layer made in the step", "", self.step, seen, line))
        self.made, self.scaled_gradients, self.modules.running = [], [], []

    # What the hooks and taps tell

    def before_module(self, module: nn.Module, _: Any) -> None:
        self.modules.enter(module)

    def after_module(self, *_: Any) -> None:
        self.modules.leave()

    def registered(self, _: nn.Module, __: str, parameter: Tensor | None) -> None:
        line = user_line(sys._getframe(1))
        if parameter is not None and line:
            self.made.append((parameter, line))

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        if not self._by_scaler:
            self.step_begins(optimizer)
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

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self.stepping, self._factors = False, set()
        self.stepped.add(id(optimizer))

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

    def scaled_by(self, scale: Callable[[], float]) -> None:
        self._scale, self._scaled = scale, True

    def before_unscale(self, optimizer: Any) -> None:
        self._unscaled = True

    @contextmanager
    def step_by_scaler(self, optimizer: Any) -> Iterator[None]:
        """Note an attempt, which the optimizer's hooks mark as taken."""
        self.step_begins(optimizer)
        self.optimizers[id(optimizer)] = optimizer
        self.attempts.append(Attempt(self.step, id(optimizer), self._scale()))
        self._unscaled = self._by_scaler = True
        try:
            yield
        finally:
            self._by_scaler, self._factors = False, set()
            self.stepped.add(id(optimizer))

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


class Remarkable:
    """Looks at each operation, and tells a listener which are remarkable."""

    def __init__(self, listener: TrainingListener) -> None:
        self.listener = listener
        self._told = (-1, "")  # the step and the pass whose first inf or NaN was told

    def look(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Look at what an operation takes, and then at what it returns."""
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        before = _worst(inputs) if func._schema.is_mutable else 0
        return partial(self.look_behind, func, args, inputs, before)

    def look_behind(self, func: Any, args: Any, inputs: list[Tensor], before: int, out: Any) -> None:
        """Look at an operation that has run."""
        name, changing = func._schema.name.partition("::")[2], func._schema.is_mutable
        outputs = floats([out, *(inputs if changing else ())])
        if inputs and outputs and "empty" not in name and name != "detach":
            worst = _worst(outputs)
            if worst > (before if changing or not worst else _worst(inputs)):
                self.first_bad(name, args, inputs, outputs)
            self.conversion(name, inputs[-1], outputs[0])
            self.use(name, args, inputs, outputs)

    def first_bad(self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Report the first operation of a pass that produced inf or NaN.

        Operations on an optimizer's gradients after backward are left out. Clipping turns inf into NaN, which is
        harmless where the scaler skips the step; a step taken with such gradients is a finding of its own.
        """
        bad = next(t for t in outputs if not finite(t))
        passing = "backward" if in_backward() else "optimizer" if self.listener.stepping else "forward"
        infinite = any(isinstance(a, float) and math.isinf(a) for a in args)
        if passing == "forward" and any(t is p.grad for p in self.listener.held() for t in inputs):
            return
        if infinite or self._told == (self.listener.step, passing) or _is_mask(name, inputs, bad):
            return
        self._told = (self.listener.step, passing)
        kind = next((kind for kind, names in KINDS.items() if name in names), "overflow")
        if passing != "forward" or (bad.dtype not in HALF and kind != "softmax of a masked row"):
            kind = f"inf or NaN in {'the ' + passing + ' pass' if passing != 'forward' else 'FP32'}"
        count = max((t.numel() for t in inputs), default=0)
        first = f"first {non_finite(bad)} in {dtype_name(bad)}: {name.strip('_')} in the {passing} pass"
        before = f"the largest finite number of its {count:,} inputs is {largest(floats(inputs)):.3g}"
        self.listener.note(kind, f"{first}; {before}")

    def conversion(self, name: str, before: Tensor, after: Tensor) -> None:
        """Report whole numbers that fall together when they are converted."""
        if name not in CASTS or after.dtype not in HALF or before.dtype in (*HALF, torch.bool) or before.numel() < 2:
            return
        if before.is_complex() or before.shape != after.shape or bool((before.double() == after.double()).all()):
            return
        largest = float(before.abs().max())
        if bool((before == before.round()).all() if before.is_floating_point() else True) and largest < 2**24:
            kinds = before.unique().numel(), after.unique().numel()
            if kinds[1] < kinds[0]:
                whole = "whole numbers" if not before.is_floating_point() else "whole numbers in FP32"
                seen = f"{kinds[0]:,} whole numbers up to {largest:,.0f} became {kinds[1]:,} in {dtype_name(after)}"
                self.listener.note(f"{whole} fall together", seen)

    def use(self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Report constants, half where autocast is off, and gradients that are used while scaled."""
        told, backward = self.listener, in_backward()
        if name in WITH_CONSTANT and outputs[0].dtype is torch.float16 and not (backward or told.stepping):
            for number in (a for a in args if isinstance(a, float | int) and not isinstance(a, bool)):
                if misfit(number):
                    told.note("constant", f"{number:g} is {'0' if abs(number) < 1 else 'inf'} in float16 ({name})")
        half = [dtype_name(t) for t in inputs if t.dtype in HALF]
        if half and True in told.regions and not told.regions[-1] and not backward and name not in VIEWS:
            told.note("half where autocast is off", f"{name} was given {half[0]} in a region without autocast")
        if told.scaled_gradients and any(t is g for t in inputs for g in told.scaled_gradients):
            if name in VIEWS:
                told.scaled_gradients += outputs
            elif name in SQUARES or (name == "mul" and len(inputs) == 2 and inputs[0] is inputs[1]):
                told.note("penalty from scaled", f"{name} of gradients that are loss scale times too large")
        if name in NORMS and any(t is g for t in inputs for g in told.still_scaled()):
            told.note("gradients read while scaled", f"{name} of gradients that the scaler had not unscaled yet")


def _worst(tensors: list[Tensor]) -> int:
    """Return 2 where there is NaN, else 1 where there is inf, else 0."""
    return max((("", "inf", "NaN").index(non_finite(t)) for t in floats(tensors)), default=0)


def _is_mask(name: str, inputs: list[Tensor], bad: Tensor) -> bool:
    """Say whether -inf came of a mask that was the lowest number already."""
    low = any(bool((t <= ALMOST_LOWEST).any()) for t in floats(inputs))
    return name in ("add", "sub", "add_", "_to_copy") and low and not bool(bad.isnan().any() | (bad == math.inf).any())


def user_line(frame: Any) -> str | None:
    """Return file:line of the innermost code that is the user's; None where the lab itself was at work."""
    for summary, line in traceback.walk_stack(frame):
        file = summary.f_code.co_filename
        if file.startswith(AT_WORK):
            return None
        if not file.startswith(NOBODYS):
            return f"{Path(file).name}:{line}"
    return ""


def line_of(error: BaseException) -> str:
    """Return file:line of the user's code that an error came through last."""
    lines = [(file, line) for file, line, *_ in traceback.extract_tb(error.__traceback__)]
    users = [(file, line) for file, line in lines if not file.startswith(NOBODYS)]
    return f"{Path(users[-1][0]).name}:{users[-1][1]}" if users else ""


@contextmanager
def listening(listener: TrainingListener, scaler: Any = None) -> Iterator[TrainingListener]:
    """Report all that happens to a listener, until the block ends; `scaler` is one whose class no source knows."""
    autocast = torch.amp.autocast_mode.autocast
    hook = partial(guarded, failed=listener.failed)
    with ExitStack() as stack:
        taps: list[tuple[Any, str, Any]] = [
            (torch.autograd, "backward", listener.backward),
            (torch.autograd, "grad", listener.grad),
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
        ):
            stack.callback(handle.remove)
        stack.enter_context(optimizer_hooks(listener))
        stack.enter_context(open_sources(listener, scaler))
        stack.enter_context(Operations(Remarkable(listener).look, listener.failed))
        yield listener
