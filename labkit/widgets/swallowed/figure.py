"""What of the swallowed updates is seen where widgets do not run? The same curves, standing still.

Idea: matplotlib draws once what the browser draws at every movement, with the same colours, dashes and sentence.

Invariant: nothing is calculated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from labkit.widgets.base.figures import FORMAT_COLOURS, QUIET, captioned, panel, raised, why_still
from labkit.widgets.swallowed.curves import Curve
from labkit.widgets.swallowed.words import quarters, sentence, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = {  # on and off, in widths of the line
    "FP16 + Kahan": (0, (6, 3)),
    "FP16 + stochastic": (0, (1, 1.5)),
    "FP16 + FP32 master": (0, (8, 2, 1, 2)),
}
APART = 0.06  # between two labels, as a share of the height
WHY_STATIC = why_still(
    "to slide, or go on in code: swallowed.update = 2**-11; print(swallowed.sentence)", "This figure stands"
)


def static_swallowed(curves: Mapping[str, Curve], weight: float, update: float, *, why: str = WHY_STATIC) -> Figure:
    """Draw the weight against the steps for each method, beside the exact line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6))
    axes = figure.add_axes((0.08, 0.33, 0.66, 0.58))
    steps = len(next(iter(curves.values()))) - 1
    axes.plot([0, steps], [weight, weight - steps * update], color="#DDDDDD", linewidth=7, solid_capstyle="round")
    for name, curve in curves.items():
        dashes = DASHES.get(name, "-")
        axes.plot(curve, color=FORMAT_COLOURS[name.split(" ")[0]], linestyle=dashes, linewidth=1.8)
    _name_ends(axes, curves)
    axes.set_xlim(0, steps)
    axes.set_xlabel("updates", fontsize=9, color=QUIET)
    panel(axes, raised(f"w = {quarters(weight)}, update = {quarters(update)}; grey: exact"))
    return captioned(figure, (0.08, 0.19), sentence(curves, weight, update), why)


def _name_ends(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """Write each curve's name and last value beside its end, so that no two names lie on each other."""
    low, high = axes.get_ylim()
    heights = spread([(float(curve[-1]) - low) / (high - low) for curve in curves.values()], APART)
    for (name, curve), height in zip(curves.items(), heights, strict=True):
        colour = FORMAT_COLOURS[name.split(" ")[0]]
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            f"{name}  {short(float(curve[-1]))}",
            (len(curve) - 1, float(curve[-1])),
            xytext=(1.03, height),
            textcoords="axes fraction",
            arrowprops=leader,
            annotation_clip=False,
            color=colour,
            fontsize=9,
            va="center",
        )


def spread(heights: list[float], apart: float) -> list[float]:
    """Move labels as little as needed so that they stand `apart`, in the order of their heights.

    >>> spread([0.5, 0.5, 0.9], 0.1)
    [0.45, 0.55, 0.9]
    """
    order = np.argsort(heights, kind="stable")
    groups: list[list[float]] = []  # middle, how many
    for i in order:
        groups.append([heights[i], 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < apart * (groups[-1][1] + groups[-2][1]) / 2:
            (middle, n), (other, m) = groups.pop(), groups.pop()
            groups.append([(middle * n + other * m) / (n + m), n + m])
    placed = [middle + apart * (k - (n - 1) / 2) for middle, n in groups for k in range(int(n))]
    found = [0.0] * len(heights)
    for i, height in zip(order, placed, strict=True):
        found[i] = round(height, 9)
    return found
