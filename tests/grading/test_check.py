"""`check` in a notebook: the output for a right answer, a wrong one, and anything else."""

import html
import math
import re
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import ScalerConfig, ScalerState, advance
from labkit.formats import FP16
from labkit.grading import EXERCISES, Grade, check, judge
from labkit.grading.judge import answers_of, grading_cases, visible_cases
from labkit.grading.sandbox.answer import answer_case
from labkit.grading.sandbox.wire import load

ADVANCE = EXERCISES["scaling.advance"]
solved = ADVANCE.reference
grown_too_late = next(
    mistake.answer for mistake in ADVANCE.mistakes if mistake.name == "grows one step late"
)


def raises(error: BaseException) -> Any:
    """Return an answer to scaling.advance that stops with an error."""

    def answer(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
        raise error

    return answer


def test_a_right_answer_names_what_follows() -> None:
    text = str(check("scaling.advance", solved))
    assert text.count("✓ pass") == 5
    assert text.endswith(
        "Solved. 5 of 5 checks pass: 8 of 8 points. Grading repeats them on further cases."
    )
    case_set = grading_cases(ADVANCE, 0)
    for note, ends in (("", "pass: 8 of 8 points."), ("a note", "pass: 8 of 8 points. a note")):
        assert str(judge(case_set, answers_of(case_set, solved), note)).endswith(ends)


@pytest.fixture(scope="module")
def too_late() -> Grade:
    """The grade of an answer whose scale grows a step too late."""
    return check("scaling.advance", grown_too_late)


def test_a_wrong_answer_has_the_points_of_its_right_checks(too_late: Grade) -> None:
    assert (too_late.points, too_late.out_of) == (3, 8)
    assert str(too_late).endswith("2 of 5 checks pass: 3 of 8 points.")


def test_a_wrong_answer_sees_which_checks_fail(too_late: Grade) -> None:
    line = "✗ fail  the clean step that completes the interval grows the scale  (0 of 2 points)"
    assert line in str(too_late)
    assert str(too_late).count("✗ fail") == 3


def test_each_check_that_fails_has_a_counter_example(too_late: Grade) -> None:
    text = str(too_late)
    assert text.count("found_inf  ") == 3
    assert text.count("differs    .") == 3


def test_a_known_mistake_is_named(too_late: Grade) -> None:
    assert "known mistake: grows one step late" in too_late.reason
    sentence = "A known mistake (grows one step late): this is what comparing the tracker before"
    assert sentence in str(too_late)


def test_a_wrong_diagnosis_is_shown_once() -> None:
    text = str(check("clinic.clip", lambda model, batches: ([], ("backward", 1.0))))
    assert text.count("the diagnosis fits the run") == 1
    assert text.count("('backward', 1) does not fit") == 1


def test_a_second_failed_check_names_the_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["labkit.grading.judge"], "_failed_checks", Counter())
    # The starter does not count as a failed check.
    check("scaling.advance", not_written)
    for answer, named in (
        (grown_too_late, False),
        (solved, False),
        (grown_too_late, True),
        (solved, False),
    ):
        grade = check("scaling.advance", answer)
        assert ('hint("scaling.advance")' in str(grade)) == named
        assert ("hint(&quot;scaling.advance&quot;)" in grade._repr_html_()) == named
    assert 'hint("' not in str(check("scaling.clip", raises(KeyError())))


def test_answer_right_in_the_notebook_alone_earns_nothing() -> None:
    """An answer that looks the notebook's calls up in a table fails all checks at grading.

    So does one that is wrong on the notebook's calls alone, since grading repeats these.
    """
    known = [case for cases in visible_cases(ADVANCE).cases for case in cases]
    for in_the_notebook, points, seeds in ((True, 8, (12345,)), (False, 0, range(3))):

        def answer(*case: Any, there: bool = in_the_notebook) -> ScalerState:
            return solved(*case) if (case in known) == there else ScalerState(1.0)

        assert check("scaling.advance", answer).points == points
        for seed in seeds:
            case_set = grading_cases(ADVANCE, seed)
            assert judge(case_set, answers_of(case_set, answer)).points == 0


