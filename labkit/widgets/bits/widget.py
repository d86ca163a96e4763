"""The bit explorer: a number is changed bit by bit, or by its text, and all the rest follows.

Idea: the browser sends what was done (this bit, that text, the next value), Python answers with everything to show.
The still picture draws the same view.

Invariant: `code`, `value`, `sentence` and what is shown belong to one state; text that cannot be read changes none of
them and is answered in `problem`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import traitlets

from labkit.formats import BF16, E4M3, FORMATS, FP16, FP32, Format
from labkit.widgets.base.figures import (
    INK,
    QUIET,
    captioned,
    new_figure,
    on_any_page,
    raised,
    still,
    why_still,
    wrapped,
)
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.bits.explored import Explored, explore, flipped, in_format, stepped, typed, view, with_code

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paul Tol's high-contrast scheme: told apart by people who see colours differently, and in black and white.
FIELD_COLOURS = {"S": "#BD596A", "E": "#997319", "F": "#0077ED"}

WHY_STILL = why_still("to touch it yourself, and run this cell")


@on_any_page
def static_bits(view: dict[str, Any]) -> Figure:
    """Draw what `explored.view` returned: the bits of a code by field, its value, and the sentence."""
    figure = new_figure(9, 3.1)
    axes = figure.add_axes((0.02, 0.46, 0.96, 0.48))
    axes.set_axis_off()
    bits = sum(len(field["bits"]) for field in view["fields"])
    axes.set_xlim(0, max(16, bits) + 1)
    axes.set_ylim(0, 3)
    left = 0.0
    for field in view["fields"]:
        _draw_field(axes, field, left, small=bits > 20)
        left += len(field["bits"]) + 0.25
    value = view["value"] if len(view["value"]) < 60 else view["about"]
    figure.text(0.02, 0.33, f"{view['format']}:  {value}", fontsize=14, color=INK, weight="bold")
    return captioned(figure, (0.02, 0.25), view["sentence"], WHY_STILL)


def _draw_field(axes: Axes, field: dict[str, Any], left: float, *, small: bool) -> None:
    from matplotlib.patches import Rectangle

    letter, size = field["letter"], 8 if small else 13
    colour = FIELD_COLOURS[letter]
    for i, bit in enumerate(field["bits"]):
        cell = Rectangle((left + i + 0.05, 1), 0.9, 1.1, facecolor=colour if bit["on"] else "none", edgecolor=colour)
        axes.add_patch(cell)
        ink = "white" if bit["on"] else INK
        axes.text(left + i + 0.5, 1.5, str(int(bit["on"])), ha="center", va="center", fontsize=size, color=ink)
    wide = len(field["bits"]) > 1
    name = f"{letter} {field['name']}" if wide else letter
    axes.text(left + 0.05, 2.35, name, fontsize=9.5, color=INK, weight="bold")
    if wide:
        axes.text(left + 0.05, 0.5, raised(wrapped(field["says"], 80)), fontsize=9, color=QUIET)


class BitExplorer(LabWidget, folders=("bits",)):
    """The bits of a number, to be clicked, and the number they stand for, to be typed.

    Args:
        format: whose bits are shown; FP16 unless said otherwise.
        value: the number to begin with, or its text: 0.1, "1/3", "0x3c00", "0x1.8p-3".
        compare: formats shown side by side with it, for the same number.

    What can be read and set: `text` (as in the box), `code`, `format`. What can be read: `value`, `problem`,
    `sentence`. What can be done: `flip(bit)`, `step(+1)`, `step(-1)`.

    Raises:
        ValueError: `value` is no number, or the format has no code for it.
        TraitError: `code` does not fit the format, or `format` is none.

    >>> explorer = BitExplorer(FP16, 1.0)
    >>> explorer.flip(0)
    >>> explorer.value, explorer.text
    (1.0009765625, '1.0009765625')
    >>> explorer.text = "0.1"
    >>> explorer.sentence
    '0.1 is no FP16 number: the nearest one is 0.0999755859375, which is 2.44e-5 below it (0.4 ulp).'
    """

    text = traitlets.Unicode()
    code = traitlets.Int()
    format = traitlets.Instance(Format)
    problem = traitlets.Unicode().tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _formats: traitlets.List[dict[str, str]] = traitlets.List().tag(sync=True)
    _view = traitlets.Dict().tag(sync=True)

    def __init__(
        self, format: Format = FP16, value: float | str = 1.0, compare: Iterable[Format] = (FP32, BF16, E4M3)
    ) -> None:
        self._compare = tuple(compare)
        self._known = {row.name: row for row in (*FORMATS.values(), *self._compare, format)}
        self._answered: tuple[str, int] | None = None
        self._state = explore(value if isinstance(value, str) else repr(float(value)), format)
        self._following = True
        known = self._known.values()
        bits = {r.name: f"{int(r.signed)} + {r.exponent_bits} + {r.significand_bits} bits" for r in known}
        super().__init__(_formats=[{"name": name, "about": about} for name, about in bits.items()])
        self._become(self._state)
        self.on_msg(self._told)

    @property
    def value(self) -> float:
        return self._state.value

    def flip(self, bit: int) -> None:
        """Turn one bit over; bit 0 is the last one of the significand."""
        self._become(flipped(self._state, bit))

    def step(self, direction: int) -> None:
        """Go to the next larger (+1) or next smaller (-1) value."""
        self._become(stepped(self._state, direction))

    def _become(self, state: Explored) -> None:
        """Take a new state, and let every trait follow it."""
        self._state, self._following = state, False
        try:
            with self.hold_sync():
                self.format, self.text, self.code = state.format, state.text, state.code
                self.problem = state.problem
                others = [row for row in self._compare if row.name != state.format.name]
                self._view = {**view(state, others), "answered": self._answered}
                self.sentence = self._view["sentence"]
        finally:
            self._following = True

    @traitlets.validate("code")
    def _valid_code(self, proposal: dict[str, Any]) -> int:
        code: int = proposal["value"]
        if not 0 <= code < self._state.format.codes:
            name, last = self._state.format.name, self._state.format.codes - 1
            raise traitlets.TraitError(f"codes of {name} go from 0 to {last:#x}; it was given {code:#x}")
        return code

    @traitlets.observe("text", "code", "format")
    def _follow(self, change: dict[str, Any]) -> None:
        """Follow what code has set."""
        if not self._following:
            return
        new = change["new"]
        if change["name"] == "text":
            self._become(typed(self._state, new))
        elif change["name"] == "code":
            self._become(with_code(self._state, new))
        else:
            self._known.setdefault(new.name, new)
            self._become(in_format(self._state, new))

    def _told(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        """Do what the browser asks; the answer says which message it answers.

        Messages may overtake each other. What says how things shall be ("type", "format") is stale then; what says what
        to do ("flip", "step") is done in any order.
        """
        page, number = content["from"]
        overtaken = self._answered is not None and self._answered[0] == page and number < self._answered[1]
        if overtaken and content["do"] in ("type", "format"):
            return
        self._answered = self._answered if overtaken else (page, number)
        value = content["with"]
        match content["do"]:
            case "type":
                self._become(typed(self._state, value))
            case "format":
                self._become(in_format(self._state, self._known[value]))
            case "flip":
                self.flip(value)
            case "step":
                self.step(value)

    def still(self) -> dict[str, Any]:
        return still(self.sentence, WHY_STILL, static_bits(self._view))
