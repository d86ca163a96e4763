"""Predictions: their choices and numbers, their replies, and their journal."""

import ast
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import traitlets

from labkit.records.journal import append_answer
from labkit.widgets import Predict, Prediction, Quiz, predict, predictions
from labkit.widgets.predict.widget import Ruler
from tests.widgets.pages import Page

LESSONS = Path(__file__).parents[2] / "labkit_lessons"
NUMBERS = {id: row.ruler for id, row in predictions().items() if row.ruler}


class TestEachPrediction:
    """All predictions of the lessons."""

    @pytest.fixture(params=predictions())
    def id(self, request: pytest.FixtureRequest) -> str:
        """The name of a prediction."""
        return str(request.param)

    @pytest.fixture
    def widgets(self, id: str) -> dict[str, Predict]:
        """Choice -> a widget in which it was made."""
        measure = None
        choices = list(predictions()[id].choices)
        ruler = NUMBERS.get(id)
        if ruler:
            # A number is asked for; the measured one is in the middle of its ruler.
            middle = (ruler.low * ruler.high) ** 0.5
            measure = partial(float, middle)
            choices = [str(number) for number in (ruler.low, middle, ruler.high)]
        chosen = {}
        for choice in choices:
            chosen[choice] = predict(id, measure)
            chosen[choice].choice = choice
        return chosen

    def test_no_reply_is_sent_before_a_choice(self, id: str) -> None:
        sent = str(predict(id, float if id in NUMBERS else None).get_state())
        assert not any(reply in sent for reply in predictions()[id].choices.values())

    def test_each_choice_has_a_reply(self, widgets: dict[str, Predict]) -> None:
        assert len(widgets) >= 3
        for choice, widget in widgets.items():
            assert len(widget.answered) > 40, choice

    def test_one_choice_is_right(self, widgets: dict[str, Predict]) -> None:
        assert [widget.right for widget in widgets.values()].count(True) == 1


def test_question_for_a_number_needs_a_measurement() -> None:
    with pytest.raises(TypeError, match=r"asks for a number: write predict\(id, measure\)"):
        predict("numbers.tenth")


def test_question_for_a_choice_takes_no_measurement() -> None:
    with pytest.raises(TypeError, match=r"asks for a choice: write predict\(id\) alone"):
        predict("scaling.order", lambda: 1.0)


def test_question_for_a_number_has_no_choices() -> None:
    with pytest.raises(ValueError, match="a number has the replies"):
        Prediction("1 + 1?", {"2": "", "3": ""}, answer="2", ruler=Ruler(1, 10))


def test_ruler_begins_above_0() -> None:
    with pytest.raises(ValueError, match="0 < low < high"):
        Ruler(0, 10)


def test_unknown_question_is_refused_with_a_near_one() -> None:
    with pytest.raises(KeyError, match=r"scaling\.lost"):
        predict("scaling.loss")


def test_answer_outside_of_the_choices_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the choices"):
        Prediction("1 + 1?", {"3": ""}, answer="2")


def test_choice_outside_of_the_choices_is_refused() -> None:
    with pytest.raises(traitlets.TraitError, match="none of the choices"):
        predict("scaling.order").choice = "7"


def test_a_refused_choice_is_not_committed() -> None:
    widget = predict("scaling.order")
    with pytest.raises(traitlets.TraitError):
        widget.choice = "7"
    assert (widget.choice, widget.answered) == ("", "")
    widget.choice = "0"
    assert widget.answered != ""


def test_a_committed_choice_stays() -> None:
    calls = []
    widget = Predict(PERCENT, lambda: calls.append(1) or 24.0)
    widget.choice = "3"
    reply = widget.answered
    widget.choice = "30"
    widget.set_state({"choice": "40"})
    assert (widget.choice, widget.answered) == ("3", reply)
    assert calls == [1]


REPLIES = {"less": "So people think.", "near": "Well seen.", "more": "So people fear."}
PERCENT = Prediction("How much is lost?", REPLIES, ruler=Ruler(0.01, 100, "%"))


def test_a_number_is_measured_after_the_guess() -> None:
    calls = []
    widget = Predict(PERCENT, lambda: calls.append(1) or 24.0)
    assert calls == []
    assert widget.truth == 0.0
    widget.choice = "3"
    assert calls == [1]


def test_a_question_for_a_number_has_a_ruler_and_no_choices() -> None:
    widget = Predict(PERCENT, lambda: 24.0)
    assert widget.choices == []
    assert widget.ruler == {"low": 0.01, "high": 100, "unit": "%"}


