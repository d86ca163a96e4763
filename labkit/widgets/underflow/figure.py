"""What does a learner see of the underflow histogram where widgets do not run? The same picture, standing still."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.formats import FP16, Format
from labkit.instrument import ExponentHistogram, GradSnapshot, fate, shift
from labkit.widgets.base.figures import (
    FATE_COLOURS,
    FATE_HATCHES,
    INK,
    QUIET,
    captioned,
    on_any_page,
    raised,
    why_still,
)
from labkit.widgets.base.number_words import percent
from labkit.widgets.underflow.words import ALL_LAYERS, sentence, windows, with_total

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHY_STATIC = why_still("to move the scale yourself, and run this cell")
AXIS = (-40, 22)  # exponents; the last six binades show what overflows FP16


@on_any_page
def static_underflow(
    snapshot: GradSnapshot,
    format: Format = FP16,
    log2_scale: int = 0,
    *,
    layer: str = ALL_LAYERS,
    why: str = WHY_STATIC,
) -> Figure:
    """Draw gradients by magnitude at one scale, what a format makes of them, and say it in a sentence.

    Raises:
        KeyError: the snapshot has no such layer.
    """
    from matplotlib.figure import Figure

    histogram = shift(with_total(snapshot)[layer], log2_scale)
    now = fate(histogram, format)
    figure = Figure(figsize=(9, 4.4))
    axes = figure.add_axes((0.07, 0.38, 0.91, 0.48))
    title = f"{snapshot.kind[:1].upper()}{snapshot.kind[1:]}, step {snapshot.step}: {layer}"
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=22)
    _draw_windows(axes, format)
    _draw_bars(axes, histogram, format)
    shares = "     ".join(f"{name} {percent(share)}" for name, share in vars(now).items())
    figure.text(0.07, 0.205, shares, fontsize=11, color=INK, weight="bold")
    return captioned(figure, (0.07, 0.15), sentence(now, format, log2_scale, snapshot.kind, layer), why, foot=0.01)


def fate_of_binade(exponent: int, format: Format) -> str:
    """Return which of the four fates the binade from 2^exponent has.

    >>> [fate_of_binade(e, FP16) for e in (-26, -25, -14, 16)]
    ['underflowed', 'subnormal', 'normal', 'overflowed']
    """
    here = ExponentHistogram(np.array([1]), lo=exponent, zeros=0, non_finite=0)
    return max(vars(fate(here, format)).items(), key=lambda item: item[1])[0]


def _draw_windows(axes: Axes, format: Format) -> None:
    limits = windows(format)
    edges = [AXIS[0], limits["survives_from"], limits["emin"], limits["emax"] + 1, AXIS[1]]
    edges = [min(max(edge, AXIS[0]), AXIS[1]) for edge in edges]
    for (name, colour), left, right in zip(FATE_COLOURS.items(), edges[:-1], edges[1:], strict=True):
        if right <= left:
            continue
        axes.axvspan(left, right, color=colour, alpha=0.12, linewidth=0)
        axes.text((left + right) / 2, 1.02, name, transform=_above(axes), ha="center", fontsize=9, color=INK)
    for edge in edges[1:-1]:
        axes.axvline(edge, color=QUIET, linewidth=0.8, linestyle=(0, (3, 3)))


def _draw_bars(axes: Axes, histogram: ExponentHistogram, format: Format) -> None:
    exponents = np.arange(*AXIS)
    counts = np.array([histogram.count(int(e), int(e)) for e in exponents])
    shares: NDArray[np.float64] = 100 * counts / max(histogram.finite_non_zero, 1)
    fates = np.array([fate_of_binade(int(e), format) for e in exponents])
    for name, colour in FATE_COLOURS.items():
        here = (fates == name) & (counts > 0)
        axes.bar(
            exponents[here] + 0.5,
            shares[here],
            width=0.86,
            color=colour,
            hatch=FATE_HATCHES[name],
            edgecolor=INK,
            linewidth=0.5,
        )
    axes.set_xlim(*AXIS)
    ticks = range(AXIS[0], AXIS[1], 8)
    axes.set_xticks(list(ticks), [raised(f"2^{e}") for e in ticks], fontsize=9)
    axes.tick_params(axis="y", labelsize=8.5, colors=QUIET)
    axes.set_ylabel("% of non-zero elements", fontsize=8.5, color=QUIET)
    axes.spines[["top", "right"]].set_visible(False)


def _above(axes: Axes) -> Any:
    """Return the transform in which x is an exponent and y a fraction of the height."""
    return axes.get_xaxis_transform()
