"""Marks: points after lateness and the teacher's own, and the gradebook of the school's system.

The teacher's points and comments are in a separate file, which no grading writes, and take
precedence. The table that the school's system exports is the roster; the same table with marks is
what the system imports: Canvas's gradebook, Moodle's grading worksheet, or any table of names. A
learner is found in it by the number that the system wrote into file names, or by a cell with the
learner's name.

Invariant: every line of the teacher's file is used or reported. A mark that matches no row of the
roster, or more than one, is reported and skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.classroom.tables import Line, Names, read_table, write_table
from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES
from labkit.grading.results import GradeRow


@dataclass(frozen=True)
class TeacherComment:
    """A teacher's comment on an answer, with points or None."""

    points: float | None
    text: str


Comments = Mapping[tuple[str, str], TeacherComment]
"""(learner, exercise) -> what the teacher says; an empty exercise means all work of a learner."""


@dataclass(frozen=True)
class Mark:
    """A row of grading, and the points that count.

    Attributes:
        row: the row of the grading.
        points: the points that count.
        late_days: begun days after work was due.
        comment: the teacher's, or None.
    """

    row: GradeRow
    points: float
    late_days: int = 0
    comment: TeacherComment | None = None


def marks_of(
    rows: Sequence[GradeRow],
    late: Mapping[tuple[str, str], int],
    percent: float,
    comments: Comments,
    cap: float = 100.0,
) -> list[Mark]:
    """Return the mark of each row.

    Args:
        rows: the rows of a grading.
        late: (learner, notebook) -> days after work was due.
        percent: share of the earned points that each of these days takes off.
        comments: the teacher's, with names as the teacher wrote them.
        cap: percent that lateness takes off at most.
    """
    words = by_row(comments, [row.student for row in rows])
    marks = []
    for row in rows:
        days = late.get((row.student, row.notebook), 0)
        word = words.get((row.student, row.exercise))
        earned = round(row.points * (1 - min(100.0, cap, days * percent) / 100), 2)
        points = word.points if word is not None and word.points is not None else earned
        marks.append(Mark(row, points, days, word))
    return marks


def by_row(comments: Comments, students: Iterable[str]) -> dict[tuple[str, str], TeacherComment]:
    """Return the teacher's comments by the names of the submissions.

    A name matches an equal name, or else the only one that differs just in case, spaces or Unicode
    composition.
    """
    known = list(dict.fromkeys(students))
    names = Names((student, number) for number, student in enumerate(known))
    found = {}
    for (name, exercise), word in comments.items():
        _, places = names.find(name)
        if len(places) == 1:
            found[known[places[0]], exercise] = word
    return found


def total(marks: Sequence[Mark]) -> tuple[float, int]:
    """Return the points of these marks together, and what they are out of."""
    return round(sum(mark.points for mark in marks), 2), sum(mark.row.out_of for mark in marks)


def by_student(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """Return the marks of each learner."""
    found: dict[str, list[Mark]] = {}
    for mark in marks:
        found.setdefault(mark.row.student, []).append(mark)
    return found


def read_comments(path: Path) -> dict[tuple[str, str], TeacherComment]:
    """Return the comments in a table with the columns student, exercise, points and comment.

    Points may be empty.

    Raises:
        OSError: it cannot be read.
        ValueError: a column is missing, points are not a number, or the exercise does not exist;
            see the line.
    """
    found = {}
    for number, written in enumerate(read_table(path), start=2):
        line = {name.strip(): text.strip() for name, text in written.items()}
        if not {"student", "exercise", "points", "comment"} <= line.keys():
            raise ValueError(
                f"{path} needs the columns student, exercise, points, comment; it has "
                f"{', '.join(line)}"
            )
        if not any(line.values()):
            continue
        if line["exercise"] and line["exercise"] not in EXERCISES:
            raise ValueError(f"{path}, line {number}: there is no exercise {line['exercise']!r}")
        try:
            points = float(line["points"].replace(",", ".")) if line["points"] else None
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: {line['points']!r} is not a number of points"
            ) from error
        if points is not None and not (line["exercise"] and 0 <= points < float("inf")):
            raise ValueError(
                f"{path}, line {number}: points from 0 on go to one exercise, not to "
                f"{points:g} of all"
            )
        found[line["student"], line["exercise"]] = TeacherComment(points, line["comment"])
    return found


def unused(comments: Comments, rows: Sequence[GradeRow]) -> list[str]:
    """Return a sentence for each comment that matches no row."""
    present = {(row.student, exercise) for row in rows for exercise in (row.exercise, "")}
    students = [row.student for row in rows]
    return [
        f"no row for {name!r} {exercise}: your comment is unused"
        for (name, exercise), word in comments.items()
        if not present & by_row({(name, exercise): word}, students).keys()
    ]


