"""A page for teachers: model answers, points, minutes, known mistakes and wrong predictions.

All of it comes from the lessons' folders.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from labkit.classroom.class_pages import page, table
from labkit.course import Lesson, cells_of, lessons, questions, solution_of
from labkit.grading.exercise import Exercise
from labkit.grading.grade import heading

COLUMNS = [
    "exercise",
    "lesson",
    "title",
    "entry",
    "difficulty",
    "minutes",
    "points",
    "hidden_points",
    "checks",
    "mistakes",
]


def as_csv(exercises: Iterable[Exercise]) -> str:
    """Return a table of exercises: points, minutes, checks and known mistakes."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for e in exercises:
        hidden = sum(check.points for check in e.checks if check.hidden)
        checks, mistakes = (
            "; ".join(part.name for part in parts) for parts in (e.checks, e.mistakes)
        )
        writer.writerow(
            [
                e.id,
                e.lesson,
                e.title,
                e.entry,
                e.difficulty,
                e.minutes,
                e.points,
                hidden,
                checks,
                mistakes,
            ]
        )
    return text.getvalue()


def model_answers(exercises: Sequence[Exercise]) -> bytes:
    """Return the page of model answers, lesson by lesson."""
    parts = []
    for lesson in lessons():
        own = [exercise for exercise in exercises if exercise.lesson == lesson.name]
        if not own:
            continue
        minutes = sum(e.minutes for e in own)
        points = sum(e.points for e in own)
        parts.append(
            f"<h2>{lesson.name}: {len(own)} exercises, {minutes} minutes, {points} points</h2>"
        )
        parts += [_section(exercise, solution_of(cell_in(lesson, exercise))) for exercise in own]
        parts.append(
            f"<section><h3>What they will predict in {lesson.name}</h3>"
            f"{_predictions(lesson)}</section>"
        )
    return page("Model answers, for teachers", "\n".join(parts))


def cell_in(lesson: Lesson, exercise: Exercise) -> str:
    """Return the cell of a lesson that solves an exercise, with the marks of its solution."""
    return cells_of(lesson.text.read_text(encoding="utf-8"))[
        questions(lesson.text)[exercise.id].place
    ].source


def predictions() -> dict[str, dict[str, Any]]:
    """Return the predictions of all lessons, in their order, by name.

    Each has a question, an answer, and choices with their replies.
    """
    return {name: row for lesson in lessons() for name, row in lesson.table("predictions").items()}


def _section(exercise: Exercise, solution: str) -> str:
    checks = [
        (check.name, str(check.points), "at grading only" if check.hidden else "")
        for check in exercise.checks
    ]
    mistakes = [(mistake.name, mistake.sentence) for mistake in exercise.mistakes]
    return (
        f'<section id="{exercise.cell_id}">'
        f"<h3>{escape(heading(exercise))}, {exercise.points} points</h3>"
        f"<p><code>{escape(exercise.call)}</code> ({exercise.id})</p><pre>{escape(solution)}</pre>"
        f'<p style="white-space:pre-line">{escape(exercise.notes)}</p>'
        f"{table(('check', 'points', ''), checks)}"
        f"{table(('a mistake', 'its feedback'), mistakes)}</section>"
    )


def _predictions(lesson: Lesson) -> str:
    parts = []
    for row in lesson.table("predictions").values():
        answer = str(row.get("answer", "a number, measured"))
        choices = row.get("choices", {})
        wrong = [(choice, reply.strip()) for choice, reply in choices.items() if choice != answer]
        parts.append(
            f"<p><strong>{escape(row['question'].strip())}</strong> Right: {escape(answer)}.</p>"
        )
        parts.append(table(("a wrong guess", "why people make it"), wrong))
    return "".join(parts) or "<p>Nothing is predicted here.</p>"
