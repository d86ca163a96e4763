"""What of a game can be shown where nothing moves? The losses of both sides, and their scales in the window.

Idea: matplotlib draws once what the browser draws, with the same colours and sentence.

Invariant: the scaler's scale and the window are drawn only where the learner may see them too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from labkit.widgets.base.figures import FATE_COLOURS, FORMAT_COLOURS, INK, QUIET, wrapped
from labkit.widgets.beat_scaler.controller import Duel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def static_duel(duel: Duel, *, why: str = "") -> Figure:
    """Draw the game so far."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.6))
    loss, scale = figure.subplots(2, 1, sharex=True)
    figure.subplots_adjust(left=0.09, right=0.97, top=0.94, bottom=0.25, hspace=0.3)
    sides = ((duel.scalers, "scaler", QUIET), (duel.yours, "you", FORMAT_COLOURS["FP16"]))
    for side, name, colour in sides:
        steps = side.steps[: duel.steps_done] if side else []
        x, y = [s.step for s in steps], [math.log2(s.scale) for s in steps]
        loss.plot(x, [s.loss for s in steps], color=colour, linewidth=1.3, label=name)
        if name == "scaler" and not duel.told:
            continue
        scale.step(x, y, where="mid", color=colour, linewidth=1.6, label=name)
        scale.plot(
            [s.step for s in steps if s.skipped],
            [v for s, v in zip(steps, y, strict=True) if s.skipped],
            "x",
            color=INK,
        )
        if name == "you" and duel.told:
            scale.fill_between(x, [s.overflows_at for s in steps], 34, color=FATE_COLOURS["overflowed"], alpha=0.25)
            scale.fill_between(x, -8, [s.keeps_from for s in steps], color=FATE_COLOURS["underflowed"], alpha=0.2)
    loss.set_yscale("log")
    loss.set_title("Loss of each batch, log scale", loc="left", fontsize=10, color=INK)
    scale.set_title("Loss scale (log2), skipped steps ×", loc="left", fontsize=10, color=INK)
    scale.set_ylim(-6, 32)
    loss.legend(frameon=False, fontsize=9)
    for axes in (loss, scale):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(which="both", labelsize=8.5, colors=QUIET)
    figure.text(0.09, 0.16, wrapped(duel.sentence(), 118), fontsize=9.5, va="top", color=INK)
    figure.text(0.09, 0.02, wrapped(why, 130), fontsize=8.5, color=QUIET)
    return figure
