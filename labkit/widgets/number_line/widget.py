"""Where do a format's numbers lie, and to which of them does this one go?

Idea: the browser draws the line and moves along it at once; what a number becomes is asked of Python at every step of
the hand, and drawn when the answer is there.

Invariant: `sentence` and `rounded` always belong to the present `x`, `format` and `rounding`, and come from `round_to`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import traitlets

from labkit.formats import FORMATS, FP16, FP64, Format, Rounding, parse
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.number_line.figure import WHY_STILL, static_number_line
from labkit.widgets.number_line.words import axis, rounded, whole, written

LINES = {row.name: row for row in FORMATS.values() if row is not FP64}  # FP64 carries x: nothing would be rounded


def check(format: Format) -> None:
    """Raise TraitError for a format so wide that x, itself an FP64 number, has nothing to lose in it."""
    if format.significand_bits > 48 or format.exponent_bits > 10:
        raise traitlets.TraitError(
            f"x is an FP64 number itself, so {format.name} has (almost) nothing to round. Take a narrower format."
        )


class NumberLine(LabWidget):
    """The numbers of a format as marks on a line, and a number to be dragged along it.

    Args:
        format: whose numbers are marked; FP16 unless said otherwise.
        x: the number to begin with.
        scale: "log" (positive numbers, by powers of two) or "linear".
        window: the ends of what is seen; all of the format's numbers unless said otherwise.
        rounding: the way of rounding whose interval is shaded.

    All of these can be read and set. What else can be read: `rounded` (a row for each rounding, the interval),
    `problem`, `sentence`.

    Raises:
        TraitError: FP64; x or an end of the window is not finite; the window is empty, or not positive on a log scale.

    >>> line = NumberLine(FP16, x=2049.0)
    >>> line.sentence
    '2049 lies half-way between the FP16 numbers 2048 and 2050, 2 apart; to nearest, ties to even, it becomes 2048.'
    >>> line.rounding = Rounding.NEAREST_AWAY
    >>> line.rounded["values"][0]["at"]
    2050.0
    """

    _esm = script("number_line")
    _css = style("number_line")

    format = traitlets.Instance(Format).tag(
        sync=True, to_json=lambda row, _widget: row.name, from_json=lambda name, widget: widget._known[name]
    )
    rounding = traitlets.Instance(Rounding).tag(
        sync=True, to_json=lambda mode, _widget: mode.name, from_json=lambda name, _widget: Rounding[name]
    )
    x = traitlets.CFloat().tag(sync=True)
    scale = traitlets.Enum(["log", "linear"]).tag(sync=True)
    window = traitlets.Tuple(traitlets.CFloat(), traitlets.CFloat()).tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    problem = traitlets.Unicode().tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    rounded = traitlets.Dict().tag(sync=True)
    _axis = traitlets.Dict().tag(sync=True)
    _formats: traitlets.List[str] = traitlets.List().tag(sync=True)

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
            text=written(float(x)),
            _formats=list(self._known),
        )
        self._follow()

    def whole(self) -> None:
        """Show all numbers of the format."""
        self.window = whole(self.format, self.scale)

    @traitlets.validate("format")
    def _valid_format(self, proposal: dict[str, Any]) -> Format:
        check(proposal["value"])
        return cast(Format, proposal["value"])

    @traitlets.validate("x")
    def _valid_x(self, proposal: dict[str, Any]) -> float:
        value: float = proposal["value"]
        if not np.isfinite(value):
            raise traitlets.TraitError(f"x is a place on the line, a finite number; it was given {value}")
        return value

    @traitlets.validate("window")
    def _valid_window(self, proposal: dict[str, Any]) -> tuple[float, float]:
        low, high = proposal["value"]
        if not (np.isfinite(high - low) and low < high and (self.scale == "linear" or low > 0)):
            least = " above 0 (the scale is log)" if self.scale == "log" else ""
            raise traitlets.TraitError(
                f"a window goes from a number{least} to a larger one; it was given {low}, {high}"
            )
        return low, high

    @traitlets.observe("scale")
    def _rescale(self, _change: object) -> None:
        if self.scale == "log" and self.window[0] <= 0:
            self.window = whole(self.format, "log")

    @traitlets.observe("format", "x", "rounding")
    def _follow(self, change: dict[str, Any] | None = None) -> None:
        with self.hold_sync():
            self.rounded = rounded(self.x, self.format, self.rounding)
            self.sentence = self.rounded["sentence"]
            self._axis = axis(self.format)
            if change and change["name"] == "x" and self._typed() != self.x:
                self.text = written(self.x)
            if change and change["name"] == "format" and self.format.name not in self._known:
                self._known[self.format.name] = self.format
                self._formats = list(self._known)

    @traitlets.observe("text")
    def _read(self, _change: object) -> None:
        """Follow what was typed; what cannot be read stays in the box, and x where it was."""
        typed = self._typed()
        if typed is not None:
            self.x = typed

    def _typed(self) -> float | None:
        """Return the number in the box, or say in `problem` why there is none."""
        self.problem = ""
        try:
            value = parse(self.text, FP64).value
        except ValueError as error:
            self.problem = str(error) if self.text.strip() else "Nothing is typed. Give a number, such as 0.1."
            return None
        if not np.isfinite(value):
            self.problem = f"{self.text.strip()} has no place on this line. Give a finite number, such as 65520."
            return None
        return value

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        figure = static_number_line(self.format, self.window, self.scale, self.rounded)
        return still(self.sentence, WHY_STILL, figure)
