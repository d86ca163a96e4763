"""What of the workbench can be shown where nothing moves? Run, fork and FP32 in the same four panels."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from labkit.train import StepRecord
from labkit.widgets.base.figures import FATE_COLOURS, FORMAT_COLOURS, INK, QUIET
from labkit.widgets.live.words import number
from labkit.widgets.workbench.controller import Bench, names
from labkit.widgets.workbench.words import sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHY_STATIC = (
    "This figure stands still and has no knobs, because interactive widgets do not run here. Open the notebook in "
    'JupyterLab (`make lab`), or go on in code: bench.press("start"), bench.turn(scaling="dynamic"), bench.fork(60).'
)


def static_bench(bench: Bench, *, why: str = "") -> Figure:
    """Draw the steps so far: losses, scale, underflow and swallowed updates; the fork is dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7.4))
    panels = figure.subplots(4, 1, sharex=True, height_ratios=(3, 1.1, 0.9, 0.9))
    figure.subplots_adjust(left=0.09, right=0.92, top=0.95, bottom=0.17, hspace=0.42)
    loss, scale, underflow, swallowed = panels
    curves = _curves(bench)
    _loss(loss, bench, curves)
    _draw(scale, curves, lambda s: math.log2(s.scale), "Loss scale, log2")
    for axes, name, title in (
        (underflow, "underflow", "Activation gradients that underflow, %"),
        (swallowed, "swallowed", "Updates swallowed, %"),
    ):
        _draw(axes, curves, lambda s, name=name: _percent(getattr(s, name)), title)  # type: ignore[misc]
        axes.set_ylim(-4, 106)
    panels[-1].set_xlim(0, bench.total)
    panels[-1].set_xlabel("step", fontsize=9, color=QUIET)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(which="both", labelsize=8.5, colors=QUIET)
        if bench.fork is not None:
            axes.axvline(bench.fork.origin, color=QUIET, linewidth=0.8, linestyle=":")
    figure.text(0.09, 0.1, "\n".join(textwrap.wrap(sentence(bench), 118)), fontsize=9.5, va="top", color=INK)
    figure.text(0.09, 0.01, "\n".join(textwrap.wrap(why, 130)), fontsize=8.5, color=QUIET)
    return figure


Curves = list[tuple[str, str, str, Sequence[StepRecord]]]


def _curves(bench: Bench) -> Curves:
    """Name, colour, dash and steps of each branch."""
    found: Curves = []
    for i, (name, branch) in enumerate(zip(names(bench), bench.branches, strict=True)):
        found.append((name, FORMAT_COLOURS[branch.wanted.format], "--" if i else "-", branch.steps))
    return found


def _draw(axes: Axes, curves: Curves, value: Callable[[StepRecord], float | None], title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    for _, colour, dash, steps in curves:
        points = [(s.step, v) for s in steps if math.isfinite(s.loss) and (v := value(s)) is not None]
        axes.plot([p[0] for p in points], [p[1] for p in points], dash, color=colour, linewidth=1.7)


def _loss(axes: Axes, bench: Bench, curves: Curves) -> None:
    reached = bench.fp32.steps[: max(bench.run.done, 1)]
    for name, colour, dash, steps in [("FP32", FORMAT_COLOURS["FP32"], "-", reached), *curves]:
        drawn = [(s.step, s.loss) for s in steps if math.isfinite(s.loss) and s.loss > 0]
        axes.plot([p[0] for p in drawn], [p[1] for p in drawn], dash, color=colour, linewidth=1.6)
        if drawn:
            axes.annotate(name, drawn[-1], (5, 0), textcoords="offset points", color=colour, weight="bold", fontsize=9)
        bad = next((s for s in steps if not math.isfinite(s.loss)), None)
        if bad is not None:
            words = f" {name}: {number(bad.loss)} from step {bad.step}"
            axes.text(bad.step, 0.05, words, transform=axes.get_xaxis_transform(), color=FATE_COLOURS["underflowed"])
    axes.set_yscale("log")
    for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis(lambda value, _: number(value))
    axes.set_title("Loss of each batch, log scale", loc="left", fontsize=10, color=INK)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
