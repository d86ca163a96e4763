"""Predictions and the quiz: order, journal, and answers computed by numpy and torch."""

import ast
import json
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import traitlets

from labkit.course import UNKNOWN, QuizQuestion, lessons, quiz_questions
from labkit.records.journal import NAME, append_answer, entries
from labkit.widgets import Predict, Prediction, Quiz, predict, predictions, quiz
from labkit.widgets.predict.widget import Ruler
from tests.widgets.pages import Page

LESSONS = Path(__file__).parents[2] / "labkit_lessons"
NUMBERS = {id: row.ruler for id, row in predictions().items() if row.ruler}


def test_each_choice_has_a_reply_and_one_is_right() -> None:
    for id, prediction in predictions().items():
        measure = None
        choices = list(prediction.choices)
        ruler = NUMBERS.get(id)
        if ruler:
            # A number is asked for; the measured one is in the middle of its ruler.
            middle = (ruler.low * ruler.high) ** 0.5
            measure = partial(float, middle)
            choices = [str(number) for number in (ruler.low, middle, ruler.high)]
        sent = str(predict(id, measure).get_state())
        assert not any(reply in sent for reply in prediction.choices.values())
        widgets = {choice: predict(id, measure) for choice in choices}
        assert len(widgets) >= 3, id
        for choice, widget in widgets.items():
            widget.choice = choice
            assert len(widget.answered) > 40, (id, choice)
        assert [w.right for w in widgets.values()].count(True) == 1, id


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


