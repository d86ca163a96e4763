"""Results of a grading: rows, the log of a running grading, and the file of grades.

The rows of each notebook are appended to a log beside the file of grades, as one line of JSON. At
the end, or after an interrupt, the file of grades is written from the log, sorted and atomically. A
log that remains belongs to an interrupted grading, which the same command resumes.

Invariant: the same rows give the same bytes, in any order in which they were produced.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from labkit.grading.exercises import EXERCISES
from labkit.grading.submission import Submission
from labkit.records import write_atomic
from labkit.records.journal import append_line, read_lines

SCHEMA = "labkit.grades/3"
# Logs of this schema have no digests. Their seed is used, and the board uses their rows.
BEFORE = "labkit.grades/2"
# Reasons why rows of an earlier grading are not used, by the setting that differs.
_CHANGED = {
    "lab": "the lab's grading, Python or torch changed",
    "lesson": "--lesson changed",
    "memory": "--memory changed",
    "old_forms": "--old-forms changed",
    "schema": "an earlier version of the lab graded them",
    "seconds": "--seconds changed",
}
# The start of a formula in a spreadsheet, escaped any number of times.
_FORMULA = re.compile(r"'*[=+\-@＝＋－＠\t\r\n]")


@dataclass(frozen=True)
class GradeRow:
    """A line of the file of grades.

    Attributes:
        student: The name of the student.
        notebook: The name of the notebook.
        exercise: The id of the exercise.
        points: The points of the answer.
        out_of: The points of the exercise.
        reason: Why the answer has these points.
        seed: The seed of the cases.
        details: The whole grade as plain data, in the log only.
    """

    student: str
    notebook: str
    exercise: str
    points: int
    out_of: int
    reason: str
    seed: int = 0
    details: dict[str, Any] = field(default_factory=dict, hash=False)


def in_order(rows: Iterable[GradeRow]) -> list[GradeRow]:
    """Return the rows by student, and for each student in the order of the course."""
    places = {id: place for place, id in enumerate(EXERCISES)}
    return sorted(
        rows,
        key=lambda row: (
            row.student,
            places.get(row.exercise, len(places)),
            # An earlier version of the course may have had other exercises.
            row.exercise,
            row.notebook,
        ),
    )


def best_of(rounds: Iterable[Iterable[GradeRow]]) -> list[GradeRow]:
    """Return the row with the most points for each learner and exercise.

    Among rows with equal points, the row of the first round is returned.
    """
    best: dict[tuple[str, str], GradeRow] = {}
    for rows in rounds:
        for row in rows:
            key = (row.student, row.exercise)
            if key not in best or row.points > best[key].points:
                best[key] = row
    return in_order(best.values())


def write(
    rows: Iterable[GradeRow], path: Path, late: Mapping[tuple[str, str], int] | None = None
) -> None:
    """Write the rows as CSV, atomically.

    Args:
        rows: The rows to write, in any order.
        path: The file of grades.
        late: The days by which each (learner, notebook) is late. None without a deadline, when the
            column is empty.
    """
    text = io.StringIO(newline="")
    columns = [column.name for column in fields(GradeRow) if column.name != "details"]
    table = csv.writer(text)
    table.writerow([*columns, "late_days"])
    for row in in_order(rows):
        days = "" if late is None else late.get((row.student, row.notebook), 0)
        table.writerow([*(guard(getattr(row, name)) for name in columns), days])
    write_atomic(path, text.getvalue().encode("utf-8", errors="backslashreplace"))


class GradingLog:
    """The rows of a grading in progress.

    The file has the settings in its first line, and then a line for each notebook. A later grading
    uses those rows of an earlier one that it would produce itself: rows with the same seed and
    settings, of an exercise with the same digest. If other settings differ, it still uses the seed.

    Args:
        path: The file of the log; None keeps the rows in memory only.
        settings: The settings that the rows of two gradings must share. If the seed is None, the
            seed of the log is used.
        earlier: The file that keeps the log of a completed grading for the next one, or None.
        digest: Returns, for (exercise, seed), a digest of everything that its rows depend on except
            the answers.
    """

    def __init__(
        self,
        path: Path | None,
        settings: Mapping[str, object],
        earlier: Path | None = None,
        digest: Callable[[str, int], str] = lambda exercise, seed: "",
    ) -> None:
        self.path = path
        self.earlier = earlier
        self.settings = {"schema": SCHEMA, **settings}
        self.rows: dict[str, list[GradeRow]] = {}
        self._requested = set[str]()
        self._digest = digest
        self._before = _log_lines(path) or _log_lines(earlier)
        seed = self._before[0].get("seed") if self._before else None
        if not isinstance(seed, int) or settings["seed"] not in (None, seed):
            self._before = []
        elif settings["seed"] is None:
            self.settings["seed"] = seed

    def read(self, seed: int) -> list[str]:
        """Read the earlier rows that a grading with this seed uses.

        Returns:
            A sentence for each reason why earlier rows are graded again.
        """
        self.settings["seed"] = seed
        if not self._before:
            return []
        first, *lines = self._before
        names = sorted((first.keys() | self.settings.keys()) - {"seed"})
        different = [name for name in names if first.get(name) != self.settings.get(name)]
        if different:
            reasons = [_CHANGED.get(name, name) for name in different]
            return [f"graded again, with the same seed, as {reason}" for reason in reasons]
        changed = Counter[str]()
        for line in lines:
            rows = _rows_in(line)
            digests = line.get("digests", {})
            same = [row for row in rows if digests.get(row.exercise, "") == self._of(row.exercise)]
            changed.update(row.exercise for row in rows if row not in same)
            if same:
                self.rows.setdefault(str(line["notebook"]), []).extend(same)
        return [
            f"graded again, as the exercise changed: {exercise} (rows: {count})"
            for exercise, count in changed.items()
        ]

    def begin(self) -> None:
        """Write the log with the rows that were read, and without damaged lines."""
        if self.path is not None:
            self._write(self.path)

    def _of(self, exercise: str) -> str:
        return self._digest(exercise, int(str(self.settings["seed"])))

    def _write(self, path: Path) -> None:
        lines = [self.settings, *(self._line(key, rows) for key, rows in self.rows.items())]
        write_atomic(path, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def add(self, notebook: str, rows: Sequence[GradeRow]) -> None:
        """Append the rows of a notebook."""
        self.rows.setdefault(notebook, []).extend(rows)
        if self.path is not None:
            append_line(self.path, self._line(notebook, rows))

    def _line(self, notebook: str, rows: Sequence[GradeRow]) -> dict[str, object]:
        digests = {row.exercise: self._of(row.exercise) for row in rows}
        return {"notebook": notebook, "rows": [astuple(row) for row in rows], "digests": digests}

    def all_rows(self, notebooks: Iterable[str]) -> list[GradeRow]:
        """Return the rows of these notebooks, in order."""
        notebooks = list(notebooks)
        self._requested.update(notebooks)
        return in_order(row for notebook in notebooks for row in self.rows.get(notebook, []))

    def keep_others(self, student: str) -> list[GradeRow]:
        """Remove the rows of a learner from the log, and return those of all others."""
        kept: dict[str, list[GradeRow]] = {}
        for notebook, rows in self.rows.items():
            others = [row for row in rows if row.student != student]
            if others:
                kept[notebook] = others
        self.rows = kept
        self._requested.update(kept)
        return [row for rows in kept.values() for row in rows]

    def end(self) -> None:
        """Delete the log; save the rows of this grading as the earlier log if there is one."""
        if self.earlier is not None:
            self.rows = {
                notebook: rows
                for notebook, rows in self.rows.items()
                if notebook in self._requested
            }
            self._write(self.earlier)
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def key_of(one: Submission) -> str:
    """Return a key of a submission and its content: a changed notebook is graded again."""
    content = [one.student, one.notebook, one.problem, [astuple(cell) for cell in one.cells]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def logged_rows(path: Path) -> list[GradeRow]:
    """Return the rows in a grading's log, in order; the last one for each learner and exercise.

    Raises:
        ValueError: If the file is not the log of a grading.
    """
    lines = _log_lines(path)
    if not lines:
        raise ValueError(
            f"expected the log that `labkit grade --changed` writes, FILE.csv.kept; got {path}"
        )
    rows = [row for line in lines[1:] for row in _rows_in(line)]
    return in_order({(row.student, row.exercise): row for row in rows}.values())


def _log_lines(path: Path | None) -> list[dict[str, Any]]:
    """Return the lines of a grading's log; [] if the file is missing or is not a log."""
    lines = read_lines(path) if path is not None else []
    return lines if lines and lines[0].get("schema") in (SCHEMA, BEFORE) else []


