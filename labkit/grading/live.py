"""Exercises that are checked in a page: their form as JSON, and the judgement of an answer there.

The Python of a page has neither numpy nor torch. It gets a stored exercise (labkit.grading.stored),
whose cases and right answers are plain values, written as by `labkit.grading.sandbox.wire`. The
lab's own judge compares the answers.

Invariant: a form holds no solution, and only a digest of the answers of each known mistake. An
exercise that was written as a form and read again judges answers as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from labkit.grading.exercise import Case, Check, Exercise, Mistake
from labkit.grading.grade import Grade, as_html, as_text
from labkit.grading.judge import answers_of, judge, visible_cases
from labkit.grading.program import CodeCell, Unreadable, program_of
from labkit.grading.sandbox.cell import run_cell
from labkit.grading.sandbox.wire import Json, dump, load
from labkit.grading.stored import StoredAnswers, StoredMistake, stored_cases, stored_rows

Form: TypeAlias = dict[str, Any]
SCHEMA = "labkit.live/1"


@dataclass(frozen=True)
class LiveAnswer:
    """What a page shows of an answer.

    Attributes:
        html: The picture of its grade, as in a notebook.
        text: The same as plain text.
        solved: Whether every check passed.
        unsolved: Whether the cell is still the starter.
        notes: What stopped other cells that the answer uses.
    """

    html: str
    text: str
    solved: bool
    unsolved: bool
    notes: tuple[str, ...] = ()


def form_of(stored: Exercise, hints: Sequence[str] = ()) -> Form:
    """Return a stored exercise as what JSON can hold.

    Args:
        stored: An exercise of `labkit.grading.stored`, whose cases and answers are plain values.
        hints: What a page shows of its hints, one by one.
    """
    reference = stored.reference
    assert isinstance(reference, StoredAnswers), "expected an exercise without its reference"
    case_set = visible_cases(stored)
    shown = zip(case_set.checks, case_set.cases, reference.outcomes, strict=True)
    rows = {repr(case): stored.aside(*case) for cases in case_set.cases for case in cases}
    return {
        "schema": SCHEMA,
        "id": stored.id,
        "lesson": stored.lesson,
        "title": stored.title,
        "entry": stored.entry,
        "difficulty": stored.difficulty,
        "minutes": stored.minutes,
        "parameters": list(stored.parameters),
        "results": list(stored.results),
        "ulps": stored.ulps,
        "codes": stored.codes,
        "two_zeros": stored.two_zeros,
        "may_change": list(stored.may_change),
        "points": stored.points,
        "checks": [
            {
                "name": check.name,
                "points": check.points,
                "cases": [[dump(argument) for argument in case] for case in cases],
                "answers": [dump(outcome) for outcome in outcomes],
            }
            for check, cases, outcomes in shown
        ],
        "hidden": [[check.name, check.points] for check in stored.checks if check.hidden],
        "rows": {case: found for case, found in rows.items() if found},
        "mistakes": [
            {"name": known.name, "sentence": known.sentence, "digest": _digest_of(known)}
            for known in stored.mistakes
        ],
        "hints": list(hints),
    }


def _digest_of(known: Mistake) -> str:
    assert isinstance(known.answer, StoredMistake), "expected the digest of a known mistake"
    return known.answer.digest


def exercise_of(form: Form) -> Exercise:
    """Return the stored exercise that `form_of` wrote.

    Raises:
        ValueError: Another version of the lab wrote it.
    """
    if form.get("schema") != SCHEMA:
        raise ValueError(
            f"expected an exercise in the form {SCHEMA}, got {form.get('schema')!r}; "
            "write the site again, and reload the page"
        )
    cases = [[_case(case) for case in check["cases"]] for check in form["checks"]]
    shown = [
        Check(check["name"], check["points"], partial(stored_cases, own))
        for check, own in zip(form["checks"], cases, strict=True)
    ]
    hidden = [
        Check(name, points, partial(stored_cases, ()), hidden=True)
        for name, points in form["hidden"]
    ]
    rows = {
        case: tuple((name, text) for name, text in found) for case, found in form["rows"].items()
    }
    return Exercise(
        id=form["id"],
        checks=(*shown, *hidden),
        mistakes=tuple(
            Mistake(known["name"], StoredMistake(known["digest"]), known["sentence"])
            for known in form["mistakes"]
        ),
        ulps=form["ulps"],
        codes=form["codes"],
        two_zeros=form["two_zeros"],
        may_change=tuple(form["may_change"]),
        aside=partial(stored_rows, rows),
        lesson=form["lesson"],
        title=form["title"],
        entry=form["entry"],
        difficulty=form["difficulty"],
        minutes=form["minutes"],
        reference=StoredAnswers(
            tuple(form["parameters"]),
            [[load(answer) for answer in check["answers"]] for check in form["checks"]],
            tuple(form["results"]),
        ),
    )


def _case(dumped: Sequence[Json]) -> Case:
    return tuple(load(argument) for argument in dumped)


def cells_of(notebook: Mapping[str, Any], answers: Mapping[str, str]) -> list[CodeCell]:
    """Return the code cells of a learner's notebook, with these answers in the exercises' cells.

    Args:
        notebook: The notebook of the lesson, as its JSON.
        answers: The source of a cell by the exercise's id.
    """
    sources = {f"exercise-{id}": source for id, source in answers.items()}
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        tags = tuple(cell["metadata"].get("tags", ()))
        own = [sources[tag] for tag in tags if tag in sources]
        cells.append(CodeCell(cell.get("id", ""), tags, own[0] if own else "".join(cell["source"])))
    return cells


def answer_in_page(exercise: Exercise, cells: Sequence[CodeCell]) -> LiveAnswer:
    """Run the answer to an exercise in this process, and judge it.

    As at grading, the statements of other cells that the answer uses run first. A call of `check`
    in the cell judges nothing if the lessons are hidden from this process (`labkit.course.hide`),
    as they should be.

    Args:
        exercise: What `exercise_of` returned.
        cells: The code cells of the learner's notebook, the answer among them.
    """
    try:
        *definitions, own = program_of(cells, exercise)
    except Unreadable as error:
        return _answer_with(Grade(exercise, (), note=str(error)), ())
    namespace: dict[str, object] = {"__name__": "__main__"}
    problems = [
        run_cell(source, f"<another cell, {place}>", namespace)
        for place, source in enumerate(definitions)
    ]
    notes = tuple(
        f"Another cell that yours uses: {problem}. It is {source.splitlines()[0]!r}."
        for problem, source in zip(problems, definitions, strict=True)
        if problem
    )
    problem = run_cell(own, f"<exercise {exercise.id}>", namespace)
    function = namespace.get(exercise.entry)
    if function is None:
        reason = problem or f"its cell no longer defines {exercise.call}"
        return _answer_with(Grade(exercise, (), note=reason), notes)
    case_set = visible_cases(exercise)
    grade = judge(case_set, answers_of(case_set, function))
    return _answer_with(grade, (*notes, problem) if problem else notes)


def _answer_with(grade: Grade, notes: tuple[str, ...]) -> LiveAnswer:
    solved = bool(grade.verdicts) and all(verdict.passed for verdict in grade.verdicts)
    return LiveAnswer(as_html(grade), as_text(grade), solved, grade.unsolved, notes)
