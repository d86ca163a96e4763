"""What does a learner see of the bits of a number where widgets do not run? The same picture, standing still.

Idea: the figure draws what the widget sends to the browser, so both show the same.

Invariant: a figure is built from `Figure` alone; no pyplot, no window, no global state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.widgets.base.figures import INK, QUIET, captioned, on_any_page, raised, why_still, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paul Tol's high-contrast scheme: told apart by people who see colours differently, and in black and white.
FIELD_COLOURS = {"S": "#BD596A", "E": "#997319", "F": "#0077ED"}

WHY_STILL = why_still("to touch it yourself, and run this cell")


@on_any_page
def static_bits(view: dict[str, Any]) -> Figure:
    """Draw the bits of a code by field, its value, the formula, and say it in a sentence.

    view: as `labkit.widgets.bits.view.view` returns it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.1))
    axes = figure.add_axes((0.02, 0.46, 0.96, 0.48))
    axes.set_axis_off()
    bits = sum(len(field["bits"]) for field in view["fields"])
    axes.set_xlim(0, max(16, bits) + 1)
    axes.set_ylim(0, 3)
    left = 0.0
    for field in view["fields"]:
        _draw_field(axes, field, left, small=bits > 20)
        left += len(field["bits"]) + 0.25
    value = view["value"] if len(view["value"]) < 60 else view["about"]
    figure.text(0.02, 0.33, f"{view['format']}:  {value}", fontsize=14, color=INK, weight="bold")
    return captioned(figure, (0.02, 0.25), view["sentence"], WHY_STILL)


def _draw_field(axes: Axes, field: dict[str, Any], left: float, *, small: bool) -> None:
    from matplotlib.patches import Rectangle

    letter, size = field["letter"], 8 if small else 13
    colour = FIELD_COLOURS[letter]
    for i, bit in enumerate(field["bits"]):
        cell = Rectangle((left + i + 0.05, 1), 0.9, 1.1, facecolor=colour if bit["on"] else "none", edgecolor=colour)
        axes.add_patch(cell)
        ink = "white" if bit["on"] else INK
        axes.text(left + i + 0.5, 1.5, str(int(bit["on"])), ha="center", va="center", fontsize=size, color=ink)
    wide = len(field["bits"]) > 1
    axes.text(
        left + 0.05, 2.35, f"{letter} {field['name']}" if wide else letter, fontsize=9.5, color=INK, weight="bold"
    )
    if wide:
        axes.text(left + 0.05, 0.5, raised(wrapped(field["says"], 80)), fontsize=9, color=QUIET)