POSSIBLE = "points possible"  # Canvas's second line
# columns by which a school's system or the lab knows a learner: no points go there
IDENTITY = (
    "student",
    "id",
    "sis user id",
    "sis login id",
    "section",
    "identifier",
    "full name",
    "email address",
    "name",
    "learner",
)
EXTENSIONS = ("due", "late_days")  # columns that a teacher adds to the roster


@dataclass(frozen=True)
class Roster:
    """The class as a table with unchanged cells; kind is "canvas", "moodle" or "plain"."""

    lines: tuple[Line, ...]
    kind: str

    def learners(self) -> list[Line]:
        """Return the lines of learners."""
        filled = [line for line in self.lines if any(cell.strip() for cell in line.values())]
        return [line for line in filled if POSSIBLE not in _cell(line, "Student").lower()]

    def name(self, line: Line) -> str:
        named = (_cell(line, key) for key in ("Student", "Full name", "name", "learner"))
        return next(filter(None, [*named, *(cell.strip() for cell in line.values())]), "")

    def assigned(self, students: Iterable[str]) -> dict[str, list[Line]]:
        """Return for each name of a submission the matching lines: ideally one.

        If several names match one line, the most exact match gets it; none does if two are equally
        exact.
        """
        lines = self.learners()
        column = {"canvas": "ID", "moodle": "Identifier"}.get(self.kind, "")
        names = Names(
            (cell, at)
            for at, line in enumerate(lines)
            for column_name, cell in line.items()
            if column_name.strip().lower() not in EXTENSIONS
        )
        ids = [re.findall(r"\d+", _cell(line, column)) for line in lines]
        numbers = Names((number, at) for at, found in enumerate(ids) for number in found)
        found = {}
        for student in dict.fromkeys(students):
            number = student.rpartition("_")[2] if column and re.search(r"_\d+$", student) else ""
            found[student] = numbers.find(number) if number else names.find(student)
        nearest: dict[int, list[int]] = {}
        for exactness, places in found.values():
            if len(places) == 1:
                nearest.setdefault(places[0], []).append(exactness)
        return {
            student: [
                lines[at]
                for at in places
                if len(places) > 1
                or (exactness == min(nearest[at]) and nearest[at].count(exactness) == 1)
            ]
            for student, (exactness, places) in found.items()
        }


def _cell(line: Line, column: str) -> str:
    """Return the cell of a column, ignoring blanks around its name; "" if missing."""
    return (
        next((text.strip() for name, text in line.items() if name.strip() == column), "")
        if column
        else ""
    )


def _column_of(lesson: str, line: Line) -> str:
    """Return Canvas's column of a lesson: an earlier "01_numbers (4712)", or a new one."""
    known = (name for name in line if re.fullmatch(rf"{re.escape(lesson)} \(\d+\)", name.strip()))
    return next(known, lesson)


def _column(line: Line, column: str) -> str:
    """Return the name of a column as it is written."""
    return next((name for name in line if name.strip() == column), column)


def read_roster(path: Path) -> Roster:
    """Return the class from a table.

    Raises:
        OSError: it cannot be read.
        ValueError: the roster has no learners.
    """
    lines = tuple(read_table(path))
    columns = {name.strip() for name in lines[0]} if lines else set()
    kind = "plain"
    if {"Student", "ID"} <= columns:
        kind = "canvas"
    elif {"Identifier", "Grade"} <= columns:
        kind = "moodle"
    roster = Roster(lines, kind)
    if not roster.learners():
        raise ValueError(
            f"{path} has no learners: expected a line of column names and a line for each learner"
        )
    for line in roster.learners() if kind == "moodle" else ():
        try:
            _limit(line)
        except ValueError as error:
            raise ValueError(
                f"{path}: the Maximum Grade of {roster.name(line)} is not a number: {error}"
            ) from error
    return roster


def notices(roster: Roster, students: Sequence[str]) -> list[str]:
    """Return a sentence for each learner without a submission, and each one not on the roster."""
    found = roster.assigned(students)
    present = {id(line) for lines in found.values() if len(lines) == 1 for line in lines}
    notes = [
        f"{roster.name(line)} handed nothing in"
        for line in roster.learners()
        if id(line) not in present
    ]
    for student, lines in found.items():
        if len(lines) != 1:
            found_on = f"{len(lines)} lines" if lines else "no line"
            notes.append(f"{student} is on {found_on} of the roster")
    return notes


