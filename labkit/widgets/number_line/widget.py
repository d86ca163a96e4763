"""The number line: where a format's numbers lie, and which of them a real number rounds to.

Page and Python share the traits format, x, rounding and window; the page computes what it shows of
them (rounding.js).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import traitlets

from labkit.formats import FORMATS, FP16, FP64, Format, Rounding, round_to
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.exact.rows import format_row

# FP64 carries x: nothing would be rounded
LINES = {row.name: row for row in FORMATS.values() if row is not FP64}


def as_text(x: float) -> str:
    """Write x with the fewest digits that mean it.

    >>> as_text(0.1), as_text(2049.0), as_text(1e-7)
    ('0.1', '2049', '1e-7')
    """
    text = repr(float(x)).removesuffix(".0")
    return text.replace("e-0", "e-").replace("e+", "e")


def whole(format: Format, scale: str) -> tuple[float, float]:
    """Return a window that shows all values of a format."""
    if scale == "log":
        return format.smallest_subnormal / 8, format.max * 4
    return (-1.15 * format.max if format.signed else -0.1 * format.max), 1.15 * format.max


def check(format: Format) -> None:
    """Raise TraitError for a format so wide that x, an FP64 number, loses nothing in it."""
    # of FP64's 52 bits, four at least lie between two values of the format
    if format.significand_bits > 48 or format.exponent_bits > 10:
        raise traitlets.TraitError(
            f"x is an FP64 number itself, so {format.name} has (almost) nothing to round. "
            "Take a narrower format."
        )


class NumberLine(LabWidget, folder="number_line"):
    """The numbers of a format as marks on a line, and a number to be dragged along it.

    Args:
        format: whose numbers are marked; FP16 unless said otherwise.
        x: the number to begin with.
        scale: "log" (positive numbers, by powers of two) or "linear".
        window: the ends of what is seen; all of the format's numbers unless said otherwise.
        rounding: the way of rounding whose interval is shaded.

    All of these are traits to read and set. `sentence` is formed by the page once it shows the
    widget.

    Raises:
        TraitError: FP64; x or an end of the window is not finite; the window is empty, or not
            positive on a log scale.

    >>> line = NumberLine(FP16, x=2049.0)
    >>> line.rounding = Rounding.NEAREST_AWAY
    >>> line.window
    (7.450580596923828e-09, 262016.0)
    """

    format = traitlets.Instance(Format).tag(
        sync=True,
        to_json=lambda row, _widget: row.name,
        from_json=lambda name, widget: widget._known[name],
    )
    rounding = traitlets.Instance(Rounding).tag(
        sync=True,
        to_json=lambda mode, _widget: mode.name,
        from_json=lambda name, _widget: Rounding[name],
    )
    x = traitlets.CFloat().tag(sync=True)
    scale = traitlets.Enum(["log", "linear"]).tag(sync=True)
    window = traitlets.Tuple(traitlets.CFloat(), traitlets.CFloat()).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _formats: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        format: Format = FP16,
        x: float = 0.1,
        *,
        scale: str = "log",
        window: tuple[float, float] | None = None,
        rounding: Rounding = Rounding.NEAREST_EVEN,
    ) -> None:
        check(format)
        self._known = {**LINES, format.name: format}
        super().__init__(
            format=format,
            x=float(x),
            scale=scale,
            window=window or whole(format, scale),
            rounding=rounding,
            _formats=[format_row(row) for row in self._known.values()],
        )

    def whole(self) -> None:
        self.window = whole(self.format, self.scale)

    @traitlets.validate("format")
    def _valid_format(self, proposal: dict[str, Any]) -> Format:
        """Offer the format in the list, too."""
        format = cast(Format, proposal["value"])
        check(format)
        if format.name not in self._known:
            self._known[format.name] = format
            self._formats = [*self._formats, format_row(format)]
        return format

    @traitlets.validate("x")
    def _valid_x(self, proposal: dict[str, Any]) -> float:
        value: float = proposal["value"]
        if not np.isfinite(value):
            raise traitlets.TraitError(f"x: expected a finite number, got {value}")
        return value

    @traitlets.validate("window")
    def _valid_window(self, proposal: dict[str, Any]) -> tuple[float, float]:
        low, high = proposal["value"]
        if not (np.isfinite(high - low) and low < high and (self.scale == "linear" or low > 0)):
            least = " above 0 (the scale is log)" if self.scale == "log" else ""
            raise traitlets.TraitError(
                f"window: expected a number{least} and a larger one, got {low}, {high}"
            )
        return low, high

    @traitlets.observe("scale")
    def _rescale(self, _change: object) -> None:
        if self.scale == "log" and self.window[0] <= 0:
            self.window = whole(self.format, "log")

    def still(self) -> dict[str, Any]:
        nearest = float(round_to(self.x, self.format))
        words = (
            f"{as_text(self.x)} becomes {as_text(nearest)} in {self.format.name}, rounded to "
            "nearest."
        )
        return still(
            words, why_still("to touch it yourself, and run this cell", "This line stands")
        )
