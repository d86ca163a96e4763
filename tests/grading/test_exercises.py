"""Every exercise: the solution earns all points, and a known mistake loses some and is named.

The solutions run in a notebook's cell and as by `labkit grade`. The clinic's solutions run in
test_clinic_answers.py; recipes of projects are trained in test_project.py.
"""

import copy
import math
import random
from typing import Any
from unittest.mock import patch

import pytest

from labkit.course import lessons
from labkit.grading import EXERCISES, Exercise, judge
from labkit.grading.batch import answers_in, request_of
from labkit.grading.difference import difference
from labkit.grading.exercise import wrong
from labkit.grading.judge import (
    CaseSet,
    answers_of,
    draw_cases,
    grading_cases,
    known_answers,
    known_outcomes,
    visible_cases,
)
from labkit.grading.program import program_of
from labkit.grading.sandbox.runner import Runner, scratch
from labkit.grading.sandbox.supervisor import Reply
from labkit.grading.sandbox.worker import Limits
from labkit.grading.solutions import Solutions
from tests.grading.cases import cases, cells_of

ALL = list(EXERCISES.values())
# Seeds of grading. Its cases include those of the notebook.
GRADING = 1
OTHERS = (2, 3)
# The answers to these exercises are trained when they are judged.
TRAINS = ("project.", "clinic.")
ANOTHER_SEED = 2017
TRAINING = (pytest.mark.slow, pytest.mark.timeout(1500))
CHECKED = [exercise for exercise in ALL if not exercise.id.startswith(TRAINS)]
SOLVED = [exercise for exercise in ALL if not exercise.id.startswith("clinic.")]


@pytest.mark.parametrize("edits", [("<=",), ("<=", ">=", "=="), [("<", "<="), (">",)]])
def test_an_edit_of_a_mistake_is_a_pair_of_texts(edits: Any) -> None:
    with pytest.raises(TypeError, match="replace: expected a text of the solution and another"):
        wrong("one too far", "this stops one step too late.", replace=edits)


def test_a_copy_of_solutions_has_the_same_functions() -> None:
    (lesson,) = [lesson for lesson in lessons() if lesson.name == "00_start"]
    solutions = Solutions(lesson.text)
    assert copy.copy(solutions).my_smallest(5, 10) == solutions.my_smallest(5, 10) == 2.0**-24


def test_an_exercise_is_complete() -> None:
    for exercise in ALL:
        assert len({mistake.name for mistake in exercise.mistakes}) == len(exercise.mistakes), (
            exercise.id
        )
        assert len(exercise.mistakes) >= 5, exercise.id
        assert len({check.name for check in exercise.checks}) == len(exercise.checks), exercise.id
        assert not any(check.hidden for check in exercise.checks) or exercise.id.startswith(
            "project."
        ), exercise.id
        assert exercise.difficulty in (1, 2, 3), exercise.id
        assert all(check.points > 0 for check in exercise.checks), exercise.id
        assert all(mistake.sentence.startswith("this ") for mistake in exercise.mistakes), (
            exercise.id
        )
        assert all(len(draw_cases(exercise, check, 5)) > 0 for check in exercise.checks), (
            exercise.id
        )
        assert all(
            name and text
            for case in cases(exercise.id, [0])
            for name, text in exercise.aside(*case)
        )


def not_caught(exercise: Exercise, *seeds: int) -> list[str]:
    """Return the known mistakes that earn full marks with one of these seeds, or are unknown."""
    found = []
    for case_set in (grading_cases(exercise, seed) for seed in seeds):
        for mistake in exercise.mistakes:
            grade = judge(case_set, known_answers(case_set, mistake.answer))
            if grade.points >= grade.out_of or grade.mistake is not mistake:
                found.append(f"{mistake.name}: {grade}")
    return found


@pytest.mark.parametrize(
    "exercise", [pytest.param(e, id=e.id, marks=() if e in CHECKED else TRAINING) for e in ALL]
)
def test_mistakes_are_recognized_and_lose_points(exercise: Exercise) -> None:
    shown = visible_cases(exercise)
    grades = {
        mistake.name: judge(shown, known_answers(shown, mistake.answer))
        for mistake in exercise.mistakes
    }
    assert {name: grade.mistake and grade.mistake.name for name, grade in grades.items()} == {
        n: n for n in grades
    }
    assert [name for name, grade in grades.items() if "Solved" in str(grade)] == []
    assert not_caught(exercise, GRADING) == []


