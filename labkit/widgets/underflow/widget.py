"""The underflow histogram: gradients by magnitude, and a loss scale that moves them.

Scaling by a power of two shifts a histogram of exponents. So the page draws all scales from the
same counts, and writes the sentence. Python computes the same shares by
`fate(shift(histogram, log2_scale), format)`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from labkit.formats import FP16, Format, FormatLike, as_format
from labkit.instrument import ExponentHistogram, Fate, GradSnapshot, fate, merge, shift
from labkit.widgets.base.figures import (
    FATE_COLOURS,
    FATE_HATCHES,
    INK,
    QUIET,
    captioned,
    new_figure,
    on_any_page,
    panel,
    power_ticks,
    still,
    why_still,
)
from labkit.widgets.base.number_words import percent
from labkit.widgets.base.widget import LabWidget, limited, tour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALL_LAYERS = "all layers together"
# The positions of the slider: 2^0 to 2^30.
LOG2_SCALES = range(31)
WHY_STATIC = why_still("to move the scale yourself, and run this cell")
# The exponents of the axis. The last six binades show what overflows FP16.
AXIS = (-40, 22)


def with_total(snapshot: GradSnapshot) -> dict[str, ExponentHistogram]:
    """Return the histograms of a snapshot's layers, that of all layers together first.

    Raises:
        ValueError: The snapshot has no layers.
    """
    if not snapshot.layers:
        how = "Take it after a backward pass: snapshot(gradients, ...) with at least one tensor."
        raise ValueError(f"this snapshot has no layers, so there is no gradient to show. {how}")
    return {ALL_LAYERS: merge(snapshot.layers.values()), **snapshot.layers}


def zeros_counted(
    observed: Mapping[str, float], histograms: Mapping[str, ExponentHistogram]
) -> dict[str, float]:
    """Return layer -> share of zeros counted in the FP16 pass, and that of all layers together.

    Each share is of all elements of its layer, so that of all layers is weighted by their elements.

    Raises:
        ValueError: A layer is missing, unknown, or has a share outside 0 to 1.
    """
    layers = [layer for layer in histograms if layer != ALL_LAYERS]
    observed_layers = [layer for layer in observed if layer != ALL_LAYERS]
    if sorted(observed_layers) != sorted(layers):
        raise ValueError(
            f"observed_zeros: expected one share for each of the layers {layers}, got "
            f"{observed_layers}"
        )
    wrong = {layer: share for layer, share in observed.items() if not 0 <= share <= 1}
    if wrong:
        raise ValueError(
            f"observed_zeros: expected shares from 0 to 1 (0.004 is 0.4%), got {wrong}"
        )
    zeros = sum(observed[layer] * histograms[layer].total for layer in layers)
    elements = sum(histograms[layer].total for layer in layers)
    return {ALL_LAYERS: zeros / max(elements, 1), **observed}


def rows(
    snapshot: GradSnapshot, observed_zeros: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return the counts of each layer as JSON, those of all layers together first.

    Returns:
        For each layer: `name`; `lo` and `counts` as in ExponentHistogram, without empty bins at
        both ends; `elements`, `zeros` and `non_finite`; and `observed`, the share of zeros counted
        inside the FP16 pass, or None.
    """
    histograms = with_total(snapshot)
    observed: dict[str, float] = {}
    if observed_zeros is not None:
        observed = zeros_counted(observed_zeros, histograms)
    layers = []
    for name, histogram in histograms.items():
        first = 0
        end = 0
        occupied = np.flatnonzero(histogram.counts)
        if len(occupied):
            first = int(occupied[0])
            end = int(occupied[-1]) + 1
        layers.append(
            {
                "name": name,
                "lo": histogram.lo + first,
                "counts": histogram.counts[first:end].tolist(),
                "elements": histogram.total,
                "zeros": histogram.zeros,
                "non_finite": histogram.non_finite,
                "observed": observed.get(name),
            }
        )
    return layers


def windows(format: Format) -> dict[str, Any]:
    """Return the exponents at which a format's zones begin, as in `labkit.instrument.fate`.

    >>> from labkit.formats import FP16
    >>> windows(FP16)
    {'format': 'FP16', 'survives_from': -25, 'emin': -14, 'emax': 15, 'overflows_from': 65520.0}
    """
    # Half a unit of the last place is 2^(e - half_ulp) in the binade of 2^e. Numbers above half the
    # smallest subnormal survive, and numbers from max plus half a unit on overflow.
    half_ulp = format.significand_bits + 1
    return {
        "format": format.name,
        "survives_from": format.emin - half_ulp,
        "emin": format.emin,
        "emax": format.emax,
        "overflows_from": float(format.max) + 2.0 ** (format.emax - half_ulp),
    }


@on_any_page
def static_underflow(
    snapshot: GradSnapshot,
    format: FormatLike = FP16,
    log2_scale: int = 0,
    *,
    layer: str = ALL_LAYERS,
    why: str = WHY_STATIC,
) -> Figure:
    """Draw gradients by magnitude at one scale, with the share of each fate in a format.

    Args:
        snapshot: Histograms of FP32 gradients, one per layer.
        format: The format that gradients are rounded to, or its name.
        log2_scale: The exponent of the loss scale.
        layer: The name of the layer, or `ALL_LAYERS`.
        why: The text below the picture.

    Raises:
        KeyError: The snapshot has no such layer.
        ValueError: The snapshot has no layers.
    """
    format = as_format(format)
    histogram = shift(with_total(snapshot)[layer], log2_scale)
    figure = new_figure(9, 4.4)
    axes = figure.add_axes((0.07, 0.38, 0.91, 0.48))
    title = f"{snapshot.kind[:1].upper()}{snapshot.kind[1:]}, step {snapshot.step}: {layer}"
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=22)
    _draw_bars(axes, histogram, format)
    panel(axes)
    axes.set_xlim(*AXIS)
    power_ticks(axes.set_xticks, range(*AXIS, 8))
    axes.set_ylabel("% of non-zero elements", fontsize=8.5, color=QUIET)
    shares = "     ".join(
        f"{name} {percent(share)}" for name, share in vars(fate(histogram, format)).items()
    )
    figure.text(0.07, 0.205, shares, fontsize=11, color=INK, weight="bold")
    words = f"{snapshot.kind} of {layer}, at scale 2^{log2_scale} in {format.name}."
    return captioned(figure, (0.07, 0.15), words[0].upper() + words[1:], why, foot=0.01)


