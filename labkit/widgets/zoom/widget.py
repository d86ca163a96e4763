"""The gradient zoom: from a network to the sixteen bits of one gradient, by one slider.

The gradients of a few training steps are shown at four distances: all layers, the histogram of one
layer, the cells of one tensor, and the bits of one gradient. The step, the scale and the chosen
layer and cell stay the same at each distance. Doubling a gradient adds one to its exponent field
and does not change the significand, except at both ends of FP16's range.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import traitlets
from torch import Tensor

from labkit.formats import FP16
from labkit.instrument import snapshot
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.exact.rows import format_row
from labkit.widgets.underflow.widget import LOG2_SCALES, rows, static_underflow, windows

DISTANCES = ("network", "layer", "tensor", "gradient")
# The largest number of rows and columns of a tensor that are shown.
SIDE = 32


class GradientZoom(LabWidget, folder="zoom"):
    """Gradients of a few training steps, from the whole network down to the bits of one of them.

    Args:
        film: Step -> layer -> FP32 gradient, with the same layers at each step.
        kind: "activation gradients" or "weight gradients".

    The traits `zoom` (0 network, 1 layer, 2 tensor, 3 gradient), `frame` (the index of the step),
    `layer`, `row` and `column` (in the part of the layer's tensor that is shown), and `log2_scale`
    can be read and set. `gradient` and `sentence` can be read; the page sets `sentence` when it
    shows the widget.

    Raises:
        TypeError: The film is not a dict of steps.
        ValueError: The film is empty, or its steps do not have the same layers and shapes.
        TraitError: The layer, step, cell, distance or scale does not exist.

    >>> import torch
    >>> zoom = GradientZoom({0: {"conv": torch.tensor([[2.0**-30, 2.0**-10]])}})
    >>> zoom.zoom = 3
    >>> zoom.column = 1
    >>> zoom.gradient == 2.0**-10
    True
    """

    zoom = traitlets.Int(0).tag(sync=True)
    frame = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Unicode().tag(sync=True)
    row = traitlets.Int(0).tag(sync=True)
    column = traitlets.Int(0).tag(sync=True)
    log2_scale = traitlets.Int(0).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _film: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    # The float32 cells of all tables, in the order of frames, layers, rows and columns.
    _cells = traitlets.Bytes().tag(sync=True)
    _windows = traitlets.Dict().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)
    _format = traitlets.Dict(format_row(FP16)).tag(sync=True)

    def __init__(
        self, film: Mapping[int, Mapping[str, Tensor]], kind: str = "activation gradients"
    ) -> None:
        if not isinstance(film, Mapping) or not all(
            isinstance(layers, Mapping) for layers in film.values()
        ):
            raise TypeError(
                f"film: expected a dict of step -> a dict of layer -> gradient, got {film!r:.80}"
            )
        # The page finds layers by their number, so all steps have them in the order of the first.
        names = next(iter(film.values()), {})
        ordered = {
            step: {name: layers[name] for name in names if name in layers} | dict(layers)
            for step, layers in film.items()
        }
        self.snapshots = [
            snapshot(layers, step=step, kind=kind) for step, layers in ordered.items()
        ]
        # A tensor without dimensions is shown as one of a single element.
        shapes = [
            {name: tuple(gradient.shape) or (1,) for name, gradient in each.items()}
            for each in ordered.values()
        ]
        if not shapes or not shapes[0] or any(0 in shape for shape in shapes[0].values()):
            raise ValueError(
                "a film has at least one step, with at least one layer whose gradient is not empty"
            )
        if any(one != shapes[0] for one in shapes):
            raise ValueError(
                "all steps of a film have the same layers, and their gradients the same shapes"
            )
        # Layer -> shape of its gradient.
        self._shapes = shapes[0]
        self._tables = [
            {name: _table(gradient) for name, gradient in layers.items()}
            for layers in ordered.values()
        ]
        first = next(iter(self._tables[0].values()))
        # The widget starts at the gradient of the largest magnitude.
        row, column = np.unravel_index(np.abs(np.nan_to_num(first)).argmax(), first.shape)
        cells = [table.ravel() for tables in self._tables for table in tables.values()]
        super().__init__(
            layer=next(iter(self._shapes)),
            row=int(row),
            column=int(column),
            _film=[{"step": shot.step, "rows": rows(shot)} for shot in self.snapshots],
            _cells=np.concatenate(cells).astype(np.float32).tobytes(),
            _windows=windows(FP16),
            _about={
                "kind": kind,
                "shapes": [list(shape) for shape in self._shapes.values()],
                "tables": [list(table.shape) for table in self._tables[0].values()],
            },
        )

    @property
    def gradient(self) -> float:
        """The FP32 value of the gradient in the chosen cell."""
        return float(self._tables[self.frame][self.layer][self.row, self.column])

    @limited("zoom", "frame", "layer", "log2_scale")
    def _choices(self) -> dict[str, Collection[Any]]:
        return {
            "zoom": range(len(DISTANCES)),
            "frame": range(len(self.snapshots)),
            "layer": self._shapes,
            "log2_scale": LOG2_SCALES,
        }

    @limited("row", "column")
    def _cells_of_table(self) -> dict[str, Collection[Any]]:
        rows, columns = self._tables[0][self.layer].shape
        return {"row": range(rows), "column": range(columns)}

    @traitlets.observe("layer")
    def _stay_inside(self, _change: object) -> None:
        """Move the chosen cell into the table of another layer, which may be smaller."""
        rows, columns = self._tables[0][self.layer].shape
        self.row = min(self.row, rows - 1)
        self.column = min(self.column, columns - 1)

    def still(self) -> dict[str, Any]:
        shot = self.snapshots[self.frame]
        words = f"{shot.kind} of {len(self._shapes)} layers at {len(self.snapshots)} steps"
        return still(words, why_still("to zoom"), static_underflow(shot, FP16, self.log2_scale))


def _table(gradient: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the part of a gradient [..., columns] that is shown, at most [SIDE, SIDE]."""
    whole = gradient.detach().float().cpu()
    return whole.reshape(-1, whole.shape[-1] if whole.dim() else 1)[:SIDE, :SIDE].numpy()
