"""What of a live training can be shown where nothing moves? The record so far, in the same three panels.

Idea: matplotlib draws once what the browser draws thirty times a second, with the same colours, marks and sentence.

Invariant: losses that are not finite leave a gap and a name, never an axis without end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.train import StepRecord
from labkit.widgets.base.figures import FATE_COLOURS, FORMAT_COLOURS, INK, QUIET
from labkit.widgets.live.controller import Controller
from labkit.widgets.live.words import number, sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHY_STATIC = (
    "This figure stands still and has no buttons, because interactive widgets do not run here. Open the notebook in "
    'JupyterLab (`make lab`), or go on in code: live.press("start"), live.change(scaling="dynamic"), live.figure().'
)


def static_live(controller: Controller, *, why: str = WHY_STATIC) -> Figure:
    """Draw the steps so far: losses beside FP32, the scale with its skipped steps, and underflow."""
    import textwrap

    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.6))
    loss, scale, underflow = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.2, 1))
    figure.subplots_adjust(left=0.09, right=0.92, top=0.95, bottom=0.19, hspace=0.35)
    steps, colour = controller.ours.steps, FORMAT_COLOURS.get(controller.label, FORMAT_COLOURS["FP16"])
    _draw_losses(loss, controller, colour)
    _draw_scale(scale, steps, colour)
    _draw_underflow(underflow, steps, controller.label)
    underflow.set_xlim(0, controller.total)
    underflow.set_xlabel("step", fontsize=9, color=QUIET)
    for axes in (loss, scale, underflow):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(which="both", labelsize=8.5, colors=QUIET)
        for mark in controller.marks:
            axes.axvline(mark.step - 0.5, color=QUIET, linewidth=0.8)
    figure.text(
        0.09,
        0.115,
        _raised("\n".join(textwrap.wrap(sentence(controller.scene()), 118))),
        fontsize=9.5,
        va="top",
        color=INK,
    )
    figure.text(0.09, 0.015, "\n".join(textwrap.wrap(why, 130)), fontsize=8.5, color=QUIET)
    return figure


def _draw_losses(axes: Axes, controller: Controller, colour: str) -> None:
    reached = controller.fp32.steps[: max(len(controller.ours.steps), 1)]
    curves = ((reached, "FP32", FORMAT_COLOURS["FP32"], 1.2), (controller.ours.steps, controller.label, colour, 1.8))
    for steps, name, tint, width in curves:
        drawn = [(s.step, s.loss) for s in steps if math.isfinite(s.loss) and s.loss > 0]
        axes.plot([s.step for s in steps], [_or_gap(s.loss) for s in steps], color=tint, linewidth=width)
        if drawn:
            axes.annotate(name, drawn[-1], (5, 0), textcoords="offset points", color=tint, weight="bold", fontsize=9)
    axes.set_yscale("log")
    for axis_ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis_ticks(lambda value, _: number(value))
    axes.set_title("Loss of each batch, log scale", loc="left", fontsize=10, color=INK)
    bad = controller.scene().bad_since
    if bad is not None:
        words = f"{number(controller.ours.steps[bad - 1].loss)} from step {bad}"
        axes.axvline(bad, color=FATE_COLOURS["underflowed"], linewidth=0.8, linestyle=":")
        axes.text(bad, 0.05, f" {words}", transform=axes.get_xaxis_transform(), color=FATE_COLOURS["underflowed"])
    for mark in controller.marks:
        axes.text(
            mark.step, 0.95, f" {_raised(mark.label)}", transform=axes.get_xaxis_transform(), fontsize=8.5, va="top"
        )


def _draw_scale(axes: Axes, steps: Sequence[StepRecord], colour: str) -> None:
    skipped = [s for s in steps if not s.stepped]
    axes.step([s.step for s in steps], [math.log2(s.scale) for s in steps], where="mid", color=colour, linewidth=1.8)
    axes.plot([s.step for s in skipped], [math.log2(s.scale) for s in skipped], "x", color=FATE_COLOURS["overflowed"])
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.5), max(high, 16.5))
    ticks = range(0, math.ceil(axes.get_ylim()[1]) + 1, 8)
    axes.set_yticks(list(ticks), [f"$2^{{{e}}}$" for e in ticks])
    count = f"; {len(skipped)} skipped ×" if skipped else ""
    axes.set_title(f"Loss scale{count}", loc="left", fontsize=10, color=INK)


def _draw_underflow(axes: Axes, steps: Sequence[StepRecord], label: str) -> None:
    points = [(s.step, 100 * s.underflow) for s in steps if s.underflow is not None]
    if points:
        points.append((steps[-1].step, points[-1][1]))  # what was measured stands until it is measured again
    x, y = [p[0] for p in points], [p[1] for p in points]
    axes.step(x, y, where="post", color=FATE_COLOURS["underflowed"], linewidth=1.6, marker="o", markersize=3)
    axes.set_ylim(-3, 105)
    axes.set_yticks([0, 50, 100], ["0%", "50%", "100%"])
    title = f"Activation gradients: elements that are zero in {label} and not in FP32"
    axes.set_title(title, loc="left", fontsize=10, color=INK)


def _raised(words: str) -> str:
    """Return words in which matplotlib raises the exponents."""
    return re.sub(r"2\^(-?\d+)", r"$2^{\1}$", words)


def _or_gap(loss: float) -> float:
    return loss if math.isfinite(loss) and loss > 0 else math.nan
