"""Who is in the class, and how do the marks get into the school's system?

Idea: the table that the system exports is the roster, and the same table with the marks filled in is what it imports:
Canvas's gradebook, Moodle's grading worksheet, or any table of names. A learner is found in it by the number that the
system wrote into the names of files, or by a cell that is the learner's name.

Invariant: a mark that finds no row, or more than one, is told and goes nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.classroom.marks import Mark, by_student, total
from labkit.classroom.tables import Line, read_table, same_name, write_table
from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES

POSSIBLE = "points possible"  # Canvas's second line


@dataclass(frozen=True)
class Roster:
    """The class as a table; kind is "canvas", "moodle" or "plain"."""

    lines: tuple[Line, ...]
    kind: str

    def learners(self) -> list[Line]:
        """Return the lines that stand for people."""
        return [line for line in self.lines if POSSIBLE not in line.get("Student", "").lower()]

    def name(self, line: Line) -> str:
        """Return how a line's learner is called."""
        return next((value for key in ("Student", "Full name", "name", "learner") if (value := line.get(key))), "") or (
            next((value for value in line.values() if value), "")
        )

    def find(self, student: str) -> list[Line]:
        """Return the lines of a learner who handed in under this name."""
        number = student.rpartition("_")[2] if re.search(r"_\d+$", student) else ""
        column = {"canvas": "ID", "moodle": "Identifier"}.get(self.kind, "")
        if number and column:
            return [line for line in self.learners() if number in re.findall(r"\d+", line.get(column, ""))]
        return [line for line in self.learners() if same_name(student) in map(same_name, line.values())]


def read_roster(path: Path) -> Roster:
    """Return the class from a table.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds nobody.
    """
    lines = tuple(read_table(path))
    columns = set(lines[0]) if lines else set()
    kind = "canvas" if {"Student", "ID"} <= columns else "moodle" if {"Identifier", "Grade"} <= columns else "plain"
    roster = Roster(lines, kind)
    if not roster.learners():
        raise ValueError(f"{path} names nobody: a roster has a line of column names and a line for each learner")
    return roster


def notices(roster: Roster, students: Sequence[str]) -> list[str]:
    """Return who of the roster is missing, and who handed in and is not found in it, each as a sentence."""
    found = {student: roster.find(student) for student in students}
    there = [line for lines in found.values() if len(lines) == 1 for line in lines]
    said = [f"{roster.name(line)} handed nothing in" for line in roster.learners() if line not in there]
    for student, lines in found.items():
        if len(lines) != 1:
            said.append(f"{student} stands on {len(lines) or 'no'} line{'s' * (len(lines) > 1)} of the roster")
    return said


def write_gradebook(path: Path, marks: Sequence[Mark], roster: Roster | None) -> None:
    """Write the marks as one wide table, a learner to a line: the roster's own table where there is one.

    Canvas gets a column of points for each lesson; Moodle its Grade, in the share of its Maximum Grade, and a comment;
    any other table a column for each lesson, for each exercise, and the sum.

    Raises:
        OSError: it cannot be written.
    """
    own = by_student(marks)
    if roster is None:
        roster = Roster(tuple({"learner": student} for student in own), "plain")
    found = {id(lines[0]): own[s] for s in own if len(lines := roster.find(s)) == 1}
    rows = [{**line, **_columns(roster.kind, line, found.get(id(line), []), marks)} for line in roster.lines]
    write_table(path, list(dict.fromkeys(name for row in rows for name in row)), rows)


def _columns(kind: str, line: Line, own: Sequence[Mark], marks: Sequence[Mark]) -> Mapping[str, object]:
    lessons = list(dict.fromkeys(EXERCISES[mark.row.exercise].lesson for mark in marks))
    if kind == "canvas":
        if POSSIBLE in line["Student"].lower():
            return {lesson: sum(e.points for e in _asked(lesson, marks)) for lesson in lessons}
        return {lesson: _points(lesson, own) for lesson in lessons}
    if kind == "moodle":
        points, out_of = total(own)
        limit = float(line.get("Maximum Grade") or out_of)
        told = f"{points:g} of {out_of} points" if own else ""
        return {"Grade": f"{points * limit / out_of:.2f}" if out_of else "", "Feedback comments": told}
    exercises = {mark.row.exercise: f"{mark.points:g}" for mark in own}
    asked = [exercise.id for lesson in lessons for exercise in _asked(lesson, marks)]
    whole: dict[str, object] = {lesson: _points(lesson, own) for lesson in lessons}
    return whole | {id: exercises.get(id, "") for id in asked} | {"total": f"{total(own)[0]:g}" if own else ""}


def _asked(lesson: str, marks: Sequence[Mark]) -> list[Exercise]:
    ids = {mark.row.exercise for mark in marks}
    return [exercise for exercise in EXERCISES.values() if exercise.lesson == lesson and exercise.id in ids]


def _points(lesson: str, own: Sequence[Mark]) -> str:
    marks = [mark for mark in own if EXERCISES[mark.row.exercise].lesson == lesson]
    return f"{total(marks)[0]:g}" if marks else ""