@pytest.mark.parametrize(
    ("guess", "reply"),
    [
        ("1", "Not quite: you said 1%, it was 24%: 24 times more. So people think."),
        ("12", "Yes: you said 12%, it was 24%: 2 times more. Well seen."),
        ("24", "Yes: you said 24%, it was 24%. Well seen."),
        ("4.8e1", "Yes: you said 48%, it was 24%: 2 times less. Well seen."),
        ("60", "Not quite: you said 60%, it was 24%: 2.5 times less. So people fear."),
    ],
)
def test_the_reply_compares_the_guess_with_the_measurement(guess: str, reply: str) -> None:
    widget = Predict(PERCENT, lambda: 24.0)
    widget.choice = guess
    assert widget.answered == reply
    assert widget.right == reply.startswith("Yes")


def test_a_guess_outside_of_the_ruler_is_refused() -> None:
    for guess in ("0", "-1", "101", "nan", "much", "1%", "inf"):
        with pytest.raises(traitlets.TraitError, match=r"not a number from 0\.01 to 100%"):
            Predict(PERCENT, lambda: 24.0).choice = guess


def test_a_measurement_that_fails_is_reported() -> None:
    for truth in (0.0, -1.0, float("nan"), float("inf"), "none"):
        widget = Predict(PERCENT, lambda truth=truth: truth if truth != "none" else 1 / 0)
        widget.choice = "1"
        assert (widget.right, widget.truth) == (False, 0.0)
        reason = (
            f"could not be measured: the truth was measured as {truth}"
            if truth != "none"
            else "division by zero"
        )
        assert reason in widget.answered


# The numbers that lessons measure, by arithmetic or from the text of the lesson.
EXPECTED = {
    "numbers.tenth": 100 * abs(float(np.float16(0.1)) / 0.1 - 1),
    "rounding.thousandth": 4.0,
    "tensor.errors": 1350,
    "autocast.error": 0.034,
    "gradients.lost": 0.764,
    "gradients.scale": 2**7,
    "scaling.window": 2.0**22.3,
    "master.first": 5,
    "recipes.harmless": 64,
    "frameworks.casts": 2 * (3 + 2 + 3 + 2) + 3,
    "project.square": 2.0**-24 / 1e-11,
}
# Cells whose variables a measurement uses, beside the setup.
NEEDS = {"autocast.error": ["touch-weights"], "gradients.scale": ["touch-film"]}


def measured_by_the_lesson(id: str) -> float:
    """Run the cells of a lesson that lead to this question, and return what its `measure` says."""
    asking = f'predict("{id}", '
    lessons_texts = (file.read_text(encoding="utf-8") for file in LESSONS.glob("*/lesson.py"))
    source = next(text for text in lessons_texts if asking in text)
    # The id of each cell, and the lines up to the next one.
    cells = dict(
        re.findall(r'^# %% id="([^"]+)".*\n((?:(?!# %%).*\n?)*)', source, flags=re.MULTILINE)
    )
    names: dict[str, Any] = {}
    for needed in ("setup", *NEEDS.get(id, [])):
        exec(cells[needed], names)
    tree = ast.parse(next(cell for cell in cells.values() if asking in cell))
    call = next(node for node in ast.walk(tree.body.pop()) if isinstance(node, ast.Call))
    exec(compile(tree, id, "exec"), names)
    return float(eval(ast.unparse(call.args[1]), names)())


@pytest.mark.parametrize("id", NUMBERS)
def test_a_lesson_measures_the_number_that_it_asks_for(id: str) -> None:
    ruler = NUMBERS[id]
    truth = measured_by_the_lesson(id)
    assert truth == pytest.approx(EXPECTED[id], rel=0.05)
    assert ruler.low < truth < ruler.high


def test_an_answer_is_kept_for_the_next_kernel(journal: Path) -> None:
    first = predict("scaling.order")
    # A question without an answer writes no journal.
    assert not journal.exists()
    first.choice = "2^-27"
    again = predict("scaling.order")
    assert (again.choice, again.answered, again.right) == (first.choice, first.answered, False)
    assert predict("start.warm_up").choice == ""


def test_the_last_prediction_of_the_journal_is_shown(journal: Path) -> None:
    for kind, answer in (("prediction", "0"), ("exercise", "2^-27")):
        append_answer(journal, kind, "scaling.order", answer)
    assert predict("scaling.order").choice == "0"


def test_a_choice_that_is_no_longer_offered_is_asked_again(journal: Path) -> None:
    append_answer(journal, "prediction", "start.warm_up", "a choice of last year")
    assert predict("start.warm_up").choice == ""


def test_a_guessed_number_is_kept_with_its_measurement(journal: Path) -> None:
    predict("numbers.tenth", lambda: 0.0244).choice = "1"
    again = predict("numbers.tenth", lambda: 0.0244)
    assert again.choice == "1"
    assert again.truth == 0.0244
    assert again.answered.startswith("Not quite: you said 1%, it was 0.0244%: 41 times less.")


