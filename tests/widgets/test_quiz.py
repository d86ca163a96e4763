"""The quiz before and after the course: its questions, its answers, and its pages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.course import UNKNOWN, QuizQuestion, lessons, quiz_questions
from labkit.records.journal import append_answer, entries
from labkit.widgets import Quiz, quiz
from tests.widgets.pages import Page

QUESTIONS = quiz_questions()
RIGHT = {id: row.answer for id, row in QUESTIONS.items()}


class TestRightAnswers:
    """Right answers against numpy and torch."""

    def test_the_largest_product(self) -> None:
        with np.errstate(over="ignore"):
            assert str(np.float16(300) * np.float16(300)) == RIGHT["largest"]

    def test_an_odd_number_above_2048(self) -> None:
        assert f"{np.float16(2048) + np.float16(1):.0f}" == RIGHT["odd"]

    def test_a_tiny_number(self) -> None:
        assert f"{np.float16(1e-8):.0f}" == RIGHT["tiny"]

    def test_a_sum_that_small_terms_do_not_change(self) -> None:
        frozen = np.float16(1)
        for _ in range(1000):
            frozen += np.float16(0.0001)
        assert f"{frozen:.0f}" == RIGHT["frozen"]
        assert f"{np.nextafter(np.float16(1), np.float16(2)):.5f}" in QUESTIONS["frozen"].why

    def test_products_are_exact_in_an_fp32_accumulator(self) -> None:
        a, b = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float16)
        in_fp32 = a.astype(np.float32) * b.astype(np.float32)
        assert (in_fp32 == a.astype(np.float64) * b.astype(np.float64)).all()
        # A sum in FP16 loses small terms.
        assert np.float16(2048) + np.float16(0.5) == 2048
        assert RIGHT["accumulator"] == "FP32"

    def test_weights_stay_in_fp32_under_autocast(self) -> None:
        model = torch.nn.Linear(2, 2)
        with torch.autocast("cpu", torch.float16):
            assert model(torch.ones(1, 2)).dtype == torch.float16
            assert model.weight.dtype == torch.float32
        assert RIGHT["stored"] == "FP32"

    def test_bf16_has_the_exponents_of_fp32(self) -> None:
        bf16 = torch.finfo(torch.bfloat16).smallest_normal
        assert bf16 == torch.finfo(torch.float32).smallest_normal
        assert RIGHT["bfloat"] == "It has the exponent range of FP32"

    def test_a_scaled_loss_scales_the_gradients(self) -> None:
        weight = torch.nn.Parameter(torch.full((1,), 3.0))
        (1024.0 * weight**2).sum().backward()
        assert weight.item() == 3.0
        assert weight.grad is not None
        assert weight.grad.item() == 1024 * 6.0
        assert RIGHT["scaled"] == "the gradients"

    def test_a_scaler_that_finds_inf_skips_the_step(self) -> None:
        weight = torch.nn.Parameter(torch.full((1,), 3.0))
        optimizer = torch.optim.SGD([weight], 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(weight * torch.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        assert weight.item() == 3.0
        assert scaler.get_scale() == 512.0
        assert RIGHT["overflow"] == "It skips the step and lowers the scale"

    def test_a_scaled_gradient_is_almost_zero_after_clipping(self) -> None:
        scale = 2.0**16
        weight = torch.nn.Parameter(torch.zeros(1))
        weight.grad = torch.full((1,), scale * 0.5)
        torch.nn.utils.clip_grad_norm_([weight], 1.0)
        assert weight.grad.item() / scale == pytest.approx(2.0**-16, rel=1e-4)
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


@pytest.mark.browser
def test_a_question_answered_in_another_view_is_not_asked_again(page: Page) -> None:
    root = page.show(quiz("before"))
    page.set(answers=dict(list(FIRST_CHOICES.items())[:1]))
    assert "Question 2 of 10" in root.inner_text()
    page.set(answers=FIRST_CHOICES)
    assert "You answered 10 of 10 questions." in root.inner_text()


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
