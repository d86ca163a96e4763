"""The quiz before and after the course: its facts, what is stored and compared, and its way by keyboard."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from labkit.course import UNKNOWN, QuizQuestion, lessons, quiz_questions
from labkit.records.journal import NAME, append_answer, entries
from labkit.widgets import Quiz, quiz
from labkit.widgets.quiz import widget as module
from tests.widgets.pages import Page

QUESTIONS = quiz_questions()
RIGHT = {id: row.answer for id, row in QUESTIONS.items()}


# --- the facts, from numpy and torch ---


def half_sums(steps: int) -> float:
    weight = np.float16(1)
    for _ in range(steps):
        weight += np.float16(0.0001)
    return float(weight)


def after_an_overflow() -> tuple[float, float]:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(weight * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    return weight.item(), scaler.get_scale()


def scaled_gradient(scale: float) -> tuple[float, float]:
    weight = torch.nn.Parameter(torch.full((1,), 3.0))
    (scale * weight**2).sum().backward()
    return weight.item(), weight.grad.item()


def autocast_weight() -> torch.dtype:
    model = torch.nn.Linear(2, 2)
    with torch.autocast("cpu", torch.float16):
        assert model(torch.ones(1, 2)).dtype == torch.float16
        return model.weight.dtype


def test_numpy_and_torch_give_the_right_answers() -> None:
    with np.errstate(over="ignore"):
        assert str(np.float16(300) * np.float16(300)) == RIGHT["largest"]
    assert f"{np.float16(2048) + np.float16(1):.0f}" == RIGHT["odd"]
    assert f"{np.float16(1e-8):.0f}" == RIGHT["tiny"]
    assert f"{half_sums(1000):.0f}" == RIGHT["frozen"]
    assert f"{np.nextafter(np.float16(1), np.float16(2)):.5f}" in QUESTIONS["frozen"].why
    assert autocast_weight() == torch.float32
    assert RIGHT["stored"] == "FP32"
    assert scaled_gradient(1024.0) == (3.0, 1024 * scaled_gradient(1.0)[1])
    assert RIGHT["scaled"] == "the gradients"
    assert after_an_overflow() == (1.0, 512.0)
    assert RIGHT["overflow"] == "It skips the step and lowers the scale"
    exponents = {dtype: np.log2(torch.finfo(dtype).smallest_normal) for dtype in (torch.bfloat16, torch.float32)}
    assert exponents[torch.bfloat16] == exponents[torch.float32]
    assert RIGHT["bfloat"] == "It has the exponent range of FP32"


def test_products_of_fp16_numbers_are_exact_in_fp32_and_an_fp16_sum_loses_small_terms() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float16)
    assert (a.astype(np.float32) * b.astype(np.float32) == a.astype(np.float64) * b.astype(np.float64)).all()
    assert np.float16(2048) + np.float16(0.5) == 2048
    assert RIGHT["accumulator"] == "FP32"


def test_a_clip_of_scaled_gradients_leaves_almost_nothing() -> None:
    scale, gradient = 2.0**16, 0.5
    clipped_first = min(1.0, 1.0 / (scale * gradient)) * scale * gradient / scale
    clipped_after = min(1.0, 1.0 / gradient) * gradient
    assert (clipped_first, clipped_after) == (2.0**-16, gradient)
    assert RIGHT["clip"].startswith("after the gradients are unscaled")


def test_there_are_ten_questions_of_lessons_that_exist_and_no_place_is_always_right() -> None:
    assert len(QUESTIONS) == 10
    assert {row.lesson for row in QUESTIONS.values()} <= {lesson.name for lesson in lessons()}
    places = [row.choices.index(row.answer) for row in QUESTIONS.values()]
    assert max(map(places.count, range(4))) <= 4
    with pytest.raises(ValueError, match="expected the answer among the choices"):
        QuizQuestion("1 + 1?", ("3", "4"), "2", "", "01_numbers")


# --- state ---


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "current_journal", lambda: tmp_path / NAME)
    return tmp_path / NAME


def test_answers_are_stored_and_both_times_are_compared(journal: Path) -> None:
    first = quiz("before")
    first.answers = {"odd": "2049"}
    first.answers = {"odd": "2049", "tiny": UNKNOWN}
    assert [(line["id"], line["answer"]) for line in entries(journal, "before")] == [("odd", "2049"), ("tiny", UNKNOWN)]
    assert first.results == {}
    again = quiz("before")  # the cell is run again, or the notebook opened on another day
    assert again.answers == {"odd": "2049", "tiny": UNKNOWN}
    second = quiz("after")
    assert (second.answers, second.earlier) == ({}, again.answers)
    second.answers = {"odd": "2048"}
    assert set(second.results) == {"odd"}
    assert second.results["odd"]["answer"] == "2048"
    assert entries(journal, "after")[0]["answer"] == "2048"
    assert len(entries(journal, "before")) == 2


def test_what_was_committed_stays_and_other_texts_are_no_answers(journal: Path) -> None:
    append_answer(journal, "before", "odd", "<script>")
    append_answer(journal, "before", "no.such", "2048")
    widget = quiz("before")
    assert widget.answers == {}
    widget.answers = {"odd": "2049", "largest": "a lot", "other": "x"}
    widget.answers = {"odd": "2048"}
    widget.answers = {}
    assert widget.answers == {"odd": "2049"}
    with pytest.raises(ValueError, match="phase: expected one of 'before', 'after', got 'during'"):
        quiz("during")


def test_the_browser_does_not_hold_an_answer_before_the_learner_commits() -> None:
    for phase in ("before", "after"):
        sent = json.dumps(quiz(phase).get_state(), default=str)
        assert not any(row.why in sent for row in QUESTIONS.values())
    assert not any(row.why in json.dumps(quiz("before").page_state()) for row in QUESTIONS.values())


# --- in a page ---


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


@pytest.mark.browser
def test_by_keyboard_all_questions_are_answered_or_skipped_and_then_compared(page: Page) -> None:
    root = page.show(quiz("before"))
    root.locator("input").first.focus()
    for _ in QUESTIONS:
        press(page.page, "Space", "Enter")  # the first choice
    assert "You answered 10 of 10 questions. At the end of the course" in root.inner_text()
    assert page.trait("answers") == {id: row.choices[0] for id, row in QUESTIONS.items()}

    second = Quiz("after", {}, page.trait("answers"))
    root = page.show(second)
    root.locator("input").first.focus()
    press(page.page, "Tab", "Enter")  # Skip: Commit is disabled
    assert "Question 2 of 10" in root.inner_text()
    press(page.page, "Space", "Enter")
    assert "Yes: 2048. FP16 has 11 significant bits" in root.inner_text()
    assert page.page.evaluate("document.activeElement.className") == "lk-reply"
    for _ in range(8):
        press(page.page, "Tab", "Enter", "ArrowDown", "Enter")  # next question, its second choice
    press(page.page, "Tab", "Enter")
    rows = list(QUESTIONS.values())
    now = 1 + sum(row.answer == row.choices[1] for row in rows[2:])
    before = sum(row.answer == row.choices[0] for row in rows[1:])
    assert f"You answered 9 of 10 questions. Right now: {now}. Right before the course: {before}." in root.inner_text()
    cells = root.locator("tbody tr").first.locator("th, td").all_inner_texts()
    assert cells == [QUESTIONS["odd"].question, "✓ 2048", "✓ 2048", "02 rounding"]
    assert root.locator("td[data-right='true']").count() == now + before
    press(page.page, "Tab", "Enter")  # the skipped one
    assert "Question 1 of 10" in root.inner_text()
