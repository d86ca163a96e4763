"""The addition player: a sum or a product of two numbers on paper, station by station.

Page and Python share the texts of both numbers, the format, the operation and the index of the
station. The page computes what every station shows (sheet.js, scenes.js).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import traitlets

from labkit.formats import (
    BF16,
    E4M3,
    E5M2,
    FP16,
    FP32,
    Calculation,
    Format,
    FormatLike,
    add,
    as_format,
    encode,
    field_bits,
    multiply,
    parse,
)
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import number
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.exact.rows import format_row

OFFERED = (FP16, BF16, E4M3, E5M2, FP32)
# Name -> the function of labkit.formats, and the number of its stations for finite numbers.
OPERATIONS = {"add": (add, 6), "multiply": (multiply, 5)}
# A calculation with an infinity or a NaN has the stations Write and Result.
SPECIAL_STATIONS = 2
WHY_STATIC = why_still(
    "to play it, or go on in code: player.b = '2^-11'; print(player.value)", "This paper stands"
)


class AdditionPlayer(LabWidget, folder="addition"):
    """An addition (or multiplication) in a format, step by step, as on paper.

    Args:
        a: The first number, or its text: "0.1", "0x3C00" (a code), "0x1.8p-3", "2^-11".
        b: The second number, or its text.
        format: The format of the calculation, or its name; it is added to those that the page
            offers.
        operation: "add" or "multiply".

    Traits to read and set: `a` and `b` (text), `format_name`, `operation`, and `step` (the index of
    the station). To read: `value`, `calculation`, and `sentence`, which the page sets when it shows
    the widget.

    Raises:
        ValueError: a or b is not a number, or the format has no sign or no zero.
        TraitError: A trait is set to an unknown format or operation, to a step out of range, to a
            text that is not a number, or to a format in which a or b is not a number.

    >>> player = AdditionPlayer(1.0, 0.0001)
    >>> player.value
    1.0
    >>> player.b = "2^-10"
    >>> player.value
    1.0009765625
    """

    a = traitlets.Unicode().tag(sync=True)
    b = traitlets.Unicode().tag(sync=True)
    format_name = traitlets.Unicode().tag(sync=True)
    operation = traitlets.Unicode("add").tag(sync=True)
    # The first station whose bits have moved.
    step = traitlets.Int(1).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _formats: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        a: float | str = 1.0,
        b: float | str = 0.0001,
        format: FormatLike = FP16,
        *,
        operation: str = "add",
    ) -> None:
        format = as_format(format)
        if not (format.signed and format.has_zero):
            raise ValueError(
                f"{format.name} has no sign or no zero, so it has no sums. Give a format with both."
            )
        self._known = {row.name: row for row in (*OFFERED, format)}
        texts = [_as_text(a), _as_text(b)]
        for text in texts:
            parse(text, format)
        super().__init__(
            a=texts[0],
            b=texts[1],
            format_name=format.name,
            operation=operation,
            _formats=[format_row(row) for row in self._known.values()],
        )

    @property
    def format(self) -> Format:
        """The format of the calculation."""
        return self._known[self.format_name]

    @property
    def calculation(self) -> Calculation:
        """The result and its intermediate values, as `labkit.formats.add` returns them."""
        a, b = (parse(text, self.format).value for text in (self.a, self.b))
        return OPERATIONS[self.operation][0](a, b, self.format)

    @property
    def value(self) -> float:
        return float(self.calculation.value)

    @limited("operation")
    def _operations(self) -> dict[str, Collection[Any]]:
        return {"operation": OPERATIONS}

    @property
    def _stations(self) -> range:
        """The indices of the stations of the present calculation."""
        stations = SPECIAL_STATIONS
        if all(np.isfinite(parse(text, self.format).value) for text in (self.a, self.b)):
            _, stations = OPERATIONS[self.operation]
        return range(stations)

    @limited("step")
    def _steps(self) -> dict[str, Collection[Any]]:
        return {"step": self._stations}

    @traitlets.observe("a", "b", "format_name", "operation")
    def _stay_inside(self, _change: object) -> None:
        """Go to the last station if another calculation has fewer of them."""
        self.step = min(self.step, self._stations[-1])

    @traitlets.validate("format_name")
    def _valid_format_name(self, proposal: dict[str, Any]) -> str:
        """Check that the format exists and that both texts are numbers in it.

        A text may be a code, which has no place in a narrower format.
        """
        name: str = proposal["value"]
        if name not in self._known:
            names = ", ".join(map(repr, self._known))
            raise traitlets.TraitError(f"format: expected one of {names}, got {name!r}")
        for text in (self.a, self.b):
            _require_number(text, self._known[name])
        return name

    @traitlets.validate("a", "b")
    def _valid_text(self, proposal: dict[str, Any]) -> str:
        text: str = proposal["value"]
        # Together with the texts, a page may send a name that the other validator refuses.
        if self.format_name in self._known:
            _require_number(text, self.format)
        return text

    def still(self) -> dict[str, Any]:
        values = {
            "a": parse(self.a, self.format).value,
            "b": parse(self.b, self.format).value,
            self.operation: self.value,
        }
        lines = [f"In {self.format.name}:"]
        for name, value in values.items():
            bits = field_bits(int(encode(value, self.format)), self.format)
            lines.append(f"{name:<8}  {bits}  {number(value)}")
        return still("\n".join(lines), WHY_STATIC)


def _as_text(x: float | str) -> str:
    """Return a text as it is, and a number as text that is parsed as the same number."""
    if isinstance(x, str):
        return x
    return repr(float(x)).removesuffix(".0")


def _require_number(text: str, format: Format) -> None:
    """Raise TraitError if a text is not a number of the format."""
    try:
        parse(text, format)
    except ValueError as error:
        raise traitlets.TraitError(str(error)) from None
