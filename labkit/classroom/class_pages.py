"""HTML pages: a learner's feedback, and the class for its teacher.

A page is a single file, for light and dark themes and for paper. Points and mistakes come from the
rows of grading; times and predictions from the journals that learners handed in beside their
notebooks.

Invariant: a page loads nothing, and all output of learners' code is escaped. Feedback shows only
name and points of a hidden check. The class page names who is missing, and whose work has 0 points
because a name was not defined.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from urllib.parse import quote

from labkit.classroom.failures import equal_answers, failures
from labkit.classroom.marks import Comments, Mark, TeacherComment, by_row, by_student, total
from labkit.classroom.tables import same_name
from labkit.course import lessons, quiz_questions
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import checks_html, heading
from labkit.grading.submission import GENERATOR, Submission, is_own
from labkit.records import write_atomic
from labkit.records.journal import NAME, entries, last_answers

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --line: #bbb; --soft: #f4f4f4;
        --good: #1b7a36; --bad: #b3261e; --warn: #8a5200; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #151515; --line: #555; --soft: #222;
          --good: #7bd88f; --bad: #ff9a92; --warn: #ffc266; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: .5em 0; } th, td { text-align: left; vertical-align: top;
       padding: .2em 1em .2em 0; border-bottom: 1px solid var(--line); }
pre { background: var(--soft); padding: .6em; overflow-x: auto; white-space: pre-wrap; }
pre, code { font-family: ui-monospace, monospace; font-size: 14px; }
body { --jp-success-color0: var(--good); --jp-error-color0: var(--bad);
       --jp-warn-color1: var(--warn); }
section { border-top: 2px solid var(--line); margin-top: 1.5em; }
.warn { border-left: 4px solid var(--warn); padding-left: .6em; }
@media print {
  :root { --ink: #000; --paper: #fff; --soft: #f4f4f4; --line: #999;
          --good: #14602a; --bad: #9b1c15; --warn: #8a5200; }
  body { margin: 0; max-width: none; font-size: 11pt; }
  section { break-inside: avoid; }
  pre { break-inside: auto; }
}
"""


def page(title: str, body: str) -> bytes:
    """Return a whole page; `body` is HTML."""
    name = escape(title)
    view = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"{view}{GENERATOR.decode()}<title>{name}</title>"
    text = f"""<!doctype html>
<html lang="en"><head>{head}<style>{_STYLE}</style></head>
<body><h1>{name}</h1>
{body}
</body></html>
"""
    return text.encode("utf-8", errors="backslashreplace")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table of escaped texts; "" without rows.

    >>> table(("a",), [("<b>",)])
    '<table><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return f"<table><tr>{names}</tr>{cells}</table>" if rows else ""


NO_JOURNAL = "No journal was handed in: ask for the whole folder, not the notebooks alone."
LONGEST_NAME = 200  # bytes; the rest of 255 is for suffixes


def write_feedback(folder: Path, marks: Sequence[Mark], comments: Comments) -> list[Path]:
    """Write the page of each learner into a folder, and return learner -> page.

    A page is <learner>.html, or <learner>/feedback.html if that folder exists.
    """
    students = by_student(marks)
    places = _places(folder, students)
    words = by_row(comments, students)
    return [
        write_atomic(places[student], feedback(student, own, words.get((student, ""))))
        for student, own in students.items()
    ]


def _places(folder: Path, students: Iterable[str]) -> dict[str, Path]:
    """Return a path for each page, not too long, and unique where Ann and ann are one file."""
    places: dict[str, Path] = {}
    taken = Counter[str]()
    for student in students:
        taken[same_name(student)] += 1
        count = taken[same_name(student)]
        again = f" ({count})" if count > 1 else ""
        short = os.fsencode(student)[:LONGEST_NAME].decode(errors="surrogateescape")
        if short != student:
            short += f" {hashlib.sha256(os.fsencode(student)).hexdigest()[:8]}"
        own = folder / short / "feedback.html"
        places[student] = (
            own if own.parent.is_dir() and short == student else folder / f"{short}{again}.html"
        )
    return places


def _state(mark: Mark) -> str:
    if mark.row.points == mark.row.out_of:
        return "solved"
    return "in part" if mark.row.points else "open"


def feedback(student: str, marks: Sequence[Mark], comment: TeacherComment | None = None) -> bytes:
    """Return the page of one learner; `comment` is on all of the work."""
    points, out_of = total(marks)
    states = (_state(mark) for mark in marks)
    titles = (EXERCISES[m.row.exercise].title for m in marks)
    rows = list(
        zip(titles, (f"{m.points:g} of {m.row.out_of}" for m in marks), states, strict=True)
    )
    body = f"<p><strong>{points:g} of {out_of} points</strong></p>{_comment(comment)}"
    body += table(("exercise", "points", ""), rows) + "\n".join(_section(mark) for mark in marks)
    return page(f"Feedback for {student}", body)


