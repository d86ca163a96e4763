"""Exercises: checks that show the first counter-example, and the grading of a class."""

from typing import Any

from labkit.course import lessons
from labkit.grading.answer_log import hint, progress
from labkit.grading.exercise import Exercise, Mistake
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import Grade
from labkit.grading.judge import check, earned, judge

# What a lesson's cases.py has for its notebook.
OF_LESSONS = (
    "CONSULTATIONS",
    "FAILING",
    "PROJECT_TASKS",
    "SIX",
    "Consultation",
    "Treatment",
    "enter",
    "look",
    "show",
    "six_operands",
    "treat",
)

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
    *OF_LESSONS,
]


def __getattr__(name: str) -> Any:
    """Return what a lesson has for its notebook: kernels, tasks, consultations, functions of its leader board."""
    modules = (lesson.module("cases") for lesson in lessons()) if name in OF_LESSONS else ()
    for module in modules:
        if hasattr(module, name):
            return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
