"""Symptoms of a training: kinds of findings, with severity, remedy, and the faults behind them.

Idea: an event of a step, a check of the model and a count of `watch` each name a kind of finding.
One table has the severity and the remedy of each kind, so `watch` and `diagnose` give the same
advice. The faults are names in labkit.faults, which `labkit explain` shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from labkit.findings import Finding, Status


class Kind(StrEnum):
    """The kinds of findings of a training; a value is the name that a report shows."""

    OVERFLOW = "overflow"
    LOG_OF_ZERO = "log of 0"
    EXP_OVERFLOWS = "exp overflows"
    DIVISION_BY_ZERO = "division by 0"
    SUM_OVERFLOWS = "sum overflows"
    SOFTMAX_OF_A_MASKED_ROW = "softmax of a masked row"
    NOT_FINITE_IN_FP32 = "inf or NaN in FP32"
    NOT_FINITE_IN_BACKWARD = "inf or NaN in the backward pass"
    NOT_FINITE_DERIVATIVE = "inf or NaN in an FP32 derivative"
    NOT_FINITE_IN_OPTIMIZER = "inf or NaN in the optimizer pass"
    STEP_NOT_FINITE = "a step with inf or NaN"
    STEP_WITH_SCALED_GRADIENTS = "a step with scaled gradients"
    ROUNDED_DIFFERENCE = "difference of rounded numbers"
    SUM_STAGNATES = "a sum stops growing"
    EPSILON_DOMINATES = "epsilon above what it guards"
    WRONG_DIVISOR = "divided by another number"
    GRADIENTS_OUTLIVE_A_STEP = "gradients of an earlier step"
    SCALED_AFTER_UNSCALE = "scaled gradients after unscale_"
    SECOND_PASS_NOT_UNSCALED = "a second pass that is not unscaled"
    LOSS_NOT_SCALED = "the loss was not scaled"
    CONSTANT = "constant"
    WHOLE_NUMBERS_FALL_TOGETHER = "whole numbers fall together"
    WHOLE_NUMBERS_IN_FP32_FALL_TOGETHER = "whole numbers in FP32 fall together"
    HALF_WHERE_AUTOCAST_IS_OFF = "half where autocast is off"
    PENALTY_FROM_SCALED = "penalty from scaled"
    GRADIENTS_READ_WHILE_SCALED = "gradients read while scaled"
    SCALE_CHANGED_BETWEEN = "scale changed between"
    SCHEDULE_COUNTS_SKIPS = "schedule counts skips"
    BACKWARD_INSIDE_AUTOCAST = "backward inside autocast"
    STEP_INSIDE_AUTOCAST = "a step inside autocast"
    LAYER_MADE_IN_THE_STEP = "layer made in the step"
    BUFFER = "buffer"
    SCALE_FALLS = "scale falls"
    SCALE_DOES_NOT_FALL = "scale does not fall"
    OPTIMIZER_HOLDS_OTHER_PARAMETERS = "optimizer holds other parameters"
    IN_NO_OPTIMIZER = "parameters in no optimizer"
    NO_STEP_TAKEN = "no step was taken"
    NEVER_A_GRADIENT = "parameters without a gradient"
    TRAINABLE_WEIGHTS_IN_HALF = "trainable weights in half"
    FIRST_INF = "first inf"
    FIRST_NAN = "first NaN"
    SCALE_TOO_HIGH = "scale too high"
    RANKS_PARTED = "ranks parted"
    CLIPPED_WHILE_SCALED = "clipped while scaled"
    EPSILON_IS_ZERO = "epsilon is zero"
    OPTIMIZER_STATE_CANNOT_DECAY = "optimizer state cannot decay"
    WEIGHT_DECAY_LOST = "weight decay lost"
    UPDATES_SWALLOWED = "updates swallowed"
    NEVER_MOVED = "never moved"
    NOTHING_MOVED = "no parameter moved"
    ALL_GRADIENTS_ARE_ZERO = "all gradients are zero"
    SCALE_TOO_LOW = "scale too low"
    SMALL_GRADIENTS = "small gradients"
    UNDERFLOW = "underflow"


@dataclass(frozen=True)
class Symptom:
    """The severity, remedy and faults of a kind of finding.

    Attributes:
        status: the severity.
        remedy: what to do about it; "" for a note.
        faults: names of the faults in labkit.faults that show this symptom.
        least: number of steps of a diagnosis in which it has to occur to be reported.
    """

    status: Status
    remedy: str
    faults: tuple[str, ...]
    least: int = 1


BAD, WARN = Status.BAD, Status.WARN
MASTERS = "FP32 master weights, or stochastic rounding."
FP32_FIRST = (
    "Compute this place in FP32: `x = x.float()` before it; autocast(enabled=False) alone casts "
    "nothing."
)
SUMS = ("dice_overflows", "validation_sum", "forward_overflow", "norm_squared_in_half")
SYMPTOMS: dict[Kind, Symptom] = {
    # events of a step
    Kind.OVERFLOW: Symptom(
        BAD, FP32_FIRST, ("forward_overflow", "halves_by_hand", "norm_squared_in_half")
    ),
    Kind.LOG_OF_ZERO: Symptom(
        BAD, FP32_FIRST, ("log_of_epsilon", "switched_off_but_half", "scale_falls_to_zero")
    ),
    Kind.EXP_OVERFLOWS: Symptom(
        BAD, "Use torch.softmax, log_softmax or logsumexp, in FP32.", ("softmax_by_hand",)
    ),
    Kind.DIVISION_BY_ZERO: Symptom(BAD, FP32_FIRST, ("denominator_underflows",)),
    Kind.SUM_OVERFLOWS: Symptom(BAD, "Add up in FP32: `.float()` before the sum.", SUMS),
    Kind.SOFTMAX_OF_A_MASKED_ROW: Symptom(
        BAD, "Set rows that are masked whole to 0 after the softmax.", ("row_all_masked",)
    ),
    Kind.NOT_FINITE_IN_FP32: Symptom(
        WARN, "Check this line: where its result is used, it spoils the step.", ()
    ),
    Kind.NOT_FINITE_IN_BACKWARD: Symptom(
        BAD,
        "Scale the loss (GradScaler), which skips such steps; or compute here in FP32.",
        ("forward_overflow",),
    ),
    Kind.NOT_FINITE_DERIVATIVE: Symptom(
        BAD,
        "No loss scale repairs this, since it is FP32: keep the input away from where the "
        "derivative is infinite.",
        (),
    ),
    Kind.NOT_FINITE_IN_OPTIMIZER: Symptom(
        BAD, "Let the optimizer work on FP32 weights.", ("adam_in_half",)
    ),
    Kind.STEP_NOT_FINITE: Symptom(
        BAD,
        "Check the gradients first: use a GradScaler, or clip with error_if_nonfinite=True.",
        ("clip_with_inf",),
    ),
    Kind.STEP_WITH_SCALED_GRADIENTS: Symptom(
        BAD,
        "Use scaler.step(optimizer), which divides them; or divide by hand: `p.grad /= scale`.",
        (),
    ),
    Kind.ROUNDED_DIFFERENCE: Symptom(
        BAD,
        "Compute both in FP32, from before the logarithm on: `.float()` on the logits, then "
        "log_softmax, sum and difference; autocast(enabled=False) around them.",
        (),
    ),
    Kind.SUM_STAGNATES: Symptom(
        WARN,
        "Add up in FP32: `total += x.float()`, with a total in FP32, or `.item()`.",
        (),
        least=3,
    ),
    Kind.EPSILON_DOMINATES: Symptom(
        BAD,
        "Take a smaller eps, as the default of 1e-8, with weights and optimizer state in FP32.",
        ("adam_in_half",),
    ),
    Kind.WRONG_DIVISOR: Symptom(
        BAD,
        "Divide the gradients by the number that the loss of this step was multiplied by: change "
        "the scale only after optimizer.step(), or use torch.amp.GradScaler.",
        (),
    ),
    Kind.GRADIENTS_OUTLIVE_A_STEP: Symptom(
        BAD,
        "Call optimizer.zero_grad() in each step, before its first backward pass, also after a "
        "step that was skipped.",
        (),
    ),
    Kind.SCALED_AFTER_UNSCALE: Symptom(
        BAD,
        "Call scaler.unscale_(optimizer) once in a step, after its last backward pass and before "
        "clipping.",
        ("unscaled_twice",),
    ),
    Kind.SECOND_PASS_NOT_UNSCALED: Symptom(
        BAD,
        "Between the two passes of a step, call scaler.update(); then scaler.step(optimizer) "
        "unscales the second one.",
        ("unscaled_twice",),
    ),
    Kind.LOSS_NOT_SCALED: Symptom(
        BAD, "Call scaler.scale(loss).backward(): scaler.step(optimizer) divides by the scale.", ()
    ),
    Kind.CONSTANT: Symptom(
        WARN,
        "Choose it by `torch.finfo(x.dtype)`, or compute in FP32.",
        ("log_of_epsilon", "denominator_underflows", "scale_falls_to_zero", "mask_constant"),
    ),
    Kind.WHOLE_NUMBERS_FALL_TOGETHER: Symptom(
        BAD, "Count in integers or in FP32.", ("positions_in_half",)
    ),
    Kind.WHOLE_NUMBERS_IN_FP32_FALL_TOGETHER: Symptom(
        WARN, "Count in integers or in FP32.", ("positions_in_half",)
    ),
    Kind.HALF_WHERE_AUTOCAST_IS_OFF: Symptom(
        WARN, "`.float()` on every tensor that enters the region.", ("switched_off_but_half",)
    ),
    Kind.PENALTY_FROM_SCALED: Symptom(
        BAD, "Divide the gradients by scaler.get_scale() first.", ("penalty_from_scaled",)
    ),
    Kind.GRADIENTS_READ_WHILE_SCALED: Symptom(
        WARN, "Read them after scaler.unscale_(optimizer).", ("logged_while_scaled",)
    ),
    Kind.SCALE_CHANGED_BETWEEN: Symptom(
        BAD,
        "Call scaler.update() once, after the step; losses that share weights need one scaler.",
        ("scale_changes_between",),
    ),
    Kind.SCHEDULE_COUNTS_SKIPS: Symptom(
        WARN, "Step it only after a step that was taken.", ("schedule_counts_skips",)
    ),
    Kind.BACKWARD_INSIDE_AUTOCAST: Symptom(
        BAD, "End the region before backward().", ("backward_inside",)
    ),
    Kind.STEP_INSIDE_AUTOCAST: Symptom(
        BAD,
        "Open a region for each forward pass, and keep all else outside: it caches its casts.",
        ("stale_cast",),
    ),
    Kind.LAYER_MADE_IN_THE_STEP: Symptom(
        BAD, "Create layers in __init__.", ("layer_made_in_forward",), least=2
    ),
    Kind.BUFFER: Symptom(
        BAD,
        "Reject such inputs; restore the buffers, or estimate them again.",
        ("nan_only_in_eval",),
    ),
    # checks of the model at the end
    Kind.SCALE_FALLS: Symptom(
        BAD,
        "No scale repairs this: find the first inf or NaN, and compute it in FP32.",
        ("scale_falls_to_zero",),
    ),
    Kind.SCALE_DOES_NOT_FALL: Symptom(
        BAD,
        "Call scaler.update() after each step, without a number: it lowers the scale. Make a fixed "
        "scale smaller.",
        (),
    ),
    Kind.OPTIMIZER_HOLDS_OTHER_PARAMETERS: Symptom(
        BAD,
        "Convert or copy the model first; create the optimizer afterwards.",
        ("optimizer_made_before",),
    ),
    Kind.IN_NO_OPTIMIZER: Symptom(
        WARN,
        "Give them to the optimizer, which was maybe made before this layer. If they are frozen, "
        "say requires_grad_(False).",
        ("optimizer_made_before",),
    ),
    Kind.NO_STEP_TAKEN: Symptom(
        BAD,
        "If the script leaves out such steps by itself, its loss scale is too high, and nothing "
        "lowers it: use torch.amp.GradScaler, or divide the scale by 2 after each such step.",
        (),
    ),
    Kind.NEVER_A_GRADIENT: Symptom(
        BAD,
        "Call checkpoint(..., use_reentrant=False): a reentrant one records nothing if no input "
        "requires a gradient.",
        (),
    ),
    Kind.TRAINABLE_WEIGHTS_IN_HALF: Symptom(
        WARN,
        "Keep trained weights in FP32; autocast makes the copies.",
        ("half_weights_unscaled", "gains_in_bf16"),
    ),
    # findings of watch
    Kind.FIRST_INF: Symptom(BAD, FP32_FIRST, ()),
    Kind.FIRST_NAN: Symptom(
        BAD, "Compute this place in FP32, or bound its input, as log, sqrt and division need.", ()
    ),
    Kind.SCALE_TOO_HIGH: Symptom(
        WARN, "Use a GradScaler, which lowers its scale by itself; or a smaller fixed scale.", ()
    ),
    Kind.RANKS_PARTED: Symptom(
        BAD, "Agree on found_inf over the ranks before the step, and keep one scale for all.", ()
    ),
    Kind.CLIPPED_WHILE_SCALED: Symptom(
        BAD, "Call scaler.unscale_(optimizer) before clipping.", ("clip_before_unscale",)
    ),
    Kind.EPSILON_IS_ZERO: Symptom(
        BAD, "FP32 master weights; else eps of 1e-4 or more.", ("adam_in_half",)
    ),
    Kind.OPTIMIZER_STATE_CANNOT_DECAY: Symptom(
        BAD, "Keep the state in FP32, or round it stochastically.", ("moment_in_bf16",)
    ),
    Kind.WEIGHT_DECAY_LOST: Symptom(
        BAD, "Decay an FP32 master, or round stochastically.", ("decay_is_lost",)
    ),
    Kind.UPDATES_SWALLOWED: Symptom(BAD, MASTERS, ("gains_in_bf16",)),
    Kind.NEVER_MOVED: Symptom(BAD, MASTERS, ("gains_in_bf16",)),
    Kind.NOTHING_MOVED: Symptom(
        BAD,
        "Give the optimizer the model's own parameters, and a learning rate above 0; in 16 bits, "
        "FP32 master weights.",
        (),
    ),
    Kind.ALL_GRADIENTS_ARE_ZERO: Symptom(
        BAD,
        "Scale the loss with a GradScaler, or compute in FP32 what follows the model: the "
        "gradients underflowed on their way.",
        ("mse_underflows", "backward_inside"),
        least=3,
    ),
    Kind.SCALE_TOO_LOW: Symptom(
        BAD,
        "Scale the loss (GradScaler), by a power of two in the window of safe scales.",
        ("mse_underflows",),
    ),
    # a note: some are lost, or have few digits, and the training may do without them
    Kind.SMALL_GRADIENTS: Symptom(Status.OK, "", ()),
    Kind.UNDERFLOW: Symptom(
        BAD, "Scale the loss, and compute it in FP32.", ("mse_underflows", "backward_inside")
    ),
}


def finding(kind: Kind, layer: str, step: int, what: str, line: str = "") -> Finding:
    """Return a finding of a known kind, with the severity, remedy and faults of its symptom.

    Args:
        kind: the kind.
        layer: layer or parameter; "" for the whole model.
        step: number of the step that shows it.
        what: a sentence about this case.
        line: file and line of the user's code; "" if unknown.
    """
    symptom = SYMPTOMS[kind]
    return Finding(
        name=kind.value,
        status=symptom.status,
        what=what,
        remedy=symptom.remedy,
        line=line,
        layer=layer,
        step=step,
        faults=symptom.faults,
    )
