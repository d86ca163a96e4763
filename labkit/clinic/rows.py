"""What can the doctor find, how bad is it, and whose fault is it? A table, which is also what the doctor claims.

Invariant: a kind of event without a row here is no finding.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.faults import FAULTS
from labkit.instrument.records import REPAIRS
from labkit.machine.findings import Status


@dataclass(frozen=True)
class Row:
    """What a kind of event means: how bad, what to do, whose fault it is, in how many steps it must be seen."""

    status: Status
    remedy: str
    patients: tuple[str, ...]
    least: int = 1


BAD, WARN = Status.BAD, Status.WARN
FP32_FIRST = "Compute this place in FP32: `x = x.float()` before it; autocast(enabled=False) alone casts nothing."
EPSILONS = ("log_of_epsilon", "switched_off_but_half", "scale_falls_to_zero", "denominator_underflows")
SUMS = ("dice_overflows", "validation_sum", "forward_overflow", "norm_squared_in_half")
ROWS: dict[str, Row] = {
    # seen while a step runs
    "overflow": Row(BAD, FP32_FIRST, ("forward_overflow", "halves_by_hand", "norm_squared_in_half")),
    "log of 0": Row(BAD, FP32_FIRST, EPSILONS),
    "exp overflows": Row(BAD, "Use torch.softmax, log_softmax or logsumexp, in FP32.", ("softmax_by_hand",)),
    "division by 0": Row(BAD, FP32_FIRST, ("denominator_underflows",)),
    "sum overflows": Row(BAD, "Add up in FP32: `.float()` before the sum.", SUMS),
    "softmax of a masked row": Row(BAD, "Set rows that are masked whole to 0 after the softmax.", ("row_all_masked",)),
    "inf or NaN in FP32": Row(WARN, "Look at this line; where its result is used, it spoils the step.", ()),
    "inf or NaN in the backward pass": Row(
        BAD, "Scale the loss (GradScaler), which skips such steps; or compute here in FP32.", ("forward_overflow",)
    ),
    "inf or NaN in the optimizer pass": Row(BAD, "Let the optimizer work on FP32 weights.", ("adam_in_half",)),
    "a step with inf or NaN": Row(
        BAD, "Look before the step: a GradScaler does, or clip with error_if_nonfinite=True.", ("clip_with_inf",)
    ),
    "constant": Row(WARN, "Choose it by `torch.finfo(x.dtype)`, or compute in FP32.", EPSILONS),
    "whole numbers fall together": Row(BAD, "Count in integers or in FP32.", ("positions_in_half",)),
    "whole numbers in FP32 fall together": Row(WARN, "Count in integers or in FP32.", ("positions_in_half",)),
    "half where autocast is off": Row(
        WARN, "`.float()` on every tensor that enters the region.", ("switched_off_but_half",)
    ),
    "penalty from scaled": Row(BAD, "Divide the gradients by scaler.get_scale() first.", ("penalty_from_scaled",)),
    "gradients read while scaled": Row(WARN, "Read them after scaler.unscale_(optimizer).", ("logged_while_scaled",)),
    "scale changed between": Row(BAD, "Call scaler.update() once, after the step.", ("scale_changes_between",)),
    "schedule counts skips": Row(WARN, "Step it only after a step that was taken.", ("schedule_counts_skips",)),
    "backward inside autocast": Row(BAD, "End the region before backward().", ("backward_inside",)),
    "a step inside autocast": Row(
        BAD, "A region for each forward pass, and nothing else inside: it keeps its casts.", ("stale_cast",)
    ),
    "layer made in the step": Row(BAD, "Make layers in __init__.", ("layer_made_in_forward",), least=2),
    "buffer": Row(BAD, "Keep such inputs out; put the buffers back, or estimate them again.", ("nan_only_in_eval",)),
    # looked at
    "scale falls": Row(
        BAD, "No scale cures this: find the first inf or NaN, and compute there in FP32.", ("scale_falls_to_zero",)
    ),
    "optimizer holds other parameters": Row(
        BAD, "Convert or copy the model first; make the optimizer afterwards.", ("optimizer_made_before",)
    ),
    "trainable weights in half": Row(
        WARN, "Keep what is trained in FP32; autocast makes the copies.", ("half_weights_unscaled", "gains_in_bf16")
    ),
    # found by watch
    "clipped while scaled": Row(BAD, REPAIRS["clipped while scaled"], ("clip_before_unscale",)),
    "epsilon is zero": Row(BAD, REPAIRS["epsilon is zero"], ("adam_in_half",)),
    "optimizer state cannot decay": Row(BAD, REPAIRS["optimizer state cannot decay"], ("moment_in_bf16",)),
    "weight decay lost": Row(BAD, REPAIRS["weight decay lost"], ("decay_is_lost",)),
    "updates swallowed": Row(BAD, REPAIRS["updates swallowed"], ("gains_in_bf16",)),
    "never moved": Row(BAD, REPAIRS["never moved"], ("gains_in_bf16",)),
    "scale too low": Row(BAD, REPAIRS["scale too low"], ("mse_underflows",)),
    "underflow": Row(BAD, REPAIRS["underflow"], ("mse_underflows", "backward_inside")),
}
IN_HALF_ONLY = {"updates swallowed", "never moved", "optimizer state cannot decay", "weight decay lost"}

HARMLESS_IF_MASKED = {"softmax of a masked row", "inf or NaN in FP32", "inf or NaN in the backward pass"}

RAISING = (  # patients whose error is raised, and explained
    "bce_on_probabilities", "first_steps_refused", "function_without_custom_fwd", "gradcheck_in_fp32",
    "half_weights_unscaled", "inference_tensors", "linear_algebra", "mask_constant", "no_gradients_this_turn",
    "recomputed_otherwise", "unscaled_twice",
)  # fmt: skip


def claims() -> dict[str, set[str]]:
    """Return patient -> the kinds of findings by which the doctor claims to find it; those it cannot find are left out.

    >>> sorted(claims()["stale_cast"]), "average_in_bf16" in claims()
    (['a step inside autocast'], False)
    """
    by = {**{kind: row.patients for kind, row in ROWS.items()}, "exception": RAISING}
    claimed = {name: {kind for kind, names in by.items() if name in names} for name in FAULTS}
    return {name: kinds for name, kinds in claimed.items() if kinds}