def not_written(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    raise NotImplementedError("your code goes here")


def test_the_starter_is_not_a_failure_but_a_beginning() -> None:
    grade = check("scaling.advance", not_written)
    assert (grade.points, grade.unsolved) == (0, True)
    assert "Not solved yet: 0 of 8 points." in str(grade)
    assert "fail" not in str(grade)


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no comment")


def divides(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return ScalerState(state.scale / state.growth_tracker, 0)


def test_what_goes_wrong_is_answered_not_raised() -> None:
    for answer, says in (
        (
            ScalerState(1.0),
            "expected a function, got a ScalerState: pass the function itself, without parentheses",
        ),
        (None, "expected a function, got a NoneType"),
        (
            lambda state: state,
            "it is called as my_advance(state, found_inf, config), but yours takes (state)",
        ),
        (lambda state, found_inf, config: None, "it returned None: did you forget `return`?"),
        (lambda state, found_inf, config: print, "got a function (are its parentheses missing?)"),
        (
            lambda state, found_inf, config: (yield state),
            "a generator (`return` gives a value, `yield` does not)",
        ),
        (raises(SystemExit(3)), "it stopped with sys.exit(3)"),
        (
            lambda state, found_inf, config: torch.nn.Module()(state),
            "it stopped with NotImplementedError",
        ),
        (raises(RudeError()), "it stopped with RudeError"),
        (divides, "ZeroDivisionError"),
        (divides, ": return ScalerState(state.scale / state.growth_tracker, 0)"),
    ):
        grade = check("scaling.advance", answer)
        assert grade.points == 0, (says, str(grade))
        assert says in str(grade), (says, str(grade))


def test_an_interrupt_stops_the_check_as_the_learner_wants() -> None:
    with pytest.raises(KeyboardInterrupt):
        check("scaling.advance", raises(KeyboardInterrupt()))


def test_a_function_gets_copies_and_an_error_if_it_changes_them() -> None:
    def spoil(argument: Any) -> None:
        if isinstance(argument, (list, dict, set, bytearray)):
            argument.clear()
        elif isinstance(argument, tuple):
            spoil(argument[-1])
        else:
            argument[:] = -1

    nan = torch.tensor([math.nan])
    for argument in (
        [1],
        {"a": 1},
        {1},
        bytearray(b"a"),
        (1, [2]),
        (1, np.ones(2)),
        torch.ones(2).half(),
        torch.ones(2, 2).T,
        nan,
        [nan],
    ):
        before = repr(argument)
        answer = answer_case(spoil, "f(x)", (argument,))
        assert repr(argument) == before
        assert "it changes `x`, an argument: work on a copy" in answer[2], argument
        assert answer_case(spoil, "f(x)", (argument,), may_change=["x"]) == ["none"]
        assert answer_case(lambda x: None, "f(x)", (argument,)) == ["none"], "a NaN equals itself"


def test_a_changed_dataclass_is_a_changed_argument() -> None:
    def spoil(state: ScalerState) -> None:
        object.__setattr__(state, "scale", 1.0)

    def spoil_inside(states: list[ScalerState]) -> None:
        spoil(states[0])

    assert "it changes `x`" in answer_case(spoil_inside, "f(x)", ([ScalerState(2.0)],))[2]
    assert "dataclasses.replace(x, ...)" in answer_case(spoil, "f(x)", (ScalerState(2.0),))[2]
    assert answer_case(lambda x: None, "f(x)", (ScalerState(2.0),)) == ["none"]


def test_reading_a_cached_property_changes_no_argument() -> None:
    unread = replace(FP16, name="mine")
    assert "max" not in vars(unread)
    answer = answer_case(lambda format: format.max, "f(format)", (unread,))
    assert load(answer) == FP16.max


def test_requiring_a_gradient_of_an_argument_changes_nothing() -> None:
    """`requires_grad_()` and a gradient in `.grad` do not count as a changed argument."""

    def by_autograd(x: torch.Tensor, weight: torch.Tensor, grad_y: torch.Tensor) -> object:
        x.requires_grad_().sum().backward()
        return EXERCISES["tensor.backward"].reference(x.detach(), weight, grad_y)

    assert "Solved" in str(check("tensor.backward", by_autograd))


def test_an_unknown_exercise_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"no exercise 'scaling.advnce'; the nearest name is 'scaling.advance'"
    ):
        check("scaling.advnce", advance)


def test_answers_that_do_not_fit_the_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="the number of answers is not the number of cases"):
        judge(grading_cases(ADVANCE, 0), [[["none"]]] * 5)