def test_the_reply_compares_the_guess_with_the_measurement() -> None:
    for guess, reply in (
        ("1", "Not quite: you said 1%, it was 24%: 24 times more. So people think."),
        ("12", "Yes: you said 12%, it was 24%: 2 times more. Well seen."),
        ("24", "Yes: you said 24%, it was 24%. Well seen."),
        ("4.8e1", "Yes: you said 48%, it was 24%: 2 times less. Well seen."),
        ("60", "Not quite: you said 60%, it was 24%: 2.5 times less. So people fear."),
    ):
        widget = Predict(PERCENT, lambda: 24.0)
        assert widget.choices == []
        assert widget.ruler == {"low": 0.01, "high": 100, "unit": "%"}
        widget.choice = guess
        assert widget.answered == reply
        assert widget.right == reply.startswith("Yes")
        assert widget.truth == 24.0


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


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a journal that does not exist yet."""
    for name in ("predict", "quiz"):
        monkeypatch.setattr(
            import_module(f"labkit.widgets.{name}.widget"),
            "current_journal",
            lambda: tmp_path / NAME,
        )
    return tmp_path / NAME


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


QUESTIONS = quiz_questions()
RIGHT = {id: row.answer for id, row in QUESTIONS.items()}


def test_numpy_and_torch_give_the_right_answers() -> None:
    with np.errstate(over="ignore"):
        assert str(np.float16(300) * np.float16(300)) == RIGHT["largest"]
    assert f"{np.float16(2048) + np.float16(1):.0f}" == RIGHT["odd"]
    assert f"{np.float16(1e-8):.0f}" == RIGHT["tiny"]
    frozen = np.float16(1)
    for _ in range(1000):
        frozen += np.float16(0.0001)
    assert f"{frozen:.0f}" == RIGHT["frozen"]
    assert f"{np.nextafter(np.float16(1), np.float16(2)):.5f}" in QUESTIONS["frozen"].why
    a, b = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float16)
    assert (
        a.astype(np.float32) * b.astype(np.float32) == a.astype(np.float64) * b.astype(np.float64)
    ).all()
    # A sum in FP16 loses small terms.
    assert np.float16(2048) + np.float16(0.5) == 2048
    assert RIGHT["accumulator"] == "FP32"
    model = torch.nn.Linear(2, 2)
    with torch.autocast("cpu", torch.float16):
        assert model(torch.ones(1, 2)).dtype == torch.float16
        assert model.weight.dtype == torch.float32
    assert RIGHT["stored"] == "FP32"
    exponents = {
        dtype: np.log2(torch.finfo(dtype).smallest_normal)
        for dtype in (torch.bfloat16, torch.float32)
    }
    assert exponents[torch.bfloat16] == exponents[torch.float32]
    assert RIGHT["bfloat"] == "It has the exponent range of FP32"


def test_torch_s_scaler_gives_the_right_answers() -> None:
    weight = torch.nn.Parameter(torch.full((1,), 3.0))
    (1024.0 * weight**2).sum().backward()
    assert weight.item() == 3.0
    assert weight.grad.item() == 1024 * 6.0
    assert RIGHT["scaled"] == "the gradients"
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(weight * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == 3.0
    assert scaler.get_scale() == 512.0
    assert RIGHT["overflow"] == "It skips the step and lowers the scale"
    # A scaled gradient that is clipped to a norm of 1 is almost zero after unscaling.
    scale = 2.0**16
    gradient = 0.5
    assert min(1.0, 1.0 / (scale * gradient)) * scale * gradient / scale == 2.0**-16
    assert RIGHT["clip"].startswith("after the gradients are unscaled")


def test_quiz_has_ten_questions_of_lessons() -> None:
    assert len(QUESTIONS) == 10
    assert {row.lesson for row in QUESTIONS.values()} <= {lesson.name for lesson in lessons()}


def test_right_answers_of_the_quiz_have_different_places() -> None:
    places = [row.choices.index(row.answer) for row in QUESTIONS.values()]
    assert max(map(places.count, range(4))) <= 4


def test_a_question_whose_answer_is_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="answer: expected one of the choices"):
        QuizQuestion("1 + 1?", ("3", "4"), "2", "", "01_numbers")


def test_a_quiz_sends_no_reason_before_the_answer() -> None:
    for sent in (
        quiz("before").get_state(),
        quiz("after").get_state(),
        quiz("before").page_state(),
    ):
        assert not any(row.why in json.dumps(sent, default=str) for row in QUESTIONS.values())


BEFORE = {"odd": "2049", "tiny": UNKNOWN}


@pytest.fixture
def answered_before(journal: Path) -> Quiz:
    """A quiz before the course of which two questions are answered."""
    widget = quiz("before")
    widget.answers = {"odd": "2049"}
    widget.answers = BEFORE
    return widget


@pytest.mark.usefixtures("answered_before")
def test_each_answer_of_a_quiz_is_stored_once(journal: Path) -> None:
    stored = [(line["id"], line["answer"]) for line in entries(journal, "before")]
    assert stored == list(BEFORE.items())


def test_a_quiz_before_the_course_shows_no_result(answered_before: Quiz) -> None:
    assert answered_before.results == {}


@pytest.mark.usefixtures("answered_before")
def test_answers_of_a_quiz_are_there_in_the_next_kernel() -> None:
    assert quiz("before").answers == BEFORE


@pytest.mark.usefixtures("answered_before")
def test_the_quiz_after_the_course_has_the_earlier_answers() -> None:
    second = quiz("after")
    assert second.answers == {}
    assert second.earlier == BEFORE


@pytest.mark.usefixtures("answered_before")
def test_the_quiz_after_the_course_shows_its_results(journal: Path) -> None:
    second = quiz("after")
    second.answers = {"odd": "2048"}
    assert {id: result["answer"] for id, result in second.results.items()} == {"odd": "2048"}
    assert [line["answer"] for line in entries(journal, "after")] == ["2048"]


def test_invalid_answers_of_a_quiz_are_ignored(journal: Path) -> None:
    append_answer(journal, "before", "odd", "<script>")
    append_answer(journal, "before", "no.such", "2048")
    widget = quiz("before")
    assert widget.answers == {}
    widget.answers = {"odd": "2049", "largest": "a lot", "other": "x"}
    assert widget.answers == {"odd": "2049"}


@pytest.mark.usefixtures("journal")
def test_an_answer_of_a_quiz_is_final() -> None:
    widget = quiz("before")
    widget.answers = {"odd": "2049"}
    for changed in ({"odd": "2048"}, {}):
        widget.answers = changed
        assert widget.answers == {"odd": "2049"}


def test_an_unknown_phase_of_a_quiz_is_refused() -> None:
    with pytest.raises(ValueError, match="phase: expected one of 'before', 'after', got 'during'"):
        quiz("during")


FIRST_CHOICES = {id: row.choices[0] for id, row in QUESTIONS.items()}


def press(page: Page, *keys: str) -> None:
    """Press keys, one after the other."""
    for key in keys:
        page.page.keyboard.press(key)


@pytest.mark.browser
def test_all_questions_are_answered_by_keyboard(page: Page) -> None:
    root = page.show(quiz("before"))
    root.locator("input").first.focus()
    for _ in QUESTIONS:
        # The first choice.
        press(page, "Space", "Enter")
    assert "You answered 10 of 10 questions. At the end of the course" in root.inner_text()
    assert page.trait("answers") == FIRST_CHOICES


@pytest.fixture
def second_question(page: Page) -> Any:
    """A quiz after the course, in which the first question was skipped by keyboard."""
    root = page.show(Quiz("after", {}, FIRST_CHOICES))
    root.locator("input").first.focus()
    # The button Commit is disabled, so the next one is Skip.
    press(page, "Tab", "Enter")
    return root


@pytest.mark.browser
def test_a_skipped_question_is_followed_by_the_next(second_question: Any) -> None:
    assert "Question 2 of 10" in second_question.inner_text()


@pytest.mark.browser
def test_a_committed_answer_has_its_reply_in_focus(page: Page, second_question: Any) -> None:
    press(page, "Space", "Enter")
    assert "Yes: 2048. FP16 has 11 significant bits" in second_question.inner_text()
    assert page.page.evaluate("document.activeElement.className") == "lk-reply"


@pytest.fixture
def last_page(page: Page, second_question: Any) -> Any:
    """The quiz after its last question."""
    press(page, "Space", "Enter")
    for _ in range(8):
        # The next question, and its second choice.
        press(page, "Tab", "Enter", "ArrowDown", "Enter")
    press(page, "Tab", "Enter")
    return second_question


@pytest.mark.browser
def test_the_last_page_compares_with_the_quiz_before(last_page: Any) -> None:
    rows = list(QUESTIONS.values())
    now = 1 + sum(row.answer == row.choices[1] for row in rows[2:])
    before = sum(row.answer == row.choices[0] for row in rows[1:])
    assert (
        f"You answered 9 of 10 questions. Right now: {now}. Right before the course: {before}."
        in last_page.inner_text()
    )
    assert last_page.locator("td[data-right='true']").count() == now + before


@pytest.mark.browser
def test_the_last_page_has_a_row_for_each_answer(last_page: Any) -> None:
    cells = last_page.locator("tbody tr").first.locator("th, td").all_inner_texts()
    assert cells == [QUESTIONS["odd"].question, "✓ 2048", "✓ 2048", "2048", "02 rounding"]


@pytest.mark.browser
def test_the_last_page_links_the_lesson_of_a_question(last_page: Any) -> None:
    link = last_page.get_by_role("link", name="02 rounding")
    assert link.get_attribute("href") == "02_rounding.html"


@pytest.mark.browser
def test_skipped_questions_can_be_answered_at_the_end(page: Page, last_page: Any) -> None:
    last_page.get_by_role("button", name="Answer the skipped questions").focus()
    press(page, "Enter")
    assert "Question 1 of 10" in last_page.inner_text()


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
