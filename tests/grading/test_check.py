"""What `check` shows in a notebook of a right answer, of a wrong one, and of anything else."""

import html
import re
from typing import Any

import pytest
import torch

from labkit.amp import ScalerConfig, ScalerState, advance
from labkit.grading import EXERCISES, Grade, check

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


def test_every_check_of_a_right_answer_passes() -> None:
    assert str(check("scaling.advance", solved)).count("✓ pass") == 5


def test_a_right_answer_is_told_that_grading_has_further_cases() -> None:
    assert str(check("scaling.advance", solved)).endswith(
        "Solved. 5 of 5 checks pass: 8 of 8 points. Grading repeats them on further cases."
    )


@pytest.fixture(scope="module")
def too_late() -> Grade:
    """The grade of an answer whose scale grows a step too late."""
    return check("scaling.advance", grown_too_late)


def test_a_wrong_answer_has_the_points_of_its_right_checks(too_late: Grade) -> None:
    assert (too_late.points, too_late.out_of) == (3, 8)


def test_the_text_ends_with_the_points(too_late: Grade) -> None:
    assert str(too_late).endswith("2 of 5 checks pass: 3 of 8 points.")


def test_a_wrong_answer_sees_which_checks_fail(too_late: Grade) -> None:
    line = "✗ fail  the clean step that completes the interval grows the scale  (0 of 2 points)"
    assert line in str(too_late)
    assert str(too_late).count("✗ fail") == 3


def test_each_check_that_fails_has_a_counter_example(too_late: Grade) -> None:
    text = str(too_late)
    assert text.count("found_inf  ") == 3
    assert text.count("differs    .") == 3


def test_the_reason_names_a_known_mistake(too_late: Grade) -> None:
    assert "known mistake: grows one step late" in too_late.reason


def test_the_text_explains_a_known_mistake(too_late: Grade) -> None:
    sentence = "A known mistake (grows one step late): this is what comparing the tracker before"
    assert sentence in str(too_late)


def test_a_wrong_diagnosis_is_shown_once() -> None:
    text = str(check("clinic.clip", lambda model, batches: ([], ("backward", 1.0))))
    assert text.count("the diagnosis fits the run") == 1
    assert text.count("('backward', 1) does not fit") == 1


def not_written(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    raise NotImplementedError("your code goes here")


def test_the_starter_is_unsolved_and_has_no_points() -> None:
    grade = check("scaling.advance", not_written)
    assert (grade.points, grade.unsolved) == (0, True)


def test_the_starter_is_called_not_solved_yet_and_not_failed() -> None:
    text = str(check("scaling.advance", not_written))
    assert "Not solved yet: 0 of 8 points." in text
    assert "fail" not in text


class RudeError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no comment")


def divides(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    return ScalerState(state.scale / state.growth_tracker, 0)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
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
    ],
    ids=[
        "an object",
        "None",
        "too few parameters",
        "no return",
        "a returned function",
        "a generator",
        "sys.exit",
        "an error of torch",
        "an error without a text",
        "a name of an error",
        "a line of an error",
    ],
)
def test_what_goes_wrong_earns_nothing_and_is_said(answer: Any, says: str) -> None:
    grade = check("scaling.advance", answer)
    assert grade.points == 0
    assert says in str(grade)


def test_an_interrupt_stops_the_check_as_the_learner_wants() -> None:
    with pytest.raises(KeyboardInterrupt):
        check("scaling.advance", raises(KeyboardInterrupt()))


def test_an_unknown_exercise_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"no exercise 'scaling.advnce'; the nearest name is 'scaling.advance'"
    ):
        check("scaling.advnce", advance)


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


def test_a_dtype_is_shown_by_its_name_in_torch() -> None:
    assert "torch.float" in str(check("recipes.which", lambda *dtypes: dtypes[0]))


def test_a_class_that_is_returned_is_called_a_class() -> None:
    assert "got the class Tensor" in str(check("recipes.which", lambda *dtypes: torch.Tensor))


def test_a_code_that_is_returned_is_shown_in_hexadecimal() -> None:
    text = str(check("numbers.next_up", lambda code, *_: code))
    assert "expected 0x3C00, got 0x3BFF" in text


def test_a_code_that_is_passed_is_shown_in_hexadecimal() -> None:
    assert "0x3C00" in str(check("numbers.decode", lambda code, *_: 5.0))


def test_arguments_are_shown_with_the_names_of_the_parameters() -> None:
    assert "shape     (" in str(check("numbers.bytes", lambda shape, bits: 0))


def sums_wrong_at_the_end(logits: torch.Tensor) -> torch.Tensor:
    right = EXERCISES["autocast.softmax"].reference(logits)
    assert isinstance(right, torch.Tensor)
    if right.shape[1] > 100:
        right[0, -1] = 0
    return right


def test_results_that_agree_as_far_as_shown_are_called_the_same_so_far() -> None:
    text = str(check("autocast.softmax", sums_wrong_at_the_end))
    assert "the same as far as shown" in text


def test_a_difference_behind_what_is_shown_is_named_by_its_place() -> None:
    text = str(check("autocast.softmax", sums_wrong_at_the_end))
    assert "differs   [0, 4095]: expected" in text


def half(state: ScalerState, found_inf: bool, config: ScalerConfig) -> object:
    """Answer as the starter does where a gradient is not finite."""
    if found_inf:
        raise NotImplementedError("your code goes here")
    return solved(state, found_inf, config)


def test_a_check_of_a_part_that_is_still_the_starter_is_open() -> None:
    assert "○ open  inf or NaN backs off" in str(check("scaling.advance", half))


def test_a_part_that_is_still_the_starter_is_called_not_yet_answered() -> None:
    text = str(check("scaling.advance", half))
    assert "not yet answered: the cell still raises NotImplementedError" in text


def has_rows(text: str, name: str) -> bool:
    """Return whether lines of a counter-example follow the line of a check."""
    (at,) = [i for i, line in enumerate(text.splitlines()) if f"  {name}  (" in line]
    return text.splitlines()[at + 1].startswith("      ")


def test_all_counter_examples_but_the_first_are_folded() -> None:
    grade = check("scaling.advance", lambda state, found_inf, config: state.scale)
    shown = [verdict for verdict in grade.verdicts if has_rows(str(grade), verdict.check.name)]
    assert len(shown) > 1
    page = grade._repr_html_()
    assert page.count("<details>") == len(shown) - 1
    assert page.index("differs") < page.index("<details>")


def test_nothing_is_folded_for_a_right_answer() -> None:
    assert "<details>" not in check("scaling.advance", solved)._repr_html_()