def test_judgements_take_turns_for_they_share_torchs_generator() -> None:
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


def text_of(page: str) -> str:
    """Return the text of an HTML page."""
    return html.unescape(re.sub("<[^>]*>", "", page))


@pytest.mark.parametrize(
    "answer",
    [solved, grown_too_late, not_written, raises(ValueError("no comment"))],
    ids=["right", "wrong", "starter", "error"],
)
def test_the_table_has_the_words_of_the_text(answer: Any) -> None:
    grade = check("scaling.advance", answer)
    page = text_of(grade._repr_html_())
    for line in str(grade).splitlines():
        # The columns of a line are apart by two blanks or more; the table has them as cells.
        for column in re.split(" {2,}", line.strip()):
            words, _, _ = column.strip("()").partition(": ")
            assert words in page


def test_what_the_learners_code_says_cannot_become_html() -> None:
    script = "<script>alert(1)</script>"
    page = check("scaling.advance", raises(ValueError(script)))._repr_html_()
    assert "<script" not in page
    assert script in text_of(page)


def test_the_colours_of_the_table_are_those_of_the_theme() -> None:
    page = check("scaling.advance", grown_too_late)._repr_html_()
    styles = "".join(re.findall('style="([^"]*)"', page))
    colours = set(re.findall(r"var\(--[\w-]+", styles))
    assert {"var(--jp-success-color0", "var(--jp-error-color0"} <= colours
    assert "background:#" not in styles


def test_a_counter_example_speaks_the_lessons_language() -> None:
    for id, answer, says in (
        ("recipes.which", lambda *dtypes: dtypes[0], "torch.float"),
        ("recipes.which", lambda *dtypes: torch.Tensor, "got the class Tensor"),
        ("numbers.next_up", lambda code, *_: code, "expected 0x3C00, got 0x3BFF"),
        ("numbers.decode", lambda code, *_: 5.0, "0x3C00"),
        ("numbers.bytes", lambda shape, bits: 0, "shape     ("),
        ("autocast.softmax", sums_wrong_at_the_end, "the same as far as shown"),
        ("autocast.softmax", sums_wrong_at_the_end, "differs   [0, 4095]: expected"),
    ):
        assert says in str(check(id, answer))


def sums_wrong_at_the_end(logits: torch.Tensor) -> torch.Tensor:
    right = EXERCISES["autocast.softmax"].reference(logits)
    assert isinstance(right, torch.Tensor)
    if right.shape[1] > 100:
        right[0, -1] = 0
    return right


def test_a_part_that_is_still_the_starter_is_open_not_wrong() -> None:
    def half(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
        if found_inf:
            raise NotImplementedError("your code goes here")
        return solved(state, found_inf, config)

    text = str(check("scaling.advance", half))
    assert "○ open  inf or NaN backs off" in text
    assert "not yet answered: the cell still raises NotImplementedError" in text


def test_the_first_counter_example_is_open_and_the_others_folded() -> None:
    grade = check("scaling.advance", lambda state, found_inf, config: state.scale)
    shown = [verdict for verdict in grade.verdicts if _has_rows(str(grade), verdict.check.name)]
    assert len(shown) > 1
    assert grade._repr_html_().count("<details>") == len(shown) - 1
    assert grade._repr_html_().index("differs") < grade._repr_html_().index("<details>")
    assert "<details>" not in check("scaling.advance", solved)._repr_html_()


def _has_rows(text: str, name: str) -> bool:
    """Return whether lines of a counter-example follow the line of a check."""
    (at,) = [i for i, line in enumerate(text.splitlines()) if f"  {name}  (" in line]
    return text.splitlines()[at + 1].startswith("      ")
