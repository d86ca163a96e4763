"""A page for teachers: model answers, points, minutes, known mistakes and wrong predictions.

All of it comes from the lessons' folders; model_answers.html.jinja has the texts around it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from labkit.classroom.class_pages import page
from labkit.course import Lesson, cells_of, lessons, questions, solution_of
from labkit.findings import counted
from labkit.grading.exercise import Exercise
from labkit.grading.grade import heading

COLUMNS = (
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
)


def as_csv(exercises: Iterable[Exercise]) -> str:
    """Return a table of exercises: points, minutes, checks and known mistakes."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for exercise in exercises:
        writer.writerow(
            {
                "exercise": exercise.id,
                "lesson": exercise.lesson,
                "title": exercise.title,
                "entry": exercise.entry,
                "difficulty": exercise.difficulty,
                "minutes": exercise.minutes,
                "points": exercise.points,
                "hidden_points": sum(check.points for check in exercise.checks if check.hidden),
                "checks": "; ".join(check.name for check in exercise.checks),
                "mistakes": "; ".join(mistake.name for mistake in exercise.mistakes),
            }
        )
    return text.getvalue()


def model_answers(exercises: Sequence[Exercise]) -> bytes:
    """Return the page of model answers, lesson by lesson."""
    parts = []
    for lesson in lessons():
        own = [exercise for exercise in exercises if exercise.lesson == lesson.name]
        if own:
            counts = {
                "exercise": len(own),
                "minute": sum(exercise.minutes for exercise in own),
                "point": sum(exercise.points for exercise in own),
            }
            parts.append(
                {
                    "name": lesson.name,
                    "summary": ", ".join(counted(count, what) for what, count in counts.items()),
                    "answers": [_model_answer(lesson, exercise) for exercise in own],
                    "predictions": _predictions(lesson),
                }
            )
    return page("model_answers.html.jinja", "Model answers, for teachers", lessons=parts)


def _model_answer(lesson: Lesson, exercise: Exercise) -> dict[str, object]:
    checks = []
    for check in exercise.checks:
        when = "at grading only" if check.hidden else ""
        checks.append((check.name, str(check.points), when))
    return {
        "exercise": exercise,
        "heading": heading(exercise),
        "solution": solution_of(cell_in(lesson, exercise)),
        "checks": checks,
        "mistakes": [(mistake.name, mistake.sentence) for mistake in exercise.mistakes],
    }


def _predictions(lesson: Lesson) -> list[dict[str, object]]:
    """Return the predictions of a lesson: question, answer, and wrong choices with replies."""
    found: list[dict[str, object]] = []
    for row in lesson.table("predictions").values():
        answer = str(row.get("answer", "a number, measured"))
        wrong = [
            (choice, reply.strip())
            for choice, reply in row.get("choices", {}).items()
            if choice != answer
        ]
        found.append(
            {"question": row["question"].strip(), "answer": answer, "wrong_choices": wrong}
        )
    return found


def cell_in(lesson: Lesson, exercise: Exercise) -> str:
    """Return the cell of a lesson that solves an exercise, with the marks of its solution."""
    place = questions(lesson.text)[exercise.id].place
    return cells_of(lesson.text.read_text(encoding="utf-8"))[place].source


def predictions() -> dict[str, dict[str, Any]]:
    """Return the predictions of all lessons, in their order, by name.

    Each has a question, an answer, and choices with their replies.
    """
    return {name: row for lesson in lessons() for name, row in lesson.table("predictions").items()}
