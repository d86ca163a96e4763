"""What does a learner see of the number line where widgets do not run? The same picture, standing still.

Idea: the figure draws what the widget sends to the browser, so both show the same.

Invariant: a figure is built from `Figure` alone; no pyplot, no window, no global state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.formats import Format, Rounding, decode, encode, round_to
from labkit.widgets.base.figures import FORMAT_COLOURS, INK, QUIET, captioned, on_any_page, why_still

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 812  # of the picture of a line: its pixels

WHY_STILL = why_still("to touch it yourself, and run this cell")


@on_any_page
def static_number_line(format: Format, window: tuple[float, float], scale: str, rounded: dict[str, Any]) -> Figure:
    """Draw where the numbers of a format lie in a window (darker where there are more), and how one real number rounds.

    rounded: as `labkit.widgets.number_line_words.rounded` returns it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.9))
    axes = figure.add_axes((0.03, 0.5, 0.94, 0.36))
    if scale == "log":
        axes.set_xscale("log", base=2)
    axes.set_xlim(*window)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors=QUIET)
    edges = (np.geomspace if scale == "log" else np.linspace)(*window, COLUMNS + 1)
    counts = values_between(edges, format)
    here = counts > 0
    dense = np.minimum(1.0, 0.65 + 0.03 * np.log2(counts[here]))
    axes.vlines(((edges[:-1] + edges[1:]) / 2)[here], 0, 0.55, colors=INK, alpha=dense, linewidth=0.8, snap=False)
    _draw_outcome(axes, rounded, window)
    axes.set_title(f"Numbers of {format.name}", loc="left", fontsize=11, color=INK)
    return captioned(figure, (0.03, 0.27), rounded["sentence"], WHY_STILL)


def values_between(edges: NDArray[np.float64], format: Format) -> NDArray[np.int64]:
    """Count the values of a format from each edge (left out) to the next (included); edges[n] rise, counts[n - 1].

    >>> from labkit.formats import FP16
    >>> values_between(np.array([0.5, 1.0, 2.0, 2.001]), FP16)
    array([1024, 1024,    0])
    """
    least = -format.max if format.signed else float(decode(0, format))
    below = round_to(np.clip(edges, least, format.max), format, Rounding.TOWARD_NEGATIVE)
    codes = encode(below, format)
    place = (codes & ~np.asarray(format.sign_mask, codes.dtype)).astype(np.int64)  # codes count up with magnitude
    place = np.where(below < 0, -place, place)
    return np.diff(np.where(edges < least, place.min() - 1, place))


def _draw_outcome(axes: Axes, rounded: dict[str, Any], window: tuple[float, float]) -> None:
    interval, colour = rounded["interval"], FORMAT_COLOURS["FP16"]
    if interval is not None:
        low = window[0] if interval["low"] is None else max(interval["low"], window[0])
        high = window[1] if interval["high"] is None else min(interval["high"], window[1])
        if low < high:
            axes.axvspan(low, high, ymax=0.7, color=colour, alpha=0.18, linewidth=0)
    for value in rounded["values"]:
        if value["at"] is not None and window[0] <= value["at"] <= window[1]:
            axes.vlines(value["at"], 0, 0.7, color=colour, linewidth=2.5)
    if window[0] <= rounded["x"] <= window[1]:
        axes.annotate("x", (rounded["x"], 0), (rounded["x"], 0.92), ha="center", va="center", fontsize=11, color=INK,
                      arrowprops={"arrowstyle": "-|>", "color": INK})  # fmt: skip
