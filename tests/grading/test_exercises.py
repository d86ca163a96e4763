"""Every exercise: its reference earns all points, and each known mistake loses some and is called by its name."""

from __future__ import annotations

import math
import random

import pytest

from labkit.grading import EXERCISES, Exercise, judge
from labkit.grading.difference import difference
from labkit.grading.judge import (
    Paper,
    answers_of,
    cases_of,
    known_answers,
    known_outcomes,
    paper_of,
    visible_paper,
)
from tests.grading.cases import cases

ALL = list(EXERCISES.values())
GRADING, OTHERS = 1, (2, 3)  # the seeds of grading; its papers hold the notebook's calls, too
TRAINS = ("project.", "clinic.")  # to judge a recipe, or a repair, is to train
TRAINING = (pytest.mark.slow, pytest.mark.timeout(1500))
CHECKED = [exercise for exercise in ALL if not exercise.id.startswith(TRAINS)]


def test_an_exercise_is_complete() -> None:
    for exercise in ALL:
        assert len({mistake.name for mistake in exercise.mistakes}) == len(exercise.mistakes) >= 5, exercise.id
        assert len({check.name for check in exercise.checks}) == len(exercise.checks), exercise.id
        assert not any(check.hidden for check in exercise.checks) or exercise.id.startswith("project."), exercise.id
        assert exercise.difficulty in (1, 2, 3), exercise.id
        assert all(check.points > 0 for check in exercise.checks), exercise.id
        assert all(mistake.sentence.startswith("this ") for mistake in exercise.mistakes), exercise.id
        assert all(len(cases_of(exercise, check, 5)) > 0 for check in exercise.checks), exercise.id
        assert all(name and text for case in cases(exercise.id, [0]) for name, text in exercise.aside(*case))


def not_right(exercise: Exercise, *seeds: int) -> list[str]:
    """Return the grades of the reference, with these seeds, that are less than full marks."""
    papers = [paper_of(exercise, seed) for seed in seeds]
    grades = [judge(paper, answers_of(paper, exercise.reference)) for paper in papers]
    return [str(grade) for grade in grades if (grade.points, grade.mistake) != (grade.out_of, None)]


def not_caught(exercise: Exercise, *seeds: int) -> list[str]:
    """Return the known mistakes that keep all points with one of these seeds, or are not called by their own names."""
    found = []
    for paper in (paper_of(exercise, seed) for seed in seeds):
        for mistake in exercise.mistakes:
            grade = judge(paper, known_answers(paper, mistake.answer))
            if grade.points >= grade.out_of or grade.mistake is not mistake:
                found.append(f"{mistake.name}: {grade}")
    return found


# The clinic is graded in test_clinic_answers.py; recipes of projects are trained in test_project.py.
@pytest.mark.parametrize(
    "exercise",
    [pytest.param(e, id=e.id, marks=() if e in CHECKED else TRAINING) for e in ALL if not e.id.startswith("clinic.")],
)
def test_the_reference_earns_full_marks_and_is_solved_in_the_notebook(exercise: Exercise) -> None:
    assert not_right(exercise, GRADING) == []
    shown = visible_paper(exercise)
    assert "Solved." in str(judge(shown, answers_of(shown, exercise.reference))).splitlines()[-1]


@pytest.mark.parametrize(
    "exercise",
    [pytest.param(e, id=e.id, marks=() if e in CHECKED else TRAINING) for e in ALL],
)
def test_every_mistake_is_called_by_name_in_the_notebook_and_loses_points_at_grading(exercise: Exercise) -> None:
    shown = visible_paper(exercise)
    grades = {mistake.name: judge(shown, answers_of(shown, mistake.answer)) for mistake in exercise.mistakes}
    assert {name: grade.mistake and grade.mistake.name for name, grade in grades.items()} == {n: n for n in grades}
    assert [name for name, grade in grades.items() if "Solved" in str(grade)] == []
    assert not_caught(exercise, GRADING) == []


@pytest.mark.slow
@pytest.mark.parametrize("exercise", CHECKED, ids=lambda exercise: exercise.id)
def test_other_seeds_change_nothing(exercise: Exercise) -> None:
    assert not_right(exercise, *OTHERS) == not_caught(exercise, *OTHERS) == []


def test_a_coin_passes_less_than_once_in_a_thousand_gradings() -> None:
    """Whoever draws an answer from those that are ever right, anew for each call; a constant is such a coin, too."""
    for exercise in CHECKED:
        right = [repr(a) for group in known_outcomes(paper_of(exercise, GRADING), exercise.reference) for a in group]
        assert len(right) * math.log(len(set(right))) > math.log(1e3), exercise.id


def test_what_is_learnt_by_heart_does_not_pass() -> None:
    """A table of the notebook's calls, with its first answer for every other call, earns less at grading."""
    for exercise in CHECKED:
        shown, day = (
            (p, known_outcomes(p, exercise.reference)) for p in (visible_paper(exercise), paper_of(exercise, 5))
        )
        table = {repr(case): answer for case, answer in pairs(*shown)}
        first = next(iter(table.values()))
        wrong = [difference(right, table.get(repr(case), first), exercise.ulps) for case, right in pairs(*day)]
        assert any(wrong), exercise.id


def pairs(paper: Paper, answers: list[list[object]]) -> list[tuple[object, object]]:
    """Return the calls of a paper, each with its answer."""
    groups = zip(paper.cases, answers, strict=True)
    return [pair for cases, group in groups for pair in zip(cases, group, strict=True)]


def test_cases_depend_on_the_seed_and_on_nothing_else() -> None:
    first = cases("scaling.advance", [5])
    random.seed(99)
    assert cases("scaling.advance", [5]) == first
    assert cases("scaling.advance", [6]) != first
