"""The number line: where a format's numbers lie, and which of them a real number rounds to.

Idea: the browser draws the line and moves along it at once; what a number becomes is asked of Python at every step of
the hand. `round_to` is asked once for each rounding; stochastic rounding twice, with the luckiest and the unluckiest
draw, and the odds lie in the distance to the two outcomes.

Invariant: `sentence` and `rounded` belong to the present `x`, `format` and `rounding`; every outcome comes from
`round_to`; the odds add up to 1, and the outcomes' mean is the number wherever both are finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import traitlets
from numpy.typing import NDArray

from labkit.formats import (
    FORMATS,
    FP16,
    FP64,
    Format,
    Rounding,
    Specials,
    decode,
    encode,
    parse,
    round_to,
    rounding_interval,
    ulp,
)
from labkit.widgets.base.figures import FORMAT_COLOURS, INK, QUIET, captioned, new_figure, on_any_page, still, why_still
from labkit.widgets.base.number_words import brief, spaced
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.bits.explored import name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {
    Rounding.NEAREST_EVEN: "to nearest, ties to even",
    Rounding.NEAREST_AWAY: "to nearest, ties away from 0",
    Rounding.TOWARD_ZERO: "toward 0",
    Rounding.TOWARD_POSITIVE: "toward +infinity",
    Rounding.TOWARD_NEGATIVE: "toward -infinity",
    Rounding.STOCHASTIC: "stochastic",
}
COLUMNS = 812  # of the picture of a line: its pixels

WHY_STILL = why_still("to touch it yourself, and run this cell")
LINES = {row.name: row for row in FORMATS.values() if row is not FP64}  # FP64 carries x: nothing would be rounded


@dataclass(frozen=True)
class Outcome:
    """What a number may become, and how often."""

    value: float
    odds: Fraction


def outcomes(x: float, format: Format, rounding: Rounding) -> tuple[Outcome, ...]:
    """Return what a number becomes: one value, or two for stochastic rounding, the lower one first.

    >>> from labkit.formats import FP16
    >>> [(o.value, str(o.odds)) for o in outcomes(2048.5, FP16, Rounding.STOCHASTIC)]
    [(2048.0, '3/4'), (2050.0, '1/4')]
    """
    if rounding is not Rounding.STOCHASTIC:
        return (Outcome(float(round_to(x, format, rounding)), Fraction(1)),)
    bits = (np.asarray(2**32 - 1), np.asarray(0))  # the draw that never goes away from 0, and the one that always does
    inner, outer = (float(round_to(x, format, rounding, random_bits=draw)) for draw in bits)
    away = abs(Fraction(x)) / Fraction(float(ulp(x, format))) % 1
    if inner == outer or np.isnan(inner) or away == 0:
        return (Outcome(inner, Fraction(1)),)
    both = (Outcome(inner, 1 - away), Outcome(outer, away))
    return both if x > 0 else both[::-1]


def interval(x: float, format: Format, rounding: Rounding) -> dict[str, Any] | None:
    """Return the real numbers that round as x does: low, high (None at infinity), and whether these belong to it.

    For stochastic rounding: the gap that x lies in. None where the outcome is no number.

    >>> from labkit.formats import FP16
    >>> interval(0.1, FP16, Rounding.NEAREST_EVEN)
    {'low': 0.099945068359375, 'high': 0.100006103515625, 'low_in': True, 'high_in': True}
    """
    found = outcomes(x, format, rounding)
    values = [outcome.value for outcome in found]
    if np.isnan(values).any():
        return None
    if rounding is Rounding.STOCHASTIC:
        return {"low": finite(values[0]), "high": finite(values[-1]), "low_in": True, "high_in": True}
    (value,) = values
    code = int(encode(value, format))
    codes = [code] if value else [*([format.sign_mask] if format.signed else []), 0]  # zero: from -0's end to +0's
    ends = rounding_interval(codes, format, rounding)
    some = np.flatnonzero((ends.low < ends.high) | (ends.low_included & ends.high_included))  # one zero may have none
    first, last = some[0], some[-1]
    included = {"low_in": bool(ends.low_included[first]), "high_in": bool(ends.high_included[last])}
    return {"low": finite(ends.low[first]), "high": finite(ends.high[last]), **included}


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: infinity and NaN are None."""
    return float(value) if np.isfinite(value) else None


