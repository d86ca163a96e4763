"""Validation of a lesson's exercises, for its author."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.course import Lesson
from labkit.grading.exercise import Exercise
from labkit.grading.exercises import exercises_of
from labkit.grading.judge import answers_of, judge, known_answers, visible_cases

HINTS = 3


def problems(lesson: Lesson) -> list[str]:
    """Return the problems of a lesson's exercises, each with its file and exercise.

    The solution must earn full marks. Each known mistake must lose points and be recognized by its own name.

    Raises:
        CourseError: text and exercises are inconsistent.
    """
    hints, found = lesson.table("hints"), []
    for exercise in exercises_of(lesson):
        own = hints.get(exercise.id, ())
        if len(own) != HINTS:
            found.append(
                f"{lesson.folder / 'hints.toml'}: exercise {exercise.id}: expected {HINTS} hints, got {len(own)}"
            )
        found += [f"{lesson.folder / 'exercises.py'}: exercise {exercise.id}: {what}" for what in _faults(exercise)]
    return found


def _faults(exercise: Exercise) -> Iterator[str]:
    paper = visible_cases(exercise)
    right = judge(paper, answers_of(paper, exercise.reference, exercise.withheld))
    if right.points < right.out_of:
        yield f"the solution earns {right.points} of {right.out_of} points"
    for known in exercise.mistakes:
        grade = judge(paper, known_answers(paper, known.answer))
        if grade.points == grade.out_of:
            yield f"the mistake {known.name!r} equals the reference on every case of the notebook"
        elif grade.mistake is not known:
            called = grade.mistake.name if grade.mistake else "no known mistake"
            yield f"the mistake {known.name!r} is called {called!r}"
