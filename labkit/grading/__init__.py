"""Exercises: checks that show the first counter-example, and the grading of a class."""

from typing import Any

from labkit.course import lessons
from labkit.grading.answer_log import progress
from labkit.grading.exercise import Exercise, Mistake
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import Grade
from labkit.grading.hints import hint
from labkit.grading.judge import check, earned, judge
from labkit.grading.leader_board import enter, show

OF_CASES = ("FAILING", "PROJECT_TASKS")  # tables that lessons have in their cases.py, for their notebooks

__all__ = [
    "EXERCISES", "Exercise", "Grade", "Mistake", "check", "earned", "enter", "hint", "judge", "progress", "show",
    *OF_CASES,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return the tasks of projects, or the recipes under which they fail, by name: those of all lessons."""
    if name not in OF_CASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    tables = [getattr(lesson.module("cases"), name, {}) for lesson in lessons()]
    return globals().setdefault(name, {key: row for table in tables for key, row in table.items()})