def _draw_bars(axes: Axes, histogram: ExponentHistogram, format: Format) -> None:
    """Draw the bars of a histogram over the zones of a format, with the names of the zones."""
    exponents = np.arange(*AXIS)
    limits = windows(format)
    counts = np.array([histogram.count(int(e), int(e)) for e in exponents])
    heights = 100 * counts / max(histogram.finite_non_zero, 1)
    zone_starts = [limits["survives_from"], limits["emin"], limits["emax"] + 1]
    edges = np.clip([AXIS[0], *zone_starts, AXIS[1]], *AXIS)
    # x in data coordinates, y from 0 at the bottom of the axes to 1 at their top.
    above = axes.get_xaxis_transform()
    for (name, colour), left, right in zip(
        FATE_COLOURS.items(), edges[:-1], edges[1:], strict=True
    ):
        if right == left:
            continue
        axes.axvspan(left, right, color=colour, alpha=0.12, linewidth=0)
        axes.text(
            (left + right) / 2, 1.02, name, transform=above, ha="center", fontsize=9, color=INK
        )
        inside = (exponents >= left) & (exponents < right) & (heights > 0)
        axes.bar(
            exponents[inside] + 0.5,
            heights[inside],
            width=0.86,
            color=colour,
            hatch=FATE_HATCHES[name],
            edgecolor=INK,
            linewidth=0.5,
        )
    for edge in edges[1:-1]:
        axes.axvline(edge, color=QUIET, linewidth=0.8, linestyle=(0, (3, 3)))


class UnderflowHistogram(LabWidget, folder="underflow"):
    """Gradients of each layer by magnitude, their rounding to a format, and a loss scale.

    Args:
        snapshot: Histograms of FP32 gradients, one per layer.
        format: The format that gradients are rounded to, or its name.
        log2_scale: The first position of the slider, 0 to 30.
        observed_zeros: Layer -> share of zeros counted inside an FP16 backward pass, which is drawn
            below the shares of the fates.
        observed_log2_scale: The exponent of the scale of that pass. The slider does not change its
            zeros.

    The traits `log2_scale` and `layer` (a name, or `ALL_LAYERS`) can be read and set. `fate`,
    `fractions` and `sentence` can be read; the page sets `sentence` when it shows the widget.

    Raises:
        ValueError: The snapshot has no layers, or `observed_zeros` does not fit it.
        TraitError: `log2_scale` is not a whole number from 0 to 30, or the layer does not exist.

    >>> import torch
    >>> from labkit.instrument import snapshot
    >>> gradients = {"conv": torch.tensor([2.0**-30, 2.0**-20, 2.0**-10, 2.0**-5])}
    >>> widget = UnderflowHistogram(snapshot(gradients, step=0, kind="activation gradients"))
    >>> widget.fractions["underflowed"]
    0.25
    >>> widget.log2_scale = 10
    >>> widget.fractions["subnormal"]
    0.25
    """

    tour = traitlets.List(tour_of("underflow")).tag(sync=True)

    log2_scale = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Unicode(ALL_LAYERS).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _rows: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _windows = traitlets.Dict().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        snapshot: GradSnapshot,
        format: FormatLike = FP16,
        log2_scale: int = 0,
        *,
        observed_zeros: Mapping[str, float] | None = None,
        observed_log2_scale: int = 0,
    ) -> None:
        self.snapshot = snapshot
        self.format = as_format(format)
        self._histograms = with_total(snapshot)
        super().__init__(
            log2_scale=log2_scale,
            _rows=rows(snapshot, observed_zeros),
            _windows=windows(self.format),
            _about={
                "kind": snapshot.kind,
                "step": snapshot.step,
                "observed_log2_scale": observed_log2_scale,
                "max_log2_scale": LOG2_SCALES[-1],
            },
        )

    @limited("log2_scale", "layer")
    def _choices(self) -> dict[str, Collection[Any]]:
        return {"log2_scale": LOG2_SCALES, "layer": self._histograms}

    @property
    def fate(self) -> Fate:
        """The shares of the four fates of the chosen layer at the chosen scale."""
        return fate(shift(self._histograms[self.layer], self.log2_scale), self.format)

    @property
    def fractions(self) -> dict[str, float]:
        """Name of a fate -> its share, as in `fate`."""
        return dict(vars(self.fate))

    def still(self) -> dict[str, Any]:
        shares = ", ".join(f"{percent(share)} {name}" for name, share in self.fractions.items())
        words = (
            f"{self.snapshot.kind}, {self.layer}, at scale 2^{self.log2_scale} in "
            f"{self.format.name}: {shares}."
        )
        return still(
            words,
            WHY_STATIC,
            static_underflow(self.snapshot, self.format, self.log2_scale, layer=self.layer),
        )
