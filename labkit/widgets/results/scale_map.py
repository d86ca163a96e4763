"""Map of the loss scales of a training: lossy, safe and overflowing ones at each step.

Invariant: what is drawn follows from the recorded exponents alone; the path is that of the record's
own scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.instrument import ScaleMap, scale_map
from labkit.train import RunRecord
from labkit.widgets.base.figures import (
    FATE_COLOURS,
    INK,
    described,
    new_figure,
    on_any_page,
    panel,
    power_ticks,
    raised,
    wrapped,
)
from labkit.widgets.base.number_words import power

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The largest share of the gradients that a safe scale loses.
TOLERATED = 0.01


@on_any_page
def scale_map_figure(record: RunRecord) -> Figure:
    """Draw what each loss scale would lose and overflow at each step, with the run's own scale.

    Raises:
        ValueError: The record has no histograms, or those of several kinds of gradients, or no
            steps.
    """
    from matplotlib.colors import to_rgba

    scales = scale_map(record.snapshots)
    if not record.steps:
        raise ValueError("expected a record with steps, whose scales are drawn, got one without")
    # An RGBA image, shape [scales, steps, 4]: the share that is lost is the opacity.
    shades = np.zeros((*scales.lost.T.shape, 4))
    shades[:] = to_rgba(FATE_COLOURS["underflowed"])
    shades[..., 3] = scales.lost.T
    shades[scales.overflowing.T > 0] = to_rgba(FATE_COLOURS["overflowed"], 0.7)

    figure = new_figure(8, 4.2, layout="constrained")
    axes = figure.subplots()
    low = int(scales.log2_scales[0])
    high = int(scales.log2_scales[-1])
    steps = record.steps
    axes.imshow(
        shades,
        origin="lower",
        aspect="auto",
        extent=(scales.steps[0], steps[-1].step, low - 0.5, high + 0.5),
        interpolation="nearest",
    )
    path = [np.log2(step.scale) for step in steps]
    axes.plot([step.step for step in steps], path, color=INK, lw=2)
    skipped = [(step.step, np.log2(step.scale)) for step in steps if not step.stepped]
    if skipped:
        axes.plot(*zip(*skipped, strict=True), "x", color=INK, ms=6)
    axes.set(xlabel="step", ylabel="loss scale", ylim=(low - 0.5, high + 0.5))
    power_ticks(axes.set_yticks, range(low, high + 1, 4))
    panel(axes, "Orange: share of the gradients that is lost. Pink: some overflow. Blank: neither.")
    words = scale_map_sentence(record, scales)
    figure.supxlabel(raised(wrapped(words, 105)), fontsize=9.5, color=INK)
    return described(figure, words)


def scale_map_sentence(record: RunRecord, scales: ScaleMap | None = None) -> str:
    """Return which scales are safe at the first and at the last step of the map.

    Args:
        record: A record with histograms.
        scales: Its map, if it is known already.

    Raises:
        ValueError: The record has no histograms, or those of several kinds of gradients.
    """
    if scales is None:
        scales = scale_map(record.snapshots)
    windows = []
    for row, when in ((0, "at first"), (-1, f"at step {scales.steps[-1]:,}")):
        safe = scales.log2_scales[scales.safe(TOLERATED)[row]]
        window = "none"
        if len(safe):
            window = f"from {power(2.0 ** int(safe[0]))} to {power(2.0 ** int(safe[-1]))}"
        windows.append(f"{when} {window}")
    return (
        f"Safe scales: {'; '.join(windows)}. Below them gradients are lost, above them "
        "some overflow. The line is the scale of this run."
    )
