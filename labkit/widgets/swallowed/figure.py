"""What of the swallowed updates is seen where widgets do not run? The same curves, standing still.

Idea: matplotlib draws once what the browser draws at every movement, with the same colours, dashes and sentence.

Invariant: nothing is calculated here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit.widgets.base.figures import (
    BROAD,
    FORMAT_COLOURS,
    QUIET,
    End,
    captioned,
    name_ends,
    on_any_page,
    panel,
    raised,
    why_still,
)
from labkit.widgets.swallowed.curves import Curve
from labkit.widgets.swallowed.words import quarters, sentence, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = {  # on and off, in widths of the line
    "FP16 + Kahan": (0, (6, 3)),
    "FP16 + stochastic": (0, (1, 1.5)),
    "FP16 + FP32 master": (0, (8, 2, 1, 2)),
}
WHY_STATIC = why_still(
    "to slide, or go on in code: swallowed.update = 2**-11; print(swallowed.sentence)", "This figure stands"
)


@on_any_page
def static_swallowed(curves: Mapping[str, Curve], weight: float, update: float, *, why: str = WHY_STATIC) -> Figure:
    """Draw the weight against the steps for each method, beside the exact line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6))
    axes = figure.add_axes((0.08, 0.33, 0.66, 0.58))
    steps = len(next(iter(curves.values()))) - 1
    exact = [weight, weight - steps * update]
    axes.plot([0, steps], exact, color=QUIET, alpha=0.5, linewidth=BROAD + 2, solid_capstyle="round")
    ends = []
    for name, curve in curves.items():
        colour, last = FORMAT_COLOURS[name.split(" ")[0]], float(curve[-1])
        axes.plot(curve, color=colour, linestyle=DASHES.get(name, "-"), linewidth=1.8)
        ends.append(End(f"{name}  {short(last)}", last, colour))
    axes.set_xlim(0, steps)
    name_ends(axes, ends)
    axes.set_xlabel("updates", fontsize=9, color=QUIET)
    panel(axes, raised(f"w = {quarters(weight)}, update = {quarters(update)}; grey: exact"))
    return captioned(figure, (0.08, 0.19), sentence(curves, weight, update), why)
