"""What a bench shows at a moment: names, sentences, the still picture and the record.

Invariant: a sentence names only numbers that were measured, and says at which step; losses that are not finite leave a
gap and a name in the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from labkit.train import StepRecord
from labkit.widgets.base.figures import (
    BROAD,
    FATE_COLOURS,
    FORMAT_COLOURS,
    QUIET,
    captioned,
    new_figure,
    on_any_page,
    panel,
    power_ticks,
    raised,
)
from labkit.widgets.base.number_words import percent, power, short
from labkit.widgets.bench.bench import Bench
from labkit.widgets.bench.knobs import Knobs, Scaling, describe, operands, recipe_of
from labkit.widgets.driven.controller import Phase
from labkit.widgets.driven.widget import on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_SKIPS = 3  # as many skipped steps in a row are a story; one or two are how dynamic scaling works
Curve = tuple[str, str, str, Sequence[StepRecord]]  # a branch as it is drawn: name, colour, dash, steps
OPT_LEVELS = ("O0", "O1", "O2", "O3")  # names that say something which their description does not


def streak(steps: Sequence[StepRecord], holds: Callable[[StepRecord], bool]) -> tuple[int, int | None]:
    """Return how many steps at the end fulfil a condition, and the number of the first of them."""
    held = list(takewhile(holds, reversed(steps)))
    return len(held), held[-1].step if held else None


def latest(steps: Sequence[StepRecord], what: str) -> float | None:
    """Return the last measured share of a kind ("underflow", "swallowed"), or None."""
    return next((v for s in reversed(steps) if (v := getattr(s, what)) is not None), None)


def names(bench: Bench) -> list[str]:
    """Return what the branches are called in the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> names(Bench(TASKS["digits"], RECIPES["O2"])), names(Bench(TASKS["digits"], RECIPES["O0"]))
    (['O2'], ['run'])
    """
    own = recipe_of(bench.run.wanted).name
    short = own if len(own) <= 5 else operands(bench.run.wanted)
    return ["run" if short in ("FP32", "O0") else short, "fork"][: len(bench.branches)]


def rates(bench: Bench) -> tuple[float, float] | None:
    """Return steps a second of FP32 and of the run, once both are known."""
    fp32, own = bench.fp32.step_seconds, bench.run.step_seconds
    return None if fp32 is None or own is None else (1 / fp32, 1 / own)


def rates_text(bench: Bench) -> str:
    """Return "trains on the CPU, emulated; steps a second: FP32 52, FP16 33"; no numbers before both have some."""
    measured, where = rates(bench), f"trains on {on(bench.place)}"
    if measured is None:
        return where
    return f"{where}; steps a second: FP32 {measured[0]:.3g}, {operands(bench.run.wanted)} {measured[1]:.3g}"


def who(knobs: Knobs, scale: float | None = None) -> str:
    """Return the run at these knobs: what it is, with the name of an opt level, and where a dynamic scale stands now.

    >>> from labkit.widgets.bench.knobs import Knobs, Scaling
    >>> who(Knobs(scaling=Scaling.STATIC, masters="forgotten"))
    'FP16 with a static scale of 2^10, without master weights'
    """
    name, words = recipe_of(knobs).name, describe(knobs)
    if knobs.scaling is Scaling.DYNAMIC and scale is not None:
        words = words.replace("dynamic scaling", f"dynamic scaling (now {power(scale)})")
    return f"{name} ({words.replace('(', '').replace(')', '')})" if name in OPT_LEVELS and name != words else words


def sentence(bench: Bench) -> str:
    """Return the one sentence (or some) under the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> sentence(Bench(TASKS["digits"], RECIPES["FP16"], steps=250, device="cpu"))[:79]
    'Nothing has run yet. Press Start: FP16 without scaling trains beside FP32 on th'
    """
    run, steps = bench.run, bench.run.steps
    in_force = run.knobs or run.wanted
    if bench.phase is Phase.FAILED:
        after = f"after step {steps[-1].step}" if steps else "before the first step"
        return f"Training ended {after} by an error: {bench.error} Press Reset to begin again."
    if bench.building:
        return "Getting ready: the data, and networks with the same first weights."
    if not steps:
        return (
            f"Nothing has run yet. Press Start: {who(in_force)} trains beside FP32 on {on(bench.place)}, with the same "
            f"first weights and the same batches, for {bench.total} steps.{_on_record(bench)}"
        )
    last, finished = steps[-1], bench.phase is Phase.FINISHED
    name = who(in_force, last.scale)
    fp32 = bench.fp32.steps[last.step - 1].loss if last.step <= len(bench.fp32.steps) else None
    bad, bad_since = streak(steps, lambda s: not math.isfinite(s.loss))
    if not finished:
        where = f"{'Paused at step' if bench.phase is Phase.PAUSED else 'Step'} {last.step} of {bench.total}: "
    else:
        ended = "Finished at step {}" if last.step >= bench.total else "Stopped at step {} of {}"
        changes = {0: "", 1: ", after one change"}.get(len(run.marks), f", after {len(run.marks)} changes")
        where = f"{ended.format(last.step, bench.total)}{changes}: "
    if bad:
        beside = "" if fp32 is None else f", FP32 at {short(fp32)}"
        trouble = f"has been {short(last.loss)} since step {bad_since}{beside}. Infinity or NaN sits in its weights or"
        parts = [f"{where}the loss of {name} {trouble} activations, and no loss scale takes it out: press Reset."]
    else:
        parts = [where + _losses(bench, name, fp32)]
        skipped, in_a_row = sum(not s.stepped for s in steps), streak(steps, lambda s: not s.stepped)[0]
        if in_a_row >= MANY_SKIPS:
            overflow = f"at scale {power(last.scale)} the gradients overflow, so the weights stand still."
            parts.append(f"The last {in_a_row} steps were skipped: {overflow}")
        elif skipped:
            parts.append(f"{skipped} step{' was' if skipped == 1 else 's were'} skipped.")
    parts.append(_fork(bench))
    if finished and (measured := rates(bench)) is not None:
        parts.append(f"On {on(bench.place)}, FP32 did {measured[0]:.3g} steps a second, this run {measured[1]:.3g}.")
    if bench.phase is not Phase.RUNNING and run.wanted != in_force:
        parts.append(f"The next {'run' if finished else 'step'} will be {who(run.wanted)}.")
    return " ".join(filter(None, parts))


def record_sentence(bench: Bench) -> str:
    """Return what the runs on record are, and what they reached; "" where there is none."""
    whose = f"A recorded training: {who(bench.run.wanted)}, beside FP32 with the same first weights and batches."
    return f"{whose} {reached}" if (reached := _reached(bench)) else ""


def _on_record(bench: Bench) -> str:
    return f" Drawn faintly, from records: {reached}" if (reached := _reached(bench)) else ""


def _reached(bench: Bench) -> str:
    fp32, run = bench.recorded
    if fp32 is None:
        return ""
    reached = f"{fp32.metric_name} {fp32.metric:.3f} in {len(fp32.steps)} steps"
    ours = "" if run is None else f", this recipe {run.metric:.3f}"
    return f"FP32 reached {reached}{ours}."


def _losses(bench: Bench, name: str, fp32: float | None) -> str:
    steps = bench.run.steps
    underflow, lost = latest(steps, "underflow"), ""
    swallowed = latest(steps, "swallowed") if "epsilon" in bench.offered else None
    if underflow is not None:
        lost = f"; {percent(underflow) if underflow else 'none'} of its gradient elements underflow"
        lost += "" if swallowed is None else f", {percent(swallowed)} of its updates are swallowed"
    at = max(bench.run.metrics.keys() & bench.fp32.metrics.keys(), default=None)  # the latest step that has both
    if bench.phase is Phase.FINISHED and at is not None:
        ours, theirs = bench.run.metrics[at], bench.fp32.metrics[at]
        when = "" if at == steps[-1].step else f" at step {at}"
        losses = short(steps[-1].loss) + ("" if fp32 is None else f" and {short(fp32)}")
        return f"{name} has {bench.task.metric_name} {ours:.3f}{when}, FP32 {theirs:.3f}; losses {losses}{lost}."
    return f"{name} is at {short(steps[-1].loss)}{'' if fp32 is None else f', FP32 at {short(fp32)}'}{lost}."


def _fork(bench: Bench) -> str:
    fork = bench.fork
    if fork is None:
        return ""
    apart = bench.fork_change()
    how = f"({apart})" if apart else "with the same settings"
    if not fork.steps:
        return f"The fork {how} stands after step {fork.origin} and has not moved yet."
    last = fork.steps[-1]
    end, trouble = f"is at {short(last.loss)}", ""
    if bench.phase is Phase.FINISHED and fork.metrics:
        at = max(fork.metrics)
        end = f"has {bench.task.metric_name} {fork.metrics[at]:.3f}{'' if at == fork.done else f' at step {at}'}"
    since = streak(fork.steps, lambda s: not math.isfinite(s.loss))[1]
    if since is not None:
        trouble = f" Its loss has been {short(last.loss)} since step {since}, and no loss scale takes that out."
    same = [s.loss for s in fork.steps] == [s.loss for s in bench.run.steps[fork.origin : fork.done]]
    equal = f" Up to step {fork.done} every loss is the same, bit for bit." if same and not apart else ""
    return f"The fork {how} left it after step {fork.origin} and {end}.{equal}{trouble}"


@on_any_page
def static_bench(bench: Bench, *, why: str = "") -> Figure:
    """Draw the steps so far: losses, scale, underflow and, where its knobs are there, swallowed updates."""
    shares = {"underflow": "Activation gradients: elements that are zero here and not in FP32"}
    if "epsilon" in bench.offered:
        shares["swallowed"] = "Updates swallowed: weights with a gradient that did not move"
    figure = new_figure(9, 5.8 + 0.8 * len(shares))
    panels = figure.subplots(2 + len(shares), 1, sharex=True, height_ratios=(3, 1.2, *(1.0 for _ in shares)))
    figure.subplots_adjust(left=0.09, right=0.92, top=0.95, bottom=0.19, hspace=0.4)
    curves = [
        (name, FORMAT_COLOURS.get(operands(branch.wanted), FORMAT_COLOURS["E4M3"]), "--" if i else "-", branch.steps)
        for i, (name, branch) in enumerate(zip(names(bench), bench.branches, strict=True))
    ]
    marks = [mark for branch in bench.branches for mark in branch.marks]
    reached = bench.fp32.steps[: max(bench.run.done, 1)]
    _draw_losses(panels[0], [("FP32", FORMAT_COLOURS["FP32"], "-", reached), *curves])
    for mark in marks:
        above = panels[0].get_xaxis_transform()
        panels[0].text(mark.step, 0.95, f" {raised(mark.label)}", transform=above, fontsize=8.5, va="top")
    _draw_scale(panels[1], curves)
    for axes, (what, title) in zip(panels[2:], shares.items(), strict=True):
        _draw_share(axes, curves, what)
        panel(axes, title)
    panels[-1].set_xlim(0, bench.total)
    panels[-1].set_xlabel("step", fontsize=9, color=QUIET)
    lines = [(mark.step - 0.5, "-") for mark in marks] + [(branch.origin, ":") for branch in bench.branches[1:]]
    for axes in panels:
        for at, dash in lines:
            axes.axvline(at, color=QUIET, linewidth=0.8, linestyle=dash)
    figure.text(0.92, 0.965, rates_text(bench), fontsize=8.5, color=QUIET, ha="right")
    return captioned(figure, (0.09, 0.115), sentence(bench), why, foot=0.01)


def _draw_losses(axes: Axes, curves: Sequence[Curve]) -> None:
    for name, colour, dash, steps in curves:
        drawn = [(s.step, s.loss) for s in steps if math.isfinite(s.loss) and s.loss > 0]
        gaps = [s.loss if math.isfinite(s.loss) and s.loss > 0 else math.nan for s in steps]
        axes.plot([s.step for s in steps], gaps, dash, color=colour, linewidth=BROAD if name == "FP32" else 1.6)
        if drawn:
            axes.annotate(name, drawn[-1], (5, 0), textcoords="offset points", color=colour, weight="bold", fontsize=9)
        bad = next((s for s in steps if not math.isfinite(s.loss)), None)
        if bad is not None:
            words = f" {name}: {short(bad.loss)} from step {bad.step}"
            axes.text(bad.step, 0.05, words, transform=axes.get_xaxis_transform(), color=FATE_COLOURS["underflowed"])
    axes.set_yscale("log")
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis(lambda value, _: short(value))
    panel(axes, "Loss of each batch, log scale")


def _draw_scale(axes: Axes, curves: Sequence[Curve]) -> None:
    skipped = 0
    for _, colour, dash, steps in curves:
        axes.step([s.step for s in steps], [math.log2(s.scale) for s in steps], dash, where="mid", color=colour)
        left_out = [(s.step, math.log2(s.scale)) for s in steps if not s.stepped]
        skipped += len(left_out)
        axes.plot([at for at, _ in left_out], [y for _, y in left_out], "x", color=FATE_COLOURS["overflowed"])
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.5), max(high, 16.5))
    power_ticks(axes.set_yticks, range(0, math.ceil(axes.get_ylim()[1]) + 1, 8))
    panel(axes, "Loss scale" + f"; {skipped} skipped ×" * bool(skipped))


def _draw_share(axes: Axes, curves: Sequence[Curve], what: str) -> None:
    colour = FATE_COLOURS["underflowed"] if what == "underflow" else QUIET
    for _, _, dash, steps in curves:
        points = [(s.step, 100 * share) for s in steps if (share := getattr(s, what)) is not None]
        if points:
            points.append((steps[-1].step, points[-1][1]))  # what was measured stands until it is measured again
        x, y = [at for at, _ in points], [share for _, share in points]
        axes.step(x, y, dash, where="post", color=colour, linewidth=1.6, marker="o", markersize=3)
    axes.set_ylim(-3, 105)
    axes.set_yticks([0, 50, 100], ["0%", "50%", "100%"])
