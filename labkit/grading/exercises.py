"""The exercises of the course, from the folders of its lessons.

In a teacher's lab an exercise is joined from the lesson's exercises.py (checks and known mistakes) and its text (title,
difficulty, minutes, and the solution, which is the reference). A learner's lab has one file in their place
(labkit.grading.stored).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from labkit.course import CourseError, Lesson, Question, lessons, questions
from labkit.grading.exercise import Exercise, Mistake
from labkit.grading.solutions import Solutions
from labkit.grading.stored import stored_exercises


class Exercises(Mapping[str, Exercise]):
    """All exercises by id, in the order of the course: the order of rows in a table of grades. Read when first used."""

    def __getitem__(self, id: str) -> Exercise:
        return _all(lessons())[id]

    def __iter__(self) -> Iterator[str]:
        return iter(_all(lessons()))

    def __len__(self) -> int:
        return len(_all(lessons()))


EXERCISES = Exercises()


@lru_cache(maxsize=8)
def exercises_of(lesson: Lesson) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson.

    Raises:
        CourseError: text and exercises do not fit each other, or an edit does not fit the solution; the message names
            the file and the exercise.
    """
    if not lesson.text.is_file():
        return stored_exercises(lesson)
    asked, module, place = questions(lesson.text), lesson.module("exercises"), lesson.folder / "exercises.py"
    if module is None:
        if asked:
            raise CourseError(f"{place} is missing; lesson.py has the exercises {', '.join(asked)}")
        return ()
    found: tuple[Exercise, ...] = tuple(getattr(module, "EXERCISES", ()))
    if unknown := [exercise.id for exercise in found if exercise.id not in asked]:
        raise CourseError(f"{place}: exercise {unknown[0]}: lesson.py has no cell with the tag exercise-{unknown[0]}")
    if missing := asked.keys() - {exercise.id for exercise in found}:
        raise CourseError(f"{place}: lesson.py has the exercise {min(missing)}, and EXERCISES has not")
    solutions = Solutions(lesson.text)
    return tuple(_joined(exercise, lesson.name, asked[exercise.id], solutions) for exercise in found)


def _joined(exercise: Exercise, lesson: str, said: Question, solutions: Solutions) -> Exercise:
    return replace(
        exercise,
        lesson=lesson, title=said.title, entry=said.entry, difficulty=said.difficulty, minutes=said.minutes,
        reference=solutions.function(exercise.id),
        mistakes=tuple(_answered(known, exercise.id, solutions) for known in exercise.mistakes),
    )  # fmt: skip


def _answered(known: Mistake, id: str, solutions: Solutions) -> Mistake:
    return replace(known, answer=solutions.edited(id, known.name, known.edits), edits=()) if known.edits else known


@lru_cache(maxsize=8)
def _all(course: tuple[Lesson, ...]) -> dict[str, Exercise]:
    found: dict[str, Exercise] = {}
    for lesson in course:
        for exercise in exercises_of(lesson):
            if exercise.id in found:
                raise CourseError(f"{lesson.folder}: exercise {exercise.id} is also in {found[exercise.id].lesson}")
            found[exercise.id] = exercise
    return found
