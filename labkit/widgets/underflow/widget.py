"""How does a learner touch a loss scale? A slider, and all gradients move.

Idea: scaling by a power of two shifts a histogram of exponents, so the browser redraws from the same counts at every
movement of the hand; nothing is asked of the kernel. The kernel is told, and keeps the same state for code to read.

Invariant: `fractions` and `sentence` always belong to the present `log2_scale` and `layer`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import traitlets

from labkit.formats import FP16, Format
from labkit.instrument import Fate, GradSnapshot, fate, shift
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still
from labkit.widgets.base.tour import tour_of
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.underflow.figure import WHY_STATIC, static_underflow
from labkit.widgets.underflow.words import ALL_LAYERS, LOG2_SCALES, rows, sentence, windows, with_total


class UnderflowHistogram(LabWidget):
    """Gradients by magnitude, layer by layer, what a format makes of them, and a scale to move them with.

    Args:
        snapshot: histograms of FP32 gradients, one per layer.
        format: whose windows are drawn; FP16 unless said otherwise.
        log2_scale: where the slider stands first, 0 to 30.
        observed_zeros: layer -> share of zeros counted inside an FP16 backward pass, drawn beside what underflows.
        observed_log2_scale: the scale of that pass; its zeros stay where they are when the slider moves.

    What can be read and set: `log2_scale`, `layer` (a name, or ALL_LAYERS). What can be read: `fractions`, `sentence`.

    Raises:
        ValueError: the snapshot has no layers, or observed_zeros does not fit it.
        TraitError: log2_scale is not a whole number from 0 to 30, or there is no such layer.

    >>> import torch
    >>> from labkit.instrument import snapshot
    >>> gradients = {"conv": torch.tensor([2.0**-30, 2.0**-20, 2.0**-10, 2.0**-5])}
    >>> widget = UnderflowHistogram(snapshot(gradients, step=0, kind="activation gradients"))
    >>> widget.fractions["underflowed"]
    0.25
    >>> widget.log2_scale = 10
    >>> widget.sentence
    'At scale 2^10, none of these activation gradients underflow in FP16, 25% are subnormal and 75% keep full
     precision.'
    """

    _esm = script("histogram", "underflow")
    _css = style("underflow")
    tour = traitlets.List(tour_of("underflow")).tag(sync=True)

    log2_scale = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Unicode(ALL_LAYERS).tag(sync=True)
    fractions = traitlets.Dict().tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _rows: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _windows = traitlets.Dict().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        snapshot: GradSnapshot,
        format: Format = FP16,
        log2_scale: int = 0,
        *,
        observed_zeros: Mapping[str, float] | None = None,
        observed_log2_scale: int = 0,
    ) -> None:
        self.snapshot, self.format = snapshot, format
        self._histograms = with_total(snapshot)
        super().__init__(
            log2_scale=log2_scale,
            _rows=rows(snapshot, format, observed_zeros),
            _windows=windows(format),
            _about={
                "kind": snapshot.kind,
                "step": snapshot.step,
                "observed_log2_scale": observed_log2_scale,
                "all_layers": ALL_LAYERS,
                "max_log2_scale": LOG2_SCALES[-1],
            },
        )
        self._follow()

    @limited("log2_scale", "layer")
    def _places(self) -> dict[str, Collection[Any]]:
        return {"log2_scale": LOG2_SCALES, "layer": self._histograms}

    @traitlets.observe("log2_scale", "layer")
    def _follow(self, _change: object = None) -> None:
        now = self.fate
        with self.hold_sync():
            self.fractions = dict(vars(now))
            self.sentence = sentence(now, self.format, self.log2_scale, self.snapshot.kind, self.layer)

    @property
    def fate(self) -> Fate:
        """What the format makes of the chosen layer at the chosen scale."""
        return fate(shift(self._histograms[self.layer], self.log2_scale), self.format)

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        figure = static_underflow(self.snapshot, self.format, self.log2_scale, layer=self.layer)
        return still(self.sentence, WHY_STATIC, figure)
