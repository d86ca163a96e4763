"""The addition player: a sum or a product of two numbers on paper, station by station.

Page and Python share the numbers as text, format, operation and step; the page computes every
station (sheet.js).
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
    add,
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
# function, stations
OPERATIONS = {"add": (add, 6), "multiply": (multiply, 5)}
WHY_STATIC = why_still(
    "to play it, or go on in code: player.b = '2^-11'; print(player.value)", "This paper stands"
)


class AdditionPlayer(LabWidget, folder="addition"):
    """An addition (or multiplication) in a format, step by step, as on paper.

    Args:
        a, b: numbers, or text as people write them: 0.1, 0x3C00, 0x1.8p-3, 2^-11.
        format: a row of FORMATS, or one of your own; it joins the choices.
        operation: "add" or "multiply".

    Traits to read and set: `a`, `b` (text), `format_name`, `operation`, `step`. To read: `value`,
    `calculation` (with the records of labkit.formats), and `sentence`, which the page forms once it
    shows the widget.

    Raises:
        ValueError: a or b is not a number, or the format has no sign or no zero.
        TraitError: an unknown format or operation, a step out of range, or text that is not a
            number.

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
    step = traitlets.Int(1).tag(sync=True)  # it opens where something has moved
    sentence = traitlets.Unicode().tag(sync=True)
    _formats: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        a: float | str = 1.0,
        b: float | str = 0.0001,
        format: Format = FP16,
        *,
        operation: str = "add",
    ) -> None:
        if not (format.signed and format.has_zero):
            raise ValueError(
                f"{format.name} has no sign or no zero, so it has no sums. Give a format with both."
            )
        self._known = {row.name: row for row in (*OFFERED, format)}
        texts = {}
        # a number is written so that reading it gives it back
        for name, x in (("a", a), ("b", b)):
            texts[name] = x if isinstance(x, str) else repr(float(x)).removesuffix(".0")
            parse(texts[name], format)
        rows = [format_row(row) for row in self._known.values()]
        super().__init__(**texts, format_name=format.name, operation=operation, _formats=rows)

    @property
    def format(self) -> Format:
        """The format of the calculation."""
        return self._known[self.format_name]

    @property
    def calculation(self) -> Calculation:
        """The result and its steps, from labkit.formats."""
        a, b = (parse(text, self.format).value for text in (self.a, self.b))
        return OPERATIONS[self.operation][0](a, b, self.format)

    @property
    def value(self) -> float:
        return float(self.calculation.value)

    @limited("operation", "format_name", "step")
    def _choices(self) -> dict[str, Collection[Any]]:
        finite = all(np.isfinite(parse(text, self.format).value) for text in (self.a, self.b))
        stations = OPERATIONS.get(self.operation, OPERATIONS["add"])[1] if finite else 2
        return {"operation": OPERATIONS, "format_name": self._known, "step": range(stations)}

    @traitlets.validate("a", "b")
    def _valid_text(self, proposal: dict[str, Any]) -> str:
        try:
            parse(proposal["value"], self._known.get(self.format_name, FP16))
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from None
        return str(proposal["value"])

    def still(self) -> dict[str, Any]:
        values = {"a": self.a, "b": self.b, self.operation: ""}
        lines = []
        for name, text in values.items():
            value = parse(text, self.format).value if text else self.value
            bits = field_bits(int(encode(value, self.format)), self.format)
            lines.append(f"{name:<8}  {bits}  {number(value)}")
        return still("\n".join([f"In {self.format.name}:", *lines]), WHY_STATIC)