def rounded(x: float, format: Format, rounding: Rounding) -> dict[str, Any]:
    """Return everything the browser shows of a number: a row for each rounding, and the interval of the chosen one."""
    chosen = outcomes(x, format, rounding)
    return {
        "x": x,
        "rounding": rounding.name,
        "format": format.name,
        "values": [{"at": finite(o.value), "text": name_of(o.value), "odds": odds(o.odds)} for o in chosen],
        "interval": interval(x, format, rounding),
        "rows": [row(x, format, mode) for mode in NAMES],
        "sentence": sentence(x, format, rounding),
    }


def row(x: float, format: Format, rounding: Rounding) -> dict[str, str]:
    """Return one rounding in words: its name, what x becomes, by how much it is off."""
    found = outcomes(x, format, rounding)
    error = Fraction(found[0].value) - Fraction(x) if np.isfinite(found[0].value) else None
    sign = "+" if error and error > 0 else ""
    said = "" if error is None else "exact" if error == 0 else sign + brief(error)
    if len(found) > 1:
        said = " or ".join(odds(o.odds) for o in found)
    value = " or ".join(name_of(o.value) for o in found)
    return {"mode": rounding.name, "name": NAMES[rounding], "value": value, "error": said}


def odds(share: Fraction) -> str:
    """Write odds as a percentage; what can happen is never 0%, and what may fail is never 100%.

    >>> odds(Fraction(3, 4)), odds(Fraction(1)), odds(Fraction(1, 10**9)), odds(1 - Fraction(1, 10**9))
    ('75%', '100%', '<0.1%', '>99.9%')
    """
    if share in (0, 1):
        return f"{share:.0f}%" if share == 0 else "100%"
    if share < Fraction(1, 1000):
        return "<0.1%"
    return ">99.9%" if share > Fraction(999, 1000) else f"{brief(100 * share)}%"


def sentence(x: float, format: Format, rounding: Rounding) -> str:
    """Say in one sentence where a number lies and what it becomes.

    >>> from labkit.formats import FP16
    >>> sentence(2049.0, FP16, Rounding.NEAREST_EVEN)
    '2049 lies half-way between the FP16 numbers 2048 and 2050, 2 apart; to nearest, ties to even, it becomes 2048.'
    """
    low, high = (outcomes(x, format, mode)[0].value for mode in (Rounding.TOWARD_NEGATIVE, Rounding.TOWARD_POSITIVE))
    name, number = format.name, written(x)
    if np.isnan(low):
        return f"{number} becomes NaN: {name} has " + ("no zero." if x == 0 else "no sign, so nothing below 0.")
    if low == high == x:
        return f"{number} is exact in {name}: every rounding keeps it."
    found = outcomes(x, format, rounding)
    if abs(x) > format.max:
        last = name_of(float(np.copysign(format.max, x)))
        return f"{number} lies beyond the last {name} number, {last}; {_becomes(rounding, found)}."
    middle = "half-way between" if Fraction(x) * 2 == Fraction(low) + Fraction(high) else "between"
    gap = spaced(Fraction(high) - Fraction(low))
    where = f"{number} lies {middle} the {name} numbers {name_of(low)} and {name_of(high)}, {gap} apart"
    return f"{where}; {_becomes(rounding, found)}."


def _becomes(rounding: Rounding, found: tuple[Outcome, ...]) -> str:
    if len(found) == 1:
        how = "by stochastic rounding" if rounding is Rounding.STOCHASTIC else NAMES[rounding]
        return f"{how}, it becomes {name_of(found[0].value)}"
    draws = " and ".join(f"{name_of(o.value)} in {odds(o.odds)}" for o in found)
    return f"stochastic rounding makes it {draws} of the draws"


def written(x: float) -> str:
    """Write x with the fewest digits that mean it.

    >>> written(0.1), written(2049.0), written(1e-7)
    ('0.1', '2049', '1e-7')
    """
    text = repr(float(x)).removesuffix(".0")
    return text.replace("e-0", "e-").replace("e+", "e")


