"""One answer, two doors: what a learner's cell earns in the notebook, it earns by `labkit grade`.

The cells are those of the lessons with their solutions in place, not the references.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from labkit.grading import EXERCISES, Exercise, judge
from labkit.grading.batch import answers_in, question
from labkit.grading.given.child import Limits, Question
from labkit.grading.given.keeper import Reply
from labkit.grading.judge import answers_of, paper_of
from labkit.grading.program import program_of
from labkit.grading.supervise import Runner, scratch
from tests.grading.cases import cells_of

ALL = [e for e in EXERCISES.values() if not e.id.startswith("clinic.")]  # those: test_clinic_answers.py
DAY = 2017  # a seed of grading


@pytest.fixture(scope="module")
def programs() -> dict[str, list[str]]:
    """Return what runs for each exercise: the definitions it names elsewhere in its lesson, then its own cell."""
    return {exercise.id: program_of(cells_of(exercise.lesson), exercise) for exercise in ALL}


@pytest.fixture(scope="module")
def replies(programs: dict[str, list[str]]) -> dict[str, Reply]:
    """Run all cells as `labkit grade` does, in one process of its own."""
    questions = [question(paper_of(EXERCISES[id], DAY), program) for id, program in programs.items()]
    questions += [replace(q, exercise=IN_PLACE + q.exercise, program=in_place(q)) for q in questions]
    with scratch() as folder, Runner(Limits(), folder) as runner:
        return runner.run(questions)


IN_PLACE = "in place: "
SPOIL = """
right = {0}

def spoil(value):
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        spoil(item)
    if isinstance(value, list):
        value.append(0)
    elif hasattr(value, "zero_"):
        value.zero_().sub_(1)
    elif hasattr(value, "fill"):
        value.fill(-1)

def {0}(*arguments):
    answer = right(*copy.deepcopy(arguments))
    spoil(arguments)
    return answer
"""


def in_place(asked: Question) -> list[str]:
    """Return a learner's program that answers rightly, and overwrites what it was given."""
    return [*asked.program[:-1], "import copy\n" + asked.program[-1] + SPOIL.format(asked.entry)]


def function_of(exercise: Exercise, program: list[str]) -> Any:
    """Run a learner's cell as a kernel does, and return the function that it hands to `check`."""
    handed: dict[str, Any] = {}
    names: dict[str, Any] = dict(exercise.provides)
    with patch("labkit.grading.check", lambda id, function: handed.update({id: function})):
        for source in program:
            exec(source, names)
    return handed[exercise.id]


def test_a_solved_cell_earns_the_same_in_the_notebook_and_by_labkit_grade(
    programs: dict[str, list[str]], replies: dict[str, Reply]
) -> None:
    for exercise in ALL:
        paper, reply = paper_of(exercise, DAY), replies[exercise.id]
        here = answers_of(paper, function_of(exercise, programs[exercise.id]), exercise.withheld)
        assert (answers_in(reply), reply.note) == (here, ""), exercise.id
        if not exercise.id.startswith("project."):  # trains for its marks: tests/test_notebooks.py waits for that
            grade = judge(paper, answers_in(reply))
            assert (grade.points, grade.mistake) == (exercise.points, None), exercise.id


CHANGEABLE = (list, torch.Tensor, np.ndarray)
# An answer that trains what it is given changes it, and of scaling.order the loop is the answer.
ASKED = [e for e in ALL if not e.id.startswith("project.") and e.id != "scaling.order" and e.run_by is None]


def can_be_changed(argument: object) -> bool:
    return isinstance(argument, CHANGEABLE) or (
        isinstance(argument, dict) and any(map(can_be_changed, argument.values()))
    )


def test_arguments_changed_in_place_earn_nothing_by_labkit_grade(replies: dict[str, Reply]) -> None:
    for exercise in ASKED:
        paper = paper_of(exercise, DAY)
        grade = judge(paper, answers_in(replies[IN_PLACE + exercise.id]))
        if any(can_be_changed(argument) for cases in paper.cases for case in cases for argument in case):
            assert (grade.points, "work on a copy" in grade.reason) == (0, True), exercise.id
        else:
            assert grade.points == exercise.points, exercise.id
