"""How is a learner answered? Checks that show the first counter-example, and the grading of a class."""

from labkit.grading.exercise import Check, Exercise, Mistake
from labkit.grading.exercises import EXERCISES
from labkit.grading.exercises.project_tasks import FAILING, PROJECT_TASKS
from labkit.grading.grade import CounterExample, Grade, Verdict
from labkit.grading.judge import check, judge
from labkit.grading.leader_board import Board, Entrant, enter, show
from labkit.grading.outcome import Outcome

__all__ = [
    "EXERCISES",
    "FAILING",
    "PROJECT_TASKS",
    "Board",
    "Check",
    "CounterExample",
    "Entrant",
    "Exercise",
    "Grade",
    "Mistake",
    "Outcome",
    "Verdict",
    "check",
    "enter",
    "judge",
    "show",
]
