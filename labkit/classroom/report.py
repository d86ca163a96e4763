"""How did the class do, and what is worth saying in the next lecture? One page for the teacher.

Idea: shares and mistakes come from the rows of grading. Time and predictions come from the journals that learners
handed in beside their notebooks; where nobody handed one in, the page says so.

Invariant: who is missing, and whose work is worth 0 because a name was not defined, is named.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from labkit.classroom.marks import Mark, by_student, total
from labkit.classroom.page import page, table
from labkit.course import lessons
from labkit.grading.exercises import EXERCISES
from labkit.grading.submission import Submission, is_own
from labkit.records.journal import NAME, entries, last_answers


def report(marks: Sequence[Mark], journals: Sequence[Path], notices: Sequence[str] = ()) -> bytes:
    """Return the class page.

    journals   those of the learners, as `journals_beside` finds them
    notices    lines to begin with: who is missing, what is unused
    """
    students = by_student(marks)
    reached = [total(own)[0] for own in students.values()]
    body = "".join(f'<p class="warn">{escape(line)}</p>' for line in notices)
    if reached:
        median, out_of = statistics.median(reached), max(total(own)[1] for own in students.values())
        body += f"<p>Learners: {len(students)}. Half of them have at least {median:g} of {out_of} points.</p>"
    head = ("exercise", "solved", "mean points", "minutes, median", "minutes planned")
    body += table(head, [_row(id, own, journals) for id, own in _by_exercise(marks).items()])
    body += f"<h2>What to say in the next lecture</h2>{_mistakes(marks)}"
    body += f"<h2>0 points for a name that was not defined</h2>{_name_errors(marks)}"
    body += f"<h2>What they predicted</h2>{_predicted(marks, journals)}"
    rows = [(name, f"{total(own)[0]:g} of {total(own)[1]}") for name, own in students.items()]
    return page("The class", body + "<h2>Points</h2>" + table(("learner", "points"), rows))


def journals_beside(submissions: Iterable[Submission]) -> list[Path]:
    """Return the journals that lie beside these notebooks and are their learners' own, each once."""
    places = {one.path.parent / NAME: one.own for one in submissions if one.path}
    return sorted(journal for journal, own in places.items() if is_own(journal, own))


def minutes_of(exercise: str, journals: Sequence[Path]) -> list[float]:
    """Return of each learner the minutes from the first check of an exercise to the one with the most points."""
    found = []
    for journal in journals:
        checks = [line for line in entries(journal, "exercise") if line["id"] == exercise]
        times = [when for line in checks if (when := _time(str(line.get("when", ""))))]
        if len(times) == len(checks) > 0:
            best = max(range(len(checks)), key=lambda i: (_whole(checks[i].get("points")), -i))
            if times[: best + 1] == sorted(times[: best + 1]):  # else a clock was set back, and they are unknown
                found.append((times[best] - times[0]).total_seconds() / 60)
    return found


def _by_exercise(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    return {id: own for id in EXERCISES if (own := [mark for mark in marks if mark.row.exercise == id])}


def _row(id: str, marks: Sequence[Mark], journals: Sequence[Path]) -> tuple[str, ...]:
    solved = sum(mark.row.points == mark.row.out_of for mark in marks)
    mean = statistics.fmean(mark.points for mark in marks)
    minutes = minutes_of(id, journals)
    spent = f"{statistics.median(minutes):.0f} ({len(minutes)} known)" if minutes else "unknown: no journal"
    share = f"{solved} of {len(marks)} ({solved / len(marks):.0%})"
    planned = str(EXERCISES[id].minutes)
    return f"{EXERCISES[id].title} ({id})", share, f"{mean:.1f} of {marks[0].row.out_of}", spent, planned


def _mistakes(marks: Sequence[Mark]) -> str:
    made = Counter(
        (mark.row.exercise, known["name"], known["sentence"])
        for mark in marks
        if (known := mark.row.details.get("mistake"))
    )
    rows = [(str(n), f"{name} ({id})", sentence) for (id, name, sentence), n in made.most_common()]
    return table(("learners", "mistake", "what to say about it"), rows) or "<p>No known mistake was made.</p>"


def _name_errors(marks: Sequence[Mark]) -> str:
    rows = [
        (mark.row.student, mark.row.exercise, mark.row.reason)
        for mark in marks
        if not mark.row.points and "NameError" in f"{mark.row.reason} {mark.row.details}"
    ]
    return table(("learner", "exercise", "why"), rows) or "<p>Nobody.</p>"


def _predicted(marks: Sequence[Mark], journals: Sequence[Path]) -> str:
    answers: dict[str, Counter[str]] = {}
    for journal in journals:
        for id, answer in last_answers(journal, "prediction").items():
            answers.setdefault(id, Counter())[answer[:200]] += 1
    parts = []
    names = {EXERCISES[mark.row.exercise].lesson for mark in marks}
    asked = [row for lesson in lessons() if lesson.name in names for row in lesson.table("predictions").items()]
    for id, row in ((id, row) for id, row in asked if id in answers):
        right = str(row.get("answer", ""))
        rows = [(f"{answer} (right)" if answer == right else answer, str(n)) for answer, n in answers[id].most_common()]
        parts.append(f"<p>{escape(row['question'].strip())}</p>{table(('predicted', 'learners'), rows)}")
    return "".join(parts) or "<p>No journal was handed in: ask for the whole folder, not the notebooks alone.</p>"


def _time(text: str) -> datetime | None:
    """Return a time of a journal; UTC where it names no zone, so that all can be compared."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
