"""Events of single operations, each with the line of the user's code that caused it.

Idea: a dispatch mode sees each operation below autocast, in the dtype that it is computed in. Its
inputs and outputs decide whether it is an event: inf from finite numbers, a constant that its
format does not have, integers that a conversion makes equal, results that are mostly rounding.

Invariant: no number is changed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

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
from labkit.findings import Finding
from labkit.gemm.half_storage import HALVES
from labkit.instrument.operations import Modules, in_backward, op_of_node
from labkit.instrument.sample import dtype_name, finite, floats, largest, non_finite
from labkit.instrument.stream import StepObserver
from labkit.instrument.symptoms import Kind, finding
from labkit.instrument.user_code import line_of_user

# kind of event -> the operations in which inf or NaN begins
NON_FINITE_KINDS = {
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
# pass -> the kind of an inf or NaN in it, which no half format explains
NON_FINITE_IN = {
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
# the number of lines, at most, that a finding names for a derivative that is not finite
MOST_LINES = 2
# masks in FP16 are at or below it: two of them add up to -inf, which is harmless
ALMOST_LOWEST = -60_000


class OperationObserver(StepObserver):
    """Observer of the operations of a training.

    A subclass observes autocast regions, optimizers and scales, and keeps these attributes up to
    date, beside `stepping` of `StepObserver`.

    Attributes:
        optimizers: the known optimizers, by id.
        regions: for each open autocast region, the innermost last, whether it is enabled.
        unscaled: whether the gradients in the model are unscaled.
        scaled_gradients: gradients of a scaled loss from torch.autograd.grad, and views of them;
            emptied at the end of a step.
        lines: operation -> the lines at which this step's forward pass ran it; emptied at the end
            of a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Finding] = []
        self.optimizers: dict[int, Any] = {}
        self.modules = Modules()
        self.scaled_gradients: list[Tensor] = []
        self.regions: list[bool] = []
        # whether an operation gave 16-bit numbers
        self.ran_in_half = False
        self.lines: dict[str, list[str]] = {}
        # the value of a running sum before the addition in place that runs
        self._total_before = 0.0
        self.origins = Origins()
        # descriptions of the constants, with their lines, that a fault was traced to
        self.blamed: set[str] = set()
        # the step and the pass whose first inf or NaN was reported
        self._reported = (-1, "")
        self.unscaled = True

    def note(self, kind: Kind, seen: str, remedy: str = "", faults: tuple[str, ...] = ()) -> None:
        """Record an event, unless the lab itself caused it.

        Args:
            kind: the kind of the finding.
            seen: a sentence about this case.
            remedy: what to do; by default, the remedy of the kind.
            faults: the faults that fit this case, the most likely first; by default, all of the
                kind.
        """
        line = line_of_user(sys._getframe(1))
        if line is None:
            return
        found = finding(kind, self.modules.innermost, self.step, seen, line)
        self.events.append(
            replace(found, remedy=remedy or found.remedy, faults=faults or found.faults)
        )

    def optimized_parameters(self) -> Iterator[Tensor]:
        """Yield the parameters of all known optimizers."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                yield from group["params"]

    def scaled_parameter_gradients(self) -> list[Tensor]:
        """Return the gradients that a scaler has not unscaled yet."""
        if self.unscaled or not self.scaled:
            return []
        return [p.grad for p in self.optimized_parameters() if p.grad is not None]

    def look(self, func: OpOverload, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Return the check of the results of an operation that is about to run."""
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        # an operation in place overwrites its input, which is looked at before
        before = _worst(inputs) if func._schema.is_mutable else 0
        if (
            func is torch.ops.aten.add_.Tensor
            and inputs[0].numel() == 1
            and inputs[0].dtype in HALVES
        ):
            self._total_before = float(inputs[0].detach())
        return partial(self.after_operation, func, args, kwargs, inputs, before)

    def after_operation(
        self, func: OpOverload, args: Any, kwargs: Any, inputs: list[Tensor], before: int, out: Any
    ) -> None:
        """Check the results of an operation.

        Args:
            func: the operation.
            args: its arguments.
            kwargs: its keyword arguments.
            inputs: the tensors among its arguments.
            before: what the inputs of an operation in place held before it ran, as `_worst` has it.
            out: its result.
        """
        name = func._schema.name.partition("::")[2]
        changing = func._schema.is_mutable
        if name in DERIVATIVES and not in_backward():
            line = line_of_user(sys._getframe(1))
            if line:
                self.lines.setdefault(name, []).append(line)
        written = [out]
        if changing:
            written += inputs
        outputs = floats(written)
        if any(t.dtype in HALVES for t in outputs):
            self.ran_in_half = True
        # the numbers of a new, empty tensor mean nothing, and detach computes none
        if not inputs or not outputs or "empty" in name or name == "detach":
            return
        worst = _worst(outputs)
        # most results are finite, and then the inputs need not be read
        if worst > 0:
            worst_input = before if changing else _worst(inputs)
            if worst > worst_input:
                self.report_non_finite(func, args, kwargs, inputs, outputs)
        self.report_merged_integers(name, inputs[-1], outputs[0])
        if name in FORGIVES_NO_ROUNDING and not in_backward() and not self.stepping:
            self.report_rounding(name, args, inputs, outputs[0])
        self.report_misuse(name, args, inputs, outputs)

    def report_non_finite(
        self, func: OpOverload, args: Any, kwargs: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """Report the first operation of a pass that produced inf or NaN.

        Operations on an optimizer's gradients after backward are left out. Clipping turns inf into
        NaN, which does no harm if the scaler then skips the step; a step taken with such gradients
        is a finding of its own.
        """
        name = func._schema.name.partition("::")[2]
        bad = next(t for t in outputs if not finite(t))
        passing = self._passing()
        if not self._is_worth_reporting(name, passing, args, inputs, bad):
            return
        self._reported = (self.step, passing)
        kind = _kind_of_non_finite(name, passing, bad)
        seen = Seen(
            op=name.strip("_") if name not in DOMAINS else name,
            dtype=bad.dtype,
            in_autocast=bool(self.regions) and self.regions[-1],
            scaled=self.scaled,
            finite_in_fp32=finite_in_fp32(func, args, kwargs),
        )
        what = (
            f"first {non_finite(bad)} in {dtype_name(bad)}: {name.strip('_')} in the {passing} pass"
        )
        remedy = ""
        if passing == "backward":
            behind, where = self._operation_behind(name)
            what += where
            remedy = of_derivative(seen, behind)
        elif passing == "forward":
            remedy = in_forward(seen)
            origin = self._first_origin(inputs)
            if origin is not None and origin.kind == "constant":
                what += f", of what was bounded by {origin.what}"
                remedy = (
                    "Compute in FP32 from before that bound on (`.float()`), where it is "
                    f"another number; or choose a bound that {dtype_name(bad)} has, or a loss "
                    f"on logits. {remedy}"
                )
                self.blamed.add(origin.what)
        self.note(kind, f"{what}; {_largest_input(inputs)}", remedy, self._faults_of(kind))

    def _is_worth_reporting(
        self, name: str, passing: str, args: Any, inputs: list[Tensor], bad: Tensor
    ) -> bool:
        """Return whether inf or NaN in a result is the first of its pass, and not intended."""
        if self._reported == (self.step, passing) or _is_mask(name, inputs, bad):
            return False
        # the script itself asked for inf, as masked_fill(mask, -inf) does
        if any(isinstance(argument, float) and math.isinf(argument) for argument in args):
            return False
        # clipping and the like, after backward
        gradients = [p.grad for p in self.optimized_parameters() if p.grad is not None]
        of_gradients = any(t is gradient for gradient in gradients for t in inputs)
        return passing != "forward" or not of_gradients

    def _operation_behind(self, name: str) -> tuple[str, str]:
        """Return the operation whose derivative is computed, and where the forward pass ran it."""
        node: Any = torch._C._current_autograd_node()
        behind = op_of_node(node.name()) if node is not None else name
        lines = dict.fromkeys(self.lines.get(behind, []))
        if not 0 < len(lines) <= MOST_LINES:
            return behind, ""
        return behind, f", in the derivative of {behind} at {' or '.join(lines)}"

    def _first_origin(self, inputs: list[Tensor]) -> Origin | None:
        """Return the known origin of the first input that has one."""
        for tensor in floats(inputs):
            origin = self.origins.of(tensor)
            if origin is not None:
                return origin
        return None

    def _faults_of(self, kind: Kind) -> tuple[str, ...]:
        """Return the faults that fit inf or NaN of a kind here; () for all of the kind's."""
        if kind is not Kind.LOG_OF_ZERO:
            return ()
        if self._is_switched_off():
            return ("switched_off_but_half", "log_of_epsilon")
        return ("log_of_epsilon", "scale_falls_to_zero")

    def _is_switched_off(self) -> bool:
        """Return whether a region that switches autocast off is inside of one that is on."""
        return True in self.regions and not self.regions[-1]

    def _follow_constant(self, number: float, becomes: str, output: Tensor) -> None:
        line = line_of_user(sys._getframe(1)) or ""
        what = f"{number:.9g} at {line}, which is {becomes} in float16"
        self.origins.note(output, Origin("constant", what))

    def _passing(self) -> str:
        """Return which pass runs: backward, that of an optimizer, or forward."""
        if in_backward():
            return "backward"
        # modules run inside a step if its closure computes the loss
        if self.stepping and not self.modules.running:
            return "optimizer"
        return "forward"

    def report_merged_integers(self, name: str, before: Tensor, after: Tensor) -> None:
        """Report distinct integers that a conversion makes equal.

        Whole numbers in FP32 count in the forward pass only. FP16 numbers are whole from 1,024 on,
        so scaled gradients are whole without being counts.
        """
        if name not in CASTS or after.dtype not in HALVES:
            return
        if before.dtype in (*HALVES, torch.bool) or before.is_complex():
            return
        if before.numel() < 2 or before.shape != after.shape:
            return
        # nothing was rounded
        if bool((before.double() == after.double()).all()):
            return
        largest = float(before.abs().max())
        # from 2^24 on, FP32 itself does not have all whole numbers
        if largest >= 2**24:
            return
        kind = Kind.WHOLE_NUMBERS_FALL_TOGETHER
        if before.is_floating_point():
            kind = Kind.WHOLE_NUMBERS_IN_FP32_FALL_TOGETHER
            if not bool((before == before.round()).all()):
                return
            if self.stepping or self._is_gradient(before):
                return
        distinct = before.unique().numel()
        left = after.unique().numel()
        if left < distinct:
            seen = (
                f"{distinct:,} whole numbers up to {largest:,.0f} became {left:,} in "
                f"{dtype_name(after)}"
            )
            self.note(kind, seen)

    def report_rounding(self, name: str, args: Any, inputs: list[Tensor], output: Tensor) -> None:
        """Report finite results that are mostly rounding, and record the origins of tensors."""
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
        """Follow a difference of two tensors of 16-bit numbers, if it is mostly rounding."""
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
                f"the difference of two {kind} tensors at {line}, whose numbers of up to "
                f"{size:.3g} lie {ulp:g} apart"
            )
            self.origins.note(output, Origin("difference", what, ulp))

    def _note_sum(self, operands: list[Tensor], args: Any, output: Tensor) -> None:
        """Report a running sum in 16 bits that a further term no longer changes."""
        if output.dtype not in HALVES or args[0] is not operands[0]:
            return
        total, term = operands
        added = float(term.detach())
        after = float(output.detach())
        # an operation in place has changed its operand already
        if total is output or total.data_ptr() == output.data_ptr():
            before = self._total_before
        else:
            before = float(total.detach())
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
        """Report constants, half tensors where autocast is off, and gradients used while scaled."""
        backward = in_backward()
        in_forward_pass = not backward and not self.stepping
        if in_forward_pass and name in WITH_CONSTANT and outputs[0].dtype is torch.float16:
            for argument in args:
                if isinstance(argument, float | int) and not isinstance(argument, bool):
                    self._report_constant(name, argument, outputs[0])
        half = [dtype_name(t) for t in inputs if t.dtype in HALVES]
        if half and self._is_switched_off() and not backward and name not in VIEWS:
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

    def _report_constant(self, name: str, number: float, output: Tensor) -> None:
        """Report a number that FP16 cannot hold, and follow the result that it bounds."""
        if misfit(number):
            becomes = "0" if abs(number) < 1 else "inf"
            if becomes == "0":
                # an addend that keeps a logarithm or a quotient finite
                faults: tuple[str, ...] = (
                    "log_of_epsilon",
                    "denominator_underflows",
                    "scale_falls_to_zero",
                )
            else:
                faults = ("mask_constant",)
            self.note(Kind.CONSTANT, f"{number:g} is {becomes} in float16 ({name})", faults=faults)
            self._follow_constant(number, becomes, output)
        elif name.startswith("clamp") and rounds_to_one(number, torch.float16):
            self.note(Kind.CONSTANT, f"{number:.9g} is 1 in float16 ({name})")
            self._follow_constant(number, "1", output)


