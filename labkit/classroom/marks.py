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

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.classroom.tables import Line, Names, numbered_rows, read_table, write_table
from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES
from labkit.grading.results import GradeRow


@dataclass(frozen=True)
class TeacherComment:
    """A teacher's comment on an answer, with points or None."""

    points: float | None
    text: str


Comments = Mapping[tuple[str, str], TeacherComment]
"""(learner, exercise) -> comment; an empty exercise means all work of a learner."""


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
        percent: percent of the earned points that each of these days takes off.
        comments: the teacher's, with names as the teacher wrote them. Their points count as they
            are, late or not.
        cap: percent that lateness takes off at most.
    """
    by_submission = by_row(comments, [row.student for row in rows])
    marks = []
    for row in rows:
        days = late.get((row.student, row.notebook), 0)
        comment = by_submission.get((row.student, row.exercise))
        if comment is not None and comment.points is not None:
            points = comment.points
        else:
            taken_off = min(100.0, cap, days * percent)
            points = round(row.points * (1 - taken_off / 100), 2)
        marks.append(Mark(row, points, days, comment))
    return marks


def by_row(comments: Comments, students: Iterable[str]) -> dict[tuple[str, str], TeacherComment]:
    """Return the teacher's comments by the names of the submissions.

    A name matches an equal name, or else the only one that differs just in case, spaces or Unicode
    composition. If several names match one submission, the most exact one counts, and of equally
    exact ones the first.

    Args:
        comments: with names as the teacher wrote them.
        students: names of the submissions.

    Returns:
        (submission's name, exercise) -> comment, without those that match no name or several.
    """
    known = list(dict.fromkeys(students))
    names = Names((student, number) for number, student in enumerate(known))
    matched: dict[tuple[str, str], TeacherComment] = {}
    ranks: dict[tuple[str, str], int] = {}
    for (name, exercise), comment in comments.items():
        rank, numbers = names.find(name)
        if len(numbers) != 1:
            continue
        row = known[numbers[0]], exercise
        if row not in ranks or rank < ranks[row]:
            matched[row] = comment
            ranks[row] = rank
    return matched


def total(marks: Sequence[Mark]) -> tuple[float, int]:
    """Return the sum of the points, and the sum of what they are out of."""
    return round(sum(mark.points for mark in marks), 2), sum(mark.row.out_of for mark in marks)


def by_student(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """Return learner -> marks; learners and marks are in the order of `marks`."""
    grouped: dict[str, list[Mark]] = {}
    for mark in marks:
        grouped.setdefault(mark.row.student, []).append(mark)
    return grouped


def read_comments(path: Path) -> dict[tuple[str, str], TeacherComment]:
    """Return the comments in a table with the columns student, exercise, points and comment.

    Points may be empty.

    Raises:
        OSError: it cannot be read.
        ValueError: a column is missing, points are not a number, the exercise does not exist, or a
            learner has two lines for one exercise. The message names the line.
    """
    comments: dict[tuple[str, str], TeacherComment] = {}
    for number, written in numbered_rows(path):
        line = {name.strip(): text.strip() for name, text in written.items()}
        if not {"student", "exercise", "points", "comment"} <= line.keys():
            raise ValueError(
                f"{path} needs the columns student, exercise, points, comment; it has "
                f"{', '.join(line)}"
            )
        if not any(line.values()):
            continue
        if line["exercise"] and line["exercise"] not in EXERCISES:
            raise ValueError(
                f"{path}, line {number}: the exercise {line['exercise']!r} does not exist"
            )
        try:
            points = float(line["points"].replace(",", ".")) if line["points"] else None
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: {line['points']!r} is not a number of points"
            ) from error
        if points is not None and not line["exercise"]:
            raise ValueError(
                f"{path}, line {number}: expected an exercise for {points:g} points, got none"
            )
        if points is not None and not 0 <= points < math.inf:
            raise ValueError(f"{path}, line {number}: expected points from 0 on, got {points:g}")
        key = line["student"], line["exercise"]
        if key in comments:
            work = line["exercise"] or "all work"
            raise ValueError(
                f"{path}, line {number}: {line['student']!r} has an earlier line for {work}; keep "
                "one of them"
            )
        comments[key] = TeacherComment(points, line["comment"])
    return comments


def unused(comments: Comments, rows: Sequence[GradeRow]) -> list[str]:
    """Return a sentence for each comment that matches no row, or whose row has another one."""
    present = {(row.student, exercise) for row in rows for exercise in (row.exercise, "")}
    students = [row.student for row in rows]
    counting = by_row(comments, students)
    sentences = []
    for (name, exercise), comment in comments.items():
        matched = present & by_row({(name, exercise): comment}, students).keys()
        if not matched:
            place = f"{name!r} {exercise}".rstrip()
            sentences.append(f"no row for {place}: your comment is unused")
        # By identity: another line may have an equal comment.
        elif all(counting[row] is not comment for row in matched):
            place = f"{name!r} {exercise}".rstrip()
            sentences.append(f"another line is for the row of {place}: your comment is unused")
    return sentences


# The first words of the second line of a table from Canvas.
POSSIBLE = "points possible"
# columns that identify a learner in a school's system or in the lab: never columns of points
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
# Columns that a teacher adds to the roster.
EXTENSIONS = ("due", "late_days")


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
        """Return the name of a line's learner, or else the first cell that is not empty."""
        for column in ("Student", "Full name", "name", "learner"):
            if _cell(line, column):
                return _cell(line, column)
        for cell in line.values():
            if cell.strip():
                return cell.strip()
        return ""

    def assigned(self, students: Iterable[str]) -> dict[str, list[Line]]:
        """Return for each name of a submission the matching lines: ideally one.

        If several names match one line, the most exact match gets it; none does if two are equally
        exact.
        """
        lines = self.learners()
        matches = self._matches(lines, students)
        # line -> the ranks of the names that match this line and no other
        ranks: dict[int, list[int]] = {}
        for rank, indices in matches.values():
            if len(indices) == 1:
                ranks.setdefault(indices[0], []).append(rank)
        assigned = {}
        for student, (rank, indices) in matches.items():
            if len(indices) == 1:
                rivals = ranks[indices[0]]
                if rank > min(rivals) or rivals.count(rank) > 1:
                    indices = []
            assigned[student] = [lines[index] for index in indices]
        return assigned

    def _matches(
        self, lines: Sequence[Line], students: Iterable[str]
    ) -> dict[str, tuple[int, list[int]]]:
        """Return for each submission's name the rank of its match, and the indices of lines."""
        names = Names(
            (cell, index)
            for index, line in enumerate(lines)
            for column, cell in line.items()
            if column.strip().lower() not in EXTENSIONS
        )
        id_column = {"canvas": "ID", "moodle": "Identifier"}.get(self.kind, "")
        numbers = Names(
            (number, index)
            for index, line in enumerate(lines)
            for number in re.findall(r"\d+", _cell(line, id_column))
        )
        matches = {}
        for student in dict.fromkeys(students):
            # the system wrote its number of the learner at the end of the name
            numbered = re.search(r"_(\d+)$", student)
            if id_column and numbered:
                matches[student] = numbers.find(numbered[1])
            else:
                matches[student] = names.find(student)
        return matches


def _cell(line: Line, column: str) -> str:
    """Return the cell of a column, ignoring blanks around its name; "" if missing."""
    if not column:
        return ""
    for name, text in line.items():
        if name.strip() == column:
            return text.strip()
    return ""


def _column_of(lesson: str, line: Line) -> str:
    """Return Canvas's column of a lesson: an earlier "01_numbers (4712)", or a new one."""
    for name in line:
        if re.fullmatch(rf"{re.escape(lesson)} \(\d+\)", name.strip()):
            return name
    return lesson


def _column(line: Line, column: str) -> str:
    """Return the name of a column as the table writes it, with blanks around it."""
    for name in line:
        if name.strip() == column:
            return name
    return column


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
    if kind == "moodle":
        for line in roster.learners():
            try:
                _limit(line)
            except ValueError as error:
                raise ValueError(
                    f"{path}: the Maximum Grade of {roster.name(line)} is not a number: {error}"
                ) from error
    return roster


def notices(roster: Roster, students: Sequence[str]) -> list[str]:
    """Return a sentence for each learner without a submission, and each one not on the roster."""
    assigned = roster.assigned(students)
    present = {id(lines[0]) for lines in assigned.values() if len(lines) == 1}
    notes = [
        f"{roster.name(line)} handed nothing in"
        for line in roster.learners()
        if id(line) not in present
    ]
    for student, lines in assigned.items():
        if len(lines) != 1:
            places = f"{len(lines)} lines" if lines else "no line"
            notes.append(f"{student} is on {places} of the roster")
    return notes


def write_gradebook(
    path: Path, marks: Sequence[Mark], roster: Roster | None, column: str = ""
) -> None:
    """Write the marks as one wide table, a learner to a line; a roster's own table is extended.

    Canvas gets a column of points for each lesson: that of an earlier import, such as
    01_numbers (4712), or a new one. Moodle gets its Grade, scaled to its Maximum Grade, and a
    comment. Any other table gets a column for each lesson, for each exercise, and the sum. Other
    cells of the roster are unchanged. Only the columns that a teacher added (EXTENSIONS) are left
    out for Canvas and Moodle, which do not know them. In a table of names formulas are escaped.

    Args:
        path: the table to write.
        marks: the marks of all learners.
        roster: the table of the school's system; None writes a table of names.
        column: the roster's own column for the sum, in place of all others; scaled to Canvas's
            points possible.

    Raises:
        OSError: it cannot be written.
        ValueError: the roster has no such column for points.
    """
    graded = _graded_exercises(marks)
    column = column.strip()
    if column:
        check_column(roster, column)
    if roster is None:
        rows = [
            {"learner": student, **_columns("plain", {}, own, graded)}
            for student, own in by_student(marks).items()
        ]
    else:
        rows = _extended(roster, marks, graded, column)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_table(path, columns, rows, guarded=roster is None)


def _extended(
    roster: Roster,
    marks: Sequence[Mark],
    graded: Mapping[str, Sequence[Exercise]],
    column: str,
) -> list[Line]:
    """Return the lines of a roster with the marks of its learners.

    Args:
        roster: the table of the school's system.
        marks: the marks of all learners.
        graded: lesson -> its exercises that were graded.
        column: the roster's own column for the sum; "" for the columns of its kind.
    """
    by_name = by_student(marks)
    # lines are dicts, which their identity tells apart where two learners have equal cells
    by_line = {
        id(lines[0]): by_name[student]
        for student, lines in roster.assigned(by_name).items()
        if len(lines) == 1
    }
    possible = ""
    for line in roster.lines:
        if _is_possible(line):
            possible = _cell(line, column)
            break
    rows = []
    for line in roster.lines:
        own = by_line.get(id(line), [])
        if column:
            new = _sum_for(column, own, possible)
        else:
            new = _columns(roster.kind, line, own, graded)
        row = line | {_column(line, name): value for name, value in new.items()}
        if roster.kind != "plain":
            row = {n: cell for n, cell in row.items() if n.strip().lower() not in EXTENSIONS}
        rows.append(row)
    return rows


def check_column(roster: Roster | None, column: str) -> None:
    """Require that the roster has a column that the sum of the points may go to.

    Raises:
        ValueError: the roster lacks the column, or it identifies learners or has their deadlines.
    """
    names = [name.strip() for name in roster.lines[0]] if roster else []
    if column.strip() not in names:
        raise ValueError(
            f"the roster has no column {column!r} for --column; it has {', '.join(names) or 'none'}"
        )
    if column.strip().lower() in (*IDENTITY, *EXTENSIONS):
        raise ValueError(
            f"--column {column!r} says who a learner is, or when work is due: name a column for "
            "points"
        )


def _is_possible(line: Line) -> bool:
    return POSSIBLE in _cell(line, "Student").lower()


def _sum_for(column: str, own: Sequence[Mark], possible: str) -> dict[str, str]:
    """Return a learner's sum for a teacher's column.

    Args:
        column: the column.
        own: the learner's marks.
        possible: Canvas's points possible in this column, which the sum is scaled to; "" or a text
            that is not a number leaves the sum as it is.
    """
    if not own:
        return {}
    points, out_of = total(own)
    limit = float(out_of)
    with suppress(ValueError):
        limit = float(possible.replace(",", "."))
    if out_of:
        points = round(points * limit / out_of, 2)
    return {column: f"{points:g}"}


def _graded_exercises(marks: Sequence[Mark]) -> dict[str, list[Exercise]]:
    """Return lesson -> its exercises that were graded; lessons in the order of the marks."""
    ids = dict.fromkeys(mark.row.exercise for mark in marks)
    graded: dict[str, list[Exercise]] = {EXERCISES[id].lesson: [] for id in ids}
    for exercise in EXERCISES.values():
        if exercise.id in ids:
            graded[exercise.lesson].append(exercise)
    return graded


def _columns(
    kind: str, line: Line, own: Sequence[Mark], graded: Mapping[str, Sequence[Exercise]]
) -> dict[str, str]:
    """Return column -> cell of a learner's marks, for a roster of this kind.

    Args:
        kind: "canvas", "moodle" or "plain".
        line: the learner's line, or Canvas's line of points possible.
        own: the learner's marks.
        graded: lesson -> its exercises that were graded.
    """
    if kind == "moodle":
        return _moodle_columns(line, own)
    if kind == "canvas" and _is_possible(line):
        return {
            _column_of(lesson, line): str(sum(exercise.points for exercise in exercises))
            for lesson, exercises in graded.items()
        }
    columns = {}
    for lesson, exercises in graded.items():
        ids = {exercise.id for exercise in exercises}
        in_lesson = [mark for mark in own if mark.row.exercise in ids]
        name = _column_of(lesson, line) if kind == "canvas" else lesson
        columns[name] = f"{total(in_lesson)[0]:g}" if in_lesson else ""
    if kind == "plain":
        points = {mark.row.exercise: f"{mark.points:g}" for mark in own}
        for exercises in graded.values():
            for exercise in exercises:
                columns[exercise.id] = points.get(exercise.id, "")
        columns["total"] = f"{total(own)[0]:g}" if own else ""
    return columns


def _moodle_columns(line: Line, own: Sequence[Mark]) -> dict[str, str]:
    """Return the grade, scaled to the Maximum Grade of the line, and a comment."""
    if not own:
        return {}
    points, out_of = total(own)
    grade = points
    limit = _limit(line)
    if limit is not None and out_of:
        grade = points * limit / out_of
    return {"Grade": f"{grade:.2f}", "Feedback comments": f"{points:g} of {out_of} points"}


def _limit(line: Line) -> float | None:
    """Return Moodle's Maximum Grade of a line; None if it is empty.

    Raises:
        ValueError: it is not a finite number.
    """
    text = _cell(line, "Maximum Grade").replace(",", ".")
    if not text:
        return None
    limit = float(text)
    if not math.isfinite(limit):
        raise ValueError(f"expected a finite number, got {text!r}")
    return limit
