"""The bit explorer: a number is changed bit by bit, or by its text, and everything else follows.

Format, text and code are traits that page and Python share; the page computes what it shows of them
(explored.js).

Invariant: `code` is what `format` holds of `text`; text that cannot be read changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import traitlets

from labkit.formats import (
    BF16,
    E4M3,
    FORMATS,
    FP16,
    FP32,
    Format,
    decode,
    encode,
    field_bits,
    next_down,
    next_up,
    parse,
)
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.exact.rows import exact_text, format_row


class BitExplorer(LabWidget, folder="bits"):
    """The bits of a number, to be clicked, and the number that they encode, to be typed.

    Args:
        format: whose bits are shown; FP16 unless said otherwise.
        value: the number to begin with, 0.1 unless said otherwise, or its text: 0.1, "1/3",
            "0x3c00", "0x1.8p-3".
        compare: formats shown side by side with it, for the same number.

    Traits to read and set: `text` (as in the box), `code`, `format`. To read: `value`, and
    `sentence`, which the page forms once it shows the widget. Methods: `flip(bit)`, `step(+1)`,
    `step(-1)`.

    Raises:
        ValueError: `value` is not a number, the format has no code for it, or no such bit or next
            value.
        TraitError: text that is not a number, a code that does not fit the format, or a format that
            has no code for the number.

    >>> explorer = BitExplorer(FP16, 1.0)
    >>> explorer.flip(0)
    >>> explorer.value, explorer.text
    (1.0009765625, '1.0009765625')
    >>> explorer.text = "0.1"
    >>> hex(explorer.code)
    '0x2e66'
    """

    text = traitlets.Unicode().tag(sync=True)
    # as text: a page's numbers end at 2^53
    code = traitlets.Int().tag(
        sync=True,
        to_json=lambda code, _widget: hex(code),
        from_json=lambda text, _widget: int(text, 0),
    )
    format = traitlets.Instance(Format).tag(
        sync=True,
        to_json=lambda row, _widget: row.name,
        from_json=lambda name, widget: widget._known[name],
    )
    sentence = traitlets.Unicode().tag(sync=True)
    _formats: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _compare: traitlets.List[str] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        format: Format = FP16,
        value: float | str = 0.1,
        compare: Iterable[Format] = (FP32, BF16, E4M3),
    ) -> None:
        compared = tuple(compare)
        self._known = {row.name: row for row in (*FORMATS.values(), *compared, format)}
        text = value if isinstance(value, str) else repr(float(value))
        self._following = False
        super().__init__(
            format=format,
            text=text,
            code=parse(text, format).code,
            _formats=[format_row(row) for row in self._known.values()],
            _compare=[row.name for row in compared],
        )
        self._following = True

    @property
    def value(self) -> float:
        return float(decode(self.code, self.format))

    def flip(self, bit: int) -> None:
        """Flip one bit; bit 0 is the last one of the significand."""
        if not 0 <= bit < self.format.bits:
            raise ValueError(
                f"bit: expected 0 to {self.format.bits - 1} ({self.format.name}), got {bit}"
            )
        self.code ^= 1 << bit

    def step(self, direction: int) -> None:
        """Go to the next larger (+1) or next smaller (-1) value."""
        value = float((next_up if direction > 0 else next_down)(self.value, self.format))
        if np.isnan(value) or value == self.value:
            raise ValueError(
                f"{self.format.name} has no {'larger' if direction > 0 else 'smaller'} value"
            )
        self.code = int(encode(value, self.format))

    @traitlets.validate("code")
    def _valid_code(self, proposal: dict[str, Any]) -> int:
        code: int = proposal["value"]
        if not 0 <= code < self.format.codes:
            raise traitlets.TraitError(
                f"code: expected 0 to {self.format.codes - 1:#x} in {self.format.name}, "
                f"got {code:#x}"
            )
        return code

    @traitlets.validate("text")
    def _valid_text(self, proposal: dict[str, Any]) -> str:
        self._read(proposal["value"], self.format)
        return str(proposal["value"])

    @traitlets.validate("format")
    def _valid_format(self, proposal: dict[str, Any]) -> Format:
        """Check that the format has a code for the number; the text itself may be a code."""
        format: Format = proposal["value"]
        if self.text and self._following:
            self._read(self._number(self.format), format)
        return format

    @traitlets.observe("text", "code", "format")
    def _follow(self, change: dict[str, Any]) -> None:
        """Let the other traits follow one that code has set.

        Those of a page arrive together and agree.
        """
        if not self._following:
            return
        self._following = False
        try:
            with self.hold_sync():
                if change["name"] == "format":
                    if self.format.name not in self._known:
                        self._known[self.format.name] = self.format
                        self._formats = [*self._formats, format_row(self.format)]
                    self.text = self._number(change["old"])
                value = parse(self.text, self.format).value
                if change["name"] == "code" and not _same(value, self.value):
                    self.text = exact_text(self.value)
                elif change["name"] != "code" and not _same(value, self.value):
                    self.code = parse(self.text, self.format).code
        finally:
            self._following = True

    def _number(self, format: Format) -> str:
        """Return the text, or where that is a code of a format, its value."""
        reading = parse(self.text, format)
        return exact_text(reading.value) if reading.kind == "code" else self.text

    def _read(self, text: str, format: Format) -> None:
        try:
            parse(text, format)
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from None

    def still(self) -> dict[str, Any]:
        bits = field_bits(self.code, self.format)
        words = f"{self.format.name} {self.code:#x} = {self.value!r}: bits {bits}"
        return still(
            words, why_still("to touch it yourself, and run this cell", "These bits stand")
        )


def _same(a: float, b: float) -> bool:
    return bool(np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))
