"""The number line: the numbers of a format, and the one to which a real number is rounded.

Page and Python share the traits format, x, rounding, scale and window. The page computes the
rounded values and the sentence from them (rounding.js).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import traitlets

from labkit.formats import (
    FORMATS,
    FP16,
    FP64,
    Format,
    FormatLike,
    Rounding,
    as_format,
    round_to,
)
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.exact.rows import FormatTrait, format_row

# The formats that the page offers. x is an FP64 number, which FP64 would not round.
LINES = {row.name: row for row in FORMATS.values() if row is not FP64}


def as_text(x: float) -> str:
    """Return the shortest text that is parsed as x.

    >>> as_text(0.1), as_text(2049.0), as_text(1e-7)
    ('0.1', '2049', '1e-7')
    """
    text = repr(float(x)).removesuffix(".0")
    return text.replace("e-0", "e-").replace("e+", "e")


def whole(format: Format, scale: str) -> tuple[float, float]:
    """Return a window that shows all values of a format."""
    if scale == "log":
        return format.smallest_subnormal / 8, format.max * 4
    low = -1.15 if format.signed else -0.1
    return low * format.max, 1.15 * format.max


def check(format: Format) -> None:
    """Raise TraitError for a format so wide that x, an FP64 number, loses nothing in it."""
    # FP64 has at least 4 significand bits more than a format on the line, so that some of its
    # numbers lie between two neighbours of the format.
    if format.significand_bits > 48 or format.exponent_bits > 10:
        raise traitlets.TraitError(
            f"x is an FP64 number itself, so {format.name} has (almost) nothing to round. "
            "Take a narrower format."
        )


class NumberLine(LabWidget, folder="number_line"):
    """The numbers of a format as marks on a line, and a number x that can be dragged along it.

    Args:
        format: The format whose numbers are marked, or its name.
        x: The first position of x.
        scale: "log" (positive numbers, by powers of two) or "linear".
        window: The values at both ends of the line; None for all numbers of the format.
        rounding: The rounding mode whose interval is shaded.

    All of these are traits, which can be read and set. `sentence` can be read; the page sets it
    when it shows the widget.

    Raises:
        TraitError: The format is FP64 or nearly as wide, or has the name of another one; x or an
            end of the window is not finite; or the window is empty, or not positive on a log scale.

    >>> line = NumberLine(FP16, x=2049.0)
    >>> line.rounding = Rounding.NEAREST_AWAY
    >>> line.window
    (7.450580596923828e-09, 262016.0)
    """

    format = FormatTrait(Format).tag(
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
        format: FormatLike = FP16,
        x: float = 0.1,
        *,
        scale: str = "log",
        window: tuple[float, float] | None = None,
        rounding: Rounding = Rounding.NEAREST_EVEN,
    ) -> None:
        format = as_format(format)
        check(format)
        # Name -> format, for all formats that the page has.
        self._known = {**LINES, format.name: format}
        super().__init__(
            format=format,
            x=float(x),
            scale=scale,
            window=whole(format, scale) if window is None else window,
            rounding=rounding,
            _formats=[format_row(row) for row in self._known.values()],
        )

    def whole(self) -> None:
        """Set the window so that it shows all numbers of the format."""
        self.window = whole(self.format, self.scale)

    @traitlets.validate("format")
    def _valid_format(self, proposal: dict[str, Any]) -> Format:
        """Add a new format to the list on the page, which knows formats by their names."""
        format = cast(Format, proposal["value"])
        check(format)
        if self._known.get(format.name, format) != format:
            raise traitlets.TraitError(
                f"format: {format.name} is the name of another format on this line; "
                "expected a name of its own"
            )
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
        is_range = bool(np.isfinite(high - low)) and low < high
        is_on_scale = self.scale == "linear" or low > 0
        if not is_range or not is_on_scale:
            least = " above 0 (the scale is log)" if self.scale == "log" else ""
            raise traitlets.TraitError(
                f"window: expected a number{least} and a larger one, got {low}, {high}"
            )
        return low, high

    @traitlets.observe("scale")
    def _rescale(self, _change: object) -> None:
        """Show all numbers if the window has no place on a logarithmic scale."""
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
