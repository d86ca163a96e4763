"""Names, sentences and the still picture of a live training.

Invariant: a sentence states only numbers that were measured, with their step. Losses that are not
finite leave a gap in the picture and are named beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from labkit.findings import counted
from labkit.train import StepRecord
from labkit.widgets.base.figures import (
    BROAD,
    FATE_COLOURS,
    FORMAT_COLOURS,
    QUIET,
    Curve,
    Panel,
    on_any_page,
    steps_figure,
)
from labkit.widgets.base.number_words import percent, power, short
from labkit.widgets.driven.controller import Phase
from labkit.widgets.driven.widget import on
from labkit.widgets.live_training.forked_run import ForkedRun
from labkit.widgets.live_training.knobs import Knobs, Scaling, describe, operands, recipe_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# This many skipped steps in a row are reported. One or two are usual with dynamic scaling.
MANY_SKIPS = 3
# Names of recipes that say more than a description of their settings.
OPT_LEVELS = ("O0", "O1", "O2", "O3")


def streak(
    steps: Sequence[StepRecord], holds: Callable[[StepRecord], bool]
) -> tuple[int, int | None]:
    """Return the length of the run of steps at the end that fulfil a condition, and its first step.

    Args:
        steps: The steps of a training.
        holds: The condition.

    Returns:
        The number of steps, and the number of the first of them; (0, None) if the last step does
        not fulfil the condition.
    """
    length = 0
    first = None
    for step in reversed(steps):
        if not holds(step):
            break
        length += 1
        first = step.step
    return length, first


def latest(steps: Sequence[StepRecord], what: str) -> float | None:
    """Return the last measured share ("underflow" or "swallowed"), or None."""
    for step in reversed(steps):
        share: float | None = getattr(step, what)
        if share is not None:
            return share
    return None


def names(forked_run: ForkedRun) -> list[str]:
    """Return the names of run and fork in the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> runs = [ForkedRun(TASKS["digits"], RECIPES[name]) for name in ("O2", "O0")]
    >>> names(runs[0]), names(runs[1])
    (['O2'], ['run'])
    """
    wanted = forked_run.run.wanted
    name = recipe_of(wanted).name
    # Longer names do not fit beside the curve.
    if len(name) > 5:
        name = operands(wanted)
    # These names are taken by the FP32 run beside it.
    if name in ("FP32", "O0"):
        name = "run"
    return [name] if forked_run.fork is None else [name, "fork"]


def rates(forked_run: ForkedRun) -> tuple[float, float] | None:
    """Return the steps per second of FP32 and of the run, or None before both were timed."""
    fp32 = forked_run.fp32.step_seconds
    run = forked_run.run.step_seconds
    if fp32 is None or run is None:
        return None
    return 1 / fp32, 1 / run


def rates_text(forked_run: ForkedRun) -> str:
    """Return a line such as "trains on the CPU, emulated; steps a second: FP32 52, FP16 33".

    The line has no numbers before both runs were timed.
    """
    text = f"trains on {on(forked_run.place)}"
    measured = rates(forked_run)
    if measured is None:
        return text
    fp32, run = measured
    name = operands(forked_run.run.wanted)
    return f"{text}; steps a second: FP32 {fp32:.3g}, {name} {run:.3g}"


def who(knobs: Knobs, scale: float | None = None) -> str:
    """Return the name of a run under these knobs.

    Args:
        knobs: The positions of the knobs.
        scale: The present scale, which is added to dynamic scaling.

    >>> from labkit.widgets.live_training.knobs import Knobs, Scaling
    >>> who(Knobs(scaling=Scaling.STATIC, masters="forgotten"))
    'FP16 with a static scale of 2^10, without master weights'
    """
    description = describe(knobs)
    if knobs.scaling is Scaling.DYNAMIC and scale is not None:
        description = description.replace(
            "dynamic scaling", f"dynamic scaling (now {power(scale)})"
        )
    name = recipe_of(knobs).name
    if name not in OPT_LEVELS or name == description:
        return description
    without_brackets = description.replace("(", "").replace(")", "")
    return f"{name} ({without_brackets})"


def sentence(forked_run: ForkedRun) -> str:
    """Return the sentences below the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> sentence(ForkedRun(TASKS["digits"], RECIPES["FP16"], steps=250, device="cpu"))[:79]
    'Nothing has run yet. Press Start: FP16 without scaling trains beside FP32 on th'
    """
    steps = forked_run.run.steps
    if forked_run.phase is Phase.FAILED:
        after = f"after step {steps[-1].step}" if steps else "before the first step"
        return f"Training ended {after} by an error: {forked_run.error} Press Reset to begin again."
    if forked_run.building:
        return "Getting ready: the data, and networks with the same first weights."
    if not steps:
        return _before_the_first_step(forked_run)

    parts = [_progress(forked_run) + _state(forked_run)]
    if math.isfinite(steps[-1].loss):
        parts.append(_skips(steps))
    parts.append(_fork(forked_run))
    if forked_run.phase is Phase.FINISHED:
        parts.append(_speed(forked_run))
    parts.append(_next_knobs(forked_run))
    return " ".join(part for part in parts if part)


def _before_the_first_step(forked_run: ForkedRun) -> str:
    run = forked_run.run
    name = who(run.knobs or run.wanted)
    where = on(forked_run.place)
    # The run has gone back to its beginning.
    if run.run is not None and forked_run.ghosts:
        return (
            f"At step 0, before the first step: {name}, beside FP32 on {where}. The faint curves "
            "are the runs that came after. Press Continue."
        )
    text = (
        f"Nothing has run yet. Press Start: {name} trains beside FP32 on {where}, with the same "
        f"first weights and the same batches, for {counted(forked_run.total, 'step')}."
    )
    reached = _reached(forked_run)
    if reached:
        text += f" Drawn faintly, from records: {reached}"
    return text


def _progress(forked_run: ForkedRun) -> str:
    """Return the beginning of the sentence: the step, and the changes after a finished run."""
    total = forked_run.total
    last = forked_run.run.steps[-1].step
    if forked_run.phase is Phase.PAUSED:
        return f"Paused at step {last} of {total}: "
    if forked_run.phase is not Phase.FINISHED:
        return f"Step {last} of {total}: "
    text = f"Finished at step {last}" if last >= total else f"Stopped at step {last} of {total}"
    changes = len(forked_run.run.marks)
    if changes == 1:
        text += ", after one change"
    elif changes:
        text += f", after {changes} changes"
    return f"{text}: "


def _state(forked_run: ForkedRun) -> str:
    """Return the main sentence: the losses, or that the loss is no longer a number."""
    run = forked_run.run
    last = run.steps[-1]
    name = who(run.knobs or run.wanted, last.scale)
    fp32_steps = forked_run.fp32.steps
    fp32_loss = fp32_steps[last.step - 1].loss if last.step <= len(fp32_steps) else None
    if math.isfinite(last.loss):
        return _losses(forked_run, name, fp32_loss)
    _, since = streak(run.steps, lambda step: not math.isfinite(step.loss))
    beside = "" if fp32_loss is None else f", FP32 at {short(fp32_loss)}"
    return (
        f"the loss of {name} has been {short(last.loss)} since step {since}{beside}. Infinity or "
        "NaN sits in its weights or activations, and no loss scale takes it out: press Reset."
    )


def _skips(steps: Sequence[StepRecord]) -> str:
    in_a_row, _ = streak(steps, lambda step: not step.stepped)
    if in_a_row >= MANY_SKIPS:
        return (
            f"The last {in_a_row} steps were skipped: at scale {power(steps[-1].scale)} the "
            "gradients overflow, so the weights stand still."
        )
    skipped = sum(not step.stepped for step in steps)
    if skipped == 0:
        return ""
    return "1 step was skipped." if skipped == 1 else f"{skipped} steps were skipped."


def _speed(forked_run: ForkedRun) -> str:
    measured = rates(forked_run)
    if measured is None:
        return ""
    fp32, run = measured
    return (
        f"In the same seconds on {on(forked_run.place)}, FP32 did {fp32:.3g} steps a second, "
        f"this run {run:.3g}."
    )


def _next_knobs(forked_run: ForkedRun) -> str:
    """Return what the next step or run will be, if the knobs were turned since the last one."""
    run = forked_run.run
    is_unchanged = run.wanted == (run.knobs or run.wanted)
    if forked_run.phase is Phase.RUNNING or is_unchanged:
        return ""
    what = "run" if forked_run.phase is Phase.FINISHED else "step"
    return f"The next {what} will be {who(run.wanted)}."


def record_sentence(forked_run: ForkedRun) -> str:
    """Return a sentence about the recorded runs and their results, or "" without records."""
    reached = _reached(forked_run)
    if not reached:
        return ""
    return (
        f"A recorded training: {who(forked_run.run.wanted)}, beside FP32 with the same first "
        f"weights and batches. {reached[:1].upper()}{reached[1:]}"
    )


def _reached(forked_run: ForkedRun) -> str:
    """Return the results of the recorded runs; "" if FP32 is not on record."""
    fp32, run = forked_run.recorded
    if fp32 is None:
        return ""
    total = forked_run.total
    all_steps = counted(len(fp32.steps), "step")
    if total < len(fp32.steps):
        text = f"after {total} of {all_steps} FP32's loss was {short(fp32.steps[total - 1].loss)}"
        if run is not None:
            text += f", this recipe's {short(run.steps[total - 1].loss)}"
        return f"{text}."
    text = f"FP32 reached {fp32.metric_name} {fp32.metric:.3f} in {all_steps}"
    if run is not None:
        text += f", this recipe {run.metric:.3f}"
    return f"{text}."


def _losses(forked_run: ForkedRun, name: str, fp32_loss: float | None) -> str:
    """Return the losses of both runs; after the last step, their metrics as well."""
    run = forked_run.run
    fp32 = forked_run.fp32
    loss = short(run.steps[-1].loss)
    shares = _shares(forked_run)
    common_steps = run.metrics.keys() & fp32.metrics.keys()
    if forked_run.phase is Phase.FINISHED and common_steps:
        last = max(common_steps)
        when = "" if last == run.steps[-1].step else f" at step {last}"
        losses = loss if fp32_loss is None else f"{loss} and {short(fp32_loss)}"
        return (
            f"{name} has {forked_run.task.metric_name} {run.metrics[last]:.3f}{when}, "
            f"FP32 {fp32.metrics[last]:.3f}; losses {losses}{shares}."
        )
    beside = "" if fp32_loss is None else f", FP32 at {short(fp32_loss)}"
    return f"{name} is at {loss}{beside}{shares}."


def _shares(forked_run: ForkedRun) -> str:
    """Return the last measured shares after a semicolon, or "" before any was measured."""
    endings = {
        "underflow": "of its gradient elements underflow",
        "swallowed": "of its updates are swallowed",
    }
    parts = []
    for what in forked_run.shares:
        share = latest(forked_run.run.steps, what)
        if share is not None:
            amount = percent(share) if share else "none"
            parts.append(f"{amount} {endings[what]}")
    return "; " + ", ".join(parts) if parts else ""


def _fork(forked_run: ForkedRun) -> str:
    """Return the sentences about the fork, or "" without one."""
    fork = forked_run.fork
    if fork is None:
        return ""
    change = forked_run.fork_change()
    how = f"({change})" if change else "with the same settings"
    if not fork.steps:
        return f"The fork {how} begins after step {fork.origin} and has not moved yet."
    last = fork.steps[-1]
    end = f"is at {short(last.loss)}"
    if forked_run.phase is Phase.FINISHED and fork.metrics:
        step = max(fork.metrics)
        when = "" if step == fork.done else f" at step {step}"
        end = f"has {forked_run.task.metric_name} {fork.metrics[step]:.3f}{when}"
    text = f"The fork {how} left it after step {fork.origin} and {end}."

    run_losses = [step.loss for step in forked_run.run.steps[fork.origin : fork.done]]
    fork_losses = [step.loss for step in fork.steps]
    if fork_losses == run_losses and not change:
        text += f" Up to step {fork.done} every loss is the same, bit for bit."
    _, since = streak(fork.steps, lambda step: not math.isfinite(step.loss))
    if since is not None:
        text += (
            f" Its loss has been {short(last.loss)} since step {since}, and no loss scale takes "
            "that out."
        )
    return text


@on_any_page
def static_training(forked_run: ForkedRun, *, why: str = "") -> Figure:
    """Return a still picture of the steps so far: losses, scale, and shares.

    Args:
        forked_run: The runs.
        why: A text below the picture.
    """
    titles = {
        "underflow": "Activation gradients: elements that are zero here and not in FP32",
        "swallowed": "Updates swallowed: weights with a gradient that did not move",
    }

    def curves(value: Callable[[StepRecord], float | None], colour: str = "") -> list[Curve]:
        """Return a curve for each branch; a value of None leaves a gap."""
        drawn = []
        for name, branch in zip(names(forked_run), forked_run.branches, strict=True):
            values = [value(step) for step in branch.steps]
            format_colour = FORMAT_COLOURS.get(operands(branch.wanted), FORMAT_COLOURS["E4M3"])
            curve = Curve(
                [math.nan if number is None else number for number in values],
                colour or format_colour,
                name,
                "--" if branch is forked_run.fork else "-",
                origin=branch.origin,
                crosses=[step.step for step in branch.steps if not step.stepped],
            )
            drawn.append(curve)
        return drawn

    # FP32 may be a step ahead.
    fp32_steps = forked_run.fp32.steps[: max(forked_run.run.done, 1)]
    fp32 = Curve([step.loss for step in fp32_steps], FORMAT_COLOURS["FP32"], "FP32", width=BROAD)
    skipped = sum(not step.stepped for branch in forked_run.branches for step in branch.steps)
    losses = [fp32, *curves(lambda step: step.loss)]
    scales = curves(lambda step: math.log2(step.scale))
    scale_title = f"Loss scale; {skipped} skipped ×" if skipped else "Loss scale"
    panels = [
        Panel("Loss of each batch, log scale", "loss", losses),
        Panel(scale_title, "scale", scales),
    ]
    for what in forked_run.shares:
        colour = FATE_COLOURS["underflowed"] if what == "underflow" else QUIET
        panels.append(Panel(titles[what], "share", curves(attrgetter(what), colour)))
    marks = [
        (mark.step - 0.5, mark.label) for branch in forked_run.branches for mark in branch.marks
    ]
    if forked_run.fork is not None:
        marks.append((forked_run.fork.origin, ""))
    figure = steps_figure(panels, forked_run.total, sentence(forked_run), why, marks)
    figure.text(0.92, 0.975, rates_text(forked_run), fontsize=8.5, color=QUIET, ha="right")
    return figure
