"""How are grades written down, so that none is lost and two gradings can be compared byte for byte?

Idea: rows go into a journal beside the file of grades as they come, one line for each notebook, whole or not there. At
the end, or when the grading is interrupted, the file of grades is written from them: sorted, aside, and renamed. A
journal that is still there belongs to a grading that was cut short; the same command goes on with it.

Invariant: the same rows give the same bytes, in whatever order they came.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from labkit.grading.exercises import EXERCISES
from labkit.grading.plan import Read
from labkit.records import write_atomic

SCHEMA = "labkit.grades/2"
_FORMULA = re.compile(r"'*[=+\-@＝＋－＠\t\r\n]")  # what begins a formula; guarded once, or more often


@dataclass(frozen=True)
class Row:
    """One line of the file of grades; `details` is kept in the journal only: all that the grade says, as plain data."""

    student: str
    notebook: str
    exercise: str
    points: int
    out_of: int
    reason: str
    seed: int = 0
    details: dict[str, Any] = field(default_factory=dict, hash=False)


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Return the rows by student, and for each in the order of the course."""
    places = {id: place for place, id in enumerate(EXERCISES)}
    return sorted(rows, key=lambda row: (row.student, places.get(row.exercise, len(places)), row.notebook))


def write(rows: Iterable[Row], path: Path) -> None:
    """Write the rows as CSV, whole or not at all."""
    text = io.StringIO(newline="")
    columns = [column.name for column in fields(Row) if column.name != "details"]
    table = csv.writer(text)
    table.writerow(columns)
    table.writerows([guard(getattr(row, name)) for name in columns] for row in in_order(rows))
    write_atomic(path, text.getvalue().encode("utf-8", errors="backslashreplace"))


class Journal:
    """The rows of a grading that has not ended: settings in the first line, then the rows of a notebook in each.

    path       where it stands; None: nowhere, nothing is kept
    earlier    where the journal of a grading that ended is kept, for the next one to go on with; None: nowhere
    settings   what a grading must agree in to be the same; the seed is the journal's where None is asked for
    """

    def __init__(self, path: Path | None, settings: Mapping[str, object], earlier: Path | None = None) -> None:
        self.path, self.earlier, self.settings = path, earlier, {"schema": SCHEMA, **settings}
        self.rows: dict[str, list[Row]] = {}
        self._asked = set[str]()
        lines = _lines(path) or _lines(earlier)
        if lines and {**lines[0], "seed": settings["seed"]} == self.settings and self._same_seed(lines[0]):
            self.settings = lines[0]
            for line in lines[1:]:
                self.rows.setdefault(str(line["notebook"]), []).extend(Row(*row) for row in line["rows"])  # type: ignore[attr-defined]

    def _same_seed(self, first: Mapping[str, object]) -> bool:
        return isinstance(first["seed"], int) and self.settings["seed"] in (None, first["seed"])

    def begin(self, seed: int) -> None:
        """Write the journal anew with what was read of it: a line that was cut short is gone."""
        self.settings["seed"] = seed
        if self.path is not None:
            self._write(self.path)

    def _write(self, path: Path) -> None:
        lines = [self.settings, *(_line(key, rows) for key, rows in self.rows.items())]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def add(self, notebook: str, rows: Sequence[Row]) -> None:
        """Keep the rows of a notebook, at once."""
        self.rows.setdefault(notebook, []).extend(rows)
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(json.dumps(_line(notebook, rows)).encode() + b"\n")

    def all_rows(self, notebooks: Iterable[str]) -> list[Row]:
        """Return the rows of these notebooks, in order."""
        notebooks = list(notebooks)
        self._asked.update(notebooks)
        return in_order(row for notebook in notebooks for row in self.rows.get(notebook, []))

    def end(self) -> None:
        """Delete the journal, or keep it as the earlier one, without notebooks that nobody hands in any more."""
        if self.earlier is not None:
            self.rows = {notebook: rows for notebook, rows in self.rows.items() if notebook in self._asked}
            self._write(self.earlier)
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def key_of(one: Read) -> str:
    """Return a word that stands for a submission and all that is in it: who hands in anew is graded anew."""
    content = [one.submission.student, one.submission.notebook, one.problem, [astuple(cell) for cell in one.cells]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def kept_rows(path: Path) -> list[Row]:
    """Return the rows that a grading kept, in order; of a learner's exercise the last one.

    Raises:
        ValueError: the file is none that a grading kept.
    """
    lines = _lines(path)
    if not lines:
        raise ValueError(f"{path} is not what `labkit grade --changed` keeps: FILE.csv.kept")
    rows = [Row(*row) for line in lines[1:] for row in line["rows"]]  # type: ignore[attr-defined]
    return in_order({(row.student, row.exercise): row for row in rows}.values())


def _line(notebook: str, rows: Sequence[Row]) -> dict[str, object]:
    return {"notebook": notebook, "rows": [astuple(row) for row in rows]}


def _lines(path: Path | None) -> list[dict[str, object]]:
    """Return the whole lines of a journal; none where there is no such file, or it is another."""
    if path is None or not path.is_file():
        return []
    lines = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines if all(isinstance(line, dict) for line in lines) and lines and lines[0].get("schema") == SCHEMA else []


def visible(text: str) -> str:
    r"""Return a text on one line, in which nothing steers a terminal or turns the reading direction around.

    >>> visible("a\x1b[31m\n b\u202e")
    'a\\x1b[31m b\\u202e'
    """
    line = re.sub(r"[\t\r\n]\s*", " ", text)
    return "".join(c.encode("unicode_escape").decode() if _steers(c) else c for c in line)


def _steers(letter: str) -> bool:
    joins = letter in "\u200c\u200d"  # as some scripts and pictures need it
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and not joins


def guard(value: object) -> object:
    """Return a value that a spreadsheet shows as it is: a name like "=1+1" is no formula. `unguard` takes it back.

    >>> guard("=1+1"), guard("'=1+1"), guard("ada"), guard(-1)
    ("'=1+1", "''=1+1", 'ada', -1)
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def unguard(text: str) -> str:
    """Return the text that `guard` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