def points_line(mark: Mark) -> str:
    """Return the points that count, and why they differ from those earned."""
    days = "day" if mark.late_days == 1 else "days"
    late = f"; {mark.late_days} {days} late" if mark.late_days else ""
    by_hand = "; set by your teacher" if mark.comment and mark.comment.points is not None else ""
    earned = f", earned {mark.row.points}" if mark.points != mark.row.points else ""
    return f"{mark.points:g} of {mark.row.out_of} points{earned}{late}{by_hand}"


def _section(mark: Mark) -> str:
    body = checks_html(mark.row.details) or f"<p>{escape(mark.row.reason)}</p>"
    if code := str(mark.row.details.get("code", "")):
        body += (
            "<details><summary>The code that was graded</summary>"
            f"<pre>{escape(code)}</pre></details>"
        )
    title = escape(heading(EXERCISES[mark.row.exercise]))
    points = f"<p>{escape(points_line(mark))}</p>"
    return f"<section><h2>{title}</h2>{points}{_comment(mark.comment)}{body}</section>"


def _comment(comment: TeacherComment | None) -> str:
    return (
        f'<p class="warn"><strong>Your teacher:</strong> {escape(comment.text)}</p>'
        if comment and comment.text
        else ""
    )


def report(
    marks: Sequence[Mark],
    journals: Sequence[Path],
    notices: Sequence[str] = (),
    pages: Mapping[str, str] | None = None,
) -> bytes:
    """Return the class page.

    Args:
        marks: of all learners.
        journals: those of the learners, as `journals_beside` finds them.
        notices: first lines: missing learners, unused comments.
        pages: learner -> the address of the feedback page, relative to this page.
    """
    students = by_student(marks)
    reached = [total(own)[0] for own in students.values()]
    body = "".join(f'<p class="warn">{escape(line)}</p>' for line in notices)
    if reached:
        median = statistics.median(reached)
        out_of = max(total(own)[1] for own in students.values())
        body += (
            f"<p>Learners: {len(students)}. Half of them have at least {median:g} of {out_of} "
            "points.</p>"
        )
    head = ("exercise", "solved", "mean points", "minutes, median", "minutes planned")
    by_exercise = {
        id: own for id in EXERCISES if (own := [mark for mark in marks if mark.row.exercise == id])
    }
    body += table(head, [_row(id, own, journals) for id, own in by_exercise.items()])
    found = ((m.row.exercise, known) for m in marks if (known := m.row.details.get("mistake")))
    made = Counter((exercise, known["name"], known["sentence"]) for exercise, known in found)
    mistakes = [
        (str(n), f"{name} ({id})", sentence) for (id, name, sentence), n in made.most_common()
    ]
    shown = (
        table(("learners", "mistake", "what to say about it"), mistakes)
        or "<p>No known mistake was made.</p>"
    )
    body += f"<h2>What to say in the next lecture</h2>{shown}"
    columns = ("learners", "what failed", "most in", "what to say about it")
    shown = table(columns, failures(marks)) or "<p>Nothing.</p>"
    body += f"<h2>What failed most</h2>{shown}"
    nothing = [mark.row for mark in marks if not mark.row.points]
    undefined = [row for row in nothing if "NameError" in f"{row.reason} {row.details}"]
    names = [(row.student, row.exercise, row.reason) for row in undefined]
    shown = table(("learner", "exercise", "why"), names) or "<p>None.</p>"
    body += f"<h2>0 points for a name that was not defined</h2>{shown}"
    body += f"<h2>What they predicted</h2>{_predicted(marks, journals)}"
    if rows := learned(journals):
        head = ("question", "right before", "right after", "now right", "no longer right")
        texts = [
            (r.question, _share(*r.before), _share(*r.after), f"{r.improved}", f"{r.declined}")
            for r in rows
        ]
        body += f"<h2>Before and after the course</h2>{table(head, texts)}"
    if equal := equal_answers(mark.row for mark in marks):
        body += f"<h2>Equal answers</h2><p>{EQUAL}</p>"
        body += table(("learners", "exercises", "letters"), equal)
    return page("The class", body + "<h2>Points</h2>" + _points(students, pages or {}))


EQUAL = (
    "Equal but for blanks, comments and docstrings. This is a hint and no verdict: "
    "learners may work in pairs, and a short answer may be the obvious one."
)


def _points(students: Mapping[str, Sequence[Mark]], pages: Mapping[str, str]) -> str:
    """Return the table of points; a name is a link where the learner has a page."""
    rows = ""
    for name, own in students.items():
        shown = escape(name)
        if name in pages:
            shown = f'<a href="{escape(pages[name])}">{shown}</a>'
        rows += f"<tr><td>{shown}</td><td>{total(own)[0]:g} of {total(own)[1]}</td></tr>"
    return f"<table><tr><th>learner</th><th>points</th></tr>{rows}</table>" if rows else ""


