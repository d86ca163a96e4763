"""The exercises of the course, from the folders of its lessons.

In a teacher's lab an exercise joins the lesson's exercises.py (checks and known mistakes) and its
text (title, difficulty, minutes, and the solution, which is the reference). A learner's lab has one
file instead of both (labkit.grading.stored).
"""

from __future__ import annotations

import difflib
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import replace
from functools import lru_cache

from labkit.course import CourseError, Lesson, Question, lessons, questions
from labkit.grading.exercise import Exercise, Mistake
from labkit.grading.solutions import Solutions
from labkit.grading.stored import stored_exercises


class Exercises(Mapping[str, Exercise]):
    """All exercises by id, in the order of the course, which a table of grades follows.

    The lessons are read when it is first used.
    """

    def __getitem__(self, id: str) -> Exercise:
        return _all(lessons())[id]

    def __iter__(self) -> Iterator[str]:
        return iter(_all(lessons()))

    def __len__(self) -> int:
        return len(_all(lessons()))

    # Mapping's own look for the lessons' folders once for each exercise.
    def values(self) -> ValuesView[Exercise]:
        return _all(lessons()).values()

    def items(self) -> ItemsView[str, Exercise]:
        return _all(lessons()).items()


EXERCISES = Exercises()


def find_exercise(exercise_id: str) -> Exercise:
    """Return the exercise with this name.

    Raises:
        ValueError: it does not exist; the message names the nearest, if there are any.
    """
    if exercise_id in EXERCISES:
        return EXERCISES[exercise_id]
    near = difflib.get_close_matches(str(exercise_id), EXERCISES, n=1, cutoff=0.0)
    if not near:
        raise ValueError(f"there is no exercise {exercise_id!r}: no lesson here has exercises")
    raise ValueError(
        f"there is no exercise {exercise_id!r}; the nearest name is {near[0]!r}, of "
        f"{', '.join(EXERCISES)}"
    )


@lru_cache(maxsize=8)
def exercises_of(lesson: Lesson) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson.

    Raises:
        CourseError: text and exercises are inconsistent, or an edit does not match the solution;
            the message names the file and the exercise.
    """
    if not lesson.text.is_file():
        return stored_exercises(lesson)
    known = questions(lesson.text)
    module = lesson.module("exercises")
    place = lesson.folder / "exercises.py"
    if module is None:
        if known:
            raise CourseError(f"{place} is missing; lesson.py has the exercises {', '.join(known)}")
        return ()
    found: tuple[Exercise, ...] = tuple(getattr(module, "EXERCISES", ()))
    unknown = [exercise.id for exercise in found if exercise.id not in known]
    if unknown:
        raise CourseError(
            f"{place}: exercise {unknown[0]}: lesson.py has no cell with the tag "
            f"exercise-{unknown[0]}"
        )
    missing = known.keys() - {exercise.id for exercise in found}
    if missing:
        raise CourseError(
            f"{place}: lesson.py has the exercise {min(missing)}, which EXERCISES lacks"
        )
    solutions = Solutions(lesson.text)
    return tuple(
        _joined(exercise, lesson.name, known[exercise.id], solutions) for exercise in found
    )


def _joined(exercise: Exercise, lesson: str, question: Question, solutions: Solutions) -> Exercise:
    """Return an exercise with what the lesson's text says of it: its question and its solution."""
    mistakes: list[Mistake] = []
    for known in exercise.mistakes:
        if known.edits:
            answer = solutions.edited(exercise.id, known.name, known.edits)
            mistakes.append(replace(known, answer=answer, edits=()))
        else:
            mistakes.append(known)
    return replace(
        exercise,
        lesson=lesson,
        title=question.title,
        entry=question.entry,
        difficulty=question.difficulty,
        minutes=question.minutes,
        reference=solutions.function(exercise.id),
        mistakes=tuple(mistakes),
    )


@lru_cache(maxsize=8)
def _all(course: tuple[Lesson, ...]) -> dict[str, Exercise]:
    found: dict[str, Exercise] = {}
    for lesson in course:
        for exercise in exercises_of(lesson):
            if exercise.id in found:
                raise CourseError(
                    f"{lesson.folder}: exercise {exercise.id} is also in "
                    f"{found[exercise.id].lesson}"
                )
            found[exercise.id] = exercise
    return found
