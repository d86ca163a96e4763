"""Exercises in pages: the verdicts of the lab, in a process without torch and numpy."""

import json
import subprocess
import sys
import warnings
from functools import cache
from typing import Any

import pytest
import torch

from labkit.classroom.live import live_exercises
from labkit.course import Lesson, learners_notebook, lessons
from labkit.grading import EXERCISES
from labkit.grading.difference import difference
from labkit.grading.exercise import Exercise
from labkit.grading.grade import as_html
from labkit.grading.judge import answers_of, judge, known_answers, visible_cases
from labkit.grading.live import exercise_of
from labkit.grading.solutions import Solutions
from labkit.grading.stored import digest

NOT_IN_PAGES = ("torch", "numpy", "matplotlib", "jinja2", "IPython", "nbformat")
# A program that judges as a page does, and cannot import the packages that a page lacks.
WITHOUT = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from labkit.course import hide
from labkit.grading.live import answer_in_page, cells_of, exercise_of

hide()
asked = json.load(sys.stdin)
found = []
for form, notebook, source in asked:
    exercise = exercise_of(form)
    shown = answer_in_page(exercise, cells_of(notebook, {{exercise.id: source}}))
    found.append([shown.solved, shown.text, shown.html, shown.notes])
print(json.dumps(found))
"""
WITHOUT = WITHOUT.format(absent=NOT_IN_PAGES)


@cache
def live(number: str) -> dict[str, Any]:
    """Return the live exercises of a lesson, as JSON gives them back."""
    forms = live_exercises([lesson_of(number)]).forms
    return {id: json.loads(json.dumps(form)) for id, form in forms.items()}


def lesson_of(number: str) -> Lesson:
    return next(lesson for lesson in lessons() if lesson.name.split("_")[0] == number)


def in_a_page(number: str, sources: dict[str, list[str]]) -> dict[str, list[Any]]:
    """Return what a page shows of each answer to an exercise, by its id."""
    notebook = learners_notebook(lesson_of(number))
    questions = [
        (live(number)[id], notebook, source)
        for id, answers in sources.items()
        for source in answers
    ]
    shown = iter(shown_of(questions))
    return {id: [next(shown) for _ in answers] for id, answers in sources.items()}


def shown_of(questions: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Return what a page shows of each answer, given as (form, notebook, source of the answer)."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT], input=json.dumps(questions), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    shown: list[list[Any]] = json.loads(run.stdout)
    return shown


def starter(number: str, id: str) -> str:
    cells = learners_notebook(lesson_of(number))["cells"]
    (cell,) = [cell for cell in cells if f"exercise-{id}" in cell["metadata"].get("tags", ())]
    return "".join(cell["source"])


def wrong(id: str) -> str:
    """Return an answer to an exercise that is never right."""
    exercise = EXERCISES[id]
    return f"def {exercise.entry}({', '.join(exercise.parameters)}):\n    return 'nothing'\n"


@pytest.mark.parametrize("number", ["00", "01", "02"])
class TestWithoutTorchAndNumpy:
    """Answers to the live exercises of a lesson, in a process without torch and numpy."""

    def test_right_answers_earn_all_points(self, number: str) -> None:
        solutions = Solutions(lesson_of(number).text)
        sources = {id: [solutions.source(id)] for id in live(number)}
        assert sources
        for id, ((solved, text, *_),) in in_a_page(number, sources).items():
            points = sum(check.points for check in EXERCISES[id].checks if not check.hidden)
            assert solved, (id, text)
            assert f"{points} of" in text, (id, text)

    def test_a_wrong_answer_is_shown(self, number: str) -> None:
        sources = {id: [wrong(id)] for id in live(number)}
        for id, ((solved, text, *_),) in in_a_page(number, sources).items():
            assert not solved, id
            assert "'nothing'" in text, (id, text)

    def test_the_starter_is_not_an_answer(self, number: str) -> None:
        sources = {id: [starter(number, id)] for id in live(number)}
        for id, ((solved, text, *_),) in in_a_page(number, sources).items():
            assert not solved, id
            assert "Not solved yet" in text, (id, text)

    def test_a_syntax_error_is_named_with_its_line(self, number: str) -> None:
        sources = {id: ["def f(:"] for id in live(number)}
        for id, ((solved, text, *_),) in in_a_page(number, sources).items():
            assert not solved, id
            assert "syntax error in line 1" in text, (id, text)


def known_functions(exercise: Exercise) -> list[Any]:
    """Return functions that answer an exercise: its reference, and its known mistakes."""
    return [exercise.reference, *(known.answer for known in exercise.mistakes)]


def test_both_places_give_the_same_picture_of_every_mistake() -> None:
    compared = 0
    for number in ("00", "01", "02", "04", "05", "08"):
        for id, form in live(number).items():
            exercise = EXERCISES[id]
            stored = exercise_of(form)
            for function in known_functions(exercise):
                with warnings.catch_warnings(action="ignore"):
                    answers = known_answers(visible_cases(exercise), function)
                ours = as_html(judge(visible_cases(exercise), answers))
                assert as_html(judge(visible_cases(stored), answers)) == ours, id
                compared += 1
    assert compared > 60


def test_a_form_holds_no_line_of_a_solution() -> None:
    for number in ("01", "02"):
        solutions = Solutions(lesson_of(number).text)
        for id, form in live(number).items():
            shown = starter(number, id)
            own = [line.strip() for line in solutions.source(id).splitlines()]
            lines = [line for line in own if line not in shown and len(line) > 12]
            assert lines, id
            text = json.dumps({key: value for key, value in form.items() if key != "hints"})
            assert not [line for line in lines if json.dumps(line)[1:-1] in text], id


def test_an_exercise_on_tensors_stays_in_the_lab() -> None:
    found = live_exercises([lesson_of("02"), lesson_of("03")])
    assert found.reasons["rounding.epsilon"] == "its function is called with a Tensor"
    assert found.reasons["tensor.standstill"] == "its cell needs numpy"
    assert "rounding.nearest_even" in found.forms


def test_an_earlier_form_is_refused_with_a_sentence() -> None:
    form = live("00")["start.smallest"] | {"schema": "labkit.live/0"}
    with pytest.raises(ValueError, match="write the site again"):
        exercise_of(form)


def shown_beside(cell: str, source: str) -> list[Any]:
    """Return what a page shows of an answer to numbers.next_up, with a cell in front of all."""
    notebook = learners_notebook(lesson_of("01"))
    first = {"cell_type": "code", "id": "mine", "metadata": {}, "source": cell}
    notebook = {**notebook, "cells": [first, *notebook["cells"]]}
    return shown_of([(live("01")["numbers.next_up"], notebook, source)])[0]


def test_an_answer_uses_helpers_of_other_cells() -> None:
    right = Solutions(lesson_of("01").text).source("numbers.next_up")
    helper = right.replace("my_next_up", "helper")
    entry = "def my_next_up(*arguments):\n    return helper(*arguments)"
    assert not shown_beside("", entry)[0]
    assert shown_beside(helper, entry)[0]


def test_an_import_that_fails_is_named_beside_the_answer() -> None:
    entry = "def my_next_up(*arguments):\n    return torch"
    solved, text, _, notes = shown_beside("import torch", entry)
    assert not solved
    assert "NameError" in text
    assert "No module named 'torch'" in notes[0]
    assert "import torch" in notes[0]


def test_answers_agree_whatever_judges_them() -> None:
    exercise = EXERCISES["numbers.ulp"]
    stored = exercise_of(live("01")["numbers.ulp"])
    for function in (lambda *_: 0.0, lambda *_: None, lambda *_: [1], lambda: 1, 3):
        answers = answers_of(visible_cases(exercise), function)
        assert answers == answers_of(visible_cases(stored), function)
        ours, theirs = (judge(visible_cases(one), answers) for one in (exercise, stored))
        assert str(ours) == str(theirs)


def test_an_error_is_a_known_mistake_whatever_python_says_of_it() -> None:
    exercise = EXERCISES["numbers.ulp"]
    stored = exercise_of(live("01")["numbers.ulp"])
    (known,) = [one for one in exercise.mistakes if one.name == "forgets the sign"]
    answers = known_answers(visible_cases(exercise), known.answer)
    # Python 3.14 names the number in math.log2's error, earlier ones do not
    text = json.dumps(answers).replace("math domain error", "expected a positive input")
    assert "it stopped with ValueError: expected a positive input" in text
    for one in (exercise, stored):
        found = judge(visible_cases(one), json.loads(text)).mistake
        assert found is not None
        assert found.name == "forgets the sign"


@pytest.mark.parametrize(
    ("right", "got"),
    [
        pytest.param(True, torch.tensor(True), id="torch's boolean for Python's"),
        pytest.param({4: 1.0, 2: "a"}, {2.0: "a", 4.0: 1}, id="keys in another order and type"),
        pytest.param(2**60, 2.0**60, id="a large whole number as a float"),
        pytest.param({(1,): 2, "a": 3}, {"a": 3, (1,): 2}, id="keys of two kinds"),
    ],
)
def test_answers_without_a_difference_have_one_digest(right: object, got: object) -> None:
    exercise = EXERCISES["start.smallest"]
    assert difference(right, got) is None
    assert digest([[right]], exercise) == digest([[got]], exercise)


def test_digests_tell_two_zeros_apart_where_answers_do() -> None:
    exercise = EXERCISES["numbers.decode"]
    assert exercise.two_zeros
    pairs: list[tuple[object, object]] = [(0.0, -0.0), (0, 0.0), ([0.0], [-0.0])]
    pairs.append((torch.tensor([0.0]), torch.tensor([-0.0])))
    for one, other in pairs:
        is_same = difference(one, other, two_zeros=True) is None
        assert (digest([[one]], exercise) == digest([[other]], exercise)) == is_same, (one, other)


def test_numbers_that_differ_have_different_digests() -> None:
    exercise = EXERCISES["start.smallest"]
    numbers = (2**60, 2**60 + 1, 2**2000, 2**2000 + 1, -(2**60), True, "1152921504606846976")
    assert len({digest([[number]], exercise) for number in numbers}) == len(numbers)
