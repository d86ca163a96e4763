"""Exercises: checks that show the first counter-example, and the grading of a class."""

from labkit.grading.answer_log import progress
from labkit.grading.exercise import Exercise, Mistake
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import Grade
from labkit.grading.hints import hint
from labkit.grading.judge import check, earned, judge
from labkit.grading.leader_board import enter, show
from labkit.grading.sandbox.project_tasks import FAILING, PROJECT_TASKS

__all__ = [
    "EXERCISES", "FAILING", "PROJECT_TASKS", "Exercise", "Grade", "Mistake", "check", "earned", "enter", "hint",
    "judge", "progress", "show",
]  # fmt: skip
