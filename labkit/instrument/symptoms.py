"""Symptoms of a training: the kinds of findings, each with its severity, its remedy and the faults that show it.

Idea: an event of a step, a check of the model and a count of `watch` each name a symptom. One table says what it means,
so `watch` and `diagnose` give the same advice. Faults are names of labkit.faults, which `labkit explain` shows.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.records.findings import Finding, Status


@dataclass(frozen=True)
class Symptom:
    """A kind of finding.

    faults  the faults of labkit.faults that show it
    least   in how many steps of a diagnosis it has to occur
    """

    status: Status
    remedy: str
    faults: tuple[str, ...]
    least: int = 1


BAD, WARN = Status.BAD, Status.WARN
MASTERS = "FP32 master weights, or stochastic rounding."
FP32_FIRST = "Compute this place in FP32: `x = x.float()` before it; autocast(enabled=False) alone casts nothing."
EPSILONS = (
    "log_of_epsilon",
    "switched_off_but_half",
    "scale_falls_to_zero",
    "denominator_underflows",
)
SUMS = ("dice_overflows", "validation_sum", "forward_overflow", "norm_squared_in_half")
SYMPTOMS: dict[str, Symptom] = {
    # events of a step
    "overflow": Symptom(
        BAD, FP32_FIRST, ("forward_overflow", "halves_by_hand", "norm_squared_in_half")
    ),
    "log of 0": Symptom(BAD, FP32_FIRST, EPSILONS),
    "exp overflows": Symptom(
        BAD, "Use torch.softmax, log_softmax or logsumexp, in FP32.", ("softmax_by_hand",)
    ),
    "division by 0": Symptom(BAD, FP32_FIRST, ("denominator_underflows",)),
    "sum overflows": Symptom(BAD, "Add up in FP32: `.float()` before the sum.", SUMS),
    "softmax of a masked row": Symptom(
        BAD, "Set rows that are masked whole to 0 after the softmax.", ("row_all_masked",)
    ),
    "inf or NaN in FP32": Symptom(
        WARN, "Check this line: where its result is used, it spoils the step.", ()
    ),
    "inf or NaN in the backward pass": Symptom(
        BAD,
        "Scale the loss (GradScaler), which skips such steps; or compute here in FP32.",
        ("forward_overflow",),
    ),
    "inf or NaN in the optimizer pass": Symptom(
        BAD, "Let the optimizer work on FP32 weights.", ("adam_in_half",)
    ),
    "a step with inf or NaN": Symptom(
        BAD,
        "Check the gradients first: use a GradScaler, or clip with error_if_nonfinite=True.",
        ("clip_with_inf",),
    ),
    "a step with scaled gradients": Symptom(
        BAD,
        "Use scaler.step(optimizer), which divides them; or divide by hand: `p.grad /= scale`.",
        (),
    ),
    "constant": Symptom(WARN, "Choose it by `torch.finfo(x.dtype)`, or compute in FP32.", EPSILONS),
    "whole numbers fall together": Symptom(
        BAD, "Count in integers or in FP32.", ("positions_in_half",)
    ),
    "whole numbers in FP32 fall together": Symptom(
        WARN, "Count in integers or in FP32.", ("positions_in_half",)
    ),
    "half where autocast is off": Symptom(
        WARN, "`.float()` on every tensor that enters the region.", ("switched_off_but_half",)
    ),
    "penalty from scaled": Symptom(
        BAD, "Divide the gradients by scaler.get_scale() first.", ("penalty_from_scaled",)
    ),
    "gradients read while scaled": Symptom(
        WARN, "Read them after scaler.unscale_(optimizer).", ("logged_while_scaled",)
    ),
    "scale changed between": Symptom(
        BAD,
        "Call scaler.update() once, after the step; losses that share weights need one scaler.",
        ("scale_changes_between",),
    ),
    "schedule counts skips": Symptom(
        WARN, "Step it only after a step that was taken.", ("schedule_counts_skips",)
    ),
    "backward inside autocast": Symptom(
        BAD, "End the region before backward().", ("backward_inside",)
    ),
    "a step inside autocast": Symptom(
        BAD,
        "Open a region for each forward pass, and keep all else outside: it caches its casts.",
        ("stale_cast",),
    ),
    "layer made in the step": Symptom(
        BAD, "Create layers in __init__.", ("layer_made_in_forward",), least=2
    ),
    "buffer": Symptom(
        BAD,
        "Reject such inputs; restore the buffers, or estimate them again.",
        ("nan_only_in_eval",),
    ),
    # checks of the model at the end
    "scale falls": Symptom(
        BAD,
        "No scale repairs this: find the first inf or NaN, and compute it in FP32.",
        ("scale_falls_to_zero",),
    ),
    "scale does not fall": Symptom(
        BAD,
        "Call scaler.update() after each step, without a number: it lowers the scale. Make a fixed scale smaller.",
        (),
    ),
    "optimizer holds other parameters": Symptom(
        BAD,
        "Convert or copy the model first; create the optimizer afterwards.",
        ("optimizer_made_before",),
    ),
    "trainable weights in half": Symptom(
        WARN,
        "Keep trained weights in FP32; autocast makes the copies.",
        ("half_weights_unscaled", "gains_in_bf16"),
    ),
    # findings of watch
    "first inf": Symptom(BAD, FP32_FIRST, ()),
    "first NaN": Symptom(
        BAD, "Compute this place in FP32, or bound its input, as log, sqrt and division need.", ()
    ),
    "scale too high": Symptom(
        WARN, "Use a GradScaler, which lowers its scale by itself; or a smaller fixed scale.", ()
    ),
    "ranks parted": Symptom(
        BAD, "Agree on found_inf over the ranks before the step, and keep one scale for all.", ()
    ),
    "clipped while scaled": Symptom(
        BAD, "Call scaler.unscale_(optimizer) before clipping.", ("clip_before_unscale",)
    ),
    "epsilon is zero": Symptom(
        BAD, "FP32 master weights; else eps of 1e-4 or more.", ("adam_in_half",)
    ),
    "optimizer state cannot decay": Symptom(
        BAD, "Keep the state in FP32, or round it stochastically.", ("moment_in_bf16",)
    ),
    "weight decay lost": Symptom(
        BAD, "Decay an FP32 master, or round stochastically.", ("decay_is_lost",)
    ),
    "updates swallowed": Symptom(BAD, MASTERS, ("gains_in_bf16",)),
    "never moved": Symptom(BAD, MASTERS, ("gains_in_bf16",)),
    "all gradients are zero": Symptom(
        BAD,
        "Scale the loss with a GradScaler, or compute in FP32 what follows the model: the gradients "
        "underflowed on their way.",
        ("mse_underflows", "backward_inside"),
        least=3,
    ),
    "scale too low": Symptom(
        BAD,
        "Scale the loss (GradScaler), by a power of two in the window of safe scales.",
        ("mse_underflows",),
    ),
    "underflow": Symptom(
        BAD, "Scale the loss, and compute it in FP32.", ("mse_underflows", "backward_inside")
    ),
}


def finding(kind: str, layer: str, step: int, what: str, line: str = "") -> Finding:
    """Return a finding of a known kind, with the severity, remedy and faults of its symptom."""
    symptom = SYMPTOMS[kind]
    return Finding(kind, symptom.status, what, symptom.remedy, line, layer, step, symptom.faults)