def _kind_of_non_finite(name: str, passing: str, bad: Tensor) -> Kind:
    """Return the kind of a finding, by the operation, the pass and the result with inf or NaN."""
    if passing == "backward" and bad.dtype not in HALVES:
        return Kind.NOT_FINITE_DERIVATIVE
    if passing != "forward":
        return NON_FINITE_IN[passing]
    kind = Kind.OVERFLOW
    for each, names in NON_FINITE_KINDS.items():
        if name in names:
            kind = each
            break
    # softmax of a masked row is NaN in every format; the other kinds are overflows of 16 bits
    if bad.dtype not in HALVES and kind != Kind.SOFTMAX_OF_A_MASKED_ROW:
        return NON_FINITE_IN[passing]
    return kind


def _largest_input(inputs: list[Tensor]) -> str:
    """Describe the largest finite number among the inputs of an operation."""
    count = max((t.numel() for t in inputs), default=0)
    numbers = floats(inputs)
    if numbers:
        return f"the largest finite number of its {count:,} inputs is {largest(numbers):.3g}"
    most = 0
    for tensor in inputs:
        if tensor.numel():
            # a bool has no abs()
            most = max(most, 1 if tensor.dtype is torch.bool else int(tensor.abs().max()))
    return f"its input is {dtype_name(inputs[0])} of up to {most:,}"


def _worst(tensors: list[Tensor]) -> int:
    """Return 2 if the tensors hold NaN, 1 if they hold inf, else 0."""
    badness = {"": 0, "inf": 1, "NaN": 2}
    return max((badness[non_finite(t)] for t in floats(tensors)), default=0)


def _is_mask(name: str, inputs: list[Tensor], bad: Tensor) -> bool:
    """Return whether -inf results from a mask that was already near the lowest number."""
    if name not in ("add", "sub", "add_", "_to_copy"):
        return False
    if not any(bool((t <= ALMOST_LOWEST).any()) for t in floats(inputs)):
        return False
    # NaN and +inf have another cause
    return not bool(bad.isnan().any() | (bad == math.inf).any())
