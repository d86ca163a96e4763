"""Findings that follow from others: one cause is one fault.

Idea: an inf in the forward pass spoils the backward pass and the step, and the scale falls. The
first of these is the cause, and the others are named in its sentence. A table says which kinds
explain which.

Invariant: a finding is left out only if a finding of a kind that explains it stays, from the same
step or an earlier one. Faults of the order of calls explain whatever follows from wrong gradients.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from labkit.findings import Finding, Status
from labkit.instrument.symptoms import Kind

IN_FORWARD = frozenset(
    (
        Kind.OVERFLOW,
        Kind.LOG_OF_ZERO,
        Kind.EXP_OVERFLOWS,
        Kind.DIVISION_BY_ZERO,
        Kind.SUM_OVERFLOWS,
        Kind.SOFTMAX_OF_A_MASKED_ROW,
    )
)
OF_ORDER = frozenset(
    (
        Kind.GRADIENTS_OUTLIVE_A_STEP,
        Kind.SCALED_AFTER_UNSCALE,
        Kind.SECOND_PASS_NOT_UNSCALED,
        Kind.LOSS_NOT_SCALED,
        Kind.WRONG_DIVISOR,
        Kind.STEP_WITH_SCALED_GRADIENTS,
        Kind.NO_STEP_TAKEN,
    )
)
# what spoils the weights, so that later forward passes overflow
SPOILS = OF_ORDER | {
    Kind.EPSILON_IS_ZERO,
    Kind.STEP_NOT_FINITE,
    Kind.NOT_FINITE_IN_OPTIMIZER,
    Kind.FIRST_INF,
    Kind.FIRST_NAN,
}
# a watch that compares with FP32 samples some steps only
AT_ANY_TIME = OF_ORDER | {Kind.UNDERFLOW}
NOT_FINITE = IN_FORWARD | {
    Kind.NOT_FINITE_IN_FP32,
    Kind.NOT_FINITE_IN_BACKWARD,
    Kind.NOT_FINITE_DERIVATIVE,
    Kind.FIRST_INF,
    Kind.FIRST_NAN,
}
LATER = IN_FORWARD | {Kind.NOT_FINITE_IN_FP32}
# kind -> the kinds that explain it
EXPLAINED_BY: dict[str, frozenset[Kind]] = {
    Kind.NOT_FINITE_IN_FP32: IN_FORWARD | OF_ORDER,
    Kind.NOT_FINITE_IN_BACKWARD: IN_FORWARD
    | OF_ORDER
    | {Kind.NOT_FINITE_IN_FP32, Kind.NOT_FINITE_DERIVATIVE},
    Kind.NOT_FINITE_DERIVATIVE: IN_FORWARD | OF_ORDER | {Kind.NOT_FINITE_IN_FP32},
    Kind.NOT_FINITE_IN_OPTIMIZER: NOT_FINITE | OF_ORDER | {Kind.EPSILON_IS_ZERO},
    Kind.TRAINABLE_WEIGHTS_IN_HALF: frozenset((Kind.EPSILON_IS_ZERO, Kind.UPDATES_SWALLOWED)),
    Kind.STEP_NOT_FINITE: NOT_FINITE | OF_ORDER,
    Kind.SCALE_FALLS: NOT_FINITE | OF_ORDER,
    Kind.NO_STEP_TAKEN: IN_FORWARD,
    Kind.SCALE_TOO_LOW: NOT_FINITE | OF_ORDER | {Kind.SCALE_FALLS},
    Kind.UNDERFLOW: NOT_FINITE | OF_ORDER | {Kind.SCALE_FALLS},
    Kind.ALL_GRADIENTS_ARE_ZERO: NOT_FINITE
    | OF_ORDER
    | {Kind.SCALE_FALLS, Kind.UNDERFLOW, Kind.BACKWARD_INSIDE_AUTOCAST},
    Kind.NEVER_MOVED: NOT_FINITE | {Kind.SCALE_FALLS},
    Kind.NOTHING_MOVED: frozenset(
        (
            Kind.UPDATES_SWALLOWED,
            Kind.NEVER_MOVED,
            Kind.SCALE_FALLS,
            Kind.OPTIMIZER_HOLDS_OTHER_PARAMETERS,
        )
    )
    | NOT_FINITE,
    Kind.GRADIENTS_READ_WHILE_SCALED: OF_ORDER,
}


def causes_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without those that follow from another, which name what followed.

    >>> from labkit.instrument.symptoms import finding
    >>> cause = finding(Kind.OVERFLOW, "", 2, "first inf in float16", "train.py:3")
    >>> after = finding(Kind.SCALE_FALLS, "", 9, "the last 8 steps were skipped")
    >>> [each.what for each in causes_first([cause, after])]
    ['first inf in float16; it led to: scale falls']
    """
    every = list(findings)
    # of a cause that is itself explained, the first one counts
    cause_of = {number: _cause(each, every) for number, each in enumerate(every)}
    led_to: dict[int, list[str]] = {}
    for number, cause in cause_of.items():
        if cause is None:
            continue
        while (earlier := cause_of[cause]) is not None:
            cause = earlier
        led_to.setdefault(cause, []).append(every[number].name)
    kept = []
    for number, each in enumerate(every):
        if cause_of[number] is not None:
            continue
        names = list(dict.fromkeys(led_to.get(number, [])))
        what = f"{each.what}; it led to: {', '.join(names)}" if names else each.what
        kept.append(replace(each, what=what))
    return kept


def _cause(found: Finding, every: list[Finding]) -> int | None:
    """Return the number of the first finding that explains another one, or None."""
    if found.status is Status.OK:
        return None
    explaining = EXPLAINED_BY.get(found.name, frozenset())
    for number, other in enumerate(every):
        if other is found or other.status is not Status.BAD:
            continue
        if found.name in LATER and other.name in SPOILS:
            if (other.step or 0) < (found.step or 0):
                return number
            continue
        in_time = other.name in AT_ANY_TIME or (other.step or 0) <= (found.step or 0)
        if other.name in explaining and in_time:
            return number
    return None
