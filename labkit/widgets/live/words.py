"""What does the live figure show now, in one sentence?

Idea: the controller describes the moment as one frozen `Scene`; pure functions turn it into words. So every sentence a
learner can meet is tested without a browser and without a training.

Invariant: a sentence names only numbers that were measured, and says at which step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.train import StepRecord
from labkit.widgets.live.state import Phase, Scaling, Settings
from labkit.widgets.underflow.words import percent

MANY_SKIPS = 3  # as many skipped steps in a row are a story; one or two are how dynamic scaling works


@dataclass(frozen=True)
class Scene:
    """Everything a sentence can speak about.

    settings         those of the last step, or of the first one to come
    wanted           those of the next step
    total            planned steps
    label            number format of the learner's run, such as FP16
    last             its latest step, None before the first
    fp32_loss        loss of the FP32 run at the same step
    underflow        latest measured share of gradient elements that underflow, 0 to 1
    bad_since        step from which on the loss has not been finite, None when the last loss is finite
    skipped          steps skipped so far
    skipped_in_a_row steps skipped up to now without a good one between
    changes          how often the learner changed something after the first step
    metric           latest measured (step, this run, FP32), None before the first
    error            what ended the training, in words
    """

    phase: Phase
    total: int
    label: str
    settings: Settings
    task: str = ""
    metric_name: str = ""
    last: StepRecord | None = None
    fp32_loss: float | None = None
    underflow: float | None = None
    bad_since: int | None = None
    skipped: int = 0
    skipped_in_a_row: int = 0
    changes: int = 0
    metric: tuple[int, float, float] | None = None
    error: str = ""
    building: bool = False
    wanted: Settings | None = None


def number(value: float) -> str:
    """Return a number as a person reads it, three significant digits.

    >>> number(0.02521), number(0.00000003), number(float("nan"))
    ('0.0252', '3e-8', 'NaN')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{float(f'{value:.3g}'):g}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def power(scale: float) -> str:
    """Return a scale as a power of two where it is one.

    >>> power(1024.0), power(0.5), power(1000.0)
    ('2^10', '2^-1', '1000')
    """
    fraction, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if fraction == 0.5 else number(scale)


def who(scene: Scene, settings: Settings | None = None) -> str:
    """Return the name of the learner's run under its settings, or under others.

    >>> who(Scene(Phase.IDLE, 250, "FP16", Settings(Scaling.STATIC, 10, master_weights=False)))
    'FP16 with a static scale of 2^10 and no master weights'
    """
    present, settings = settings is None, settings or scene.settings
    without = "" if settings.master_weights else " and no master weights"
    if settings.scaling is Scaling.OFF:
        return f"{scene.label} without scaling{without}"
    if settings.scaling is Scaling.STATIC:
        return f"{scene.label} with a static scale of 2^{settings.log2_scale}{without}"
    now = f" (now {power(scene.last.scale)})" if present and scene.last is not None else ""
    return f"{scene.label} with dynamic scaling{now}{without}"


def change_label(before: Settings, after: Settings) -> str:
    """Return what a change did, short enough for a label in the figure; an empty text for no change.

    >>> change_label(Settings(Scaling.OFF, 10), Settings(Scaling.STATIC, 10))
    'scaling on, 2^10'
    >>> change_label(Settings(Scaling.STATIC, 10), Settings(Scaling.STATIC, 12, master_weights=False))
    'scale 2^12, master weights off'
    """
    parts = []
    if after.scaling is not before.scaling:
        parts.append(
            {
                Scaling.OFF: "scaling off",
                Scaling.STATIC: f"scaling on, 2^{after.log2_scale}",
                Scaling.DYNAMIC: f"dynamic, from 2^{after.log2_scale}",
            }[after.scaling]
        )
    elif after.scaling is not Scaling.OFF and after.log2_scale != before.log2_scale:
        parts.append(f"scale 2^{after.log2_scale}")
    if after.master_weights is not before.master_weights:
        parts.append(f"master weights {'on' if after.master_weights else 'off'}")
    return ", ".join(parts)


def sentence(scene: Scene) -> str:
    """Return the one sentence (or two) under the figure.

    >>> step = StepRecord(120, loss=0.0252, scale=1.0, found_inf=False, stepped=True)
    >>> sentence(Scene(Phase.RUNNING, 250, "FP16", Settings(), last=step, fp32_loss=0.0101, underflow=0.82))
    'Step 120 of 250: FP16 without scaling is at 0.0252, FP32 at 0.0101; 82% of its gradient elements underflow.'
    """
    if scene.phase is Phase.FAILED:
        after = "before the first step" if scene.last is None else f"after step {scene.last.step}"
        return f"Training ended {after} by an error: {scene.error} Press Reset to begin again."
    if scene.building:
        return (
            f"Getting ready: the data and two networks with the same weights, one for FP32 and one for {scene.label}."
        )
    if scene.last is None:
        return (
            f"Nothing has run yet. Press Start: {who(scene)} trains beside FP32, with the same first weights and the "
            f"same batches, for {scene.total} steps."
        )
    return _where(scene) + _state(scene) + _skips(scene) + _next(scene)


def _where(scene: Scene) -> str:
    assert scene.last is not None
    step = scene.last.step
    if scene.phase is Phase.FINISHED:
        ended = f"Finished at step {step}" if step >= scene.total else f"Stopped at step {step} of {scene.total}"
        changes = {0: "", 1: ", after one change"}.get(scene.changes, f", after {scene.changes} changes")
        return f"{ended}{changes}: "
    return f"{'Paused at step' if scene.phase is Phase.PAUSED else 'Step'} {step} of {scene.total}: "


def _state(scene: Scene) -> str:
    assert scene.last is not None
    fp32 = "" if scene.fp32_loss is None else f", FP32 at {number(scene.fp32_loss)}"
    if scene.bad_since is not None:
        return (
            f"the loss of {who(scene)} has been {number(scene.last.loss)} since step {scene.bad_since}{fp32}. "
            "Infinity or NaN sits in its weights or activations, and no loss scale takes it out: press Reset."
        )
    lost = ""
    if scene.underflow is not None:
        share = percent(scene.underflow) if scene.underflow else "none"
        lost = f"; {share} of its gradient elements underflow"
    if scene.phase is Phase.FINISHED and scene.metric is not None:
        at, ours, theirs = scene.metric
        when = "" if at == scene.last.step else f" at step {at}"
        name = scene.metric_name
        return f"{who(scene)} has {name} {ours:.3f}{when}, FP32 {theirs:.3f}; losses {_losses(scene)}{lost}."
    return f"{who(scene)} is at {number(scene.last.loss)}{fp32}{lost}."


def _losses(scene: Scene) -> str:
    assert scene.last is not None
    fp32 = "" if scene.fp32_loss is None else f" and {number(scene.fp32_loss)}"
    return number(scene.last.loss) + fp32


def _skips(scene: Scene) -> str:
    if scene.bad_since is not None or not scene.skipped or scene.last is None:
        return ""
    if scene.skipped_in_a_row >= MANY_SKIPS:
        return (
            f" The last {scene.skipped_in_a_row} steps were skipped: at scale {power(scene.last.scale)} the gradients "
            "overflow, so the weights stand still."
        )
    return f" {scene.skipped} step was skipped." if scene.skipped == 1 else f" {scene.skipped} steps were skipped."


def _next(scene: Scene) -> str:
    if scene.phase is Phase.RUNNING or scene.wanted is None or not change_label(scene.settings, scene.wanted):
        return ""
    when = "The next run" if scene.phase is Phase.FINISHED else "The next step"
    return f" {when} will be {who(scene, scene.wanted)}."