def test_a_guess_outside_of_a_shorter_ruler_is_asked_again(journal: Path) -> None:
    # As if the ruler had been longer when this was answered.
    append_answer(journal, "prediction", "numbers.tenth", "50")
    assert predict("numbers.tenth", lambda: 0.0244).choice == ""


def test_an_answer_that_cannot_be_saved_is_reported(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widget = predict("scaling.order")
    # A folder has the name of the journal, and the home folder is a file.
    journal.mkdir()
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(Path(__file__)))
    widget.choice = "0"
    assert widget.right
    assert "could not be saved" in widget.answered


@pytest.mark.browser
def test_a_wrong_guess_shows_the_right_choice(page: Page) -> None:
    root = page.show(predict("scaling.order"))
    row = predictions()["scaling.order"]
    wrong = next(choice for choice in row.choices if choice != row.answer)
    assert root.locator(".lk-right").count() == 0
    root.locator(f"input[value={json.dumps(wrong)}]").check()
    root.get_by_role("button", name="Commit").click()
    marked = root.locator(".lk-choice:has(.lk-right)")
    assert marked.locator("input").get_attribute("value") == row.answer
    assert page.trait("answer") == row.answer


@pytest.mark.browser
def test_an_answered_prediction_has_a_tab_stop(page: Page) -> None:
    root = page.show(predict("scaling.order"))
    page.page.evaluate("document.body.prepend(document.createElement('button'))")
    root.locator("input").first.check()
    root.get_by_role("button", name="Commit").click()
    page.page.locator("body > button").focus()
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.className") == "lk-reply"


@pytest.mark.browser
def test_a_late_reply_leaves_the_focus_where_it_is(page: Page) -> None:
    root = page.show(Quiz("after", {}, {}))
    results = page.trait("results")
    # The kernel is busy, and has not replied yet.
    page.set(results={})
    page.page.evaluate("document.body.prepend(document.createElement('button'))")
    root.locator("input").first.check()
    root.get_by_role("button", name="Commit").click()
    assert "The reply comes as soon as the kernel is free" in root.inner_text()
    page.page.locator("body > button").focus()
    page.set(results=results)
    assert "The reply comes" not in root.inner_text()
    assert page.page.evaluate("document.activeElement.parentElement === document.body")


@pytest.mark.browser
def test_both_ends_of_the_line_can_be_chosen(page: Page) -> None:
    ends = Ruler(1.24, 8.76)
    root = page.show(Predict(Prediction("How much?", REPLIES, ruler=ends), lambda: 2.0))
    line = root.get_by_role("slider")
    for key, number in (("Home", "1.24"), ("End", "8.76")):
        line.press(key)
        assert root.locator("input[type=text]").input_value() == number
        assert root.get_by_role("button", name="Commit").is_enabled()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("text", "slider"),
    [
        ("1,000", "1,000"),
        ("1e-1", "0.1"),
        ("2^-3", "0.13"),
        ("10 %", "10"),
        # With a decimal comma, as with a letter, it is not a number, and the slider stays.
        ("0,125", "1"),
        ("1,00", "1"),
    ],
)
def test_a_typed_number_moves_the_slider(page: Page, text: str, slider: str) -> None:
    ruler = Ruler(0.001, 1000, "%")
    root = page.show(Predict(Prediction("How much?", REPLIES, ruler=ruler), lambda: 2.0))
    root.get_by_label("Your number, in %").fill(text)
    shown = root.get_by_role("slider").get_attribute("aria-valuetext")
    assert shown == f"{slider}%"


@pytest.mark.browser
@pytest.mark.parametrize("typed", ["5", "0,5", ""])
def test_a_number_committed_in_another_view_is_shown(page: Page, typed: str) -> None:
    ruler = Ruler(0.001, 1000, "%")
    root = page.show(Predict(Prediction("How much?", REPLIES, ruler=ruler), lambda: 2.0))
    field = root.locator("input[type=text]")
    field.fill(typed)
    page.set(choice="20")
    assert field.input_value() == "20"
    assert root.get_by_role("slider").get_attribute("aria-valuetext") == "20%"
    assert root.locator(".lk-error").text_content() == ""


@pytest.mark.browser
def test_a_decimal_comma_is_named(page: Page) -> None:
    ruler = Ruler(0.001, 1000, "%")
    root = page.show(Predict(Prediction("How much?", REPLIES, ruler=ruler), lambda: 2.0))
    root.get_by_label("Your number, in %").fill("0,5")
    assert "with a decimal point, not a comma." in root.inner_text()
