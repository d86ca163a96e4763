"""What does a learner get in the end? What grading gave, less what lateness costs, or what the teacher says.

Idea: the teacher's points and comments stand in a file of their own, which no grading writes; so they survive any
number of them. They count after everything else.

Invariant: every line of that file is used, or told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.classroom.tables import Names, read_table
from labkit.grading.exercises import EXERCISES
from labkit.grading.table import Row


@dataclass(frozen=True)
class Said:
    """What a teacher says of an answer; `points` is None where only a comment is meant."""

    points: float | None
    comment: str


@dataclass(frozen=True)
class Mark:
    """A row of grading, and what counts of it.

    points      what counts
    late_days   begun days after work was due
    said        what the teacher says of it; None where nothing
    """

    row: Row
    points: float
    late_days: int = 0
    said: Said | None = None


def marks_of(
    rows: Sequence[Row],
    late: Mapping[tuple[str, str], int],
    percent: float,
    said: Mapping[tuple[str, str], Said],
) -> list[Mark]:
    """Return what counts of each row.

    late      (learner, notebook) -> days after work was due
    percent   of the points earned, taken off for each of these days
    said      (learner, exercise) -> what the teacher says; the learner's name as the teacher writes it
    """
    words = by_row(said, [row.student for row in rows])
    return [_mark(row, late.get((row.student, row.notebook), 0), percent, words) for row in rows]


def by_row(said: Mapping[tuple[str, str], Said], students: Iterable[str]) -> dict[tuple[str, str], Said]:
    """Return (learner, exercise) -> what the teacher says, by the names under which learners handed in.

    A name stands for the learner who is called so to the letter, or else for the only one whose name differs by no more
    than case, spaces, or how ü is written.
    """
    known = list(dict.fromkeys(students))
    names = Names((student, number) for number, student in enumerate(known))
    found = {}
    for (name, exercise), word in said.items():
        _, places = names.find(name)
        if len(places) == 1:
            found[known[places[0]], exercise] = word
    return found


def total(marks: Sequence[Mark]) -> tuple[float, int]:
    """Return the points of these marks together, and what they are out of."""
    return round(sum(mark.points for mark in marks), 2), sum(mark.row.out_of for mark in marks)


def by_student(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """Return each learner's marks."""
    found: dict[str, list[Mark]] = {}
    for mark in marks:
        found.setdefault(mark.row.student, []).append(mark)
    return found


def read_said(path: Path) -> dict[tuple[str, str], Said]:
    """Return what a teacher says, from a table with the columns student, exercise, points and comment.

    Points may be empty; an exercise may be, where the comment is on all of a learner's work.

    Raises:
        OSError: it cannot be read.
        ValueError: a column is missing, points are no number, or there is no such exercise; the message has the line.
    """
    found = {}
    for number, written in enumerate(read_table(path), start=2):
        line = {name.strip(): text.strip() for name, text in written.items()}
        if not {"student", "exercise", "points", "comment"} <= line.keys():
            raise ValueError(f"{path} needs the columns student, exercise, points, comment; it has {', '.join(line)}")
        if not any(line.values()):
            continue
        if line["exercise"] and line["exercise"] not in EXERCISES:
            raise ValueError(f"{path}, line {number}: there is no exercise {line['exercise']!r}")
        try:
            points = float(line["points"].replace(",", ".")) if line["points"] else None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {line['points']!r} is no number of points") from error
        if points is not None and not (line["exercise"] and 0 <= points < float("inf")):
            raise ValueError(f"{path}, line {number}: points from 0 on go to one exercise, not to {points:g} of all")
        found[line["student"], line["exercise"]] = Said(points, line["comment"])
    return found


def unused(said: Mapping[tuple[str, str], Said], rows: Sequence[Row]) -> list[str]:
    """Return the lines of a teacher that belong to nobody who handed in, each as a sentence."""
    there = {(row.student, row.exercise) for row in rows} | {(row.student, "") for row in rows}
    students = dict.fromkeys(row.student for row in rows)
    unused = []
    for (name, exercise), word in said.items():
        if not there & by_row({(name, exercise): word}, students).keys():
            unused.append(f"no row for {name!r} {exercise}: what you say of it is unused")
    return unused


def _mark(row: Row, days: int, percent: float, said: Mapping[tuple[str, str], Said]) -> Mark:
    earned = round(row.points * (1 - min(100.0, days * percent) / 100), 2)
    word = said.get((row.student, row.exercise))
    points = word.points if word is not None and word.points is not None else earned
    return Mark(row, points, days, word)