def addresses(marks: Sequence[Mark], pages: Sequence[Path], page: Path) -> dict[str, str]:
    """Return learner -> the address of a feedback page, relative to the class page.

    `pages` are those that `write_feedback` returned.
    """
    found = {}
    for student, path in zip(by_student(marks), pages, strict=True):
        relative = os.path.relpath(path.resolve(), page.resolve().parent)
        found[student] = quote(Path(relative).as_posix())
    return found


def journals_beside(submissions: Iterable[Submission]) -> list[Path]:
    """Return the journals beside these notebooks that are their learners' own, each once."""
    places = {one.path.parent / NAME: one.own for one in submissions if one.path}
    return sorted(journal for journal, own in places.items() if is_own(journal, own))


def minutes_of(exercise: str, journals: Sequence[Path]) -> list[float]:
    """Return for each learner the minutes from the first check of an exercise to the best one."""
    found = []
    for journal in journals:
        checks = [line for line in entries(journal, "exercise") if line["id"] == exercise]
        times = [when for line in checks if (when := _time(str(line.get("when", ""))))]
        if len(times) == len(checks) > 0:
            points = [
                line["points"] if isinstance(line.get("points"), int) else 0 for line in checks
            ]
            best = points.index(max(points))
            # times that fall mean that a clock was set back
            if times[: best + 1] == sorted(times[: best + 1]):
                found.append((times[best] - times[0]).total_seconds() / 60)
    return found


def _row(id: str, marks: Sequence[Mark], journals: Sequence[Path]) -> tuple[str, ...]:
    solved = sum(mark.row.points == mark.row.out_of for mark in marks)
    mean = statistics.fmean(mark.points for mark in marks)
    minutes = minutes_of(id, journals)
    spent = (
        f"{statistics.median(minutes):.0f} ({len(minutes)} known)"
        if minutes
        else "unknown: no journal"
    )
    share = f"{solved} of {len(marks)} ({solved / len(marks):.0%})"
    planned = str(EXERCISES[id].minutes)
    return (
        f"{EXERCISES[id].title} ({id})",
        share,
        f"{mean:.1f} of {marks[0].row.out_of}",
        spent,
        planned,
    )


def _predicted(marks: Sequence[Mark], journals: Sequence[Path]) -> str:
    answers: dict[str, Counter[str]] = {}
    for journal in journals:
        for id, answer in last_answers(journal, "prediction").items():
            answers.setdefault(id, Counter())[answer[:200]] += 1
    parts = []
    names = {EXERCISES[mark.row.exercise].lesson for mark in marks}
    asked = [
        row
        for lesson in lessons()
        if lesson.name in names
        for row in lesson.table("predictions").items()
    ]
    for id, row in ((id, row) for id, row in asked if id in answers):
        right = str(row.get("answer", ""))
        rows = [
            (f"{answer} (right)" if answer == right else answer, str(n))
            for answer, n in answers[id].most_common()
        ]
        parts.append(
            f"<p>{escape(row['question'].strip())}</p>{table(('predicted', 'learners'), rows)}"
        )
    missing = "No prediction of these lessons was answered." if journals else NO_JOURNAL
    return "".join(parts) or f"<p>{missing}</p>"


@dataclass(frozen=True)
class Learned:
    """How a class answered one question of the quiz, before and after the course.

    Attributes:
        before: (right answers, answers) before the course.
        after: (right answers, answers) after the course.
        improved: learners with a wrong answer before and the right one after.
        declined: learners with the right answer before and a wrong one after.
    """

    question: str
    before: tuple[int, int]
    after: tuple[int, int]
    improved: int
    declined: int


def learned(journals: Iterable[Path]) -> list[Learned]:
    """Return a row for each answered question of the quiz, without names.

    One journal is one learner.
    """
    both = [
        (last_answers(journal, "before"), last_answers(journal, "after")) for journal in journals
    ]
    found = []
    for id, row in quiz_questions().items():
        right = [
            [one[id] == row.answer if one.get(id) in row.all_choices else None for one in pair]
            for pair in both
        ]
        before, after = (
            [pair[time] for pair in right if pair[time] is not None] for time in (0, 1)
        )
        if before or after:
            counts = (before.count(True), len(before)), (after.count(True), len(after))
            found.append(
                Learned(
                    row.question, *counts, right.count([False, True]), right.count([True, False])
                )
            )
    return found


def _share(right: int, answers: int) -> str:
    share = f"{right} of {answers} ({right / answers:.0%})" if answers else ""
    return share.replace(" ", "\N{NO-BREAK SPACE}") or "no answer"


def _time(text: str) -> datetime | None:
    """Return a time of a journal, in UTC if it names no zone."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
