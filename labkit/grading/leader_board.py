"""Who made it work, and at the least memory?

Idea: a folder is the board, and a file in it is an entrant. Nothing leaves the machine: a class that wants one board
copies its files into one folder. More points come first; among equals, fewer bytes.

Invariant: a file is whole or not there, and one that cannot be read costs nobody else a place: it is named, with why.
The board is for fun: its files can be edited, and marks are given by `labkit grade`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from labkit.grading.grade import Grade
from labkit.records import write_atomic

SCHEMA = "labkit.leader_board/1"
MAX_BYTES = 1 << 16
_NAME = re.compile(r"\w(?:[\w .-]{0,38}\w)?")
_HEAD = ("place", "name", "points", "bytes kept")


@dataclass(frozen=True)
class Entrant:
    """One line of the board: a name, the points of all projects together, and the bytes that their runs kept."""

    name: str
    points: int
    out_of: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Board:
    """The entrants, the best first, and the files that could not be read, each with why; a notebook shows a table."""

    entrants: tuple[Entrant, ...]
    damaged: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Return the place of each entrant, from 1; equals share one."""
        ranks = [_rank(entrant) for entrant in self.entrants]
        return tuple(ranks.index(rank) + 1 for rank in ranks)

    def _rows(self) -> list[tuple[str, ...]]:
        pairs = zip(self.places, self.entrants, strict=True)
        return [(str(place), e.name, f"{e.points} of {e.out_of}", f"{e.bytes:,}") for place, e in pairs]

    def __str__(self) -> str:
        if not self.entrants:
            return "\n".join(["Nobody is on this board yet.", *self.damaged])
        lines = [f"{p:<7}{name:<42}{points:<12}{size:>14}" for p, name, points, size in (_HEAD, *self._rows())]
        return "\n".join([*lines, *self.damaged])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        table = f"<table><tr>{head}</tr>{rows}</table>" if rows else "<p>Nobody is on this board yet.</p>"
        return table + "".join(f"<p>{escape(line)}</p>" for line in self.damaged)


def enter(folder: Path | str, name: str, grades: Sequence[Grade]) -> Path:
    """Write an entrant's line into a folder, in the place of an earlier one of the same name; return its file.

    Bytes are those of the runs that the grades come from: of each, what it keeps between two steps.

    Raises:
        ValueError: the name is no name for a file, or there is no grade.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            "a name on the board has 1 to 40 letters and digits, inside it also space, dot, hyphen and underscore, "
            f"because it becomes a file's; it was given {name!r}"
        )
    if not grades:
        raise ValueError('an entry takes the grades of your projects: [check("project.targets", my_recipe), ...]')
    points, out_of = sum(grade.points for grade in grades), sum(grade.out_of for grade in grades)
    entrant = Entrant(name, points, out_of, sum(grade.bytes for grade in grades))
    text = json.dumps({"schema": SCHEMA, **asdict(entrant)}, indent=1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return write_atomic(Path(folder) / f"{name}.json", text.encode())


def show(folder: Path | str) -> Board:
    """Return the board of a folder; one that is not there is empty."""
    found: list[Entrant] = []
    damaged: list[str] = []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            found.append(_read(path))
        except (OSError, ValueError, RecursionError) as error:
            damaged.append(f"{path.name} is left out: {str(error)[:120]}. Its owner can enter again.")
    return Board(in_order(found), tuple(damaged))


def in_order(entrants: Iterable[Entrant]) -> tuple[Entrant, ...]:
    """Return the entrants, the best first, equals by name."""
    return tuple(sorted(entrants, key=lambda entrant: (*_rank(entrant), entrant.name)))


def _rank(entrant: Entrant) -> tuple[int, int]:
    return -entrant.points, entrant.bytes


def _read(path: Path) -> Entrant:
    """Return the entrant in a file.

    Raises:
        ValueError: the file is none that `enter` wrote; the message says why.
    """
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is no file of at most {MAX_BYTES} bytes")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(stored, dict) or stored.pop("schema", None) != SCHEMA:
        raise ValueError(f"it does not say that it is {SCHEMA}")
    whole = {"points", "out_of", "bytes"}
    right = stored.keys() == whole | {"name"} and all(type(stored[k]) is int and stored[k] >= 0 for k in whole)
    if not right or not _NAME.fullmatch(str(stored["name"])) or stored["points"] > stored["out_of"]:
        raise ValueError("name, points, out_of and bytes are not what they should be")
    return Entrant(str(stored["name"]), stored["points"], stored["out_of"], stored["bytes"])
