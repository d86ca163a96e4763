"""What a live training shows at a moment: names, sentences, the still picture and the record.

Invariant: a sentence names only numbers that were measured, and says at which step; losses that are
not finite leave a gap and a name in the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import TYPE_CHECKING

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
from labkit.widgets.base.number_words import counted, percent, power, short
from labkit.widgets.driven.controller import Phase
from labkit.widgets.driven.widget import on
from labkit.widgets.live_training.forked_run import ForkedRun
from labkit.widgets.live_training.knobs import Knobs, Scaling, describe, operands, recipe_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# So many skipped steps in a row are reported; one or two are usual with dynamic scaling.
MANY_SKIPS = 3
# Names that say something that their description does not.
OPT_LEVELS = ("O0", "O1", "O2", "O3")


def streak(
    steps: Sequence[StepRecord], holds: Callable[[StepRecord], bool]
) -> tuple[int, int | None]:
    """Return how many steps at the end fulfil a condition, and the number of the first of them."""
    held = list(takewhile(holds, reversed(steps)))
    return len(held), held[-1].step if held else None


def latest(steps: Sequence[StepRecord], what: str) -> float | None:
    """Return the last measured share of a kind ("underflow", "swallowed"), or None."""
    return next((v for s in reversed(steps) if (v := getattr(s, what)) is not None), None)


def names(forked_run: ForkedRun) -> list[str]:
    """Return what the branches are called in the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> runs = [ForkedRun(TASKS["digits"], RECIPES[name]) for name in ("O2", "O0")]
    >>> names(runs[0]), names(runs[1])
    (['O2'], ['run'])
    """
    own = recipe_of(forked_run.run.wanted).name
    short = own if len(own) <= 5 else operands(forked_run.run.wanted)
    return ["run" if short in ("FP32", "O0") else short, "fork"][: len(forked_run.branches)]


def rates(forked_run: ForkedRun) -> tuple[float, float] | None:
    """Return steps a second of FP32 and of the run.

    Returns None if they were not timed in the same seconds.
    """
    fp32 = forked_run.fp32.step_seconds
    own = forked_run.run.step_seconds
    return None if fp32 is None or own is None else (1 / fp32, 1 / own)


def rates_text(forked_run: ForkedRun) -> str:
    """Return a line such as "trains on the CPU, emulated; steps a second: FP32 52, FP16 33".

    It has no numbers before both runs have some.
    """
    measured = rates(forked_run)
    where = f"trains on {on(forked_run.place)}"
    if measured is None:
        return where
    return (
        f"{where}; steps a second: FP32 {measured[0]:.3g}, {operands(forked_run.run.wanted)} "
        f"{measured[1]:.3g}"
    )


def who(knobs: Knobs, scale: float | None = None) -> str:
    """Return the name of the run at these knobs, with any opt level and a dynamic scale's value.

    >>> from labkit.widgets.live_training.knobs import Knobs, Scaling
    >>> who(Knobs(scaling=Scaling.STATIC, masters="forgotten"))
    'FP16 with a static scale of 2^10, without master weights'
    """
    name = recipe_of(knobs).name
    words = describe(knobs)
    if knobs.scaling is Scaling.DYNAMIC and scale is not None:
        words = words.replace("dynamic scaling", f"dynamic scaling (now {power(scale)})")
    return (
        f"{name} ({words.replace('(', '').replace(')', '')})"
        if name in OPT_LEVELS and name != words
        else words
    )


def sentence(forked_run: ForkedRun) -> str:
    """Return the one sentence (or some) under the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> sentence(ForkedRun(TASKS["digits"], RECIPES["FP16"], steps=250, device="cpu"))[:79]
    'Nothing has run yet. Press Start: FP16 without scaling trains beside FP32 on th'
    """
    run = forked_run.run
    steps = forked_run.run.steps
    in_force = run.knobs or run.wanted
    if forked_run.phase is Phase.FAILED:
        after = f"after step {steps[-1].step}" if steps else "before the first step"
        return f"Training ended {after} by an error: {forked_run.error} Press Reset to begin again."
    if forked_run.building:
        return "Getting ready: the data, and networks with the same first weights."
    if not steps and run.run is not None and forked_run.ghosts:
        return (
            f"At step 0, before the first step: {who(in_force)}, beside FP32 on "
            f"{on(forked_run.place)}. The faint curves are the runs that came after. "
            "Press Continue."
        )
    if not steps:
        return (
            f"Nothing has run yet. Press Start: {who(in_force)} trains beside FP32 "
            f"on {on(forked_run.place)}, with the same first weights and the same batches, "
            f"for {counted(forked_run.total, 'step')}.{_on_record(forked_run)}"
        )
    last = steps[-1]
    finished = forked_run.phase is Phase.FINISHED
    name = who(in_force, last.scale)
    fp32 = (
        forked_run.fp32.steps[last.step - 1].loss
        if last.step <= len(forked_run.fp32.steps)
        else None
    )
    bad, bad_since = streak(steps, lambda s: not math.isfinite(s.loss))
    if not finished:
        at = "Paused at step" if forked_run.phase is Phase.PAUSED else "Step"
        where = f"{at} {last.step} of {forked_run.total}: "
    else:
        ended = (
            "Finished at step {}" if last.step >= forked_run.total else "Stopped at step {} of {}"
        )
        changes = {0: "", 1: ", after one change"}.get(
            len(run.marks), f", after {len(run.marks)} changes"
        )
        where = f"{ended.format(last.step, forked_run.total)}{changes}: "
    if bad:
        beside = "" if fp32 is None else f", FP32 at {short(fp32)}"
        trouble = (
            f"has been {short(last.loss)} since step {bad_since}{beside}. Infinity or NaN "
            "sits in its weights or"
        )
        parts = [
            (
                f"{where}the loss of {name} {trouble} activations, and no loss scale takes it "
                "out: press Reset."
            )
        ]
    else:
        parts = [where + _losses(forked_run, name, fp32)]
        skipped = sum(not s.stepped for s in steps)
        in_a_row = streak(steps, lambda s: not s.stepped)[0]
        if in_a_row >= MANY_SKIPS:
            overflow = (
                f"at scale {power(last.scale)} the gradients overflow, so the weights stand still."
            )
            parts.append(f"The last {in_a_row} steps were skipped: {overflow}")
        elif skipped:
            parts.append(f"{skipped} step{' was' if skipped == 1 else 's were'} skipped.")
    parts.append(_fork(forked_run))
    if finished and (measured := rates(forked_run)) is not None:
        parts.append(
            f"In the same seconds on {on(forked_run.place)}, FP32 did {measured[0]:.3g} "
            f"steps a second, this run {measured[1]:.3g}."
        )
    if forked_run.phase is not Phase.RUNNING and run.wanted != in_force:
        parts.append(f"The next {'run' if finished else 'step'} will be {who(run.wanted)}.")
    return " ".join(filter(None, parts))


def record_sentence(forked_run: ForkedRun) -> str:
    """Return what the recorded runs are, and what they reached; "" if there is none."""
    whose = (
        f"A recorded training: {who(forked_run.run.wanted)}, beside FP32 with the same first "
        "weights and batches."
    )
    reached = _reached(forked_run)
    return f"{whose} {reached[:1].upper()}{reached[1:]}" if reached else ""


def _on_record(forked_run: ForkedRun) -> str:
    return f" Drawn faintly, from records: {reached}" if (reached := _reached(forked_run)) else ""


def _reached(forked_run: ForkedRun) -> str:
    fp32, run = forked_run.recorded
    if fp32 is None:
        return ""
    total = forked_run.total
    if total < len(fp32.steps):
        losses = short(fp32.steps[total - 1].loss)
        ours = "" if run is None else f", this recipe's {short(run.steps[total - 1].loss)}"
        return (
            f"after {total} of {counted(len(fp32.steps), 'step')} FP32's loss was {losses}{ours}."
        )
    reached = f"{fp32.metric_name} {fp32.metric:.3f} in {counted(len(fp32.steps), 'step')}"
    ours = "" if run is None else f", this recipe {run.metric:.3f}"
    return f"FP32 reached {reached}{ours}."


def _losses(forked_run: ForkedRun, name: str, fp32: float | None) -> str:
    steps = forked_run.run.steps
    lost = _shares(forked_run)
    # the latest step that has both
    at = max(forked_run.run.metrics.keys() & forked_run.fp32.metrics.keys(), default=None)
    if forked_run.phase is Phase.FINISHED and at is not None:
        ours = forked_run.run.metrics[at]
        theirs = forked_run.fp32.metrics[at]
        when = "" if at == steps[-1].step else f" at step {at}"
        losses = short(steps[-1].loss) + ("" if fp32 is None else f" and {short(fp32)}")
        return (
            f"{name} has {forked_run.task.metric_name} {ours:.3f}{when}, FP32 {theirs:.3f}; "
            f"losses {losses}{lost}."
        )
    return (
        f"{name} is at "
        f"{short(steps[-1].loss)}{'' if fp32 is None else f', FP32 at {short(fp32)}'}{lost}."
    )


def _shares(forked_run: ForkedRun) -> str:
    """Return the latest shares that are on show, after a semicolon; "" before there are any."""
    ends = {
        "underflow": "of its gradient elements underflow",
        "swallowed": "of its updates are swallowed",
    }
    parts = []
    for what in forked_run.shares:
        share = latest(forked_run.run.steps, what)
        if share is not None:
            parts.append(f"{percent(share) if share else 'none'} {ends[what]}")
    return "; " + ", ".join(parts) if parts else ""


def _fork(forked_run: ForkedRun) -> str:
    fork = forked_run.fork
    if fork is None:
        return ""
    apart = forked_run.fork_change()
    how = f"({apart})" if apart else "with the same settings"
    if not fork.steps:
        return f"The fork {how} stands after step {fork.origin} and has not moved yet."
    last = fork.steps[-1]
    end = f"is at {short(last.loss)}"
    trouble = ""
    if forked_run.phase is Phase.FINISHED and fork.metrics:
        at = max(fork.metrics)
        end = (
            f"has {forked_run.task.metric_name} "
            f"{fork.metrics[at]:.3f}{'' if at == fork.done else f' at step {at}'}"
        )
    since = streak(fork.steps, lambda s: not math.isfinite(s.loss))[1]
    if since is not None:
        trouble = (
            f" Its loss has been {short(last.loss)} since step {since}, and no loss scale "
            "takes that out."
        )
    same = [s.loss for s in fork.steps] == [
        s.loss for s in forked_run.run.steps[fork.origin : fork.done]
    ]
    equal = (
        f" Up to step {fork.done} every loss is the same, bit for bit."
        if same and not apart
        else ""
    )
    return f"The fork {how} left it after step {fork.origin} and {end}.{equal}{trouble}"


@on_any_page
def static_training(forked_run: ForkedRun, *, why: str = "") -> Figure:
    """Draw the steps so far: losses, scale, and the shares that are on show."""
    titles = {
        "underflow": "Activation gradients: elements that are zero here and not in FP32",
        "swallowed": "Updates swallowed: weights with a gradient that did not move",
    }

    def curves(value: Callable[[StepRecord], float | None], colour: str = "") -> list[Curve]:
        return [
            Curve(
                [math.nan if (found := value(step)) is None else found for step in branch.steps],
                colour or FORMAT_COLOURS.get(operands(branch.wanted), FORMAT_COLOURS["E4M3"]),
                name,
                "--" if branch is forked_run.fork else "-",
                origin=branch.origin,
                crosses=[step.step for step in branch.steps if not step.stepped],
            )
            for name, branch in zip(names(forked_run), forked_run.branches, strict=True)
        ]

    reached = [step.loss for step in forked_run.fp32.steps[: max(forked_run.run.done, 1)]]
    fp32 = Curve(reached, FORMAT_COLOURS["FP32"], "FP32", width=BROAD)
    skipped = sum(not step.stepped for branch in forked_run.branches for step in branch.steps)
    panels = [
        Panel("Loss of each batch, log scale", "loss", [fp32, *curves(lambda step: step.loss)]),
        Panel(
            f"Loss scale; {skipped} skipped ×" if skipped else "Loss scale",
            "scale",
            curves(lambda step: math.log2(step.scale)),
        ),
    ]
    for what in forked_run.shares:
        colour = FATE_COLOURS["underflowed"] if what == "underflow" else QUIET
        panels.append(Panel(titles[what], "share", curves(attrgetter(what), colour)))
    marks = [
        (mark.step - 0.5, mark.label) for branch in forked_run.branches for mark in branch.marks
    ]
    marks += [(branch.origin, "") for branch in forked_run.branches[1:]]
    figure = steps_figure(panels, forked_run.total, sentence(forked_run), why, marks)
    figure.text(0.92, 0.975, rates_text(forked_run), fontsize=8.5, color=QUIET, ha="right")
    return figure
