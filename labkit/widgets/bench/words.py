"""What a bench shows at a moment: names, sentences, the still picture and the record.

Idea: the bench describes the moment as one frozen `Scene`, and pure functions turn it into words, so every sentence is
tested without a browser and without a training.

Invariant: a sentence names only numbers that were measured, and says at which step; losses that are not finite leave a
gap and a name in the picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from labkit.train import RunRecord, StepRecord, bytes_held
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
from labkit.widgets.bench.controller import Bench
from labkit.widgets.bench.knobs import Knobs, Scaling, describe, recipe_of
from labkit.widgets.driven.driver import Phase
from labkit.widgets.driven.widget import on

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MANY_SKIPS = 3  # as many skipped steps in a row are a story; one or two are how dynamic scaling works
OPT_LEVELS = ("O0", "O1", "O2", "O3")  # names that say something which their description does not


def streak(steps: Sequence[StepRecord], holds: Callable[[StepRecord], bool]) -> tuple[int, int | None]:
    """Return how many steps at the end fulfil a condition, and the number of the first of them."""
    held = list(takewhile(holds, reversed(steps)))
    return len(held), held[-1].step if held else None


def latest(steps: Sequence[StepRecord], what: str) -> float | None:
    """Return the last measured share of a kind ("underflow", "swallowed"), or None."""
    return next((v for s in reversed(steps) if (v := getattr(s, what)) is not None), None)


def record_of(bench: Bench) -> RunRecord:
    """Return the record of the branch whose knobs are on show."""
    branch = bench.shown
    if branch.run is None or not bench.path(branch):
        raise ValueError("nothing has run yet, so there is nothing to record. Press Start first.")
    marks = [f"{mark.label} from step {mark.step}" for mark in branch.marks]
    if branch.origin:
        marks.insert(0, f"forked after step {branch.origin} from {recipe_of(bench.run.wanted).name}")
    plain = branch.wanted.log2_lr == 0 and branch.wanted.epsilon is None
    record: RunRecord = branch.run.record(
        bench.path(branch),
        recipe="; ".join((recipe_of(branch.wanted).name if plain else describe(branch.wanted), *marks)),
        seconds=float("nan"),  # it waited for a hand: its time says nothing
        stopped=branch.done < bench.total,
        memory=bytes_held(branch.run.engine),
        step_seconds=branch.step_seconds,
    )
    return record


def memory(bench: Bench) -> list[tuple[str, dict[str, int]]]:
    """Return name and bytes by category of each run that has done a step."""
    named = zip(("FP32", *names(bench)), (bench.fp32, *bench.branches), strict=True)
    return [(name, bytes_held(b.run.engine)) for name, b in named if b.run is not None and b.done]


def names(bench: Bench) -> list[str]:
    """Return what the branches are called in the figure.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> names(Bench(TASKS["digits"], RECIPES["O2"])), names(Bench(TASKS["digits"], RECIPES["O0"]))
    (['O2'], ['run'])
    """
    own = recipe_of(bench.run.wanted).name
    short = own if len(own) <= 4 else bench.run.wanted.format
    return ["run" if short in ("FP32", "O0") else short, "fork"][: len(bench.branches)]


@dataclass(frozen=True)
class Scene:
    """Everything a sentence can speak about.

    who              the learner's run, in words
    who_next         what the next step or run will be, in words; "" where nothing was turned
    total            planned steps
    where            the device: "the CPU, emulated", "this GPU: Tesla T4"; "" where that is not said
    rates            steps a second of FP32 and of the learner's run, None before there is something to go by
    last             its latest step, None before the first
    fp32_loss        loss of the FP32 run at the same step
    underflow        latest measured share of gradient elements that underflow, 0 to 1
    swallowed        latest measured share of updates that are swallowed, 0 to 1
    bad_since        step from which on the loss has not been finite, None when the last loss is finite
    skipped          steps skipped so far
    skipped_in_a_row steps skipped up to now without a clean one between
    changes          how often the learner changed something after the first step
    metric           latest measured (step, this run, FP32), None before the first
    fork             what there is to say of a fork, in words
    error            what ended the training, in words
    """

    phase: Phase
    total: int
    who: str
    who_next: str = ""
    where: str = ""
    rates: tuple[float, float] | None = None
    metric_name: str = ""
    last: StepRecord | None = None
    fp32_loss: float | None = None
    underflow: float | None = None
    swallowed: float | None = None
    bad_since: int | None = None
    skipped: int = 0
    skipped_in_a_row: int = 0
    changes: int = 0
    metric: tuple[int, float, float] | None = None
    fork: str = ""
    error: str = ""
    building: bool = False


def scene(bench: Bench) -> Scene:
    """Return what a sentence needs to know about this moment."""
    run, steps = bench.run, bench.run.steps
    last = steps[-1] if steps else None
    in_force = run.knobs or run.wanted
    there = last is not None and last.step <= len(bench.fp32.steps)
    swallowed = latest(steps, "swallowed") if "epsilon" in bench.offered else None
    return Scene(
        phase=bench.phase,
        total=bench.total,
        who=who(in_force, None if last is None else last.scale),
        who_next=who(run.wanted) if run.wanted != in_force else "",
        where=on(bench.place),
        rates=rates(bench),
        metric_name=bench.task.metric_name,
        last=last,
        fp32_loss=bench.fp32.steps[last.step - 1].loss if last is not None and there else None,
        underflow=latest(steps, "underflow"),
        swallowed=swallowed,
        bad_since=streak(steps, lambda s: not math.isfinite(s.loss))[1],
        skipped=sum(not s.stepped for s in steps),
        skipped_in_a_row=streak(steps, lambda s: not s.stepped)[0],
        changes=len(run.marks),
        metric=bench.metric,
        fork=_fork(bench),
        error=bench.error,
        building=bench.building,
    )


def rates(bench: Bench) -> tuple[float, float] | None:
    """Return steps a second of FP32 and of the run, once both are known."""
    fp32, own = bench.fp32.step_seconds, bench.run.step_seconds
    return None if fp32 is None or own is None else (1 / fp32, 1 / own)


def rates_text(bench: Bench) -> str:
    """Return "trains on the CPU, emulated; steps a second: FP32 52, FP16 33"; no numbers before both have some."""
    measured, where = rates(bench), f"trains on {on(bench.place)}"
    if measured is None:
        return where
    return f"{where}; steps a second: FP32 {measured[0]:.3g}, {bench.run.wanted.format} {measured[1]:.3g}"


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


def sentence(scene: Scene) -> str:
    """Return the one sentence (or some) under the figure.

    >>> step = StepRecord(120, loss=0.0252, scale=1.0, found_inf=False, stepped=True)
    >>> now = Scene(Phase.RUNNING, 250, "FP16 without scaling", last=step, fp32_loss=0.0101, underflow=0.82)
    >>> sentence(now)
    'Step 120 of 250: FP16 without scaling is at 0.0252, FP32 at 0.0101; 82% of its gradient elements underflow.'
    """
    if scene.phase is Phase.FAILED:
        after = "before the first step" if scene.last is None else f"after step {scene.last.step}"
        return f"Training ended {after} by an error: {scene.error} Press Reset to begin again."
    if scene.building:
        return "Getting ready: the data, and networks with the same first weights."
    if scene.last is None:
        where = f" on {scene.where}" if scene.where else ""
        return (
            f"Nothing has run yet. Press Start: {scene.who} trains beside FP32{where}, with the same first weights and "
            f"the same batches, for {scene.total} steps."
        )
    parts = [_where(scene) + _state(scene), _skips(scene), scene.fork]
    if scene.phase is Phase.FINISHED and scene.rates is not None and scene.where:
        fp32, own = scene.rates
        parts.append(f"On {scene.where}, FP32 did {fp32:.3g} steps a second, this run {own:.3g}.")
    if scene.phase is not Phase.RUNNING and scene.who_next:
        parts.append(f"The next {'run' if scene.phase is Phase.FINISHED else 'step'} will be {scene.who_next}.")
    return " ".join(filter(None, parts))


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
    lost = ""
    if scene.underflow is not None:
        lost = f"; {percent(scene.underflow) if scene.underflow else 'none'} of its gradient elements underflow"
        lost += "" if scene.swallowed is None else f", {percent(scene.swallowed)} of its updates are swallowed"
    fp32 = "" if scene.fp32_loss is None else f", FP32 at {short(scene.fp32_loss)}"
    if scene.bad_since is not None:
        return (
            f"the loss of {scene.who} has been {short(scene.last.loss)} since step {scene.bad_since}{fp32}. "
            "Infinity or NaN sits in its weights or activations, and no loss scale takes it out: press Reset."
        )
    if scene.phase is Phase.FINISHED and scene.metric is not None:
        at, ours, theirs = scene.metric
        when = "" if at == scene.last.step else f" at step {at}"
        losses = short(scene.last.loss) + ("" if scene.fp32_loss is None else f" and {short(scene.fp32_loss)}")
        metrics = f"{scene.metric_name} {ours:.3f}{when}, FP32 {theirs:.3f}"
        return f"{scene.who} has {metrics}; losses {losses}{lost}."
    return f"{scene.who} is at {short(scene.last.loss)}{fp32}{lost}."


def _skips(scene: Scene) -> str:
    if scene.bad_since is not None or not scene.skipped or scene.last is None:
        return ""
    if scene.skipped_in_a_row >= MANY_SKIPS:
        return (
            f"The last {scene.skipped_in_a_row} steps were skipped: at scale {power(scene.last.scale)} the gradients "
            "overflow, so the weights stand still."
        )
    return f"{scene.skipped} step was skipped." if scene.skipped == 1 else f"{scene.skipped} steps were skipped."


def _fork(bench: Bench) -> str:
    fork = bench.fork
    if fork is None:
        return ""
    apart = bench.fork_change()
    how = f"({apart})" if apart else "with the same settings"
    if not fork.steps:
        return f"The fork {how} stands after step {fork.origin} and has not moved yet."
    end, trouble = f"is at {short(fork.steps[-1].loss)}", ""
    if bench.phase is Phase.FINISHED and fork.metrics:
        at = max(fork.metrics)
        end = f"has {bench.task.metric_name} {fork.metrics[at]:.3f}{'' if at == fork.done else f' at step {at}'}"
    since = streak(fork.steps, lambda s: not math.isfinite(s.loss))[1]
    if since is not None:
        lost = short(fork.steps[-1].loss)
        trouble = f" Its loss has been {lost} since step {since}, and no loss scale takes that out."
    same = [s.loss for s in fork.steps] == [s.loss for s in bench.run.steps[fork.origin : fork.done]]
    equal = f" Up to step {fork.done} every loss is the same, bit for bit." if same and not apart else ""
    return f"The fork {how} left it after step {fork.origin} and {end}.{equal}{trouble}"


class Curve(NamedTuple):
    """A branch as it is drawn."""

    name: str
    colour: str
    dash: str
    steps: Sequence[StepRecord]


@on_any_page
def static_bench(bench: Bench, *, why: str = "") -> Figure:
    """Draw the steps so far: losses, scale, underflow and, where its knobs are there, swallowed updates."""
    shares = ["underflow", "swallowed"] if "epsilon" in bench.offered else ["underflow"]
    figure = new_figure(9, 5.8 + 0.8 * len(shares))
    panels = figure.subplots(2 + len(shares), 1, sharex=True, height_ratios=(3, 1.2, *(1.0 for _ in shares)))
    figure.subplots_adjust(left=0.09, right=0.92, top=0.95, bottom=0.19, hspace=0.4)
    curves = [
        Curve(name, FORMAT_COLOURS[branch.wanted.format], "--" if i else "-", branch.steps)
        for i, (name, branch) in enumerate(zip(names(bench), bench.branches, strict=True))
    ]
    _draw_losses(panels[0], bench, curves)
    _draw_scale(panels[1], curves)
    for axes, what in zip(panels[2:], shares, strict=True):
        _draw_share(axes, curves, what)
    panels[-1].set_xlim(0, bench.total)
    panels[-1].set_xlabel("step", fontsize=9, color=QUIET)
    forked = [] if bench.fork is None else [(bench.fork.origin, ":")]
    marks = [(mark.step - 0.5, "-") for branch in bench.branches for mark in branch.marks]
    for axes in panels:
        for at, dash in (*marks, *forked):
            axes.axvline(at, color=QUIET, linewidth=0.8, linestyle=dash)
    figure.text(0.92, 0.965, rates_text(bench), fontsize=8.5, color=QUIET, ha="right")
    return captioned(figure, (0.09, 0.115), sentence(scene(bench)), why, foot=0.01)


def _draw_losses(axes: Axes, bench: Bench, curves: Sequence[Curve]) -> None:
    reached = bench.fp32.steps[: max(bench.run.done, 1)]
    for name, colour, dash, steps in [Curve("FP32", FORMAT_COLOURS["FP32"], "-", reached), *curves]:
        drawn = [(s.step, s.loss) for s in steps if math.isfinite(s.loss) and s.loss > 0]
        gaps = [s.loss if math.isfinite(s.loss) and s.loss > 0 else math.nan for s in steps]
        wide = BROAD if name == "FP32" else 1.6
        axes.plot([s.step for s in steps], gaps, dash, color=colour, linewidth=wide)
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
    for mark in (mark for branch in bench.branches for mark in branch.marks):
        above = axes.get_xaxis_transform()
        axes.text(mark.step, 0.95, f" {raised(mark.label)}", transform=above, fontsize=8.5, va="top")


def _draw_scale(axes: Axes, curves: Sequence[Curve]) -> None:
    skipped = 0
    for _, colour, dash, steps in curves:
        axes.step([s.step for s in steps], [math.log2(s.scale) for s in steps], dash, where="mid", color=colour)
        left_out = [s for s in steps if not s.stepped]
        skipped += len(left_out)
        x, y = [s.step for s in left_out], [math.log2(s.scale) for s in left_out]
        axes.plot(x, y, "x", color=FATE_COLOURS["overflowed"])
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
        x, y = [p[0] for p in points], [p[1] for p in points]
        axes.step(x, y, dash, where="post", color=colour, linewidth=1.6, marker="o", markersize=3)
    axes.set_ylim(-3, 105)
    axes.set_yticks([0, 50, 100], ["0%", "50%", "100%"])
    titles = {
        "underflow": "Activation gradients: elements that are zero here and not in FP32",
        "swallowed": "Updates swallowed: weights with a gradient that did not move",
    }
    panel(axes, titles[what])
