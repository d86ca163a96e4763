"""Reports on steps, and a diagnosis of skipped steps in a row.

Idea: a dynamic scaler skips a step now and then; that is how it finds its scale. Skips in a row indicate a fault only
if the scale cannot help any more: it is static, it is at its floor, or it has come down to 1. Then the diagnosis names
the tensors and what to try. The run continues; the caller decides whether to stop it.

Invariant: a report agrees with `decide`.
"""

import math

from labkit.amp.loss_scaling.scaler import Decision, ScalerConfig, ScalerState, StepReport, decide

FEWEST_SKIPS = 5  # in a row, for a diagnosis


def step_report(
    state: ScalerState,
    found_inf: bool,
    config: ScalerConfig,
    culprits: tuple[str, ...] = (),
    skips_before: int = 0,
) -> StepReport:
    """Return the report on a step, from the state it ran under and the number of steps skipped just before it.

    >>> from labkit.amp.loss_scaling.scaler import DYNAMIC
    >>> step_report(ScalerState(8.0), True, DYNAMIC, culprits=("fc.weight",)).why
    "skipped for inf or NaN in 'fc.weight'; the scale goes from 2^3 to 2^2"
    """
    return report(decide(state, found_inf, config), culprits, skips_before)


def report(decision: Decision, culprits: tuple[str, ...] = (), skips_before: int = 0) -> StepReport:
    """Return the report on a decision, with the reason in a sentence."""
    where, scale, after = f"inf or NaN in {_format_names(culprits)}", decision.before.scale, decision.after.scale
    if decision.skip:
        moves = f"goes from {_format_scale(scale)} to {_format_scale(after)}" if after != scale else "stays"
        why = f"skipped for {where}; the scale {moves}"
    elif decision.found_inf:
        why = f"taken in spite of {where}: this scaler does not skip"
    else:
        why = "taken: every gradient is finite"
    skips = skips_before + 1 if decision.skip else 0
    return StepReport(not decision.skip, decision.found_inf, scale, why, culprits, skips)


def diagnosis(report: StepReport | int, config: ScalerConfig) -> str | None:
    """Return the cause and a remedy if too many steps in a row were skipped, otherwise None.

    Args:
        report: the report on the last step, or only the number of steps skipped in a row since the start.
        config: the scaler's configuration.

    >>> from labkit.amp.loss_scaling.scaler import DYNAMIC, static
    >>> diagnosis(3, DYNAMIC) is None
    True
    >>> diagnosis(5, static(2.0**26))[-65:]
    '2^26, and does not change: use a smaller one or a dynamic scaler.'
    """
    skips = report if isinstance(report, int) else report.skips_in_a_row
    if skips < _too_many(report, config):
        return None
    culprits = () if isinstance(report, int) else report.culprits
    skipped = f"{skips} steps in a row were skipped for inf or NaN in {_format_names(culprits)}."
    if not config.dynamic and config.init_scale > 1:
        scale = f"The scale is static, {_format_scale(config.init_scale)}, and does not change"
        return f"{skipped} {scale}: use a smaller one or a dynamic scaler."
    if config.dynamic and config.floor > 1:
        return f"{skipped} The scale is at its floor, {_format_scale(config.floor)}: use a lower floor."
    return (
        f"{skipped} The scale is not the cause, it is 1 or less. Check the inputs, the targets and the weights for "
        "inf or NaN. Run this step in FP32 under torch.autograd.set_detect_anomaly(True), which names the operation. "
        "Then lower the learning rate, clip the gradients, or train in BF16, whose range is FP32's."
    )


def _too_many(report: StepReport | int, config: ScalerConfig) -> float:
    """Return the number of skips in a row that is too many; inf while a report's scale can still decrease."""
    lowest = max(config.floor, 1.0)
    if not config.dynamic:
        return FEWEST_SKIPS
    if isinstance(report, StepReport):
        return FEWEST_SKIPS if report.scale <= lowest else math.inf
    times = math.log(lowest / config.init_scale) / math.log(config.backoff_factor)
    return max(FEWEST_SKIPS, math.ceil(times) + config.hysteresis)


def _format_names(names: tuple[str, ...], most: int = 5) -> str:
    if not names:
        return "some gradient"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"{name!r}" for name in names[:most]) + more


def _format_scale(scale: float) -> str:
    significand, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if significand == 0.5 else f"{scale:g}"
