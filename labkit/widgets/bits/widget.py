"""The bit explorer: a number is changed bit by bit, or by its text, and everything else follows.

Page and Python share the traits format, text and code; the page computes all that it shows from
them (explored.js).

Invariant: `code` is the code of `text` in `format`. The only exception is text "nan", which has no
code of its own and stands for any NaN code. A text that is not a number is refused.
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
    FormatLike,
    as_format,
    decode,
    encode,
    field_bits,
    next_down,
    next_up,
    parse,
)
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.exact.rows import FormatTrait, exact_text, format_row


class BitExplorer(LabWidget, folder="bits"):
    """The bits of a number, to be clicked, and the number that they encode, to be typed.

    Args:
        format: The format whose bits are shown, or its name.
        value: The first number, or its text: "0.1", "1/3", "0x3c00" (a code), "0x1.8p-3".
        compare: The formats in which the same number is also shown, in a table.

    Traits to read and set: `text` (the content of the text box), `code` and `format`. To read:
    `value`, and `sentence`, which the page sets when it shows the widget.

    Raises:
        ValueError: `value` is not a number, or the format has no code for it.
        TraitError: Two different formats have the same name; or a trait is set to a text that is
            not a number, to a code that the format does not have, or to a format that has no code
            for the number.

    >>> explorer = BitExplorer(FP16, 1.0)
    >>> explorer.flip(0)
    >>> explorer.value, explorer.text
    (1.0009765625, '1.0009765625')
    >>> explorer.text = "0.1"
    >>> hex(explorer.code)
    '0x2e66'
    """

    text = traitlets.Unicode().tag(sync=True)
    # Sent as text, since the page's numbers are exact only up to 2^53.
    code = traitlets.Int().tag(
        sync=True,
        to_json=lambda code, _widget: hex(code),
        from_json=lambda text, _widget: int(text, 0),
    )
    format = FormatTrait(Format).tag(
        sync=True,
        to_json=lambda row, _widget: row.name,
        from_json=lambda name, widget: widget._known[name],
    )
    sentence = traitlets.Unicode().tag(sync=True)
    _formats: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _compare: traitlets.List[str] = traitlets.List().tag(sync=True)

    def __init__(
        self,
        format: FormatLike = FP16,
        value: float | str = 0.1,
        compare: Iterable[FormatLike] = (FP32, BF16, E4M3),
    ) -> None:
        format = as_format(format)
        compared = tuple(as_format(each, "compare") for each in compare)
        # Name -> format, for all formats that the page has. A given one may replace one of the
        # lab's, but not another given one: the page would draw both as the same format.
        self._known = {row.name: row for row in (*FORMATS.values(), *compared, format)}
        for row in compared:
            self._require_own_name(row)
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
        """Flip one bit; bit 0 is the last one of the significand.

        Raises:
            ValueError: The format has no such bit.
        """
        if not 0 <= bit < self.format.bits:
            raise ValueError(
                f"bit: expected 0 to {self.format.bits - 1} ({self.format.name}), got {bit}"
            )
        self.code ^= 1 << bit

    def step(self, direction: int) -> None:
        """Go to the next larger (+1) or next smaller (-1) value.

        Raises:
            ValueError: The format has no such value, or the present one is NaN.
        """
        if np.isnan(self.value):
            raise ValueError("NaN is neither larger nor smaller than another value; set a number")
        next_value = next_up if direction > 0 else next_down
        value = float(next_value(self.value, self.format))
        if np.isnan(value) or value == self.value:
            # Beyond the largest number of a format without infinities, the next value is NaN.
            word = "larger" if direction > 0 else "smaller"
            raise ValueError(f"{self.format.name} has no {word} value")
        self.code = int(encode(value, self.format))

    @traitlets.validate("code")
    def _valid_code(self, proposal: dict[str, Any]) -> int:
        code: int = proposal["value"]
        if isinstance(code, bool) or not 0 <= code < self.format.codes:
            written = str(code) if isinstance(code, bool) else f"{code:#x}"
            raise traitlets.TraitError(
                f"code: expected 0 to {self.format.codes - 1:#x} in {self.format.name}, "
                f"got {written}"
            )
        return code

    @traitlets.validate("text")
    def _valid_text(self, proposal: dict[str, Any]) -> str:
        self._require_number(proposal["value"], self.format)
        return str(proposal["value"])

    @traitlets.validate("format")
    def _valid_format(self, proposal: dict[str, Any]) -> Format:
        """Check that the format has a name of its own and a code for the number."""
        format: Format = proposal["value"]
        self._require_own_name(format)
        if self.text and self._following:
            self._require_number(self._number(self.format), format)
        return format

    @traitlets.observe("text", "code", "format")
    def _follow(self, change: dict[str, Any]) -> None:
        """Let the other traits follow one that was set.

        Text, code and format that a page has set together agree: then nothing is changed here.
        """
        if not self._following:
            return
        self._following = False
        try:
            with self.hold_sync():
                if change["name"] == "format":
                    self._send_format(self.format)
                    # A text that the page sends with the format is one of the new format.
                    # ipywidgets sets `_property_lock` while it takes the traits of a page.
                    if "text" not in self._property_lock:
                        self.text = self._number(change["old"])
                if self._text_and_code_agree():
                    return
                if change["name"] == "code":
                    self.text = exact_text(self.value)
                else:
                    self.code = parse(self.text, self.format).code
        finally:
            self._following = True

    def _text_and_code_agree(self) -> bool:
        """Return whether `code` is a code of `text`; a text such as "nan" has several."""
        reading = parse(self.text, self.format)
        if reading.kind == "code":
            return reading.code == self.code
        return _same(reading.value, self.value)

    def _send_format(self, format: Format) -> None:
        """Add a format to the list on the page, which knows formats by their names."""
        if format.name not in self._known:
            self._known[format.name] = format
            self._formats = [*self._formats, format_row(format)]

    def _require_own_name(self, format: Format) -> None:
        """Raise TraitError if another format of this widget has the same name."""
        if self._known.get(format.name, format) != format:
            raise traitlets.TraitError(
                f"format: {format.name} is the name of another format here; "
                "expected a name of its own"
            )

    def _number(self, format: Format) -> str:
        """Return the text, or if it is a code of the format, the text of its value."""
        reading = parse(self.text, format)
        return exact_text(reading.value) if reading.kind == "code" else self.text

    def _require_number(self, text: str, format: Format) -> None:
        """Raise TraitError if a text is not a number of the format."""
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
    """Return whether two numbers are equal with the same sign of zero, or both NaN."""
    return bool(np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))
