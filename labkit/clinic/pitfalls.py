"""Pitfalls that a run's record shows: its loss, its skipped steps, its underflow.

Idea: each failure of FP16 leaves its own trace. Gradients that underflow leave the loss finite and
slow. A scale that is too high skips step after step. A step that is taken with inf turns the loss
into NaN. Each has a line and a remedy.

Invariant: every statement follows from the record. For a run without these traces, the report says
that no failure was found, not that the run is good.
"""

from __future__ import annotations

import math
import statistics

from labkit.findings import CheckReport, Finding, Status, counted
from labkit.train import RunRecord

# in a row; a dynamic scaler halves 2^16 to below 1 in 17
MANY_SKIPS = 20
# Recorded runs learn well with some per cent, and stall above a half.
MUCH_UNDERFLOW = 0.5


def find_pitfalls(record: RunRecord) -> CheckReport:
    """Return what a run's record shows: its loss, its skipped steps, its underflow.

    >>> from labkit.train import StepRecord
    >>> steps = tuple(StepRecord(n, math.nan, 1.0, True, True) for n in (1, 2))
    >>> run = RunRecord("digits", "FP16", 0, steps, 0.1, "accuracy", 1.0, "CPU", {}, "2026-01-01")
    >>> print(next(find_pitfalls(run).of(Status.BAD)).what)
    inf or NaN from step 1 on
    """
    if not record.steps:
        return CheckReport(
            (Finding("steps", Status.WARN, "none", "let the run do at least one step"),)
        )
    return CheckReport(
        (_loss(record), _skips(record), _underflow(record)),
        if_warned="No failure was found in what was measured. Missing",
        if_bad="What went wrong in this run",
    )


def _loss(record: RunRecord) -> Finding:
    for step in record.steps:
        if not math.isfinite(step.loss):
            unchecked = any(s.found_inf and s.stepped for s in record.steps if s.step < step.step)
            if unchecked:
                remedy = (
                    "a step with inf or NaN reached the weights: check the gradients and "
                    "skip such steps (skip_on_inf=True)"
                )
            else:
                remedy = (
                    "no step with inf or NaN was taken before it, so the forward pass overflows "
                    "(look at the activations) or the optimizer divided by zero (Adam's "
                    "epsilon of 1e-8 is 0 in FP16 weights: keep FP32 masters)"
                )
            return Finding("loss", Status.BAD, f"inf or NaN from step {step.step} on", remedy)
    return Finding(
        "loss",
        Status.OK,
        f"finite, {record.steps[0].loss:.4g} at first, {record.final_loss:.4g} at last",
    )


def _skips(record: RunRecord) -> Finding:
    longest = 0
    current = 0
    for step in record.steps:
        if step.stepped:
            current = 0
        else:
            current += 1
        longest = max(longest, current)
    what = f"{record.skipped} of {len(record.steps)} skipped, at most {longest} in a row"
    if longest < MANY_SKIPS:
        return Finding("steps", Status.OK, what)
    remedy = (
        "the scale is too high and stays there: lower it, or let it be dynamic; if it is, "
        "look at the loss"
    )
    return Finding("steps", Status.BAD, what, remedy)


def _underflow(record: RunRecord) -> Finding:
    # a share of NaN says nothing about the gradients
    measured = [
        s.underflow for s in record.steps if s.underflow is not None and not math.isnan(s.underflow)
    ]
    if not measured:
        return Finding("underflow", Status.WARN, "not measured", "train with measure_every above 0")
    # the upper one of two middle values
    middle = statistics.median_high(measured)
    what = (
        f"{middle:.1%} of the activation gradients (median of "
        f"{counted(len(measured), 'measurement')} against FP32)"
    )
    if middle < MUCH_UNDERFLOW:
        return Finding("underflow", Status.OK, what)
    remedy = (
        "scale the loss (dynamic scaling, or a static 2^10 to begin with), or sum the loss "
        "instead of averaging it"
    )
    return Finding("underflow", Status.BAD, what, remedy)