@pytest.mark.slow
@pytest.mark.parametrize("exercise", CHECKED, ids=lambda exercise: exercise.id)
def test_every_mistake_is_called_by_name_with_other_seeds(exercise: Exercise) -> None:
    assert not_caught(exercise, *OTHERS) == []


def test_a_coin_passes_less_than_once_in_a_thousand_gradings() -> None:
    """Answers drawn at random fail, and so does a constant answer.

    A learner may draw each answer from all that are right for some case. With n cases and k
    different answers, this passes with a probability of about k^-n, which must be below 1/1000.
    """
    for exercise in CHECKED:
        right = [
            repr(a)
            for group in known_outcomes(grading_cases(exercise, GRADING), exercise.reference)
            for a in group
        ]
        assert len(right) * math.log(len(set(right))) > math.log(1e3), exercise.id


def test_what_is_learnt_by_heart_does_not_pass() -> None:
    """An answer that looks the notebook's calls up in a table fails at grading.

    To all other calls it gives the table's first answer.
    """
    for exercise in CHECKED:
        shown, day = (
            (p, known_outcomes(p, exercise.reference))
            for p in (visible_cases(exercise), grading_cases(exercise, 5))
        )
        table = {repr(case): answer for case, answer in pairs(*shown)}
        first = next(iter(table.values()))
        wrong = [
            difference(right, table.get(repr(case), first), exercise.ulps)
            for case, right in pairs(*day)
        ]
        assert any(wrong), exercise.id


def pairs(case_set: CaseSet, answers: list[list[object]]) -> list[tuple[object, object]]:
    """Return the calls of a case set, each with its answer."""
    groups = zip(case_set.cases, answers, strict=True)
    return [pair for cases, group in groups for pair in zip(cases, group, strict=True)]


def test_cases_depend_on_the_seed_and_not_on_pythons_generator() -> None:
    first = cases("scaling.advance", [5])
    state = random.getstate()
    random.seed(99)
    again = cases("scaling.advance", [5])
    random.setstate(state)
    assert again == first
    assert cases("scaling.advance", [6]) != first


# --- the solutions in a notebook and at grading ---


@pytest.fixture(scope="module")
def programs() -> dict[str, list[str]]:
    """Return the program of each exercise: definitions of other cells, then its own cell."""
    return {exercise.id: program_of(cells_of(exercise.lesson), exercise) for exercise in SOLVED}


@pytest.fixture(scope="module")
def replies(programs: dict[str, list[str]]) -> dict[str, Reply]:
    """Run all cells as `labkit grade` does, in one process of its own."""
    questions = [
        request_of(grading_cases(EXERCISES[id], ANOTHER_SEED), program)
        for id, program in programs.items()
    ]
    with scratch() as folder, Runner(Limits(), folder) as runner:
        return runner.run(questions)


def function_of(exercise: Exercise, program: list[str]) -> Any:
    """Run a learner's cell as a kernel does, and return the function that it hands to `check`."""
    handed: dict[str, Any] = {}
    names: dict[str, Any] = dict(exercise.provides)
    with patch("labkit.grading.check", lambda id, function: handed.update({id: function})):
        for source in program:
            exec(source, names)
    return handed[exercise.id]


def test_solved_cell_earns_the_same_by_labkit_grade(
    programs: dict[str, list[str]], replies: dict[str, Reply]
) -> None:
    for exercise in SOLVED:
        case_set = grading_cases(exercise, ANOTHER_SEED)
        reply = replies[exercise.id]
        here = answers_of(case_set, function_of(exercise, programs[exercise.id]))
        assert answers_in(reply) == here, exercise.id
        assert reply.note == "", exercise.id
        # trains for its marks: tests/test_notebooks.py waits for that
        if not exercise.id.startswith("project."):
            grade = judge(case_set, answers_in(reply))
            assert grade.points == exercise.points, exercise.id
            assert grade.mistake is None, exercise.id
