"""Why did a step not happen, and when do skipped steps mean that something is wrong?

Idea: a dynamic scaler skips a step now and then; that is how it finds its scale. Skips in a row mean harm only when
the scale cannot help any more: it is static, it stands at its floor, or it has come down to 1. Then the reader gets
the tensors' names and what to try, and the run goes on; whether to stop it is for its owner to say.

Invariant: a report says what `decide` decided.
"""

from __future__ import annotations

import math

from labkit.amp.loss_scaling.scaler import Decision, ScalerConfig, ScalerState, StepReport, decide

FEWEST_SKIPS = 5  # in a row, before they mean anything


def step_report(
    state: ScalerState,
    found_inf: bool,
    config: ScalerConfig,
    culprits: tuple[str, ...] = (),
    skips_before: int = 0,
) -> StepReport:
    """Return what becomes of a step, from the state it ran under and the number of steps skipped just before it.

    >>> from labkit.amp.loss_scaling.scaler import DYNAMIC
    >>> step_report(ScalerState(8.0), True, DYNAMIC, culprits=("fc.weight",)).why
    "skipped for inf or NaN in 'fc.weight'; the scale goes from 2^3 to 2^2"
    """
    return report(decide(state, found_inf, config), culprits, skips_before)


def report(decision: Decision, culprits: tuple[str, ...] = (), skips_before: int = 0) -> StepReport:
    """Return what was decided on a step, with the reason in a sentence."""
    where, scale, after = f"inf or NaN in {_listed(culprits)}", decision.before.scale, decision.after.scale
    if decision.skip:
        moves = f"goes from {_shown(scale)} to {_shown(after)}" if after != scale else "stays"
        why = f"skipped for {where}; the scale {moves}"
    else:
        why = f"taken in spite of {where}: nobody looks" if decision.found_inf else "taken: every gradient is finite"
    skips = skips_before + 1 if decision.skip else 0
    return StepReport(not decision.skip, decision.found_inf, scale, why, culprits, skips)


def diagnosis(report: StepReport | int, config: ScalerConfig) -> str | None:
    """Return what is wrong and what to do when skipped steps in a row are too many; None while they are not.

    Args:
        report: of the last step, or just the number of steps skipped in a row since the start.
        config: the scaler's.

    >>> from labkit.amp.loss_scaling.scaler import DYNAMIC, static
    >>> diagnosis(3, DYNAMIC) is None
    True
    >>> diagnosis(5, static(2.0**26))[-65:]
    '2^26, and does not move: take a smaller one, or a dynamic scaler.'
    """
    skips = report if isinstance(report, int) else report.skips_in_a_row
    if skips < _too_many(report, config):
        return None
    culprits = () if isinstance(report, int) else report.culprits
    said = f"{skips} steps in a row were skipped for inf or NaN in {_listed(culprits)}."
    if not config.dynamic and config.init_scale > 1:
        stands = f"The scale is static, {_shown(config.init_scale)}, and does not move"
        return f"{said} {stands}: take a smaller one, or a dynamic scaler."
    if config.dynamic and config.floor > 1:
        return f"{said} The scale stands at its floor, {_shown(config.floor)}: take a lower floor."
    return (
        f"{said} The scale is no longer the cause, it is 1 or less. Look for inf or NaN in the inputs, the targets and "
        "the weights; run this step in FP32 under torch.autograd.set_detect_anomaly(True), which names the operation; "
        "then lower the learning rate, clip the gradients, or train in BF16, whose range is FP32's."
    )


def _too_many(report: StepReport | int, config: ScalerConfig) -> float:
    """How many skips in a row are too many: with a report no number is, while its scale can still come down."""
    lowest = max(config.floor, 1.0)
    if not config.dynamic:
        return FEWEST_SKIPS
    if isinstance(report, StepReport):
        return FEWEST_SKIPS if report.scale <= lowest else math.inf
    times = math.log(lowest / config.init_scale) / math.log(config.backoff_factor)
    return max(FEWEST_SKIPS, math.ceil(times) + config.hysteresis)


def _listed(names: tuple[str, ...], most: int = 5) -> str:
    if not names:
        return "some gradient"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"{name!r}" for name in names[:most]) + more


def _shown(scale: float) -> str:
    significand, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if significand == 0.5 else f"{scale:g}"
