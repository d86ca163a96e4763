"""Honest learners get their points, wherever and however the answer stands: notebooks as data, with their rows."""

from __future__ import annotations

import ast
import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.grading import EXERCISES, judge
from labkit.grading.batch import grade
from labkit.grading.given.child import Limits
from labkit.grading.judge import answers_of, paper_of
from labkit.grading.plan import plan, read
from labkit.grading.program import program_of
from labkit.grading.submission import Unreadable, find
from tests.grading.odd_notebooks import BYTES, FULL, LESSON_01, ODD, Odd, cell, hand_in, lesson, notebook

SEED = 13
# Hands in both lessons, so that everybody is asked for both.
CLASSMATE = Odd({**lesson(cell("x = 1", "advance")), LESSON_01: notebook(cell(BYTES, "bytes"))})


def points_here(program: list[str], id: str) -> int:
    """Run a program in this process, as the grading process does, and return its points: these learners are honest."""
    names: dict[str, object] = {"__name__": "__main__", "check": lambda *_: None, **EXERCISES[id].provides}
    for source in program:
        try:
            code = compile(source, "<a cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if inspect.iscoroutine(waiting := eval(code, names)):
                with ThreadPoolExecutor() as kernel:  # a browser's tests leave an event loop running in this thread
                    kernel.submit(asyncio.run, waiting).result()
        except (Exception, SystemExit):
            continue
    whole = paper_of(EXERCISES[id], SEED)
    paper = replace(
        whole, cases=tuple(cases[:4] for cases in whole.cases)
    )  # it is right or not there: a few calls tell
    return judge(paper, answers_of(paper, names.get(EXERCISES[id].entry))).points


@pytest.mark.parametrize("name", ODD)
def test_an_odd_notebook_gets_its_points(tmp_path: Path, name: str) -> None:
    hand_in(tmp_path, "odd", ODD[name])
    hand_in(tmp_path, "zoe", CLASSMATE)
    planned = [(one, e) for one, exercises in plan([read(s) for s in find([tmp_path])], None) for e in exercises]
    mine = {e.id: one for one, e in planned if one.submission.student == "odd"}
    assert len(mine) == len([one for one, _ in planned if one.submission.student == "odd"])  # one row for each
    for id in ODD[name].earns:
        assert points_here(program_of(mine[id].cells, EXERCISES[id]), id) == FULL[id]
    for id in mine.keys() - {*ODD[name].earns}:
        with suppress(Unreadable):  # nothing to run earns nothing
            assert mine[id].problem or points_here(program_of(mine[id].cells, EXERCISES[id]), id) == 0


@pytest.mark.slow
def test_the_class_of_odd_notebooks_gets_its_rows(tmp_path: Path) -> None:
    for name, odd in ODD.items():
        hand_in(tmp_path, "".join(c if c.isalnum() else "_" for c in name), odd)
    rows = {(row.student, row.exercise): row for row in grade(find([tmp_path]), SEED, Limits())}
    for name, odd in ODD.items():
        student = "".join(c if c.isalnum() else "_" for c in name)
        earned = {exercise: row.points for (who, exercise), row in rows.items() if who == student and row.points}
        assert earned == {id: FULL[id] for id in odd.earns}, name
        for id, says in odd.says.items():
            assert says in rows[student, id].reason
