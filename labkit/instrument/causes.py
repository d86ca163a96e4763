"""Findings that follow from others: one cause is one fault.

Idea: an inf in the forward pass spoils the backward pass and the step, and the scale falls. The
first of these findings is the cause, and its sentence names the others. The table `EXPLAINED_BY`
lists the kinds that can cause each kind.

Invariant: a finding is left out only if a chain of causes leads from it to a finding that stays.
Each cause is of a kind that explains its effect. It is from the same step or an earlier one, except
for the kinds in `AT_ANY_TIME`. Faults in the order of calls explain every finding that follows from
wrong gradients.
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
# faults in the order of calls
CALL_ORDER = frozenset(
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
# kinds that leave inf or NaN in the weights, so that later forward passes overflow
SPOILS_WEIGHTS = CALL_ORDER | {
    Kind.EPSILON_IS_ZERO,
    Kind.STEP_NOT_FINITE,
    Kind.NOT_FINITE_IN_OPTIMIZER,
    Kind.FIRST_INF,
    Kind.FIRST_NAN,
}
# Kinds that explain findings of earlier steps, too. A watch samples only some steps, so it may
# notice these kinds later than their consequences.
AT_ANY_TIME = CALL_ORDER | {Kind.UNDERFLOW}
NOT_FINITE = IN_FORWARD | {
    Kind.NOT_FINITE_IN_FP32,
    Kind.NOT_FINITE_IN_BACKWARD,
    Kind.NOT_FINITE_DERIVATIVE,
    Kind.FIRST_INF,
    Kind.FIRST_NAN,
}
# kinds that spoiled weights of an earlier step explain
AFTER_SPOILED_WEIGHTS = IN_FORWARD | {Kind.NOT_FINITE_IN_FP32}
# kind -> the kinds that explain it
EXPLAINED_BY: dict[str, frozenset[Kind]] = {
    Kind.NOT_FINITE_IN_FP32: IN_FORWARD | CALL_ORDER,
    Kind.NOT_FINITE_IN_BACKWARD: IN_FORWARD
    | CALL_ORDER
    | {Kind.NOT_FINITE_IN_FP32, Kind.NOT_FINITE_DERIVATIVE},
    Kind.NOT_FINITE_DERIVATIVE: IN_FORWARD | CALL_ORDER | {Kind.NOT_FINITE_IN_FP32},
    Kind.NOT_FINITE_IN_OPTIMIZER: NOT_FINITE | CALL_ORDER | {Kind.EPSILON_IS_ZERO},
    Kind.TRAINABLE_WEIGHTS_IN_HALF: frozenset((Kind.EPSILON_IS_ZERO, Kind.UPDATES_SWALLOWED)),
    Kind.STEP_NOT_FINITE: NOT_FINITE | CALL_ORDER,
    Kind.SCALE_FALLS: NOT_FINITE | CALL_ORDER,
    Kind.NO_STEP_TAKEN: IN_FORWARD,
    Kind.SCALE_TOO_LOW: NOT_FINITE | CALL_ORDER | {Kind.SCALE_FALLS},
    Kind.UNDERFLOW: NOT_FINITE | CALL_ORDER | {Kind.SCALE_FALLS},
    Kind.ALL_GRADIENTS_ARE_ZERO: NOT_FINITE
    | CALL_ORDER
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
    Kind.GRADIENTS_READ_WHILE_SCALED: CALL_ORDER,
}


def causes_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the causes among findings; each sentence names the findings that followed from it.

    >>> from labkit.instrument.symptoms import finding
    >>> cause = finding(Kind.OVERFLOW, "", 2, "first inf in float16", "train.py:3")
    >>> after = finding(Kind.SCALE_FALLS, "", 9, "the last 8 steps were skipped")
    >>> [each.what for each in causes_first([cause, after])]
    ['first inf in float16; it led to: scale falls']
    """
    all_findings = list(findings)
    # index of a finding -> index of its cause, or None
    cause_of: list[int | None] = [None] * len(all_findings)
    for index in range(len(all_findings)):
        cause_of[index] = _index_of_cause(index, all_findings, cause_of)
    led_to: dict[int, list[str]] = {}
    for each, cause in zip(all_findings, cause_of, strict=True):
        if cause is None:
            continue
        # a cause may itself have a cause: follow the chain to its start
        earlier = cause_of[cause]
        while earlier is not None:
            cause = earlier
            earlier = cause_of[cause]
        names = led_to.setdefault(cause, [])
        if each.name not in names:
            names.append(each.name)
    causes = []
    for index, each in enumerate(all_findings):
        if cause_of[index] is not None:
            continue
        if index in led_to:
            each = replace(each, what=f"{each.what}; it led to: {', '.join(led_to[index])}")
        causes.append(each)
    return causes


def _index_of_cause(
    effect_index: int, all_findings: list[Finding], cause_of: list[int | None]
) -> int | None:
    """Return the index of the first finding that explains another one, or None.

    Args:
        effect_index: index of the finding to explain.
        all_findings: the finding is one of them.
        cause_of: the causes so far. A finding that follows from the effect is not its cause, so
            that no chain of causes is a circle.
    """
    effect = all_findings[effect_index]
    if effect.status is Status.OK:
        return None
    for index, other in enumerate(all_findings):
        if index == effect_index or other.status is not Status.BAD:
            continue
        if _explains(other, effect) and not _follows_from(index, effect_index, cause_of):
            return index
    return None


def _explains(other: Finding, effect: Finding) -> bool:
    """Return whether a finding can be the cause of another one, by their kinds and steps."""
    other_step = other.step or 0
    effect_step = effect.step or 0
    if effect.name in AFTER_SPOILED_WEIGHTS and other.name in SPOILS_WEIGHTS:
        # the weights of a step are spoiled only after its forward pass
        return other_step < effect_step
    in_time = other.name in AT_ANY_TIME or other_step <= effect_step
    return in_time and other.name in EXPLAINED_BY.get(effect.name, frozenset())


def _follows_from(index: int | None, cause: int, cause_of: list[int | None]) -> bool:
    """Return whether a chain of causes leads from a finding to `cause`."""
    while index is not None:
        if index == cause:
            return True
        index = cause_of[index]
    return False
