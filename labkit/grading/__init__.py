"""Exercises: checks that show the first counter-example, and the grading of a class."""

from typing import Any

from labkit.course import moved_to_lessons
from labkit.grading.answer_log import hint, progress
from labkit.grading.exercise import Exercise, Mistake
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import Grade
from labkit.grading.judge import check, earned, judge
from labkit.moved import moved

__all__ = [
    "EXERCISES",
    "Exercise",
    "Grade",
    "Mistake",
    "check",
    "earned",
    "hint",
    "judge",
    "progress",
]


def __getattr__(name: str) -> Any:
    """Return what moved to a lesson, with a DeprecationWarning."""
    return moved(__name__, name, moved_to_lessons(__name__))
