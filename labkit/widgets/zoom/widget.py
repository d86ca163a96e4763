"""From a network to the sixteen bits of one gradient, by one slider.

Idea: a film of gradients (a few steps of a training) is looked at from four distances: all layers, one layer's
histogram, one tensor cell by cell, one gradient bit by bit. Step, scale and what is chosen stay while one zooms.
Doubling a gradient adds one to the exponent field and leaves the significand alone, but at both ends of FP16.

Invariant: `sentence`, and the bits where there are any, belong to the present state and are read off its codes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import traitlets
from torch import Tensor

from labkit.formats import FP16, NumberClass, classify, decode, split
from labkit.instrument import fate, shift, snapshot
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import percent, spaced
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.bits.explored import explore, fields
from labkit.widgets.underflow.widget import (
    ALL_LAYERS,
    LOG2_SCALES,
    rows,
    sentence,
    static_underflow,
    windows,
    with_total,
)

DISTANCES = ("network", "layer", "tensor", "gradient")
SIDE = 32  # rows and columns of a tensor that are shown


def code_of(value: float) -> int:
    """Return the FP16 code that a number is rounded to.

    >>> hex(code_of(1.0)), hex(code_of(2.0**-30)), hex(code_of(1e9))
    ('0x3c00', '0x0', '0x7c00')
    """
    return explore(repr(value), FP16).code


def gradient_sentence(gradient: float, log2_scale: int) -> str:
    """Say what FP16 makes of a gradient at a scale, and what twice the scale would change.

    >>> gradient_sentence(1.5 * 2.0**-10, 3)
    'FP16 holds it, in full precision. Times two, only the exponent field moves, from 8 to 9: the significand stays.'
    >>> gradient_sentence(2.0**-30, 0)
    'FP16 makes it 0: it is below 2^-25, half of the smallest number. Times two, it is 0 as well.'
    """
    if gradient == 0:
        return "It is exactly zero already in FP32: no scale changes that."
    value = gradient * 2.0**log2_scale
    code, twice = code_of(value), code_of(2 * value)
    kind = classify(code, FP16)
    now = "FP16 holds it, in full precision."
    if kind == NumberClass.ZERO:
        now = "FP16 makes it 0: it is below 2^-25, half of the smallest number."
    elif kind == NumberClass.INFINITY:
        now = "FP16 makes it inf: it is 65520 or more."
    elif kind == NumberClass.SUBNORMAL:
        error = percent(abs(float(decode(code, FP16)) / value - 1))
        now = f"FP16 holds it as a subnormal number, {error} off."
    return f"{now} {_doubled(code, twice)}"


def _doubled(code: int, twice: int) -> str:
    before, after = (tuple(int(field) for field in split(one, FP16)) for one in (code, twice))
    kinds = classify(code, FP16), classify(twice, FP16)
    if kinds[1] == NumberClass.ZERO:
        return "Times two, it is 0 as well."
    if kinds[1] == NumberClass.INFINITY:
        return "Times two, it is inf."
    if kinds[0] == NumberClass.ZERO:
        return f"Times two, it is rounded up to {spaced(abs(float(decode(twice, FP16))))} and is not lost."
    if kinds[0] == NumberClass.SUBNORMAL:
        return "Times two, its significand bits move one place to the left, and one more bit of the gradient fits."
    return f"Times two, only the exponent field moves, from {before[1]} to {after[1]}: the significand stays."


class GradientZoom(LabWidget, folders=("bits", "underflow", "zoom")):
    """Gradients of a few training steps, from the whole network down to the bits of one of them.

    Args:
        film: step -> layer -> FP32 gradient, with the same layers at each step.
        kind: what they are: "activation gradients" or "weight gradients".

    What can be read and set: `zoom` (0 network, 1 layer, 2 tensor, 3 gradient), `frame` (which of the steps, from 0),
    `layer`, `row` and `column` (in what is shown of its tensor), `log2_scale`. What can be read: `sentence`.

    Raises:
        TypeError: the film is no dict of steps.
        ValueError: there is no step, or the steps do not have the same layers and shapes.
        TraitError: there is no such layer, step, cell, distance or scale.

    >>> import torch
    >>> zoom = GradientZoom({0: {"conv": torch.tensor([[2.0**-30, 2.0**-10]])}})
    >>> zoom.sentence
    'At scale 2^0 (no scaling), 50% of these activation gradients underflow in FP16 and 50% keep full precision.'
    >>> zoom.zoom, zoom.column = 3, 1
    >>> zoom.sentence
    'conv[0, 1] at step 0 is 2^-10 = 9.77e-4. FP16 holds it, in full precision. Times two, only the exponent field
     moves, from 5 to 6: the significand stays.'
    """

    zoom = traitlets.Int(0, min=0, max=len(DISTANCES) - 1).tag(sync=True)
    frame = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Unicode().tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)
    log2_scale = traitlets.Int(0, min=0, max=LOG2_SCALES[-1]).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _bits: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _film: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _cells = traitlets.Bytes().tag(sync=True)  # float32: frame after frame, layer after layer, row after row
    _windows = traitlets.Dict().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(self, film: Mapping[int, Mapping[str, Tensor]], kind: str = "activation gradients") -> None:
        if not isinstance(film, Mapping) or not all(isinstance(layers, Mapping) for layers in film.values()):
            raise TypeError(f"a film is a dict: step -> a dict of layer -> gradient; it was given {film!r:.80}")
        self.snapshots = [snapshot(layers, step=step, kind=kind) for step, layers in film.items()]
        shapes = [{name: tuple(gradient.shape) or (1,) for name, gradient in each.items()} for each in film.values()]
        if not shapes or not shapes[0] or any(0 in shape for shape in shapes[0].values()):
            raise ValueError("a film has at least one step, with at least one layer whose gradient is not empty")
        if any(one != shapes[0] for one in shapes):
            raise ValueError("all steps of a film have the same layers, and their gradients the same shapes")
        self._shapes = shapes[0]  # layer -> shape
        self._tables = [{name: _table(gradient) for name, gradient in layers.items()} for layers in film.values()]
        cells = [table.ravel() for tables in self._tables for table in tables.values()]
        super().__init__(
            layer=next(iter(self._shapes)),
            _film=[{"step": shot.step, "rows": rows(shot, FP16)} for shot in self.snapshots],
            _cells=np.concatenate(cells).astype(np.float32).tobytes(),
            _windows=windows(FP16),
            _about={"kind": kind, "shapes": [list(table.shape) for table in self._tables[0].values()]},
        )
        self._follow()

    @property
    def gradient(self) -> float:
        """The gradient in the chosen cell, as it is in FP32."""
        return float(self._tables[self.frame][self.layer][self.row, self.column])

    @property
    def place(self) -> str:
        """Where it stands: layer[index, ...], as its tensor is indexed."""
        shape = self._shapes[self.layer]
        lead: tuple[Any, ...] = np.unravel_index(self.row, shape[:-1]) if len(shape) > 1 else ()
        return f"{self.layer}[{', '.join(str(int(i)) for i in (*lead, self.column))}]"

    @limited("frame", "layer")
    def _known(self) -> dict[str, Collection[Any]]:
        return {"frame": range(len(self.snapshots)), "layer": self._shapes}

    @limited("row", "column")
    def _cell(self) -> dict[str, Collection[Any]]:
        rows, columns = self._tables[0][self.layer].shape
        return {"row": range(rows), "column": range(columns)}

    @traitlets.observe("zoom", "frame", "layer", "row", "column", "log2_scale")
    def _follow(self, _change: object = None) -> None:
        rows, columns = self._tables[0][self.layer].shape
        with self.hold_sync():
            self.row, self.column = min(self.row, rows - 1), min(self.column, columns - 1)
            scaled = explore(repr(self.gradient * 2.0**self.log2_scale), FP16)
            self._bits = fields(scaled) if self.zoom == DISTANCES.index("gradient") else []
            self.sentence = self._said()

    def _said(self) -> str:
        shot, k = self.snapshots[self.frame], self.log2_scale
        if self.zoom == DISTANCES.index("gradient"):
            at = f"{self.place} at step {shot.step} is {spaced(self.gradient)}"
            scaled = f", times 2^{k} {spaced(self.gradient * 2.0**k)}" if k and self.gradient else ""
            return f"{at}{scaled}. {gradient_sentence(self.gradient, k)}"
        layer = self.layer if self.zoom else ALL_LAYERS
        what = fate(shift(with_total(shot)[layer], k), FP16)
        said = sentence(what, FP16, k, shot.kind, layer)
        if self.zoom < DISTANCES.index("tensor"):
            return said
        table = self._tables[self.frame][self.layer]
        zeros = percent(float((table == 0).mean()))
        return f"{said} Of the {table.size:,} shown, {zeros} are zero already in FP32."

    def still(self) -> dict[str, Any]:
        return still(self.sentence, why_still("to zoom"), static_underflow(self.snapshots[self.frame], FP16))


def _table(gradient: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return what is shown of a gradient [..., columns]: at most SIDE rows and columns of its first matrix."""
    whole = gradient.detach().float().cpu()
    return whole.reshape(-1, whole.shape[-1] if whole.dim() else 1)[:SIDE, :SIDE].numpy()
