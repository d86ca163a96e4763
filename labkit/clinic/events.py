"""Events of a training, operation by operation, each with the line of the user's code that caused it.

Idea: a dispatch mode sees each operation below autocast, in the dtype that it is computed in. The stream reports
modules, backward, optimizers, scalers, schedules and regions. The inputs and outputs of an operation decide whether it
is an event. Examples are inf from finite numbers, a constant that its format does not have, and integers
that a conversion makes equal. labkit.clinic.diagnose decides what the events mean.

Invariant: no number is changed.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, wraps
from threading import get_ident
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from labkit.amp.loss_scaling.unscale import stored
from labkit.clinic.constants import misfit
from labkit.clinic.remedies import (
    DERIVATIVES,
    DOMAINS,
    Seen,
    finite_in_fp32,
    in_forward,
    of_derivative,
)
from labkit.clinic.rounding import (
    EXPONENTIALS,
    FORGIVES_NO_ROUNDING,
    SCALAR_SUMS,
    Origin,
    Origins,
    difference,
    rounds_to_one,
    stagnates,
)
from labkit.clinic.stages import GradientParts, Pass, is_cleared, number_of, ratio_of, scale_of
from labkit.findings import Finding, Status
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
from labkit.instrument.operations import Modules, in_backward, op_of_node, outside_modes
from labkit.instrument.sample import dtype_name, finite, floats, largest, non_finite
from labkit.instrument.script import leaves
from labkit.instrument.stream import EventT, StepObserver
from labkit.instrument.symptoms import Kind, finding
from labkit.instrument.user_code import line_of_user

NON_FINITE_KINDS = {  # kind of event -> the operations in which inf or NaN begins
    Kind.LOG_OF_ZERO: {"log", "log2", "log10", "log1p", "log_"},
    Kind.EXP_OVERFLOWS: {"exp", "exp2", "expm1", "exp_"},
    Kind.DIVISION_BY_ZERO: {"div", "div_", "reciprocal", "rsqrt", "true_divide"},
    Kind.SUM_OVERFLOWS: {
        "sum",
        "mean",
        "cumsum",
        "add_",
        "_foreach_add_",
        "norm",
        "linalg_vector_norm",
    },
    Kind.SOFTMAX_OF_A_MASKED_ROW: {"_softmax", "_safe_softmax", "_log_softmax"},
}
NON_FINITE_IN = {  # pass -> the kind of an inf or NaN in it, which no half format explains
    "forward": Kind.NOT_FINITE_IN_FP32,
    "backward": Kind.NOT_FINITE_IN_BACKWARD,
    "optimizer": Kind.NOT_FINITE_IN_OPTIMIZER,
}
WITH_CONSTANT = {
    "add",
    "sub",
    "rsub",
    "add_",
    "sub_",
    "clamp",
    "clamp_min",
    "clamp_max",
    "masked_fill",
    "where",
}
CASTS = {"_to_copy", "copy_"}
VIEWS = {
    "view",
    "_unsafe_view",
    "t",
    "transpose",
    "permute",
    "expand",
    "squeeze",
    "unsqueeze",
    "detach",
    "alias",
    "slice",
    "select",
    "split",
    "unbind",
    "as_strided",
    "clone",
    *CASTS,
}
SQUARES = {"pow", "norm", "linalg_vector_norm", "square"}
NORMS = {"norm", "linalg_vector_norm", "_foreach_norm"}
BY_HAND = (
    "Change the scale only between two optimizer steps, after the gradients were divided: the losses of one step need "
    "one scale."
)
SURELY_A_SCALE = 2.0**10  # a smaller power of two may be the size of a batch
REENTRANT = "checkpoint with use_reentrant=True"
MOST_LINES = 2  # of operations whose derivative is not finite
COMPARED = 8  # gradients of a scaled loss that are compared with those of the step
# masks in FP16 are at or below it: two of them add up to -inf, which is harmless
ALMOST_LOWEST = -60_000


@dataclass
class StepAttempt:
    """A step of an optimizer: taken, or skipped by a scaler; with its scale, 1 without a scaler."""

    step: int
    optimizer: int
    scale: float = 1.0
    taken: bool = False


class TrainingObserver(StepObserver):
    """Observer of a training, while it is subscribed to the stream: its events, step attempts and single operations."""

    def __init__(self) -> None:
        self._thread = get_ident()
        super().__init__()
        self.events: list[Finding] = []
        self.attempts: list[StepAttempt] = []
        self.optimizers: dict[int, Any] = {}
        self.modules = Modules()
        self.new_parameters: list[
            tuple[Tensor, str]
        ] = []  # created during this step, each with its line
        self.scaled_gradients: list[Tensor] = []  # of torch.autograd.grad, or views of them
        self.regions: list[bool] = []  # autocast regions that are open: whether each is on
        self._unscaled, self._by_scaler = True, False
        self._scaled_outputs = False  # of the last torch.autograd.grad
        self.parts = GradientParts()
        self._known_scales: set[float] = set()  # of scalers, in this step
        self._pass = Pass(1.0, 0, "")  # the last backward pass
        self._fresh: set[int] = set()  # ids of parameters whose gradient was clear before it
        self._unscaled_at: dict[int, str] = {}  # optimizer -> the line that unscaled its gradients
        self._judged: set[tuple[int, int, str]] = set()  # step, optimizer and kind of a finding
        self._factors: set[float] = set()
        self._in_fp16 = False  # an autocast region of FP16 was seen
        self.ran_in_half = False  # an operation gave 16-bit numbers
        self.recorded: set[int] = set()  # modules whose forward pass recorded gradients
        self.unrecorded: dict[int, str] = {}  # modules whose forward pass did not -> why
        self._leaves: list[Tensor] = []  # of a scaled loss, until its backward pass ends
        self._as_scaled: list[
            tuple[Tensor, Tensor]
        ] = []  # some of them, and their gradients as it left them
        self._factor = 1.0  # of that loss
        self._nothing_arrived = False  # the last backward pass left gradients of 0 alone
        self._loss_size = 0.0  # magnitude of what the last backward pass began at
        self._lines: dict[str, list[str]] = {}  # operation -> where this step's forward pass ran it
        self.lossless: set[int] = set()  # steps whose loss was inf or NaN
        self._total_before = 0.0  # of a running sum that is added to in place
        self.origins = Origins()
        self.blamed: set[str] = set()  # constants, with their lines, that a fault was traced to
        self._reported = (-1, "")  # the step and the pass whose first inf or NaN was reported
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
        """Call a function for each event of a type in this thread; other threads may train something else."""

        @wraps(handle)
        def of_own_thread(happened: EventT) -> None:
            # the threads of a backward pass are torch's
            if get_ident() == self._thread or in_backward():
                handle(happened)

        return super().on(event, of_own_thread)

    def note(self, kind: Kind, seen: str, remedy: str = "") -> None:
        """Record an event, unless the lab itself caused it; a remedy follows from what was seen, or is the kind's."""
        line = line_of_user(sys._getframe(1))
        if line is None:
            return
        found = finding(kind, self.modules.innermost, self.step, seen, line)
        self.events.append(replace(found, remedy=remedy) if remedy else found)

    def optimized_parameters(self) -> Iterator[Tensor]:
        """Yield the parameters of all known optimizers."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                yield from group["params"]

    def scaled_parameter_gradients(self) -> list[Tensor]:
        """Return the gradients that a scaler has not unscaled yet."""
        if self._unscaled or not self.scaled:
            return []
        return [p.grad for p in self.optimized_parameters() if p.grad is not None]

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
        self.new_parameters, self.scaled_gradients, self.modules.running = [], [], []
        self._known_scales = set()
        self._lines = {}
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
        found = getattr(optimizer, "found_inf", None)  # of a fused one, which skips by itself
        if not self._by_scaler:
            self.attempts.append(StepAttempt(self.step, id(optimizer)))
        self.attempts[-1].taken = found is None or not float(found)
        if self.attempts[-1].taken and not all(map(finite, _gradients(optimizer))):
            self.note(Kind.STEP_NOT_FINITE, "the optimizer got gradients with inf or NaN")
        if self.attempts[-1].taken and self._is_cut_off(optimizer):
            seen = "every gradient that the optimizer got is 0, and the loss is not"
            self.note(Kind.ALL_GRADIENTS_ARE_ZERO, seen)
        self._judge_parts(optimizer)
        if self._by_scaler and found is None:
            self._judge_scale(optimizer)
            self._judge_division(optimizer)
        elif not self._by_scaler:
            self._judge_division(optimizer)
        if any(self.regions):
            self.note(
                Kind.STEP_INSIDE_AUTOCAST,
                "optimizer.step() was called inside an open autocast region",
            )

    def _is_cut_off(self, optimizer: Any) -> bool:
        """Return whether nothing of a loss that is not 0 arrived, in a training that uses FP16."""
        in_half = self._in_fp16 or any(
            p.dtype is torch.float16 for p in self.optimized_parameters()
        )
        if not in_half or not self._loss_size > 0 or not self._nothing_arrived:
            return False
        gradients = [stored(gradient) for gradient in _gradients(optimizer)]
        return bool(gradients) and not any(bool(values.any()) for values in gradients)

    def _judge_parts(self, optimizer: Any) -> None:
        """Report gradients of an earlier step that were not cleared."""
        outlived = self.parts.outlived(optimizer)
        if outlived is None or not self._first_of(Kind.GRADIENTS_OUTLIVE_A_STEP, optimizer):
            return
        old, new = outlived
        seen = (
            f"the gradients of the backward pass at {new.line} were added to those of step "
            f"{old.step}, which a step had used already"
        )
        self.note(Kind.GRADIENTS_OUTLIVE_A_STEP, seen)

    def _judge_scale(self, optimizer: Any) -> None:
        """Report gradients that a scaler lets an optimizer use, and that it has not divided as they were multiplied."""
        part = self.parts.still_scaled(optimizer)
        unscaled_at = self._unscaled_at.get(id(optimizer))
        # a scaler whose own unscale_ nobody sees may have divided them
        if part is None or part.of.scale is None or unscaled_at is None:
            return
        if part.of.scale == 1:
            kind = Kind.LOSS_NOT_SCALED
            seen = (
                f"the backward pass at {part.of.line} began at a loss that was not scaled, and the "
                f"scaler divided its gradients by {part.divided:g}"
            )
        elif part.divided == 1:
            cleared = all(each.divided == 1 for each in self.parts.parts_of(optimizer))
            kind = Kind.SECOND_PASS_NOT_UNSCALED if cleared else Kind.SCALED_AFTER_UNSCALE
            seen = (
                f"the backward pass at {part.of.line} came after unscale_() at {unscaled_at}, so the "
                f"step uses its gradients {part.of.scale:g} times too large"
            )
        else:
            kind = Kind.SCALE_CHANGED_BETWEEN
            seen = (
                f"the loss of the backward pass at {part.of.line} was multiplied by "
                f"{part.of.scale:g}, and its gradients were divided by {part.divided:g}"
            )
        if self._first_of(kind, optimizer):
            self.note(kind, seen)

    def _judge_division(self, optimizer: Any) -> None:
        """Report gradients of a loss that was scaled by hand, and that were divided by another number, or by none."""
        mixed = self.parts.mixed(optimizer)
        if mixed is not None and self._divided_by(mixed[1], optimizer):
            seen = f"gradients of losses times {mixed[0]:g} and times {mixed[1]:g} were added"
            self.note(Kind.SCALE_CHANGED_BETWEEN, seen, BY_HAND)
            return
        # of an optimizer that is not torch's, or has hooks, the division may be its own
        hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {})
        if not type(optimizer).__module__.startswith("torch.optim") or hooks:
            return
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        pairs = [(p, before) for p, before in self._as_scaled if id(p) in held]
        unchanged = any(p.grad is not None and torch.equal(before, p.grad) for p, before in pairs)
        if unchanged and not self._by_scaler:
            if self._unscaled:
                return
            seen = f"the optimizer got the gradients of the loss times {self._factor:g}, not divided by it"
            self.note(Kind.STEP_WITH_SCALED_GRADIENTS, seen)
            if self._factor < SURELY_A_SCALE:
                # it may be the size of a batch
                self.events[-1] = replace(self.events[-1], status=Status.WARN)
            return
        ratios = [None if p.grad is None else ratio_of(before, p.grad) for p, before in pairs]
        ratio = ratios[0] if ratios else None
        if self._unscaled or ratio is None or len(set(map(_in_short, ratios))) > 1:
            return
        # a clip makes them smaller by any number; a mean over several passes by theirs
        passes = max(len(self.parts.of(p)) for p, _ in pairs)
        left = ratio * self._factor
        # what a scaler has divided may be divided by the scale by hand once more
        wrong = left * self._factor == 1 if self._by_scaler else left != 1
        if passes == 1 and wrong and math.frexp(left)[0] == 0.5:
            seen = (
                f"the loss was multiplied by {self._factor:g}, and its gradients were divided by "
                f"{1 / ratio:g}: they are {left:g} times as large as they should be"
            )
            self.note(Kind.WRONG_DIVISOR, seen)

    def _divided_by(self, number: float, optimizer: Any) -> bool:
        """Return whether the gradients were divided by this number: then it is a scale, and no weight of a loss."""
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
        self.stepping, self._factors = False, set()
        self.stepped.add(id(event.optimizer))
        with outside_modes():
            self.parts.use(event.optimizer)

    def before_backward(self, event: BackwardBegins) -> None:
        if line_of_user(sys._getframe(1)) is None:  # watch runs it on a copy
            return
        with outside_modes():
            root = _first(event.roots)
            if in_backward():
                # of a reentrant checkpoint: its gradients are those of the pass that runs
                self._note_leaves(leaves(root))
            else:
                self.backward_begins(root)

    def backward_begins(self, root: Tensor) -> None:
        """Record the loss scale of a backward pass from a tensor, and check where it begins."""
        scale = scale_of(root, self._known_scales)
        factor = 1.0 if scale is None else scale
        line = line_of_user(sys._getframe(1)) or ""
        self._pass = Pass(scale, self.step, line, number_of(root))
        if any(self.regions):
            self.note(
                Kind.BACKWARD_INSIDE_AUTOCAST,
                "backward() was called inside an open autocast region",
            )
        fresh = not any(bool(g.any()) for o in self.optimizers.values() for g in _gradients(o))
        self._factors = {factor} if fresh else {*self._factors, factor}
        if self.scaled and len(self._factors) > 1 and 1.0 not in self._factors:
            shown = " and ".join(f"{factor:g}" for factor in sorted(self._factors))
            self.note(Kind.SCALE_CHANGED_BETWEEN, f"gradients with scales of {shown} were added")
        self._unscaled, self._factor = factor == 1, factor
        self._loss_size = float(root.detach().abs().max()) if root.numel() else 0.0
        # in 16 bits an inf may be that of the scale, which the scaler lowers
        by_itself = factor == 1 or root.dtype not in HALVES
        if math.isnan(self._loss_size) or (math.isinf(self._loss_size) and by_itself):
            self.lossless.add(self.step)
        self._leaves, self._fresh, self._as_scaled = [], set(), []
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
                leaf.grad is not None and bool(stored(leaf.grad).any()) for leaf in self._leaves
            )
            # reading hooks may divide
            plain = [p for p in self._leaves if p.grad is not None and not _has_hooks(p)]
            in_fp16 = self.scaled or self._in_fp16 or any(p.dtype is torch.float16 for p in plain)
            number = self._pass.number
            is_suspect = number is not None and number > 1 and math.frexp(number)[0] == 0.5
            if in_fp16 and (is_suspect or not self._unscaled):
                plain.sort(key=Tensor.numel)
                usable = [p for p in plain if _is_comparable(p.grad)]
                self._as_scaled = [(p, _copied(p.grad)) for p in usable[:COMPARED]]
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
        self._unscaled = True
        with outside_modes():
            self._judge_parts(event.optimizer)
            self.parts.divide(event.optimizer, float(self._scale()))
        self._unscaled_at[id(event.optimizer)] = line_of_user(sys._getframe(1)) or ""

    def scaler_begins(self, event: ScalerStepBegins) -> None:
        """Record an attempt; the optimizer's hooks mark it as taken."""
        self.scaled_by(event.scale)
        self._attempt(event.optimizer)

    def scaler_ended(self, event: ScalerStepEnded) -> None:
        """End an attempt; without a call of the optimizer's hooks the step was skipped."""
        self._end_attempt(event.optimizer)
        self._unscaled_at.pop(id(event.optimizer), None)
        with outside_modes():
            self.parts.use(event.optimizer)

    def engine_begins(self, event: EngineStepBegins) -> None:
        """Record the attempt of an engine, which decides on a step as a scaler does, and unscales by itself."""
        self.parts.forget(event.engine.optimizer)
        self._attempt(event.engine.optimizer)

    def engine_ended(self, event: EngineStepEnded) -> None:
        """End the attempt of an engine."""
        self._end_attempt(event.engine.optimizer)

    def _attempt(self, optimizer: Any) -> None:
        self.step_begins(optimizer)
        self.optimizers[id(optimizer)] = optimizer
        self.attempts.append(StepAttempt(self.step, id(optimizer), self._scale()))
        self._unscaled = self._by_scaler = True

    def _end_attempt(self, optimizer: Any) -> None:
        self._by_scaler, self._factors = False, set()
        self.stepped.add(id(optimizer))

    def before_schedule(self, event: ScheduleSteps) -> None:
        schedule = event.schedule
        last = next(
            (a for a in reversed(self.attempts) if a.optimizer == id(schedule.optimizer)), None
        )
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

    # Operations

    def look(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Return the check of the results of an operation that is about to run."""
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        before = _worst(inputs) if func._schema.is_mutable else 0
        if (
            func is torch.ops.aten.add_.Tensor
            and inputs[0].numel() == 1
            and inputs[0].dtype in HALVES
        ):
            self._total_before = float(inputs[0].detach())
        return partial(self.after_operation, func, args, kwargs, inputs, before)

    def after_operation(
        self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], before: int, out: Any
    ) -> None:
        name, changing = func._schema.name.partition("::")[2], func._schema.is_mutable
        if name in DERIVATIVES and not in_backward():
            line = line_of_user(sys._getframe(1))
            if line:
                self._lines.setdefault(name, []).append(line)
        outputs = floats([out, *(inputs if changing else ())])
        self.ran_in_half = self.ran_in_half or any(t.dtype in HALVES for t in outputs)
        if inputs and outputs and "empty" not in name and name != "detach":
            worst = _worst(outputs)
            if worst > (before if changing or not worst else _worst(inputs)):
                self.report_non_finite(func, args, kwargs, inputs, outputs)
            self.report_merged_integers(name, inputs[-1], outputs[0])
            if name in FORGIVES_NO_ROUNDING and not in_backward() and not self.stepping:
                self.report_rounding(name, args, inputs, outputs[0])
            self.report_misuse(name, args, inputs, outputs)

    def report_non_finite(
        self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """Report the first operation of a pass that produced inf or NaN.

        Operations on an optimizer's gradients after backward are left out. Clipping turns inf into NaN, which is
        non_fatal where the scaler skips the step; a step taken with such gradients is a finding of its own.
        """
        name = func._schema.name.partition("::")[2]
        bad = next(t for t in outputs if not finite(t))
        passing = self._passing()
        infinite = any(isinstance(a, float) and math.isinf(a) for a in args)
        if passing == "forward" and any(
            t is p.grad for p in self.optimized_parameters() for t in inputs
        ):
            return
        if infinite or self._reported == (self.step, passing) or _is_mask(name, inputs, bad):
            return
        self._reported = (self.step, passing)
        kind = next(
            (kind for kind, names in NON_FINITE_KINDS.items() if name in names), Kind.OVERFLOW
        )
        if passing != "forward" or (
            bad.dtype not in HALVES and kind != Kind.SOFTMAX_OF_A_MASKED_ROW
        ):
            kind = NON_FINITE_IN[passing]
            if passing == "backward" and bad.dtype not in HALVES:
                kind = Kind.NOT_FINITE_DERIVATIVE
        op = name.strip("_") if name not in DOMAINS else name
        seen = Seen(
            op,
            bad.dtype,
            bool(self.regions) and self.regions[-1],
            self.scaled,
            finite_in_fp32(func, args, kwargs),
        )
        what = (
            f"first {non_finite(bad)} in {dtype_name(bad)}: {name.strip('_')} in the {passing} pass"
        )
        if passing == "backward":
            node: Any = torch._C._current_autograd_node()
            behind = op_of_node(node.name()) if node is not None else name
            lines = dict.fromkeys(self._lines.get(behind, []))
            if 0 < len(lines) <= MOST_LINES:
                what += f", in the derivative of {behind} at {' or '.join(lines)}"
            remedy = of_derivative(seen, behind)
        else:
            remedy = in_forward(seen) if passing == "forward" else ""
        bound = next(filter(None, map(self.origins.of, floats(inputs))), None)
        if passing == "forward" and bound is not None and bound.kind == "constant":
            what += f", of what was bounded by {bound.what}"
            remedy = (
                "Compute in FP32 from before that bound on (`.float()`), where it is another number; or choose a bound "
                f"that {dtype_name(bad)} has, or a loss on logits. {remedy}"
            )
            self.blamed.add(bound.what)
        self.note(kind, f"{what}; {_largest_input(inputs)}", remedy)

    def _follow_constant(self, number: float, becomes: str, output: Tensor) -> None:
        line = line_of_user(sys._getframe(1)) or ""
        what = f"{number:.9g} at {line}, which is {becomes} in float16"
        self.origins.note(output, Origin("constant", what))

    def _passing(self) -> str:
        """Return which pass runs: backward, that of an optimizer, or forward."""
        if in_backward():
            return "backward"
        # else in the closure of an optimizer
        updates = self.stepping and not self.modules.running
        return "optimizer" if updates else "forward"

    def report_merged_integers(self, name: str, before: Tensor, after: Tensor) -> None:
        """Report distinct integers that a conversion makes equal.

        Whole numbers in FP32 count in the forward pass only. FP16 numbers are whole from 1,024 on,
        so scaled gradients are whole without being counts.
        """
        if (
            name not in CASTS
            or after.dtype not in HALVES
            or before.dtype in (*HALVES, torch.bool)
            or before.numel() < 2
        ):
            return
        if (
            before.is_complex()
            or before.shape != after.shape
            or bool((before.double() == after.double()).all())
        ):
            return
        largest = float(before.abs().max())
        if (
            bool((before == before.round()).all() if before.is_floating_point() else True)
            and largest < 2**24
        ):
            kinds = before.unique().numel(), after.unique().numel()
            of_gradients = before.is_floating_point() and (
                self.stepping or self._is_gradient(before)
            )
            if kinds[1] < kinds[0] and not of_gradients:
                if before.is_floating_point():
                    merged = Kind.WHOLE_NUMBERS_IN_FP32_FALL_TOGETHER
                else:
                    merged = Kind.WHOLE_NUMBERS_FALL_TOGETHER
                seen = f"{kinds[0]:,} whole numbers up to {largest:,.0f} became {kinds[1]:,} in {dtype_name(after)}"
                self.note(merged, seen)

    def report_rounding(self, name: str, args: Any, inputs: list[Tensor], output: Tensor) -> None:
        """Report results that are finite and mostly rounding, and follow where tensors come from."""
        numbers = [t for t in inputs if t.is_floating_point()]
        if name in EXPONENTIALS and numbers:
            origin = self.origins.of(numbers[0])
            if origin is not None and origin.kind == "difference":
                factor = math.exp(min(origin.ulp, 80.0))
                seen = (
                    f"{origin.what}, goes into {name}: for exp, one ulp is a factor of {factor:.3g}"
                )
                self.note(Kind.ROUNDED_DIFFERENCE, seen)
        elif name == "_to_copy" and numbers and numbers[0].dtype in HALVES:
            if output.dtype is torch.float32:
                self.origins.note(output, Origin("rounded", dtype_name(numbers[0])))
        elif name in ("sub", "rsub") and len(numbers) == 2:
            self._note_difference(numbers, output)
        elif name in SCALAR_SUMS and len(numbers) == 2 and output.numel() == 1:
            self._note_sum(numbers, args, output)
        self.origins.follow(name, numbers, output)

    def _note_difference(self, operands: list[Tensor], output: Tensor) -> None:
        """Follow the difference of two tensors in 16 bits, or cast from them, if it is mostly rounding."""
        dtypes = []
        for operand in operands:
            origin = self.origins.of(operand)
            if origin is not None and origin.kind == "difference":
                # a difference of differences has the ulp of the first ones
                return
            if operand.dtype in HALVES:
                dtypes.append(operand.dtype)
            elif origin is not None and origin.kind == "rounded":
                dtypes.append(torch.bfloat16 if origin.what == "bfloat16" else torch.float16)
        if len(dtypes) < 2:
            return
        ulp = difference(operands[0], operands[1], output, dtypes[0])
        if ulp:
            size = max(float(operand.detach().abs().max()) for operand in operands)
            kind = str(dtypes[0]).removeprefix("torch.")
            line = line_of_user(sys._getframe(1)) or ""
            what = (
                f"the difference of two {kind} tensors at {line}, whose numbers of up to {size:.3g} "
                f"lie {ulp:g} apart"
            )
            self.origins.note(output, Origin("difference", what, ulp))

    def _note_sum(self, operands: list[Tensor], args: Any, output: Tensor) -> None:
        """Report a running sum in 16 bits that a further term no longer changes."""
        if output.dtype not in HALVES or args[0] is not operands[0]:
            return
        total, term = operands
        before, added, after = (float(t.detach()) for t in (total, term, output))
        # an operation in place has changed its operand already
        if total is output or total.data_ptr() == output.data_ptr():
            before = self._total_before
        if stagnates(before, added, after):
            seen = f"adding {added:.3g} to {before:.6g} in {dtype_name(output)} changes nothing"
            self.note(Kind.SUM_STAGNATES, seen)

    def _is_gradient(self, tensor: Tensor) -> bool:
        if in_backward():
            return True
        return any(tensor is parameter.grad for parameter in self.optimized_parameters())

    def report_misuse(
        self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """Report constants, half where autocast is off, and gradients that are used while scaled."""
        backward = in_backward()
        if (
            name in WITH_CONSTANT
            and outputs[0].dtype is torch.float16
            and not (backward or self.stepping)
        ):
            for number in (
                a for a in args if isinstance(a, float | int) and not isinstance(a, bool)
            ):
                if misfit(number):
                    self.note(
                        Kind.CONSTANT,
                        f"{number:g} is {'0' if abs(number) < 1 else 'inf'} in float16 ({name})",
                    )
                    self._follow_constant(number, "0" if abs(number) < 1 else "inf", outputs[0])
                elif name.startswith("clamp") and rounds_to_one(number, torch.float16):
                    self.note(Kind.CONSTANT, f"{number:.9g} is 1 in float16 ({name})")
                    self._follow_constant(number, "1", outputs[0])
        half = [dtype_name(t) for t in inputs if t.dtype in HALVES]
        if (
            half
            and True in self.regions
            and not self.regions[-1]
            and not backward
            and name not in VIEWS
        ):
            self.note(
                Kind.HALF_WHERE_AUTOCAST_IS_OFF,
                f"{name} got {half[0]} in a region without autocast",
            )
        if self.scaled_gradients and any(t is g for t in inputs for g in self.scaled_gradients):
            if name in VIEWS:
                self.scaled_gradients += outputs
            elif name in SQUARES or (name == "mul" and len(inputs) == 2 and inputs[0] is inputs[1]):
                self.note(
                    Kind.PENALTY_FROM_SCALED,
                    f"{name} of gradients that are loss scale times too large",
                )
        if name in NORMS and any(t is g for t in inputs for g in self.scaled_parameter_gradients()):
            self.note(
                Kind.GRADIENTS_READ_WHILE_SCALED,
                f"{name} of gradients that the scaler had not unscaled yet",
            )


def _why_unrecorded() -> str:
    """Return what runs a module without recording: a reentrant checkpoint, or no_grad."""
    for frame, _ in traceback.walk_stack(None):
        if frame.f_code.co_filename == checkpoint.__file__:
            return REENTRANT
    return "torch.no_grad()"


def _first(tensors: Any) -> Any:
    return tensors if isinstance(tensors, Tensor) else next(iter(tensors))


def _has_hooks(parameter: Any) -> bool:
    """Return whether hooks other than the watch's own run for the gradient of a parameter: they may divide it."""
    hooks = [
        *(parameter._backward_hooks or {}).values(),
        *(parameter._post_accumulate_grad_hooks or {}).values(),
    ]
    return any(
        not getattr(hook, "__module__", "").startswith("labkit.instrument") for hook in hooks
    )


def _gradients(optimizer: Any) -> list[Tensor]:
    return [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]


def _is_comparable(gradient: Any) -> bool:
    return gradient.layout is torch.strided and bool(finite(gradient)) and bool(gradient.any())


def _copied(gradient: Any) -> Tensor:
    copied: Tensor = gradient.detach().clone()
    return copied


def _in_short(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}"


def _largest_input(inputs: list[Tensor]) -> str:
    count = max((t.numel() for t in inputs), default=0)
    numbers = floats(inputs)
    if numbers:
        return f"the largest finite number of its {count:,} inputs is {largest(numbers):.3g}"
    most = max(int(t.abs().max()) if t.dtype is not torch.bool else 1 for t in inputs if t.numel())
    return f"its input is {dtype_name(inputs[0])} of up to {most:,}"


def _worst(tensors: list[Tensor]) -> int:
    """Return 2 if the tensors hold NaN, 1 if they hold inf, else 0."""
    return max((("", "inf", "NaN").index(non_finite(t)) for t in floats(tensors)), default=0)


def _is_mask(name: str, inputs: list[Tensor], bad: Tensor) -> bool:
    """Return whether -inf results from a mask that was already near the lowest number."""
    low = any(bool((t <= ALMOST_LOWEST).any()) for t in floats(inputs))
    return (
        name in ("add", "sub", "add_", "_to_copy")
        and low
        and not bool(bad.isnan().any() | (bad == math.inf).any())
    )
