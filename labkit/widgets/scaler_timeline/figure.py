"""What of a scaler's timeline can be shown where nothing moves? The scale before its window, one panel for each scaler.

Idea: matplotlib draws once what the browser draws while the hand moves, with the same colours.

Invariant: every panel has the same axes, so that scalers can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from labkit.widgets.base.figures import (
    FATE_COLOURS,
    FORMAT_COLOURS,
    INK,
    QUIET,
    captioned,
    on_any_page,
    panel,
    raised,
    why_still,
)
from labkit.widgets.scaler_timeline.replay import Replay, sentence, source
from labkit.widgets.scaler_timeline.trace import OVERFLOWS_FROM, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHY_STATIC = why_still("to turn its knobs, or set them in code (growth_interval, ...; alike) and display it again")


@on_any_page
def static_timeline(replays: Mapping[str, Replay], trace: Trace, *, why: str = WHY_STATIC) -> Figure:
    """Draw one or more scalers on a trace, name -> replay, one under another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.9 + (2.6 if len(replays) == 1 else 1.3 * len(replays))))
    panels = figure.subplots(len(replays), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    bottom = 1.45 / float(figure.get_figheight())
    figure.subplots_adjust(left=0.09, right=0.97, top=1 - 0.24 * bottom, bottom=bottom, hspace=0.45)
    for axes, (name, what) in zip(panels, replays.items(), strict=True):
        _draw(axes, what, trace)
        skips = f"{what.skips} skipped"
        panel(axes, f"{name}: {skips}" if name else f"Loss scale, {skips} ×")
    panels[-1].set_xlabel("step", fontsize=9, color=QUIET)
    first = next(iter(replays.values()))
    words = f"{sentence(first)} {source(trace)}" if len(replays) == 1 else source(trace)
    return captioned(figure, (0.09, 0.62 * bottom), words, why)


def _draw(axes: Axes, what: Replay, trace: Trace) -> None:
    steps = np.arange(1, len(what) + 1)
    top = np.log2(OVERFLOWS_FROM / np.array(trace.largest[: len(what)]))
    low = np.array(trace.keeps_from[: len(what)], np.float64)
    scale = np.log2(what.scale)
    high = max(float(top.max()), float(scale.max())) + 2
    axes.fill_between(steps, top, high, color=FATE_COLOURS["overflowed"], alpha=0.25, linewidth=0)
    axes.fill_between(steps, 0, low, color=FATE_COLOURS["underflowed"], alpha=0.2, linewidth=0)
    axes.step(steps, scale, where="mid", color=FORMAT_COLOURS["FP16"], linewidth=1.6)
    bad = what.skipped == 1
    axes.plot(steps[bad], scale[bad], "x", color=INK, markersize=5)
    axes.set_ylim(min(0.0, float(scale.min())), high)
    axes.set_xlim(1, len(what))
    ticks = range(0, int(high) + 1, 8)
    axes.set_yticks(list(ticks), [raised(f"2^{e}") for e in ticks])
