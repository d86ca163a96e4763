"""Events of the steps of a training, each with the line of the user's code that caused it.

Idea: the stream reports modules, backward passes, optimizers, scalers, schedules and regions. The
gradients of a step are judged by the backward passes that they consist of (`gradient_parts`).
Single operations are judged by `operations`. labkit.clinic.diagnose decides what the events mean.

Invariant: no number is changed.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from threading import get_ident
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import checkpoint

from labkit.amp.loss_scaling.magnitudes import stored_values
from labkit.clinic.gradient_parts import (
    GradientParts,
    Pass,
    is_cleared,
    last_factor_of,
    ratio_of,
    scale_of,
)
from labkit.clinic.operations import OperationObserver
from labkit.findings import Status
from labkit.gemm.half_storage import HALVES
from labkit.instrument.events import (
    AutocastBegins,
    AutocastEnds,
    BackwardBegins,
    BackwardEnded,
    EngineStepBegins,
    EngineStepEnded,
    GradBegins,
    GradEnded,
    LossScaled,
    ModuleBegins,
    ModuleEnded,
    OptimizerBegins,
    OptimizerEnded,
    ParameterRegistered,
    ScalerStepBegins,
    ScalerStepEnded,
    ScheduleSteps,
    UnscaleBegins,
)
from labkit.instrument.operations import in_backward, outside_modes
from labkit.instrument.sample import finite
from labkit.instrument.script import leaves
from labkit.instrument.stream import EventT
from labkit.instrument.symptoms import Kind, finding
from labkit.instrument.user_code import line_of_user

BY_HAND = (
    "Change the scale only between two optimizer steps, after the gradients were "
    "divided: the losses of one step need one scale."
)
# a smaller power of two may be the size of a batch
SURELY_A_SCALE = 2.0**10
REENTRANT = "checkpoint with use_reentrant=True"
# the number of gradients of a scaled loss that are compared with those of the step
COMPARED = 8


@dataclass
class StepAttempt:
    """A step of an optimizer, taken or skipped by a scaler.

    Attributes:
        step: the number of the training step.
        optimizer: the optimizer's id.
        scale: the loss scale; 1 without a scaler.
        taken: whether the optimizer stepped.
    """

    step: int
    optimizer: int
    scale: float = 1.0
    taken: bool = False


class TrainingObserver(OperationObserver):
    """Observer of a training while it is subscribed: its events, step attempts and operations."""

    def __init__(self) -> None:
        # `on`, which the constructor of the base class calls, reads it
        self._thread = get_ident()
        super().__init__()
        self.attempts: list[StepAttempt] = []
        # parameters created during this step, each with its line
        self.new_parameters: list[tuple[Tensor, str]] = []
        # whether a scaler or an engine is deciding on the step that runs
        self._by_scaler = False
        # whether the outputs of the last torch.autograd.grad were scaled
        self._scaled_outputs = False
        self.parts = GradientParts()
        # the scales that scalers used in this step
        self._known_scales: set[float] = set()
        # the last backward pass
        self._pass = Pass(scale=1.0, step=0, line="")
        # ids of parameters whose gradient was clear before the last backward pass
        self._fresh: set[int] = set()
        # optimizer -> the line that unscaled its gradients
        self._unscaled_at: dict[int, str] = {}
        # step, optimizer and kind of each finding that is reported once in a step
        self._judged: set[tuple[int, int, str]] = set()
        # the scales of the losses whose gradients were added since the last step
        self._factors: set[float] = set()
        # whether an autocast region of FP16 was entered
        self._in_fp16 = False
        # ids of the modules whose forward pass recorded gradients
        self.recorded: set[int] = set()
        # id of a module whose forward pass recorded none -> why
        self.unrecorded: dict[int, str] = {}
        # the leaves of a scaled loss, until its backward pass ends
        self._leaves: list[Tensor] = []
        # some of these leaves, and their gradients as the backward pass left them
        self._as_scaled: list[tuple[Tensor, Tensor]] = []
        # the scale of that loss
        self._factor = 1.0
        # whether the last backward pass left no gradient other than 0
        self._nothing_arrived = False
        # the largest magnitude of the tensor that the last backward pass began at
        self._loss_size = 0.0
        # the steps whose loss was inf or NaN
        self.not_finite_losses: set[int] = set()
        self.on(ModuleBegins, self.before_module).on(ModuleEnded, self.after_module)
        self.on(ParameterRegistered, self.parameter_registered)
        self.on(BackwardBegins, self.before_backward).on(BackwardEnded, self.after_backward)
        self.on(GradBegins, self.before_grad).on(GradEnded, self.after_grad)
        self.on(UnscaleBegins, self.before_unscale)
        self.on(ScalerStepBegins, self.scaler_begins).on(ScalerStepEnded, self.scaler_ended)
        self.on(EngineStepBegins, self.engine_begins).on(EngineStepEnded, self.engine_ended)
        self.on(OptimizerBegins, self.before_optimizer).on(OptimizerEnded, self.after_optimizer)
        self.on(ScheduleSteps, self.before_schedule)
        self.on(AutocastBegins, self.autocast_begins).on(AutocastEnds, self.autocast_ends)

    def on(self, event: type[EventT], handle: Callable[[EventT], None]) -> Self:
        """Call a function for the events of a type in this thread, as other threads may train, too.

        Returns:
            The observer, so that calls can be chained.
        """

        @wraps(handle)
        def of_own_thread(happened: EventT) -> None:
            # torch runs a backward pass in threads of its own
            if get_ident() == self._thread or in_backward():
                handle(happened)

        return super().on(event, of_own_thread)

    def end_step(self) -> None:
        """Report the parameters that were created in this step and that no optimizer holds."""
        held = {id(p) for p in self.optimized_parameters()}
        for parameter, line in self.new_parameters:
            if parameter.grad is not None and id(parameter) not in held:
                seen = (
                    f"a parameter of shape {tuple(parameter.shape)} was created in the step, "
                    "and no optimizer holds it"
                )
                self.events.append(finding(Kind.LAYER_MADE_IN_THE_STEP, "", self.step, seen, line))
        self.new_parameters = []
        self.scaled_gradients = []
        self.modules.running = []
        self._known_scales = set()
        self.lines = {}
        self.origins.clear()

    # Hooks and taps

    def before_module(self, event: ModuleBegins) -> None:
        self.modules.enter(event.module)
        if torch.is_grad_enabled():
            self.recorded.add(id(event.module))
        elif id(event.module) not in self.unrecorded:
            self.unrecorded[id(event.module)] = _why_unrecorded()

    def after_module(self, event: ModuleEnded) -> None:
        self.modules.leave()

    def parameter_registered(self, event: ParameterRegistered) -> None:
        line = line_of_user(sys._getframe(1))
        if event.parameter is not None and line:
            self.new_parameters.append((event.parameter, line))

    def before_optimizer(self, event: OptimizerBegins) -> None:
        optimizer = event.optimizer
        if not self._by_scaler:
            self.step_begins(optimizer)
        with outside_modes():
            self._note_step(optimizer)
        self.stepping = True

    def _note_step(self, optimizer: Any) -> None:
        self.optimizers[id(optimizer)] = optimizer
        # a scaler hands found_inf to a fused optimizer, which unscales and skips in its kernel
        found_inf = getattr(optimizer, "found_inf", None)
        if not self._by_scaler:
            self.attempts.append(StepAttempt(self.step, id(optimizer)))
        attempt = self.attempts[-1]
        attempt.taken = found_inf is None or float(found_inf) == 0
        if attempt.taken:
            if not all(map(finite, _gradients(optimizer))):
                self.note(Kind.STEP_NOT_FINITE, "the optimizer got gradients with inf or NaN")
            if self._is_cut_off(optimizer):
                seen = "every gradient that the optimizer got is 0, and the loss is not"
                self.note(Kind.ALL_GRADIENTS_ARE_ZERO, seen)
        self._judge_parts(optimizer)
        if self._by_scaler and found_inf is None:
            self._judge_scale(optimizer)
        # the gradients of a fused optimizer are not divided yet
        if not self._by_scaler or found_inf is None:
            self._judge_division(optimizer)
        if any(self.regions):
            self.note(
                Kind.STEP_INSIDE_AUTOCAST,
                "optimizer.step() was called inside an open autocast region",
            )

    def _is_cut_off(self, optimizer: Any) -> bool:
        """Return whether all gradients underflowed, in a training that uses FP16.

        The loss is not 0, and every gradient of the optimizer is.
        """
        in_half = self._in_fp16 or any(
            p.dtype is torch.float16 for p in self.optimized_parameters()
        )
        if not in_half or not self._loss_size > 0 or not self._nothing_arrived:
            return False
        gradients = [stored_values(gradient) for gradient in _gradients(optimizer)]
        return bool(gradients) and not any(bool(values.any()) for values in gradients)

    def _judge_parts(self, optimizer: Any) -> None:
        """Report gradients of an earlier step that were not cleared."""
        outlived = self.parts.find_outlived(optimizer)
        if outlived is None or not self._first_of(Kind.GRADIENTS_OUTLIVE_A_STEP, optimizer):
            return
        old, new = outlived
        seen = (
            f"the gradients of the backward pass at {new.line} were added to those of step "
            f"{old.step}, which a step had used already"
        )
        self.note(Kind.GRADIENTS_OUTLIVE_A_STEP, seen)

    def _judge_scale(self, optimizer: Any) -> None:
        """Report gradients that a scaler divided by another number than their loss's scale."""
        part = self.parts.find_scaled(optimizer)
        unscaled_at = self._unscaled_at.get(id(optimizer))
        # without a recorded unscale_, a scaler may have divided them unobserved
        if part is None or part.backward.scale is None or unscaled_at is None:
            return
        if part.backward.scale == 1:
            kind = Kind.LOSS_NOT_SCALED
            seen = (
                f"the backward pass at {part.backward.line} began at a loss that was not scaled, "
                f"and the scaler divided its gradients by {part.divided:g}"
            )
        elif part.divided == 1:
            cleared = all(each.divided == 1 for each in self.parts.of_optimizer(optimizer))
            kind = Kind.SECOND_PASS_NOT_UNSCALED if cleared else Kind.SCALED_AFTER_UNSCALE
            seen = (
                f"the backward pass at {part.backward.line} came after unscale_() at "
                f"{unscaled_at}, so the step uses its gradients {part.backward.scale:g} times "
                "too large"
            )
        else:
            kind = Kind.SCALE_CHANGED_BETWEEN
            seen = (
                f"the loss of the backward pass at {part.backward.line} was multiplied by "
                f"{part.backward.scale:g}, and its gradients were divided by {part.divided:g}"
            )
        if self._first_of(kind, optimizer):
            self.note(kind, seen)

    def _judge_division(self, optimizer: Any) -> None:
        """Report gradients of a loss scaled by hand that were not divided by the same number."""
        mixed = self.parts.find_mixed_scales(optimizer)
        if mixed is not None and self._divided_by(mixed[1], optimizer):
            seen = f"gradients of losses times {mixed[0]:g} and times {mixed[1]:g} were added"
            self.note(Kind.SCALE_CHANGED_BETWEEN, seen, BY_HAND)
            return
        # of an optimizer that is not torch's, or has hooks, the division may be its own
        hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {})
        if not type(optimizer).__module__.startswith("torch.optim") or hooks:
            return
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        # each parameter with its gradient as the backward pass left it
        pairs = [(p, before) for p, before in self._as_scaled if id(p) in held]
        unchanged = any(p.grad is not None and torch.equal(before, p.grad) for p, before in pairs)
        if self.unscaled:
            return
        if unchanged and not self._by_scaler:
            self._report_undivided()
            return
        self._judge_ratio(pairs)

    def _report_undivided(self) -> None:
        seen = (
            f"the optimizer got the gradients of the loss times {self._factor:g}, not divided by it"
        )
        self.note(Kind.STEP_WITH_SCALED_GRADIENTS, seen)
        if self._factor < SURELY_A_SCALE:
            # the factor may be the size of a batch
            self.events[-1] = replace(self.events[-1], status=Status.WARN)

    def _judge_ratio(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        """Report gradients that the script divided by another number than the loss's factor.

        Args:
            pairs: the parameters, each with its gradient as the backward pass left it.
        """
        ratios = [None if p.grad is None else ratio_of(before, p.grad) for p, before in pairs]
        ratio = ratios[0] if ratios else None
        # a division by one number changes all gradients alike, but for rounding
        if ratio is None or len({_in_short(each) for each in ratios}) > 1:
            return
        # a mean over several backward passes divides by their number, so one pass is judged only
        if max(len(self.parts.of_parameter(p)) for p, _ in pairs) != 1:
            return
        remaining = ratio * self._factor
        if self._by_scaler:
            # the script divided by the scale by hand, after the scaler had
            is_wrong = remaining * self._factor == 1
        else:
            is_wrong = remaining != 1
        # a clip shortens by any number, so only powers of two are taken for a wrong divisor
        if is_wrong and math.frexp(remaining)[0] == 0.5:
            seen = (
                f"the loss was multiplied by {self._factor:g}, and its gradients were divided by "
                f"{1 / ratio:g}: they are {remaining:g} times as large as they should be"
            )
            self.note(Kind.WRONG_DIVISOR, seen)

    def _divided_by(self, number: float, optimizer: Any) -> bool:
        """Return whether the gradients were divided by this number: it is a scale, not a weight."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        pairs = [(p, before) for p, before in self._as_scaled if id(p) in held]
        ratios = [None if p.grad is None else ratio_of(before, p.grad) for p, before in pairs]
        return bool(ratios) and all(ratio == 1 / number for ratio in ratios)

    def _first_of(self, kind: Kind, optimizer: Any) -> bool:
        """Return whether a finding of this kind is the first of this step and optimizer."""
        key = (self.step, id(optimizer), kind.value)
        if key in self._judged:
            return False
        self._judged.add(key)
        return True

    def after_optimizer(self, event: OptimizerEnded) -> None:
        self.stepping = False
        self._factors = set()
        self.stepped.add(id(event.optimizer))
        with outside_modes():
            self.parts.mark_used(event.optimizer)

    def before_backward(self, event: BackwardBegins) -> None:
        # without a line of the user's code, it is a replay of the watch on a copy
        if line_of_user(sys._getframe(1)) is None:
            return
        with outside_modes():
            root = _first(event.roots)
            if in_backward():
                # a reentrant checkpoint: its gradients belong to the pass that is running
                self._note_leaves(leaves(root))
            else:
                self.backward_begins(root)

    def backward_begins(self, root: Tensor) -> None:
        """Record the loss scale of a backward pass from a tensor, and check where it begins."""
        scale = scale_of(root, self._known_scales)
        factor = 1.0 if scale is None else scale
        line = line_of_user(sys._getframe(1)) or ""
        self._pass = Pass(scale, self.step, line, last_factor_of(root))
        if any(self.regions):
            self.note(
                Kind.BACKWARD_INSIDE_AUTOCAST,
                "backward() was called inside an open autocast region",
            )
        fresh = True
        for optimizer in self.optimizers.values():
            if any(bool(gradient.any()) for gradient in _gradients(optimizer)):
                fresh = False
        if fresh:
            self._factors = set()
        self._factors.add(factor)
        if self.scaled and len(self._factors) > 1 and 1.0 not in self._factors:
            shown = " and ".join(f"{factor:g}" for factor in sorted(self._factors))
            self.note(Kind.SCALE_CHANGED_BETWEEN, f"gradients with scales of {shown} were added")
        self.unscaled = factor == 1
        self._factor = factor
        self._loss_size = float(root.detach().abs().max()) if root.numel() else 0.0
        # a scaled loss in 16 bits may be inf because of its scale, which the scaler lowers
        by_itself = factor == 1 or root.dtype not in HALVES
        if math.isnan(self._loss_size) or (math.isinf(self._loss_size) and by_itself):
            self.not_finite_losses.add(self.step)
        self._leaves = []
        self._fresh = set()
        self._as_scaled = []
        self._note_leaves(leaves(root))

    def _note_leaves(self, reached: list[Tensor]) -> None:
        self.parts.forget_changed(reached)
        self._leaves += reached
        self._fresh |= {id(leaf) for leaf in reached if is_cleared(leaf)}

    def after_backward(self, event: BackwardEnded) -> None:
        if in_backward() or line_of_user(sys._getframe(1)) is None:
            return
        with outside_modes():
            self.parts.add(self._pass, self._leaves, self._fresh)
            self._nothing_arrived = not any(
                leaf.grad is not None and bool(stored_values(leaf.grad).any())
                for leaf in self._leaves
            )
            # hooks may divide a gradient, so those with hooks are not compared
            plain = [p for p in self._leaves if p.grad is not None and not _has_hooks(p)]
            in_fp16 = self.scaled or self._in_fp16 or any(p.dtype is torch.float16 for p in plain)
            number = self._pass.last_factor
            is_suspect = number is not None and number > 1 and math.frexp(number)[0] == 0.5
            if in_fp16 and (is_suspect or not self.unscaled):
                plain.sort(key=Tensor.numel)
                self._as_scaled = []
                for parameter in plain:
                    gradient = parameter.grad
                    if gradient is None or not _is_comparable(gradient):
                        continue
                    self._as_scaled.append((parameter, gradient.detach().clone()))
                    if len(self._as_scaled) == COMPARED:
                        break
            self._leaves = []

    def before_grad(self, event: GradBegins) -> None:
        with outside_modes():
            scale = scale_of(_first(event.outputs), self._known_scales)
            self._scaled_outputs = scale is not None and scale > 1

    def after_grad(self, event: GradEnded) -> None:
        if self._scaled_outputs and event.create_graph:
            self.scaled_gradients += [g for g in event.gradients if g is not None]

    def loss_scaled(self, event: LossScaled) -> None:
        super().loss_scaled(event)
        with outside_modes():
            self._known_scales.add(float(event.scale()))

    def before_unscale(self, event: UnscaleBegins) -> None:
        self.unscaled = True
        with outside_modes():
            self._judge_parts(event.optimizer)
            self.parts.divide(event.optimizer, float(self._scale()))
        self._unscaled_at[id(event.optimizer)] = line_of_user(sys._getframe(1)) or ""

    def scaler_begins(self, event: ScalerStepBegins) -> None:
        """Record an attempt; `before_optimizer` marks it as taken."""
        self.scaled_by(event.scale)
        self._attempt(event.optimizer)

    def scaler_ended(self, event: ScalerStepEnded) -> None:
        """End an attempt; if no optimizer stepped in it, it stays marked as skipped."""
        self._end_attempt(event.optimizer)
        self._unscaled_at.pop(id(event.optimizer), None)
        with outside_modes():
            self.parts.mark_used(event.optimizer)

    def engine_begins(self, event: EngineStepBegins) -> None:
        """Record the attempt of an engine, which decides on steps and unscales by itself."""
        self.parts.forget(event.engine.optimizer)
        self._attempt(event.engine.optimizer)

    def engine_ended(self, event: EngineStepEnded) -> None:
        """End the attempt of an engine."""
        self._end_attempt(event.engine.optimizer)

    def _attempt(self, optimizer: Any) -> None:
        self.step_begins(optimizer)
        self.optimizers[id(optimizer)] = optimizer
        self.attempts.append(StepAttempt(self.step, id(optimizer), self._scale()))
        self.unscaled = True
        self._by_scaler = True

    def _end_attempt(self, optimizer: Any) -> None:
        self._by_scaler = False
        self._factors = set()
        self.stepped.add(id(optimizer))

    def before_schedule(self, event: ScheduleSteps) -> None:
        schedule = event.schedule
        last = None
        for attempt in self.attempts:
            if attempt.optimizer == id(schedule.optimizer):
                last = attempt
        if last is not None and not last.taken:
            self.note(
                Kind.SCHEDULE_COUNTS_SKIPS,
                f"it advanced after a skipped step, at a scale of {last.scale:g}",
            )

    def autocast_begins(self, event: AutocastBegins) -> None:
        region = event.region
        self.regions.append(bool(region._enabled))
        self._in_fp16 |= self.regions[-1] and region.fast_dtype is torch.float16

    def autocast_ends(self, event: AutocastEnds) -> None:
        if self.regions:
            self.regions.pop()


def _why_unrecorded() -> str:
    """Return what runs a module without recording: a reentrant checkpoint, or no_grad."""
    for frame, _ in traceback.walk_stack(None):
        if frame.f_code.co_filename == checkpoint.__file__:
            return REENTRANT
    return "torch.no_grad()"


def _first(tensors: Tensor | Iterable[Tensor]) -> Tensor:
    if isinstance(tensors, Tensor):
        return tensors
    return next(iter(tensors))


def _has_hooks(parameter: Any) -> bool:
    """Return whether hooks other than the watch's own run for a gradient."""
    for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
        # None until the first hook is registered
        if hooks is None:
            continue
        for hook in hooks.values():
            if not getattr(hook, "__module__", "").startswith("labkit.instrument"):
                return True
    return False


def _gradients(optimizer: Any) -> list[Tensor]:
    return [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]


def _is_comparable(gradient: Tensor) -> bool:
    """Return whether a gradient is dense, finite and not 0 everywhere."""
    return gradient.layout is torch.strided and bool(finite(gradient)) and bool(gradient.any())


def _in_short(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3g}"
