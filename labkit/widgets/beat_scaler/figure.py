"""What of a game can be shown where nothing moves? The losses of both sides, and their scales in the window.

Idea: matplotlib draws once what the browser draws, with the same colours and sentence.

Invariant: the scaler's scale and the window are drawn only where the learner may see them too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.widgets.base.figures import FATE_COLOURS, FORMAT_COLOURS, INK, QUIET, captioned, on_any_page, panel
from labkit.widgets.beat_scaler.controller import Duel
from labkit.widgets.beat_scaler.runs import GameStep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@on_any_page
def static_duel(duel: Duel, *, why: str = "") -> Figure:
    """Draw the game so far."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6))
    loss, scale = figure.subplots(2, 1, sharex=True)
    figure.subplots_adjust(left=0.09, right=0.97, top=0.94, bottom=0.25, hspace=0.3)
    sides = ((duel.scalers, "scaler", QUIET), (duel.yours, "you", FORMAT_COLOURS["FP16"]))
    for side, name, colour in sides:
        steps = side.steps[: duel.steps_done] if side else []
        loss.plot([s.step for s in steps], [s.loss for s in steps], color=colour, linewidth=1.3, label=name)
        if name == "you" or duel.told:
            _draw_scale(scale, steps, colour, window=name == "you" and duel.told)
    loss.set_yscale("log")
    panel(loss, "Loss of each batch, log scale")
    panel(scale, "Loss scale (log2), skipped steps ×")
    scale.set_ylim(-6, 32)
    loss.legend(frameon=False, fontsize=9)
    return captioned(figure, (0.09, 0.16), duel.sentence(), why)


def _draw_scale(axes: Axes, steps: Sequence[GameStep], colour: str, *, window: bool) -> None:
    x, y = [s.step for s in steps], [math.log2(s.scale) for s in steps]
    axes.step(x, y, where="mid", color=colour, linewidth=1.6)
    skipped = [(s.step, v) for s, v in zip(steps, y, strict=True) if s.skipped]
    axes.plot([step for step, _ in skipped], [v for _, v in skipped], "x", color=INK)
    if window:
        axes.fill_between(x, [s.overflows_at for s in steps], 34, color=FATE_COLOURS["overflowed"], alpha=0.25)
        axes.fill_between(x, -8, [s.keeps_from for s in steps], color=FATE_COLOURS["underflowed"], alpha=0.2)
