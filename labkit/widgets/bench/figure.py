"""What of a bench can be shown where nothing moves? Run, fork and FP32 in the same panels, with the same sentence.

Idea: matplotlib draws once what the browser draws thirty times a second, with the same colours and marks.

Invariant: losses that are not finite leave a gap and a name, never an axis without end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from labkit.train import StepRecord
from labkit.widgets.base.figures import (
    BROAD,
    FATE_COLOURS,
    FORMAT_COLOURS,
    QUIET,
    captioned,
    on_any_page,
    panel,
    raised,
)
from labkit.widgets.base.number_words import short
from labkit.widgets.bench.controller import Bench
from labkit.widgets.bench.report import names
from labkit.widgets.bench.words import rates_text, scene, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Curve(NamedTuple):
    """A branch as it is drawn."""

    name: str
    colour: str
    dash: str
    steps: Sequence[StepRecord]


@on_any_page
def static_bench(bench: Bench, *, why: str = "") -> Figure:
    """Draw the steps so far: losses, scale, underflow and, where its knobs are there, swallowed updates."""
    from matplotlib.figure import Figure

    shares = ["underflow", "swallowed"] if "epsilon" in bench.offered else ["underflow"]
    figure = Figure(figsize=(9, 5.8 + 0.8 * len(shares)))
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
    for axes in panels:
        _draw_marks(axes, bench)
    figure.text(0.92, 0.965, rates_text(bench), fontsize=8.5, color=QUIET, ha="right")
    return captioned(figure, (0.09, 0.115), sentence(scene(bench)), why, foot=0.01)


def _draw_marks(axes: Axes, bench: Bench) -> None:
    for branch in bench.branches:
        for mark in branch.marks:
            axes.axvline(mark.step - 0.5, color=QUIET, linewidth=0.8)
    if bench.fork is not None:
        axes.axvline(bench.fork.origin, color=QUIET, linewidth=0.8, linestyle=":")


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
    ticks = range(0, math.ceil(axes.get_ylim()[1]) + 1, 8)
    axes.set_yticks(list(ticks), [raised(f"2^{e}") for e in ticks])
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
