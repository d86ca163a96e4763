"""How did a training go? Its losses over its steps, and below them the loss scale, where there is one.

Idea: what is no number is drawn too: a cross at the upper edge for each step whose loss is inf or NaN, and one on the
line of the scale for each step that the scaler skipped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from labkit.clinic import Treatment
from labkit.widgets.base.figures import (
    FATE_COLOURS,
    FORMAT_COLOURS,
    INK,
    described,
    on_any_page,
    panel,
    raised,
    wrapped,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@on_any_page
def treatment_figure(treatment: Treatment) -> Figure:
    """Draw the losses and the loss scale of a training of the clinic."""
    from matplotlib.figure import Figure

    rows = 1 + bool(treatment.scales)
    figure = Figure(figsize=(8, 0.7 + 1.7 * rows), layout="constrained")
    losses, *scale = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    _draw_losses(losses, np.array(treatment.losses, float))
    panel(losses, "Loss")
    for axes in scale:
        _draw_scales(axes, np.log2(treatment.scales))
        panel(axes, "Loss scale, and × for each step that was skipped")
    figure.axes[-1].set_xlabel("step", fontsize=9)
    words = treatment_sentence(treatment)
    figure.supxlabel(raised(wrapped(words, 110)), fontsize=9.5, color=INK)
    return described(figure, words)


def treatment_sentence(treatment: Treatment) -> str:
    """Say in words what the picture shows.

    >>> treatment_sentence(Treatment(losses=(2.0, 1.0), score=0.5, steps=2))
    'The loss goes from 2 to 1 in 2 steps. Score at the end: 0.50.'
    >>> treatment_sentence(Treatment(error="ValueError: no"))
    'It ended with an error: ValueError: no'
    """
    if treatment.error:
        return f"It ended with an error: {treatment.error}"
    losses, steps = treatment.losses, len(treatment.losses)
    bad = [step for step, loss in enumerate(losses) if not math.isfinite(loss)]
    went = f"The loss goes from {losses[0]:.3g} to {losses[-1]:.3g} in {steps} steps."
    if bad:
        went = f"The loss is no finite number in {len(bad)} of {steps} steps, first in step {bad[0]} (counted from 0)."
    skipped = steps - treatment.steps
    skips = f" {skipped} steps were skipped." if skipped else ""
    return f"{went}{skips} Score at the end: {treatment.score:.2f}."


def _draw_losses(axes: Axes, losses: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    finite = np.isfinite(losses)
    axes.plot(np.where(finite, losses, np.nan), color=FORMAT_COLOURS["FP16"], lw=1.6)
    (bad,) = np.nonzero(~finite)
    if len(bad):
        top = 1.05 * losses[finite].max() if finite.any() else 1.0
        axes.plot(bad, np.full(len(bad), top), "x", color=FATE_COLOURS["overflowed"], ms=5, clip_on=False)
        axes.annotate("inf or NaN", (bad[0], top), xytext=(0, 6), textcoords="offset points", fontsize=8.5, color=INK)
    axes.margins(y=0.2)


def _draw_scales(axes: Axes, exponents: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    axes.step(range(len(exponents)), exponents, where="mid", color=FORMAT_COLOURS["FP16"], lw=1.6)
    (fallen,) = np.nonzero(np.diff(exponents) < 0)
    axes.plot(fallen, exponents[fallen], "x", color=INK, ms=5)
    low, high = math.floor(exponents.min()) - 1, math.ceil(exponents.max()) + 1
    axes.set_ylim(low, high)
    ticks = range(low, high + 1, max(1, (high - low) // 4))
    axes.set_yticks(list(ticks), [raised(f"2^{exponent}") for exponent in ticks])