def write_gradebook(
    path: Path, marks: Sequence[Mark], roster: Roster | None, column: str = ""
) -> None:
    """Write the marks as one wide table, a learner to a line; a roster's own table is extended.

    Canvas gets a column of points for each lesson: that of an earlier import, such as
    01_numbers (4712), or a new one. Moodle gets its Grade, scaled to its Maximum Grade, and a
    comment. Any other table gets a column for each lesson, for each exercise, and the sum. Other
    cells of the roster are unchanged, but for its extensions, which no school's system knows; in a
    table of ours formulas are escaped.

    Args:
        path: the table to write.
        marks: of all learners.
        roster: the table of the school's system; None writes a table of names.
        column: the roster's own column for the sum, in place of all others; scaled to Canvas's
            points possible.

    Raises:
        OSError: it cannot be written.
        ValueError: the roster has no such column for points.
    """
    own = by_student(marks)
    graded = _graded_exercises(marks)
    if column:
        check_column(roster, column)
    if roster is None:
        rows = [
            {"learner": student, **_columns("plain", {}, theirs, graded)}
            for student, theirs in own.items()
        ]
    else:
        found = {
            id(lines[0]): own[s] for s, lines in roster.assigned(own).items() if len(lines) == 1
        }
        possible = next((line for line in roster.lines if _is_possible(line)), {})
        rows = []
        for line in roster.lines:
            theirs = found.get(id(line), [])
            if column:
                new = _sum_for(column, theirs, _cell(possible, column))
            else:
                new = _columns(roster.kind, line, theirs, graded)
            known = {_column(line, name): value for name, value in new.items()}
            rows.append(line | known)
        if roster.kind != "plain":
            rows = [
                {n: cell for n, cell in row.items() if n.strip().lower() not in EXTENSIONS}
                for row in rows
            ]
    write_table(
        path,
        list(dict.fromkeys(name for row in rows for name in row)),
        rows,
        guarded=roster is None,
    )


def check_column(roster: Roster | None, column: str) -> None:
    """Refuse a column for the sum that the roster lacks, or that says who a learner is.

    Raises:
        ValueError: see above.
    """
    names = [name.strip() for name in roster.lines[0]] if roster else []
    if column.strip() not in names:
        raise ValueError(
            f"the roster has no column {column!r} for --column; it has {', '.join(names) or 'none'}"
        )
    if column.strip().lower() in (*IDENTITY, *EXTENSIONS):
        raise ValueError(
            f"--column {column!r} says who a learner is, or when work is due: name one for points"
        )


def _is_possible(line: Line) -> bool:
    return POSSIBLE in _cell(line, "Student").lower()


def _sum_for(column: str, own: Sequence[Mark], possible: str) -> dict[str, str]:
    """Return a learner's sum for a teacher's column, scaled to the points of Canvas for it."""
    points, out_of = total(own)
    if not own:
        return {}
    try:
        limit = float(possible.replace(",", ".")) if possible else float(out_of)
    except ValueError:
        limit = float(out_of)
    return {column: f"{round(points * limit / out_of, 2) if out_of else points:g}"}


def _limit(line: Line) -> float | None:
    text = _cell(line, "Maximum Grade").replace(",", ".")
    return float(text) if text else None


def _graded_exercises(marks: Sequence[Mark]) -> dict[str, list[Exercise]]:
    """Return lesson -> its exercises that were graded; lessons in the order of the marks."""
    ids = dict.fromkeys(mark.row.exercise for mark in marks)
    graded: dict[str, list[Exercise]] = {EXERCISES[id].lesson: [] for id in ids}
    for exercise in (exercise for exercise in EXERCISES.values() if exercise.id in ids):
        graded[exercise.lesson].append(exercise)
    return graded


def _columns(
    kind: str, line: Line, own: Sequence[Mark], graded: Mapping[str, Sequence[Exercise]]
) -> dict[str, str]:
    names = {lesson: _column_of(lesson, line) if kind == "canvas" else lesson for lesson in graded}
    if kind == "canvas" and _is_possible(line):
        return {
            names[lesson]: str(sum(exercise.points for exercise in exercises))
            for lesson, exercises in graded.items()
        }
    if kind == "moodle":
        points, out_of = total(own)
        limit = _limit(line)
        grade = points if limit is None or not out_of else points * limit / out_of
        return (
            {"Grade": f"{grade:.2f}", "Feedback comments": f"{points:g} of {out_of} points"}
            if own
            else {}
        )
    of = {
        lesson: [mark for mark in own if mark.row.exercise in {e.id for e in es}]
        for lesson, es in graded.items()
    }
    whole = {names[lesson]: f"{total(marks)[0]:g}" if marks else "" for lesson, marks in of.items()}
    if kind == "canvas":
        return whole
    points_of = {mark.row.exercise: f"{mark.points:g}" for mark in own}
    single = {
        exercise.id: points_of.get(exercise.id, "")
        for exercises in graded.values()
        for exercise in exercises
    }
    return whole | single | {"total": f"{total(own)[0]:g}" if own else ""}
