"""Observer of a model in a training loop that somebody else wrote.

Idea: a few steps out of many are sampled. torch's hooks report each module's forward pass, each gradient and each
optimizer step that was taken; sources report scalers and skipped steps. The weights are compared before and after a
step; where inf or NaN came, the step is run again to find its source. The hooks are torch's global ones, which look at
one model only: the model itself carries none, and is copied and pickled as ever.

Invariant: the run is what it would be if nobody watched, bit for bit and draw for draw; when the block ends, by an
exception too, no hook and no reference is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from labkit.formats import BF16, FP16, Format
from labkit.instrument.guard import Unseen, guarded, guarded_context, reporting
from labkit.instrument.log import Log, state_faults
from labkit.instrument.ranks import Ranks, after_backward, alone_among, group_of
from labkit.instrument.records import Finding, Skip
from labkit.instrument.replay import Call, note_call
from labkit.instrument.report import Report
from labkit.instrument.sample import (
    TRANSFORMED,
    Sample,
    compiled,
    finite,
    floats,
    length,
    own_part,
    transformed,
)  # fmt: skip
from labkit.instrument.stream import Gradients, Listener, in_backward, no_scale, open_sources, optimizer_hooks, tap

KEPT_CALLS = 8  # of the model in one step, whose inputs are kept until the step is over
SMALL = 4096  # elements: a gradient that is looked at in each step costs next to nothing


def watch(
    model: Any,
    every: int = 50,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
    formats: Sequence[Format] = (FP16, BF16),
    loss: Callable[[Any], Tensor] | None = None,
    against_fp32_every: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> Watch:
    """Watch a model being trained, by any loop, until the `with` block ends.

    Args:
        model: a module, or what has one as `.model`: an engine, a run.
        every: which steps are sampled: 0, every, 2 every ... A step is one in which an optimizer of the model steps or
            is skipped; where several do, a new step begins with the next forward pass.
        optimizer: watch this one's steps only.
        scaler: one with the methods of torch.amp.GradScaler that is not derived from it. torch's own is found.
        formats: for which the report says what they would lose.
        loss: the model's output -> the loss, unscaled. Without it the replay in FP32 begins with the gradient that
            arrived at the model's outputs, and what was lost before is not seen.
        against_fp32_every: which steps are replayed in FP32 as well, a multiple of `every`; 0 for none, None for the
            smallest such multiple from 500 on.
        group: the ranks that train the model together. Those of DDP, of FSDP2 and of a distributed engine are found.
            Each rank opens a watch; once it has ended, `report` is that of all ranks, on whichever one it is asked for.

    Raises:
        TypeError: there is no module to watch.
        ValueError: it has no parameter; every is not positive; against_fp32_every is no multiple of it.

    >>> model = nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with watch(model, every=1) as w:
    ...     model(torch.ones(4, 3)).sum().backward()
    ...     optimizer.step()
    >>> w.report().histograms("weight gradients")["bias"].count(2, 2)  # 2^2 <= 4 < 2^3
    1
    """
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"watch takes a torch.nn.Module, or what has one as .model; it was given {type(model).__name__}"
        )
    if next(module.parameters(), None) is None:
        raise ValueError(f"{type(module).__name__} has no parameter, so no step moves it and there is nothing to watch")
    if not (isinstance(every, int) and every > 0):
        raise ValueError(f"every is a positive whole number of steps; it was given {every!r}")
    if against_fp32_every is None:
        against_fp32_every = -(-500 // every) * every
    elif against_fp32_every % every:
        raise ValueError(f"against_fp32_every is 0 or a multiple of every={every}; it was given {against_fp32_every}")
    module, found = group_of(model, module)
    return Watch(module, every, optimizer, scaler, tuple(formats), loss, against_fp32_every, group or found)


class Watch(Listener):
    """A watch on one model: a context manager, and the `report` of what was seen so far."""

    def __init__(
        self,
        model: nn.Module,
        every: int,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any,
        formats: tuple[Format, ...],
        loss: Callable[[Any], Tensor] | None,
        fp32_every: int,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.model, self.every, self._group = model, every, group
        self._ranks: Ranks | None = None
        self._only, self._scaler, self._loss, self._fp32_every = optimizer, scaler, loss, fp32_every
        self.first = 0
        self._stack: ExitStack | None = None
        self._log = Log(type(model).__name__, tuple(formats))
        self._sample: Sample | None = None
        self._calls: list[Call] = []
        self._running = 0  # the thread in which the model runs
        self._known_scale: float | None = None  # in this step

    def __enter__(self) -> Watch:
        self._open(hooked=True)
        return self

    def open_in_step(self) -> Watch:
        """Open it inside an optimizer's step, of which somebody else tells, and sample the next one too."""
        self.first = 1
        self._open(hooked=False)
        if self._sample is not None:
            self._sample.kept = None
        return self

    def _open(self, hooked: bool) -> None:
        if self._stack is not None:
            raise RuntimeError("this watch was opened before; watch(model) makes another one")
        self._parameters = {n.removeprefix("_orig_mod."): p for n, p in self.model.named_parameters()}
        self._weight_names = {id(p): name for name, p in self._parameters.items()}
        self._ranks = Ranks(self._log.name, self._parameters, self._group) if self._group is not None else None
        self._names = {id(module): name or type(module).__name__ for name, module in self.model.named_modules()}
        self._blind = compiled(self.model)
        unhooked = f"activations and their gradients: {self._blind}" if self._blind else ""
        for unseen in filter(None, (unhooked, alone_among() if self._ranks is None else "")):
            self._log.cannot_see(unseen)
        self._scaled = self._by_engine = self._called = False
        self._modules = [m for m in self.model.modules() if not type(m).__module__.startswith("torch.nn.")]
        self._held: dict[int, tuple[Any, int, dict[str, Tensor]]] = {}
        with ExitStack() as stack:
            if hooked:
                stack.enter_context(optimizer_hooks(self))
            self._stack = stack
            self._sample_stack = stack.enter_context(ExitStack())
            if not self._blind:
                stack.enter_context(tap(type(self.model), "__call__", self._around_call, self.failed))
            stack.enter_context(tap(torch.autograd, "grad", self._around_grad, self.failed))
            stack.enter_context(open_sources(self, self._scaler))
            with reporting(self.failed, "beginning the first step"):
                self._begin()
            self._stack = stack.pop_all()

    def __exit__(self, *_: object) -> None:
        """Take all hooks away, and let go of the model."""
        try:
            with reporting(self.failed, "finishing the last step"):
                self._finish()
        finally:
            assert self._stack is not None
            self._stack.close()
            self.model = self._only = self._scaler = self._loss = None  # type: ignore[assignment]
            self._parameters = {}
            self._weight_names, self._names = {}, {}
            self._scale = no_scale
            self._sample, self._calls, self._modules, self._held = None, [], [], {}
            if self._ranks is not None:
                with reporting(self.failed, "leaving the report for other ranks"):
                    self._ranks.tell(self._own_report())

    def failed(self, where: str, error: Exception) -> None:
        """Note what failed in the watch itself: the report says so, and the training goes on."""
        self._log.failed(where, error)

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed in the watch itself, each with its place."""
        return tuple(self._log.failures.values())

    def report(self) -> Report:
        """Return what was seen so far, also while the watch is open; after it, what all ranks of a group saw."""
        own = self._own_report()
        return own if self._ranks is None else self._ranks.together(own)

    def _own_report(self) -> Report:
        running = self._sample.done() if self._sample is not None and self.stepped else None
        return self._log.report(self.step + bool(self.stepped), running)

    # Steps, one after another

    def _begin(self) -> None:
        step = self._log.step = self.step
        self.stepped, self._calls, self._sample = set(), [], None
        self._known_scale = None
        self._sample_stack.close()
        if not self._called and not self._blind:
            hook = guarded(self._before_forward, self.failed)
            self._sample_stack.callback(register_module_forward_pre_hook(hook).remove)
        if step % self.every and step != self.first:
            return
        keep = bool(self._fp32_every) and (step % self._fp32_every == 0 or step == self.first)
        self._sample = Sample(step, self._names, self._scale_now, self.failed, keep)
        if not self._blind:
            hook = guarded(self._sample.after_forward, self.failed)
            self._sample_stack.callback(register_module_forward_hook(hook).remove)
        for name, parameter in self._parameters.items() if self._group is None else ():
            if parameter.requires_grad and parameter.is_leaf:
                hook = guarded(partial(self._accumulated, name), self.failed)
                self._sample_stack.callback(parameter.register_post_accumulate_grad_hook(hook).remove)

    def _finish(self) -> None:
        """Write down the sampled step that is over."""
        if self._sample is not None and (self.stepped or self._sample.counts):
            if self.stepped and not self._sample.norms:
                self._log.cannot_see("gradients: no gradient had arrived at any parameter")
            self._log.watched.append(self._sample.done())
        self._sample_stack.close()

    def next_step(self) -> None:
        """Write down the step that is over, and begin the next."""
        self._finish()
        self.step += 1
        self._begin()

    # Forward and backward

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        """Begin a step with the forward pass of a layer, where the model is never called as a whole."""
        if id(module) in self._names:
            self.forward_begins()

    def _around_call(self, call: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Note the model's inputs and listen to its outputs; more of it in a sampled step."""
        if module is not self.model or not torch.is_grad_enabled() or in_backward():
            return call(module, *args, **kwargs)
        self.forward_begins()
        if self._running:
            if self._running != get_ident():
                self._log.cannot_see("calls of the model in a second thread, while it ran in a first")
            return call(module, *args, **kwargs)
        self._called, self._running = True, get_ident()
        noted: Call | None = None
        try:
            with reporting(self.failed, "noting a call"):
                if transformed():
                    raise Unseen(TRANSFORMED)
                noted = note_call(self._modules, args, kwargs)
                self._calls = [*self._calls[1 - KEPT_CALLS :], noted]
            sample = None if transformed() else self._sample
            inside = nullcontext() if sample is None else sample.inside(self.model.parameters)
            with guarded_context(inside, self.failed, "looking inside a call"):
                output = call(module, *args, **kwargs)
        finally:
            self._running = 0
        if noted is not None:
            noted.returned(floats(output), self.failed)
        if self._group is not None and self._sample is not None:
            after_backward(floats(output), self._reduced, self.failed)
        return output

    def _around_grad(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Mark gradients that are no part of the step's backward pass, as those of a gradient penalty."""
        sample = self._sample
        if sample is None:
            return call(*args, **kwargs)
        outer, sample.inner = sample.inner, True
        try:
            return call(*args, **kwargs)
        finally:
            sample.inner = outer

    def _reduced(self) -> None:
        """Count gradients after a backward pass that has added them up over the ranks."""
        for name, parameter in self._parameters.items():
            self._accumulated(name, parameter)

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        if self._sample is not None and parameter.grad is not None:
            self._sample.gradient(name, parameter.grad, self._scale_now())

    # Scales and optimizers, as `labkit.instrument.stream` tells of them

    def _scale_now(self) -> float:
        if self._known_scale is None:
            self._known_scale = float(self._scale())
        return self._known_scale

    def trains(self, model: nn.Module) -> bool:
        return model is self.model

    def scaled_by(self, scale: Callable[[], float]) -> None:
        self._scale, self._scaled = scale, True
        if self._sample is None or not self._sample.norms:  # else gradients of this step were counted by what was known
            self._known_scale = None

    def holds(self, optimizer: Any) -> bool:
        return (self._only is None or optimizer is self._only) and bool(self._held_by(optimizer))

    def _held_by(self, optimizer: Any) -> dict[str, Tensor]:
        """Return the model's parameters that an optimizer steps; looked up once, and when it has more."""
        total = sum(len(group["params"]) for group in optimizer.param_groups)
        _, known, held = self._held.get(id(optimizer), (None, 0, {}))
        if known != total:
            stepped = [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._weight_names]
            held = {self._weight_names[id(p)]: p for p in stepped}
            if held:  # an optimizer that is kept is the only one of its id
                self._held[id(optimizer)] = optimizer, total, held
        return held

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        if self._by_engine or not self.holds(optimizer):
            return
        self.stepping = True
        held = self._held_by(optimizer)
        self.step_begins(optimizer)
        if self._sample is not None or not (self._scaled or self._looks_finite(held)):
            self.before_step(optimizer, held, _unscaled_gradients(optimizer, held))

    @staticmethod
    def _looks_finite(weights: dict[str, Tensor]) -> bool:
        """Look at one small gradient, which costs next to nothing: inf and NaN come to nearly all of them."""
        for weight in weights.values():
            if weight.numel() <= SMALL and weight.grad is not None and not weight.grad.is_sparse:
                return math.isfinite(abs(own_part(weight.grad).sum().item()))
        return True

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        if not self._by_engine and self.holds(optimizer):
            skipped = getattr(optimizer, "found_inf", None)  # of a fused optimizer, which skips by itself
            held = self._held_by(optimizer) if self._sample is not None or skipped else {}
            if skipped:
                self.skipped(optimizer, {name: p.grad for name, p in held.items()})
            else:
                self.after_step(optimizer, held, {name: p.grad for name, p in held.items()})

    @contextmanager
    def step_by_scaler(self, optimizer: Any) -> Iterator[None]:
        """Be open while a scaler decides on a step: it was skipped if the optimizer's hooks were not called."""
        self.step_begins(optimizer)
        yield
        if id(optimizer) not in self.stepped:
            self.skipped(optimizer, {name: p.grad for name, p in self._held_by(optimizer).items()})

    @contextmanager
    def step_by_engine(self, optimizer: Any) -> Iterator[None]:
        """Be open while an engine steps, which tells of it itself: not torch's hooks."""
        self._by_engine = True
        try:
            yield
        finally:
            self._by_engine = False

    def before_unscale(self, optimizer: Any) -> None:
        """Compare the gradients that are still scaled with those that backward left."""
        if self._sample is None or id(optimizer) in self.stepped:
            return
        norms, scale = self._sample.norms, self._scale_now()
        held = {n: p.grad for n, p in self._held_by(optimizer).items() if p.grad is not None and n in norms}
        left, now = math.hypot(*(norms[n] for n in held)) * scale, length(held.values())
        if scale != 1 and math.isfinite(left) and now < 0.999 * left:
            says = f"while {scale:g} times too large, they were shortened from {left:.3g} to {now:.3g}; unscale_ first"
            self._log.find(Finding("clipped while scaled", "", self.step, says))

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        self.step_begins(optimizer)
        if self._sample is not None:
            if self._by_engine:
                self._sample.forget_gradients()
            observed, self._sample.kept = self._sample.kept, None
            if observed is not None:
                self._log.compare_with_fp32(self.model, self._calls, self._scale_now, observed, gradients, self._loss)
            self._sample.look_before(self._parameters, weights, gradients)
            self._log.note_sums(weights)
        counted = self._sample.counts["weight gradients"].values() if self._sample is not None else ()
        if not self._scaled and (self._sample is None or any(h.non_finite for h in counted)):
            self._name_culprit(gradients)

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        self.stepping = False
        self.stepped.add(id(optimizer))
        if self._sample is None or not self._sample.before:
            return
        self._sample.look_after(weights, gradients)
        self._log.note_moves(self._sample)
        self._sample.measure(self._parameters.values(), weights.values(), optimizer)
        for finding in state_faults(optimizer, weights, self.step):
            self._log.find(finding)

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Note a step that was not taken, and whose fault that was."""
        self.stepping = False
        self.stepped.add(id(optimizer))
        culprits = tuple(name for name, g in gradients.items() if g is not None and not finite(g))
        shown = ", ".join(culprits[:3]) + f" and {len(culprits) - 3} more" * (len(culprits) > 3)
        why = why or f"inf or NaN in {shown or 'a gradient'}"
        self._log.skips.append(Skip(self.step, self._scale_now(), culprits, why))
        self._name_culprit(gradients)

    def _name_culprit(self, gradients: Gradients) -> None:
        self._log.name_culprit(self.model, self._calls, self._scale_now, gradients)


def _unscaled_gradients(optimizer: Any, held: dict[str, Tensor]) -> Gradients:
    """Return the gradients that a step is about to take; a fused optimizer unscales them inside."""
    scale = getattr(optimizer, "grad_scale", None)
    return {n: p.grad if scale is None or p.grad is None else p.grad / scale for n, p in held.items()}
