"""Reports on steps, and a diagnosis of skipped steps in a row.

Idea: a dynamic scaler skips a step now and then; that is how it finds its scale. Skips in a row
indicate a fault only if a smaller scale is not possible or would not help: the scale is static, at
its floor, or 1 or less. Then the diagnosis names the tensors and what to try. The run continues;
the caller decides whether to stop it.

Invariant: a report agrees with `decide`.
"""

from __future__ import annotations

import math

from labkit.amp.loss_scaling.scaler import (
    Decision,
    ScalerConfig,
    StepReport,
    is_at_floor,
)
from labkit.formats.arguments import require_kind

# skipped steps in a row from which there is a diagnosis
FEWEST_SKIPS = 5
# names of gradients in a message
_MOST_NAMES = 5


def step_report(
    decision: Decision, culprits: tuple[str, ...] = (), skips_before: int = 0
) -> StepReport:
    """Return the report on a step.

    Args:
        decision: the scaler's decision on the step.
        culprits: names of the tensors that hold inf or NaN.
        skips_before: number of steps skipped in a row before this one.

    >>> from labkit.amp.loss_scaling.scaler import DYNAMIC, ScalerState, decide
    >>> step_report(decide(ScalerState(8.0), True, DYNAMIC), culprits=("fc.weight",)).why
    "skipped for inf or NaN in 'fc.weight'; the scale goes from 2^3 to 2^2"
    """
    require_kind(decision, Decision, "decision", "decide(state, found_inf, config) makes one")
    where = f"inf or NaN in {_format_names(culprits)}"
    scale = decision.before.scale
    after = decision.after.scale
    if decision.skip:
        change = "stays"
        if after != scale:
            change = f"goes from {_format_scale(scale)} to {_format_scale(after)}"
        why = f"skipped for {where}; the scale {change}"
    elif decision.found_inf:
        # a step that counts as clean changes the state of a scaler that skips at other scales
        at = "" if decision.after == decision.before else " at its floor"
        why = f"taken in spite of {where}: this scaler does not skip{at}"
    else:
        why = "taken: every gradient is finite"
    skips = skips_before + 1 if decision.skip else 0
    return StepReport(
        stepped=not decision.skip,
        found_inf=decision.found_inf,
        scale=scale,
        why=why,
        culprits=culprits,
        skips_in_a_row=skips,
    )


def diagnosis(report: StepReport, config: ScalerConfig) -> str | None:
    """Return the cause and a remedy if too many steps in a row were skipped.

    Args:
        report: the report on the last step.
        config: the scaler's configuration.

    Returns:
        A text, or None if fewer than `FEWEST_SKIPS` steps were skipped or the scale can still
        decrease.

    >>> from labkit.amp.loss_scaling.scaler import static
    >>> diagnosis(StepReport(False, True, 2.0**26, "", skips_in_a_row=5), static(2.0**26))[-65:]
    '2^26, and does not change: use a smaller one or a dynamic scaler.'
    """
    require_kind(report, StepReport, "report")
    require_kind(config, ScalerConfig, "config")
    can_decrease = config.dynamic and report.scale > 1 and not is_at_floor(report.scale, config)
    if report.skips_in_a_row < FEWEST_SKIPS or can_decrease:
        return None
    skipped = (
        f"{report.skips_in_a_row} steps in a row were skipped for inf or NaN in "
        f"{_format_names(report.culprits)}."
    )
    if not config.dynamic and config.init_scale > 1:
        scale = f"The scale is static, {_format_scale(config.init_scale)}, and does not change"
        return f"{skipped} {scale}: use a smaller one or a dynamic scaler."
    if config.dynamic and config.floor > 1:
        return (
            f"{skipped} The scale is at its floor, {_format_scale(config.floor)}: use a lower "
            "floor."
        )
    return (
        f"{skipped} The scale is not the cause: it is 1 or less. Check the inputs, the targets and "
        "the weights for inf or NaN. Run this step in FP32 under "
        "torch.autograd.set_detect_anomaly(True), which names the operation. Then lower the "
        "learning rate, clip the gradients, or train in BF16, whose range is FP32's."
    )


def _format_names(names: tuple[str, ...]) -> str:
    if not names:
        return "some gradient"
    text = ", ".join(repr(name) for name in names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        text += f" and {len(names) - _MOST_NAMES} more"
    return text


def _format_scale(scale: float) -> str:
    # frexp's significand is from 0.5 to below 1
    significand, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if significand == 0.5 else f"{scale:g}"
