"""Player of an addition on paper, station by station.

Idea: every column of the paper is a power of two, so aligned bits stand under each other. A `Scene` says which bits
are written at a station, and in which column. All scenes are sent at once; the browser only moves bits from one to the
next. So playing needs no kernel, and a typed number is one message there and back.

Invariant: from left to right, the cells of a row are the bits of the station's record; `sentence` belongs to the
present numbers, format, operation and `step`; what cannot be read is answered in `problems`, and the paper stays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

import traitlets

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, Align, Format, Term, parse
from labkit.widgets.addition.sheet import OPERATIONS, Sheet, bit, facts, hint, sentences, sheet
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import MINUS, number
from labkit.widgets.base.widget import LabWidget, limited

MOST_COLUMNS = 58  # more would be too small to read on a narrow page
GUARD, STICKY = 1, 3  # guard, round and the first sticky place stand 1 to 3 places behind the last one kept
OFFERED = (FP16, BF16, E4M3, E5M2, FP32)
WHY_STATIC = why_still(
    "to play it, or go on in code: player.b = '2^-11'; player.step = 4; print(player.sentence)", "This paper stands"
)


@dataclass(frozen=True)
class Cell:
    """One bit on the paper.

    key    the same bit has the same key in all scenes, so that it can be seen to move
    place  its column, as the exponent of two
    kind   "kept", "zero" (filled in), "rest" (beyond the places kept), "fallen" (remembered in sticky only) or "word"
    """

    key: str
    text: str
    place: int
    kind: str


@dataclass(frozen=True)
class Row:
    """One line: a name before it, the bits, the exponent behind; `point` is the place it stands behind."""

    name: str
    before: str
    sign: str
    cells: tuple[Cell, ...]
    point: int | None
    exponent: int | None


@dataclass(frozen=True)
class Scene:
    """The paper at one station.

    window  first and last place that the format keeps
    sticky  the last place that counts for sticky; None as long as guard, round and sticky have no names
    named   whether the columns have their powers of two
    """

    title: str
    sentence: str
    rows: tuple[Row, ...]
    window: tuple[int, int]
    sticky: int | None
    named: bool


def scenes(sheet: Sheet) -> list[Scene]:
    """Return the paper at every station, with its sentence.

    >>> from labkit.formats import FP16
    >>> from labkit.widgets.addition.sheet import sheet
    >>> [scene.title for scene in scenes(sheet("1", "0.0001", FP16))]
    ['Write', 'Align', 'Add', 'Normalise', 'Guard, round, sticky', 'Round']
    """
    words = sentences(sheet)
    home = _window(sheet, sheet.home)
    if not sheet.finite:
        rows = tuple(_name(name, value) for name, value in zip("ab", sheet.values, strict=True))
        last = (*rows, _name("result", sheet.value))
        return [Scene(*word, found, home, None, False) for word, found in zip(words, (rows, last), strict=True)]
    written = tuple(_operand(sheet, name, sheet.home) for name in "ab")
    total = _total(sheet, sheet.home, home)
    window = _window(sheet, sheet.window)
    cut = _total(sheet, sheet.window, window)
    end = _sticky(sheet, window)
    drawn: list[tuple[tuple[Row, ...], tuple[int, int], int | None]] = [(written, home, None)]
    if sheet.operation == "multiply":
        drawn.append(((*written, total), home, None))
        aligned = tuple(_operand(sheet, name, sheet.window) for name in "ab")  # factors need no place of their own
    else:
        aligned = tuple(_aligned(sheet, name) for name in "ab")
        drawn += [(aligned, home, _sticky(sheet, home)), ((*aligned, total), home, _sticky(sheet, home))]
    drawn += [((*aligned, cut), window, end)] * 2
    one = Row("", "+", "", (Cell("one", "1", int(sheet.cut.kept.exponent), "kept"),), None, None)
    point, bits = sheet.window + int(sheet.final.carried), sheet.final.rounded
    last_window = _window(sheet, point)
    places = range(point, last_window[1] - 1, -1)
    cells = tuple(Cell(f"r@{place}", bit(bits, place), place, "kept") for place in places)
    sign = MINUS if bits.negative and bits.significand else ""
    rounded = Row("result", "=", sign, cells, point, point)
    drawn.append(((*aligned, cut, *[one] * bool(sheet.final.up), rounded), last_window, end))
    return [
        Scene(*word, rows, kept, sticky, named=i > 0)
        for i, (word, (rows, kept, sticky)) in enumerate(zip(words, drawn, strict=True))
    ]


def columns(found: list[Scene]) -> list[int | None]:
    """Return the places from left to right that the paper needs; None is a gap, where many only hold filled-in zeros.

    The last column is cut off where the paper would become too wide to read.
    """
    cells = [cell for scene in found for row in scene.rows for cell in row.cells]
    if not cells:
        return []
    edges = [place for scene in found for place in (scene.window[0], scene.window[1] - STICKY)]
    high, low = max(*edges, *(c.place for c in cells)), min(*edges, *(c.place for c in cells))
    places: list[int | None] = list(range(high, low - 1, -1))
    if len(places) <= MOST_COLUMNS:
        return places
    needed = {c.place for c in cells if c.kind != "zero"}
    for scene in found:
        needed |= set(range(scene.window[1] - STICKY, scene.window[0] + 1))
    kept: list[int | None] = []
    for place in range(high, low - 1, -1):
        near = any(place + step in needed for step in range(-1, 2))
        if near or not kept:
            kept.append(place)
        elif kept[-1] is not None:
            kept.append(None)
    return kept if len(kept) <= MOST_COLUMNS else [*kept[: MOST_COLUMNS - 1], None]


def as_json(found: list[Scene]) -> list[dict[str, Any]]:
    """Return the scenes as the browser gets them: cells as [key, text, place, kind]."""
    sent = [asdict(scene) for scene in found]
    for row in (row for scene in sent for row in scene["rows"]):
        row["cells"] = [list(cell.values()) for cell in row["cells"]]
    return sent


def paper(found: list[Scene]) -> str:
    """Write the last scene as text, for a host that shows nothing else: all rows, then each station in words.

    >>> from labkit.formats import FP16
    >>> from labkit.widgets.addition.sheet import sheet
    >>> print(paper(scenes(sheet("1", "0.0001", FP16))).split("Write")[0])
    a        1.0000000000                 × 2^0
    b        0.0000000000 001 11010001110 × 2^0
    sum      1.0000000000 001             × 2^0
    result   1.0000000000                 × 2^0
    """
    lines = [_line(row, found[-1]) for row in found[-1].rows if row.name]
    width = max(len(line) for line, _ in lines)
    text = "\n".join(f"{line.ljust(width)} {power}".rstrip() for line, power in lines)
    return text + "\n" + "\n".join(f"{scene.title}: {scene.sentence}" for scene in found)


def _line(row: Row, scene: Scene) -> tuple[str, str]:
    text, before = "", None
    for cell in sorted(row.cells, key=lambda cell: -cell.place):
        text += " … " if before is not None and before > cell.place + 1 else ""
        before = cell.place
        if cell.place in (scene.window[1] - GUARD, scene.window[1] - STICKY - 1) and text[-1:] != " ":
            text += " "
        text += cell.text + ("." if cell.place == row.point else "")
    return f"{row.name:<8}{row.sign or ' '}{text}", "" if row.exponent is None else f"× 2^{row.exponent}"


def _window(sheet: Sheet, first: int) -> tuple[int, int]:
    return first, first - sheet.format.significand_bits


def _sticky(sheet: Sheet, window: tuple[int, int]) -> int:
    last = int(sheet.total.exponent)
    if isinstance(sheet.first, Align):
        last = int(sheet.first.aligned_a.exponent)
    return min(last, window[1] - STICKY)


def _operand(sheet: Sheet, name: str, first: int) -> Row:
    """Write a or b with its own exponent, its bits from column `first` on."""
    term: Term = getattr(sheet.first, name)
    own = int(term.exponent) + sheet.format.significand_bits
    places = range(own, own - sheet.format.precision, -1)
    cells = tuple(Cell(f"{name}{i}", bit(term, place), first - i, "kept") for i, place in enumerate(places))
    before = OPERATIONS[sheet.operation][0] if name == "b" else ""
    return Row(name, before, MINUS if term.negative else "", cells, first, own)


def _aligned(sheet: Sheet, name: str) -> Row:
    """Write a or b with the exponent of the larger one: zeros in front, and behind the sticky bit what fell off."""
    station, home = sheet.first, sheet.home
    written = _operand(sheet, name, home)
    if not getattr(sheet.first, name).significand:
        return replace(written, exponent=home)
    aligned: Term = getattr(station, f"aligned_{name}")
    low, last = _window(sheet, home)[1], int(aligned.exponent)
    own = {cell.place + (written.exponent or 0) - home: cell for cell in written.cells}
    cells = []
    for place in range(home, min(last, *own) - 1, -1):
        cell = own.get(place)
        if place < last:
            cells += [replace(cell, place=place, kind="fallen")] if cell else []
        elif cell or place > max(own) or bit(aligned, place) == "1":
            filled = cell is None and bit(aligned, place) == "0"
            kind = "zero" if filled else "kept" if place >= low else "rest"
            cells.append(Cell(cell.key if cell else f"{name}@{place}", bit(aligned, place), place, kind))
    return replace(written, cells=tuple(cells), exponent=home)


def _total(sheet: Sheet, point: int, window: tuple[int, int]) -> Row:
    """Write the exact result with its point, and say which of its bits the window keeps."""
    total = sheet.total
    last = int(total.exponent)
    top = last + int(total.significand).bit_length() - 1
    cells = []
    for place in range(max(point, top), min(last, window[1] - STICKY) - 1, -1):
        filled = place < last or place > max(top, point)
        kind = "zero" if filled else "kept" if place >= window[1] else "rest"
        cells.append(Cell(f"t@{place}", bit(total, place), place, kind))
    sign = MINUS if total.negative and total.significand else ""
    return Row(OPERATIONS[sheet.operation][1], "=", sign, tuple(cells), point, point)


def _name(name: str, value: float) -> Row:
    """Write an infinity, a NaN, or a number beside one: it has a name instead of bits."""
    return Row(name, "=" if name == "result" else "", "", (Cell(name, number(value), 0, "word"),), None, None)


class AdditionPlayer(LabWidget, folders=("addition",)):
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
        given = {"a": a, "b": b}  # a number is written so that reading it gives it back
        typed = {n: x if isinstance(x, str) else repr(float(x)).removesuffix(".0") for n, x in given.items()}
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
        return self.sheet.value

    @limited("operation", "format_name", "step")
    def _places(self) -> dict[str, Collection[Any]]:
        return {"operation": OPERATIONS, "format_name": self._formats, "step": range(len(self._scenes))}

    @traitlets.observe("a", "b", "format_name", "operation")
    def _calculate(self, _change: object = None) -> None:
        problems = {}
        for name in "ab":
            try:
                parse(getattr(self, name), self.format)
            except ValueError as error:
                problems[name] = str(error)
        with self.hold_sync():
            self.problems = problems
            if problems:
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
        return still(f"{paper(self._scenes)}\n", WHY_STATIC)