def axis(format: Format) -> dict[str, Any]:
    """Return what the browser needs to draw where a format's values lie, and where it has none.

    zero_to     positive numbers up to here round to 0 (0 in a format without zero)
    ends_from   numbers from here on round to what `beyond` says; None where they stay at the largest value
    """
    to_zero = float(rounding_interval(0, format).high[()]) if format.has_zero else 0.0
    last = float(rounding_interval(format.max_code, format).high[()])
    beyond = {Specials.IEEE: "to infinity", Specials.FN: "to NaN", Specials.NONE: "to max"}[format.specials]
    return {
        "name": format.name,
        "emin": format.emin,
        "emax": format.emax,
        "significand_bits": format.significand_bits,
        "max": format.max,
        "signed": format.signed,
        "has_zero": format.has_zero,
        "zero_to": to_zero,
        "ends_from": finite(last),
        "beyond": beyond,
    }


def whole(format: Format, scale: str) -> tuple[float, float]:
    """Return a window that shows all values of a format."""
    if scale == "log":
        return format.smallest_subnormal / 8, format.max * 4
    return (-1.15 * format.max if format.signed else -0.1 * format.max), 1.15 * format.max


@on_any_page
def static_number_line(format: Format, window: tuple[float, float], scale: str, rounded: dict[str, Any]) -> Figure:
    """Draw where the numbers of a format lie in a window, darker where there are more, and how a real number rounds."""
    figure = new_figure(9, 2.9)
    axes = figure.add_axes((0.03, 0.5, 0.94, 0.36))
    if scale == "log":
        axes.set_xscale("log", base=2)
    axes.set_xlim(*window)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors=QUIET)
    edges = (np.geomspace if scale == "log" else np.linspace)(*window, COLUMNS + 1)
    counts = values_between(edges, format)
    here = counts > 0
    dense = np.minimum(1.0, 0.65 + 0.03 * np.log2(counts[here]))
    axes.vlines(((edges[:-1] + edges[1:]) / 2)[here], 0, 0.55, colors=INK, alpha=dense, linewidth=0.8, snap=False)
    _draw_outcome(axes, rounded, window)
    axes.set_title(f"Numbers of {format.name}", loc="left", fontsize=11, color=INK)
    return captioned(figure, (0.03, 0.27), rounded["sentence"], WHY_STILL)


def values_between(edges: NDArray[np.float64], format: Format) -> NDArray[np.int64]:
    """Count the values of a format from each edge (left out) to the next (included); edges[n] rise, counts[n - 1].

    >>> from labkit.formats import FP16
    >>> values_between(np.array([0.5, 1.0, 2.0, 2.001]), FP16)
    array([1024, 1024,    0])
    """
    least = -format.max if format.signed else float(decode(0, format))
    below = round_to(np.clip(edges, least, format.max), format, Rounding.TOWARD_NEGATIVE)
    codes = encode(below, format)
    place = (codes & ~np.asarray(format.sign_mask, codes.dtype)).astype(np.int64)  # codes count up with magnitude
    place = np.where(below < 0, -place, place)
    return np.diff(np.where(edges < least, place.min() - 1, place))


def _draw_outcome(axes: Axes, rounded: dict[str, Any], window: tuple[float, float]) -> None:
    interval, colour = rounded["interval"], FORMAT_COLOURS["FP16"]
    if interval is not None:
        low = window[0] if interval["low"] is None else max(interval["low"], window[0])
        high = window[1] if interval["high"] is None else min(interval["high"], window[1])
        if low < high:
            axes.axvspan(low, high, ymax=0.7, color=colour, alpha=0.18, linewidth=0)
    for value in rounded["values"]:
        if value["at"] is not None and window[0] <= value["at"] <= window[1]:
            axes.vlines(value["at"], 0, 0.7, color=colour, linewidth=2.5)
    if window[0] <= rounded["x"] <= window[1]:
        axes.annotate("x", (rounded["x"], 0), (rounded["x"], 0.92), ha="center", va="center", fontsize=11, color=INK,
                      arrowprops={"arrowstyle": "-|>", "color": INK})  # fmt: skip


def check(format: Format) -> None:
    """Raise TraitError for a format so wide that x, itself an FP64 number, has nothing to lose in it."""
    if format.significand_bits > 48 or format.exponent_bits > 10:
        raise traitlets.TraitError(
            f"x is an FP64 number itself, so {format.name} has (almost) nothing to round. Take a narrower format."
        )


class NumberLine(LabWidget, folders=("number_line",)):
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
            wanted = f"a window goes from a number{least} to a larger one"
            raise traitlets.TraitError(f"{wanted}; it was given {low}, {high}")
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
        figure = static_number_line(self.format, self.window, self.scale, self.rounded)
        return still(self.sentence, WHY_STILL, figure)
