"""What does a learner get back? One page: points, every check, the first counter-example, and the teacher's comments.

Invariant: of a hidden check a page has the name and the points only; whatever a learner's code said is escaped.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from labkit.classroom.marks import Mark, Said, by_row, by_student, total
from labkit.classroom.page import page, table
from labkit.classroom.tables import same_name
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import heading
from labkit.records import write_whole

LONGEST_NAME = 200  # bytes, which leaves room for what is added to a name of at most 255


def write_feedback(folder: Path, marks: Sequence[Mark], said: dict[tuple[str, str], Said]) -> list[Path]:
    """Write <learner>.html for each into a folder, or <learner>/feedback.html where that is a folder; return them."""
    students = by_student(marks)
    places, words = _places(folder, students), by_row(said, students)
    return [
        write_whole(places[student], feedback(student, own, words.get((student, ""))))
        for student, own in students.items()
    ]


def _places(folder: Path, students: Iterable[str]) -> dict[str, Path]:
    """Return a page's place for each: none twice, where a system takes Ann and ann for one, and none too long."""
    places: dict[str, Path] = {}
    taken = Counter[str]()
    for student in students:
        taken[same_name(student)] += 1
        again = f" ({taken[same_name(student)]})" * (taken[same_name(student)] > 1)
        short = os.fsencode(student)[:LONGEST_NAME].decode(errors="surrogateescape")
        if short != student:
            short += f" {hashlib.sha256(os.fsencode(student)).hexdigest()[:8]}"
        own = folder / short / "feedback.html"
        places[student] = own if own.parent.is_dir() and short == student else folder / f"{short}{again}.html"
    return places


def feedback(student: str, marks: Sequence[Mark], comment: Said | None = None) -> bytes:
    """Return the page of one learner; `comment` is on all of the work."""
    points, out_of = total(marks)
    rows = [(EXERCISES[m.row.exercise].title, f"{m.points:g} of {m.row.out_of}", _state(m)) for m in marks]
    body = f"<p><strong>{points:g} of {out_of} points</strong></p>{_said(comment)}"
    body += table(("exercise", "points", ""), rows) + "\n".join(_section(mark) for mark in marks)
    return page(f"Feedback for {student}", body)


def points_line(mark: Mark) -> str:
    """Return what counts, and why it is not what was earned."""
    late = f"; {mark.late_days} day{'s' * (mark.late_days > 1)} late" if mark.late_days else ""
    by_hand = "; set by your teacher" if mark.said and mark.said.points is not None else ""
    earned = f", earned {mark.row.points}" if mark.points != mark.row.points else ""
    return f"{mark.points:g} of {mark.row.out_of} points{earned}{late}{by_hand}"


def _state(mark: Mark) -> str:
    return "solved" if mark.row.points == mark.row.out_of else "open" if not mark.row.points else "in part"


def _section(mark: Mark) -> str:
    row, details = mark.row, mark.row.details
    body = "".join(_check(check) for check in details.get("checks", ()))
    known = details.get("mistake")
    if known:
        body += f'<p class="warn"><strong>A known mistake, {escape(known["name"])}:</strong> '
        body += f"{escape(known['sentence'])}</p>"
    reason = "" if body else f"<p>{escape(row.reason)}</p>"
    title = escape(heading(EXERCISES[row.exercise]))
    return f"<section><h2>{title}</h2><p>{escape(points_line(mark))}</p>{_said(mark.said)}{reason}{body}</section>"


def _check(check: dict[str, Any]) -> str:
    kind = "good" if check["mark"].endswith("pass") else "bad"
    line = f"{escape(check['name'])} ({check['points']} of {check['out_of']} points)"
    rows = "".join(
        f'<tr><td class="value">{escape(str(name))}</td><td class="value">{escape(str(value))}</td></tr>'
        for name, value in check["rows"]
    )
    shown = f"<table>{rows}</table>" if rows else ""
    return f'<div><span class="{kind}">{escape(check["mark"])}</span> {line}{shown}</div>'


def _said(said: Said | None) -> str:
    return f'<p class="warn"><strong>Your teacher:</strong> {escape(said.comment)}</p>' if said and said.comment else ""
