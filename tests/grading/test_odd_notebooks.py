"""Honest learners get their points, wherever and however the answer stands: notebooks as data, with their rows."""

from __future__ import annotations

import ast
import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.grading import EXERCISES, judge
from labkit.grading.batch import grade
from labkit.grading.given.child import Limits
from labkit.grading.judge import answers_of, paper_of
from labkit.grading.plan import plan, read
from labkit.grading.program import program_of
from labkit.grading.submission import Unreadable, find
from tests.grading.odd_notebooks import FULL, ODD, hand_in

SEED = 13


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
    paper = replace(whole, cases=tuple(cases[:4] for cases in whole.cases))  # right or not there: a few calls tell
    return judge(paper, answers_of(paper, names.get(EXERCISES[id].entry))).points


def earned_here(submission: Any, id: str) -> int:
    """Return the points of one exercise; nothing to run earns nothing."""
    try:
        return 0 if submission.problem else points_here(program_of(submission.cells, EXERCISES[id]), id)
    except Unreadable:
        return 0


def test_every_odd_notebook_gets_its_points(tmp_path: Path) -> None:
    for number, odd in enumerate(ODD.values()):
        hand_in(tmp_path, f"{number:03}", odd)
    found: dict[str, dict[str, int]] = {f"{number:03}": {} for number in range(len(ODD))}
    for submission, exercises in plan([read(one) for one in find([tmp_path])], None):
        for exercise in exercises:
            row = found[submission.submission.student]
            assert exercise.id not in row, "one row for each"
            row[exercise.id] = earned_here(submission, exercise.id)
    for (name, odd), row in zip(ODD.items(), found.values(), strict=True):
        assert {id: points for id, points in row.items() if points} == {id: FULL[id] for id in odd.earns}, name


@pytest.mark.slow
def test_the_class_of_odd_notebooks_gets_its_rows(tmp_path: Path) -> None:
    for number, odd in enumerate(ODD.values()):
        hand_in(tmp_path, f"{number:03}", odd)
    rows = {(row.student, row.exercise): row for row in grade(find([tmp_path]), SEED, Limits())}
    for number, (name, odd) in enumerate(ODD.items()):
        points = {id: row.points for (who, id), row in rows.items() if who == f"{number:03}" and row.points}
        assert points == {id: FULL[id] for id in odd.earns}, name
        assert all(says in rows[f"{number:03}", id].reason for id, says in odd.says.items()), name
