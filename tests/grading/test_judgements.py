"""`judge`: notes, answers at grading, answers that do not fit the cases, and turns."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from labkit.amp import ScalerState
from labkit.grading import EXERCISES, check, judge
from labkit.grading.judge import answers_of, grading_cases, visible_cases

ADVANCE = EXERCISES["scaling.advance"]
solved = ADVANCE.reference


@pytest.mark.parametrize(
    ("note", "ending"),
    [("", "pass: 8 of 8 points."), ("a note", "pass: 8 of 8 points. a note")],
    ids=["no note", "a note"],
)
def test_a_grade_ends_with_the_points_and_the_note_of_the_run(note: str, ending: str) -> None:
    case_set = grading_cases(ADVANCE, 0)
    assert str(judge(case_set, answers_of(case_set, solved), note)).endswith(ending)


def right_only(in_the_notebook: bool) -> Callable[..., object]:
    """Return an answer that is right on the notebook's calls alone, or on all other calls."""
    known = [case for cases in visible_cases(ADVANCE).cases for case in cases]

    def answer(*case: Any) -> object:
        return solved(*case) if (case in known) == in_the_notebook else ScalerState(1.0)

    return answer


def points_at_grading(answer: Callable[..., object], seed: int) -> int:
    case_set = grading_cases(ADVANCE, seed)
    return judge(case_set, answers_of(case_set, answer)).points


def test_a_table_of_the_notebooks_calls_earns_all_points_in_the_notebook() -> None:
    assert check("scaling.advance", right_only(in_the_notebook=True)).points == 8


def test_a_table_of_the_notebooks_calls_earns_nothing_at_grading() -> None:
    assert points_at_grading(right_only(in_the_notebook=True), seed=12345) == 0


def test_an_answer_wrong_on_the_notebooks_calls_alone_earns_nothing_there() -> None:
    assert check("scaling.advance", right_only(in_the_notebook=False)).points == 0


@pytest.mark.parametrize("seed", range(3))
def test_grading_repeats_the_notebooks_calls(seed: int) -> None:
    """An answer that is wrong on these alone fails all checks."""
    assert points_at_grading(right_only(in_the_notebook=False), seed) == 0


def test_answers_that_do_not_fit_the_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="the number of answers is not the number of cases"):
        judge(grading_cases(ADVANCE, 0), [[["none"]]] * 5)


def test_only_one_judgement_runs_at_a_time() -> None:
    """Two judgements at a time would draw each other's random numbers.

    Judging some exercises seeds torch's generator and draws from it, so a right answer could fail.
    """
    both = threading.Barrier(2)
    calls = []
    met = []

    def outcome(answer: object, case: object) -> object:
        calls.append(case)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
            met.append(case)
        return answer

    case_set = grading_cases(
        replace(ADVANCE, checks=(replace(ADVANCE.checks[0], outcome=outcome),)), 0
    )
    answers = answers_of(case_set, solved)
    threads = [threading.Thread(target=judge, args=(case_set, answers)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls, "the outcomes were judged"
    assert met == [], "never two at a time"
