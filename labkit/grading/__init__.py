"""How is a learner answered? Checks that show the first counter-example, and the grading of a class."""

from labkit.grading.exercise import Check, CounterExample, Exercise, Grade, Mistake, Verdict
from labkit.grading.exercises import EXERCISES
from labkit.grading.judge import check, judge

__all__ = [
    "EXERCISES",
    "Check",
    "CounterExample",
    "Exercise",
    "Grade",
    "Mistake",
    "Verdict",
    "check",
    "judge",
]
