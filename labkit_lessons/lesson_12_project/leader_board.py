"""The leader board of the project: most points first, among equals the fewest bytes.

A folder is the board, and each file in it an entrant. Nothing leaves the machine: a class copies
its files into one folder.

Invariant: files are written atomically. An unreadable file is named with the reason, and affects no
other entrant. The files can be edited, so the board is no basis for marks: `labkit grade` is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from labkit.course import lessons_hidden
from labkit.grading.grade import Grade
from labkit.records import write_atomic

SCHEMA = "labkit.leader_board/1"
MAX_BYTES = 1 << 16
_NAME = re.compile(r"\w(?:[\w .-]{0,38}\w)?")
_HEAD = ("place", "name", "points", "bytes kept")


@dataclass(frozen=True)
class Entrant:
    """One line of the board: a name, the points of all projects, and the bytes that their runs
    kept.
    """

    name: str
    points: int
    out_of: int
    bytes: int


@dataclass(frozen=True, repr=False)
class LeaderBoard:
    """The entrants, best first, and the unreadable files with the reasons; a notebook shows a
    table.
    """

    entrants: tuple[Entrant, ...]
    damaged: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Return the rank of each entrant, from 1; equals share one."""
        ranks = [_rank(entrant) for entrant in self.entrants]
        return tuple(ranks.index(rank) + 1 for rank in ranks)

    def _rows(self) -> list[tuple[str, ...]]:
        pairs = zip(self.places, self.entrants, strict=True)
        return [
            (str(place), e.name, f"{e.points} of {e.out_of}", f"{e.bytes:,}") for place, e in pairs
        ]

    def __str__(self) -> str:
        if not self.entrants:
            return "\n".join(["This board has no entries yet.", *self.damaged])
        lines = [
            f"{p:<7}{name:<42}{points:<12}{size:>14}"
            for p, name, points, size in (_HEAD, *self._rows())
        ]
        return "\n".join([*lines, *self.damaged])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._rows()
        )
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        table = (
            f"<table><tr>{head}</tr>{rows}</table>"
            if rows
            else "<p>This board has no entries yet.</p>"
        )
        return table + "".join(f"<p>{escape(line)}</p>" for line in self.damaged)


def enter(folder: Path | str, name: str, grades: Sequence[Grade]) -> Path:
    """Write an entrant into a folder, replacing one of the same name; return its file.

    Bytes are those that the graded runs keep between two steps. Where `labkit grade` runs hand-ins,
    nothing is written.

    Raises:
        ValueError: the name cannot name a file, or there is no grade.
    """
    file = Path(folder) / f"{name}.json"
    if lessons_hidden():
        return file
    if not _NAME.fullmatch(name):
        raise ValueError(
            "expected a name of 1 to 40 letters and digits, inside also space, dot, hyphen and "
            f"underscore, since it names a file; got {name!r}"
        )
    if not grades:
        raise ValueError(
            'expected the grades of your projects: [check("project.targets", my_recipe), ...]'
        )
    points, out_of = sum(grade.points for grade in grades), sum(grade.out_of for grade in grades)
    entrant = Entrant(name, points, out_of, sum(grade.bytes for grade in grades))
    text = json.dumps({"schema": SCHEMA, **asdict(entrant)}, indent=1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return write_atomic(file, text.encode())


def show(folder: Path | str) -> LeaderBoard:
    """Return the board of a folder; a missing folder is an empty board."""
    found: list[Entrant] = []
    damaged: list[str] = []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            found.append(_read(path))
        except (OSError, ValueError, RecursionError) as error:
            damaged.append(
                f"{path.name} is left out: {str(error)[:120]}. Its owner can enter again."
            )
    in_order = sorted(found, key=lambda entrant: (*_rank(entrant), entrant.name))
    return LeaderBoard(tuple(in_order), tuple(damaged))


def _rank(entrant: Entrant) -> tuple[int, int]:
    return -entrant.points, entrant.bytes


def _read(path: Path) -> Entrant:
    """Return the entrant in a file.

    Raises:
        ValueError: `enter` did not write the file; the message says why.
    """
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ValueError(f"expected a file of at most {MAX_BYTES} bytes")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(stored, dict) or stored.pop("schema", None) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    whole = {"points", "out_of", "bytes"}
    right = stored.keys() == whole | {"name"} and all(
        type(stored[k]) is int and stored[k] >= 0 for k in whole
    )
    if not right or not _NAME.fullmatch(str(stored["name"])) or stored["points"] > stored["out_of"]:
        raise ValueError("invalid name, points, out_of or bytes")
    return Entrant(str(stored["name"]), stored["points"], stored["out_of"], stored["bytes"])