def _rows_in(line: Mapping[str, Any]) -> list[GradeRow]:
    """Return the rows in a line of a grading's log; [] if the line is damaged."""
    try:
        return [GradeRow(*row) for row in line["rows"]]
    except (KeyError, TypeError):
        return []


def visible(text: str) -> str:
    r"""Return a text on one line, with control and bidirectional characters escaped.

    >>> visible("a\x1b[31m\n b\u202e")
    'a\\x1b[31m b\\u202e'
    """
    control = ("Cc", "Cf", "Cs", "Zl", "Zp")
    # Joiners belong to the writing of some languages, and to some emoji.
    joiners = "\u200c\u200d"
    letters = []
    for letter in re.sub(r"[\t\r\n]\s*", " ", text):
        if unicodedata.category(letter) in control and letter not in joiners:
            letters.append(letter.encode("unicode_escape").decode())
        else:
            letters.append(letter)
    return "".join(letters)


def guard(value: object) -> object:
    """Escape a text that a spreadsheet would take for a formula; `unguard` is the inverse.

    >>> guard("=1+1"), guard("'=1+1"), guard("ada"), guard(-1)
    ("'=1+1", "''=1+1", 'ada', -1)
    """
    if isinstance(value, str) and _FORMULA.match(value):
        return f"'{value}"
    return value


def unguard(text: str) -> str:
    """Return the text that `guard` escaped."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text
