"""What does a teacher want to know of an exercise? A model answer and why, points, minutes, and what goes wrong.

Idea: all of it stands in the lab already: solutions in the lessons' sources, reasons at the top of an exercise's
module, mistakes beside it, and wrong guesses with their replies in the predictions.
"""

from __future__ import annotations

import csv
import inspect
import io
import re
import sys
import tomllib
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from labkit.classroom.page import page, table
from labkit.grading.exercise import LESSONS, Exercise
from labkit.grading.grade import heading

COLUMNS = "exercise lesson title entry difficulty minutes points hidden_points checks mistakes".split()


def as_csv(exercises: Iterable[Exercise]) -> str:
    """Return a table of exercises: what each is worth, how long it takes, what it asks and which mistakes it knows."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for e in exercises:
        hidden = sum(check.points for check in e.checks if check.hidden)
        checks, mistakes = ("; ".join(part.name for part in parts) for parts in (e.checks, e.mistakes))
        writer.writerow([e.id, e.lesson, e.title, e.entry, e.difficulty, e.minutes, e.points, hidden, checks, mistakes])
    return text.getvalue()


def model_answers(top: Path, exercises: Sequence[Exercise]) -> bytes:
    """Return the page of model answers of a checkout, lesson by lesson."""
    parts = []
    for lesson in dict.fromkeys(exercise.lesson for exercise in exercises):
        source = (top / "notebooks" / "source" / f"{lesson}.py").read_text(encoding="utf-8")
        own = [exercise for exercise in exercises if exercise.lesson == lesson]
        minutes, points = sum(e.minutes for e in own), sum(e.points for e in own)
        parts.append(f"<h2>{lesson}: {len(own)} exercises, {minutes} minutes, {points} points</h2>")
        parts += [_section(exercise, solution_in(source, exercise)) for exercise in own]
        parts.append(f"<section><h3>What they will predict in {lesson}</h3>{_predictions(lesson)}</section>")
    return page("Model answers, for teachers", "\n".join(parts))


def solution_in(source: str, exercise: Exercise) -> str:
    """Return the cell of a lesson's source that solves an exercise, without the marks of its solution."""
    return re.sub(r"^ *### (BEGIN|END) SOLUTION\n", "", cell_in(source, exercise), flags=re.MULTILINE)


def cell_in(source: str, exercise: Exercise) -> str:
    """Return the cell of a lesson's source that solves an exercise.

    Raises:
        ValueError: the lesson has no such cell.
    """
    cells = re.split(r"^# %%(.*)$", source, flags=re.MULTILINE)
    for head, cell in zip(cells[1::2], cells[2::2], strict=True):
        if f'"{exercise.tag}"' in head:
            return cell.strip()
    raise ValueError(f"no cell of {exercise.lesson} has the tag {exercise.tag}")


def predictions_of(lesson: str) -> dict[str, dict[str, Any]]:
    """Return the predictions of a lesson: name -> question, answer, choices with their replies."""
    return {name: row for name, row in predictions().items() if LESSONS.get(name.split(".")[0]) == lesson}


@cache
def predictions() -> dict[str, dict[str, Any]]:
    """Return the predictions of all lessons, in their order."""
    return tomllib.loads(files("labkit.widgets.predict").joinpath("predictions.toml").read_text(encoding="utf-8"))


def _section(exercise: Exercise, solution: str) -> str:
    module = sys.modules[exercise.reference.__module__]
    checks = [(check.name, str(check.points), "at grading only" if check.hidden else "") for check in exercise.checks]
    mistakes = [(mistake.name, mistake.sentence) for mistake in exercise.mistakes]
    return (
        f'<section id="{exercise.cell_id}"><h3>{escape(heading(exercise))}, {exercise.points} points</h3>'
        f"<p><code>{escape(exercise.call)}</code> ({exercise.id})</p><pre>{escape(solution)}</pre>"
        f'<p style="white-space:pre-line">{escape(inspect.getdoc(module) or "")}</p>'
        f"{table(('asked', 'points', ''), checks)}{table(('a mistake', 'what it is told'), mistakes)}</section>"
    )


def _predictions(lesson: str) -> str:
    parts = []
    for row in predictions_of(lesson).values():
        answer, choices = str(row.get("answer", "a number, measured")), row.get("choices", {})
        wrong = [(choice, reply.strip()) for choice, reply in choices.items() if choice != answer]
        parts.append(f"<p><strong>{escape(row['question'].strip())}</strong> Right: {escape(answer)}.</p>")
        parts.append(table(("a wrong guess", "why people make it"), wrong))
    return "".join(parts) or "<p>Nothing is predicted here.</p>"
