"""Where does 0.0001 go when it is added to 1? An addition on paper, played station by station.

Idea: `labkit.formats.add` keeps a record of every station; all of them are laid out at once (`board`) and sent
to the browser, which only moves bits. So playing needs no kernel, and a typed number is one message there and back.

Invariant: `sentence` belongs to the present numbers, format, operation and `step`; what cannot be read is answered in
`problems`, stays in its field, and the paper shows the last numbers that could be.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import traitlets

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, Format, parse
from labkit.widgets.addition.board import Scene, as_json, columns, paper, scenes
from labkit.widgets.addition.sheet import OPERATIONS, Sheet, sheet
from labkit.widgets.addition.words import facts, hint
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited

OFFERED = (FP16, BF16, E4M3, E5M2, FP32)
WHY_STATIC = why_still(
    "to play it, or go on in code: player.b = '2^-11'; player.step = 4; print(player.sentence)", "This paper stands"
)


class AdditionPlayer(LabWidget):
    """An addition (or multiplication) in a format, step by step, as on paper.

    Args:
        a, b: numbers, or text as people write them: 0.1, 0x3C00, 0x1.8p-3, 2^-11.
        format: a row of FORMATS, or one of your own; it joins those offered.
        operation: "add" or "multiply".

    What can be read and set: `a`, `b` (text), `format_name`, `operation`, `step`. What can be read: `sentence`,
    `stations`, `value`, `sheet` (with the records of labkit.formats), `problems`.

    Raises:
        ValueError: a or b is no number, or the format has no sign or no zero.
        TraitError: an unknown format or operation, or a step that is not there.

    >>> player = AdditionPlayer(1.0, 0.0001)
    >>> player.stations
    ['Write', 'Align', 'Add', 'Normalise', 'Guard, round, sticky', 'Round']
    >>> player.step = 4
    >>> player.sentence
    'Guard 0, round 0, sticky 1: less than half of the last place, so round down; b is lost.'
    >>> player.b = "2^-10"
    >>> player.value
    1.0009765625
    """

    _esm = script("addition")
    _css = style("addition")

    a = traitlets.Unicode().tag(sync=True)
    b = traitlets.Unicode().tag(sync=True)
    format_name = traitlets.Unicode().tag(sync=True)
    operation = traitlets.Unicode("add").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    problems = traitlets.Dict().tag(sync=True)  # "a" or "b" -> what is wrong with the text in that field
    _paper = traitlets.Dict().tag(sync=True)
    _choices = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(
        self, a: float | str = 1.0, b: float | str = 0.0001, format: Format = FP16, *, operation: str = "add"
    ) -> None:
        if not (format.signed and format.has_zero):
            raise ValueError(f"{format.name} has no sign or no zero, so it has no sums. Give a format with both.")
        self._formats = {row.name: row for row in (*OFFERED, format)}
        typed = {name: _text(value) for name, value in (("a", a), ("b", b))}
        for text in typed.values():
            parse(text, format)
        self.sheet: Sheet = sheet(typed["a"], typed["b"], format)
        self._scenes: list[Scene] = scenes(self.sheet)
        super().__init__(**typed, format_name=format.name, operation=operation, _choices=list(self._formats))
        self._calculate()

    @property
    def format(self) -> Format:
        """The format that is calculated in."""
        return self._formats[self.format_name]

    @property
    def stations(self) -> list[str]:
        """The names of the steps, from the first to the last."""
        return [scene.title for scene in self._scenes]

    @property
    def value(self) -> float:
        """The result."""
        return self.sheet.value

    @limited("operation", "format_name", "step")
    def _places(self) -> dict[str, Collection[Any]]:
        return {"operation": OPERATIONS, "format_name": self._formats, "step": range(len(self._scenes))}

    @traitlets.observe("a", "b", "format_name", "operation")
    def _calculate(self, _change: object = None) -> None:
        problems = {name: _problem(getattr(self, name), self.format) for name in "ab"}
        with self.hold_sync():
            self.problems = {name: words for name, words in problems.items() if words}
            if self.problems:
                return
            self.sheet = sheet(self.a, self.b, self.format, self.operation)
            self._scenes = scenes(self.sheet)
            self.step = min(self.step, len(self._scenes) - 1)
            self._paper = {
                "scenes": as_json(self._scenes),
                "columns": columns(self._scenes),
                "facts": facts(self.sheet),
                "hints": dict(zip("ab", (hint(one, self.format) for one in self.sheet.readings), strict=True)),
                "places": self.format.precision,
                "format": self.format_name,
            }
            self._follow()

    @traitlets.observe("step")
    def _follow(self, _change: object = None) -> None:
        self.sentence = self._scenes[self.step].sentence

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        return still(f"{paper(self._scenes)}\n", WHY_STATIC)


def _text(value: float | str) -> str:
    """Write a number so that reading it gives it back; leave text as it was typed.

    >>> _text(1.0), _text(0.0001), _text("0x3C00")
    ('1', '0.0001', '0x3C00')
    """
    return value if isinstance(value, str) else repr(float(value)).removesuffix(".0")


def _problem(text: str, format: Format) -> str:
    """Say why a text is no number of a format, or nothing."""
    try:
        parse(text, format)
    except ValueError as error:
        return str(error)
    return ""
