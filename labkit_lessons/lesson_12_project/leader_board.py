"""The leader board of the project, by points and then by the fewest bytes.

A board is a folder, and each file in it is an entrant. Nothing leaves the machine: a class copies
its files into one folder.

Invariant: files are written atomically. An unreadable file is reported with its reason, and affects
no other entrant. Learners can edit the files, so take marks from `labkit grade`, not from a board.
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
# A file of the board has about 100 bytes. A larger one is of another kind, and is not read.
MAX_BYTES = 1 << 16
_NAME = re.compile(r"\w(?:[\w .-]{0,38}\w)?")
_HEAD = ("place", "name", "points", "bytes kept")


@dataclass(frozen=True)
class Entrant:
    """A line of the board.

    Attributes:
        name: The name that the learner chose.
        points: The points of all projects.
        out_of: The points that the projects can give.
        bytes: The bytes that the graded runs keep between two steps.
    """

    name: str
    points: int
    out_of: int
    bytes: int


@dataclass(frozen=True, repr=False)
class LeaderBoard:
    """The entrants of a board, which a notebook shows as a table.

    Attributes:
        entrants: The entrants, best first.
        damaged: A line about each unreadable file.
    """

    entrants: tuple[Entrant, ...]
    damaged: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """The rank of each entrant, from 1; equal entrants share a rank."""
        ranks = [_rank(entrant) for entrant in self.entrants]
        return tuple(ranks.index(rank) + 1 for rank in ranks)

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for place, entrant in zip(self.places, self.entrants, strict=True):
            points = f"{entrant.points} of {entrant.out_of}"
            rows.append((str(place), entrant.name, points, f"{entrant.bytes:,}"))
        return rows

    def __str__(self) -> str:
        if not self.entrants:
            return "\n".join(["This board has no entries yet.", *self.damaged])
        lines = [
            f"{place:<7}{name:<42}{points:<12}{size:>14}"
            for place, name, points, size in [_HEAD, *self._rows()]
        ]
        return "\n".join([*lines, *self.damaged])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        html = "<p>This board has no entries yet.</p>"
        if self.entrants:
            head = "".join(f"<th>{name}</th>" for name in _HEAD)
            rows = ""
            for row in self._rows():
                cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
                rows += f"<tr>{cells}</tr>"
            html = f"<table><tr>{head}</tr>{rows}</table>"
        return html + "".join(f"<p>{escape(line)}</p>" for line in self.damaged)


def enter(folder: Path | str, name: str, grades: Sequence[Grade]) -> Path:
    """Write an entrant into a folder, and return its file. It replaces one of the same name.

    When `labkit grade` runs submissions, this function writes nothing.

    Args:
        folder: The folder of the board.
        name: The name of the entrant and of its file.
        grades: The grades of the projects, as `check` returns them.

    Raises:
        ValueError: If the name cannot name a file, or there are no grades.
    """
    file = Path(folder) / f"{name}.json"
    if lessons_hidden():
        return file
    if not _NAME.fullmatch(name):
        raise ValueError(
            "expected a name of 1 to 40 letters, digits and underscores, inside also space, dot "
            f"and hyphen, since it names a file; got {name!r}"
        )
    if not grades:
        raise ValueError(
            'expected the grades of your projects: [check("project.targets", my_recipe), ...]'
        )
    entrant = Entrant(
        name,
        points=sum(grade.points for grade in grades),
        out_of=sum(grade.out_of for grade in grades),
        bytes=sum(grade.bytes for grade in grades),
    )
    text = json.dumps({"schema": SCHEMA, **asdict(entrant)}, indent=1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    return write_atomic(file, text.encode())


def show(folder: Path | str) -> LeaderBoard:
    """Return the board in a folder; a missing folder is an empty board."""
    entrants: list[Entrant] = []
    damaged: list[str] = []
    for path in sorted(Path(folder).glob("*.json")):
        try:
            entrants.append(_read_entrant(path))
        except (OSError, ValueError, RecursionError) as error:
            damaged.append(
                f"{path.name} is left out: {str(error)[:120]}. Its owner can enter again."
            )
    entrants.sort(key=lambda entrant: (*_rank(entrant), entrant.name))
    return LeaderBoard(tuple(entrants), tuple(damaged))


def _rank(entrant: Entrant) -> tuple[int, int]:
    return -entrant.points, entrant.bytes


def _read_entrant(path: Path) -> Entrant:
    """Return the entrant in a file.

    Raises:
        ValueError: If the file is not as `enter` writes it. The message says why.
    """
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        raise ValueError(f"expected a file of at most {MAX_BYTES} bytes")
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(stored, dict) or stored.pop("schema", None) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    if stored.keys() != {"name", "points", "out_of", "bytes"}:
        raise ValueError("expected name, points, out_of and bytes in it")
    for field in ("points", "out_of", "bytes"):
        if type(stored[field]) is not int or stored[field] < 0:
            raise ValueError(f"{field}: expected a whole number from 0 on, got {stored[field]!r}")
    name = stored["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name: expected 1 to 40 letters, digits and the like, got {name!r}")
    points = stored["points"]
    out_of = stored["out_of"]
    if points > out_of:
        raise ValueError(f"points: expected at most {out_of}, got {points}")
    return Entrant(name, points, out_of, stored["bytes"])
