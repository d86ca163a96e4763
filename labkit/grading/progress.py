"""How far is the learner? Solved exercises and points of every lesson, and what comes next, from the journal.

Idea: `progress()` in a notebook and `labkit progress` in a terminal show one value, a `Progress`.

Invariant: it counts what was checked and kept; it runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from labkit.grading.exercises import EXERCISES
from labkit.grading.kept import best, kept_answers


@dataclass(frozen=True)
class Lesson:
    """What is solved in one lesson; an exercise is solved where every check of the notebook passed."""

    name: str
    solved: int
    exercises: int
    points: int
    out_of: int


@dataclass(frozen=True, repr=False)
class Progress:
    """All lessons, and the first exercise that is not solved; a notebook shows it as a table."""

    lessons: tuple[Lesson, ...]
    next: str

    def __str__(self) -> str:
        lines = [f"{lesson.name:<20}{_solved(lesson):<18}{_points(lesson)}" for lesson in self.lessons]
        return "\n".join([*lines, self.next])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(lesson.name)}</th>'
            f'<td style="text-align:left">{_solved(lesson)}</td><td style="text-align:left">{_points(lesson)}</td></tr>'
            for lesson in self.lessons
        )
        caption = f'<caption style="caption-side:bottom;text-align:left;color:inherit">{escape(self.next)}</caption>'
        return f'<table style="color:var(--jp-ui-font-color1,inherit)">{caption}<tbody>{rows}</tbody></table>'


def progress(folder: Path | str = ".") -> Progress:
    """Return what was solved in the notebooks of a folder."""
    kept = {id: best(answers) for id, answers in kept_answers(Path(folder)).items()}
    points = {id: kept[id].points if id in kept else 0 for id in EXERCISES}
    solved = {id for id in EXERCISES if points[id] >= visible_points(id)}
    rows = []
    for name in dict.fromkeys(exercise.lesson for exercise in EXERCISES.values()):
        own = [id for id, exercise in EXERCISES.items() if exercise.lesson == name]
        out_of = sum(EXERCISES[id].points for id in own)
        rows.append(Lesson(name, len(solved & {*own}), len(own), sum(points[id] for id in own), out_of))
    waiting = next((exercise for id, exercise in EXERCISES.items() if id not in solved), None)
    comes_next = f"Next: {waiting.title}, in {waiting.lesson}" if waiting else "Everything is solved."
    return Progress(tuple(rows), comes_next)


def visible_points(id: str) -> int:
    """Return the points that a notebook gives for an exercise: those of the checks it makes."""
    return sum(check.points for check in EXERCISES[id].checks if not check.hidden)


def _solved(lesson: Lesson) -> str:
    return f"{lesson.solved} of {lesson.exercises} solved"


def _points(lesson: Lesson) -> str:
    return f"{lesson.points} of {lesson.out_of} points"
