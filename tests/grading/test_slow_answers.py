"""A right answer that is slow keeps the checks that it had passed when its time was over."""

from __future__ import annotations

import pytest

from labkit.grading import EXERCISES, Grade
from labkit.grading.batch import _judged, question
from labkit.grading.given.child import Limits
from labkit.grading.judge import paper_of
from labkit.grading.supervise import Runner, scratch

EXERCISE, SEED = EXERCISES["start.smallest"], 1
RIGHT = "return 2.0 ** (2 - 2 ** (exponent_bits - 1) - significand_bits)"


def graded(first_line: str) -> Grade:
    """Return the grade of an answer that begins with a line, and is right where it gets further."""
    program = f"def my_smallest(exponent_bits, significand_bits):\n    {first_line}\n    {RIGHT}\n"
    with scratch() as folder, Runner(Limits(seconds=2.0), folder) as runner:
        (reply,) = runner.run([question(paper_of(EXERCISE, SEED), [program])]).values()
    return _judged(EXERCISE, SEED, reply)


def test_an_answer_that_is_late_in_its_second_check_keeps_the_first() -> None:
    grade = graded("while exponent_bits == 11: pass")  # FP64: no format of the first check
    assert [verdict.passed for verdict in grade.verdicts] == [True, False]
    assert grade.points == 1
    assert "stopped after 2 s of CPU time" in grade.reason
    assert grade.mistake is None


@pytest.mark.parametrize(
    ("first_line", "says"),
    [
        ("while exponent_bits == 5: pass", "stopped after 2 s of CPU time; at check 1 of 2"),
        ("import os; exponent_bits == 11 and os._exit(0)", "the code ended its process"),
    ],
)
def test_nothing_is_kept_where_no_check_was_passed_or_the_process_ended_itself(first_line: str, says: str) -> None:
    grade = graded(first_line)
    assert grade.points == 0
    assert says in grade.reason
