"""Predictions: asked first, answered after; and what their replies claim holds against real runs."""

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.instrument import fate, merge, underflow, zeros_inside
from labkit.records.journal import append_answer
from labkit.train import TASKS, TrainingRun, gradient_snapshot, scattered_digits
from labkit.widgets import Predict, Prediction, predict, predictions
from labkit.widgets.predict.widget import Ruler

LESSONS = Path(__file__).parents[2] / "notebooks" / "lessons"
NUMBERS = {id: row.ruler for id, row in predictions().items() if row.ruler}


def asked(id: str) -> Predict:
    """Ask this prediction; where it is a number, the true one is in the middle of its line."""
    ruler = NUMBERS.get(id)
    return predict(id, (lambda: (ruler.low * ruler.high) ** 0.5) if ruler else None)


def choices_of(id: str) -> list[str]:
    """Return what can be committed to: each choice, or a number on each side of the truth."""
    ruler = NUMBERS.get(id)
    middle = (ruler.low * ruler.high) ** 0.5 if ruler else 0
    return [str(ruler.low), str(middle), str(ruler.high)] if ruler else list(predictions()[id].choices)


def test_the_browser_does_not_hold_the_answer_before_the_learner_commits() -> None:
    for id, prediction in predictions().items():
        sent = str(asked(id).get_state())
        assert not any(reply in sent for reply in prediction.choices.values())


def test_each_choice_has_a_reply_and_one_is_right() -> None:
    for id in predictions():
        widgets = {choice: asked(id) for choice in choices_of(id)}
        assert len(widgets) >= 3, id
        for choice, widget in widgets.items():
            widget.choice = choice
            assert len(widget.answered) > 40, (id, choice)
        assert [w.right for w in widgets.values()].count(True) == 1, id


def test_bad_questions_and_answers_are_refused() -> None:
    with pytest.raises(KeyError, match=r"scaling\.lost"):
        predict("scaling.loss")
    with pytest.raises(ValueError, match="none of the choices"):
        Prediction("1 + 1?", {"3": ""}, answer="2")
    with pytest.raises(ValueError, match="none of the choices"):
        predict("scaling.order").choice = "7"


# --- numbers ---

SAID = {"less": "So people think.", "near": "Well seen.", "more": "So people fear."}
PERCENT = Prediction("How much is lost?", SAID, ruler=Ruler(0.01, 100, "%"))


def test_a_number_is_answered_with_its_distance() -> None:
    for said, reply in (
        ("1", "Not quite: you said 1%, it was 24%: 24 times more. So people think."),
        ("12", "Yes: you said 12%, it was 24%: 2 times more. Well seen."),
        ("24", "Yes: you said 24%, it was 24%. Well seen."),
        ("4.8e1", "Yes: you said 48%, it was 24%: 2 times less. Well seen."),
        ("60", "Not quite: you said 60%, it was 24%: 2.5 times less. So people fear."),
    ):
        widget = Predict(PERCENT, lambda: 24.0)
        assert (widget.choices, widget.ruler) == ([], {"low": 0.01, "high": 100, "unit": "%"})
        widget.choice = said
        assert (widget.answered, widget.right, widget.truth) == (reply, reply.startswith("Yes"), 24.0)


def test_the_true_number_is_measured_after_the_learner_has_committed() -> None:
    calls = []
    widget = Predict(PERCENT, lambda: calls.append(1) or 24.0)
    assert (calls, widget.truth) == ([], 0.0)
    widget.choice = "3"
    assert calls == [1]


def test_a_value_off_the_line_is_refused_or_marks_nothing() -> None:
    for said in ("0", "-1", "101", "nan", "much", "1%", "inf"):
        with pytest.raises(ValueError, match=r"no number from 0\.01 to 100%"):
            Predict(PERCENT, lambda: 24.0).choice = said
    for truth in (0.0, -1.0, float("nan"), float("inf")):
        widget = Predict(PERCENT, lambda truth=truth: truth)
        widget.choice = "1"
        assert (widget.right, widget.truth) == (False, 0.0)
        assert f"could not be measured: the truth was measured as {truth}" in widget.answered
    widget = Predict(PERCENT, lambda: 1 / 0)
    widget.choice = "1"
    assert "division by zero" in widget.answered


def test_a_question_and_what_measures_its_answer_belong_together() -> None:
    with pytest.raises(TypeError, match=r"asks for a number: write predict\(id, measure\)"):
        predict("numbers.tenth")
    with pytest.raises(TypeError, match=r"asks for a choice: write predict\(id\) alone"):
        predict("scaling.order", lambda: 1.0)
    with pytest.raises(ValueError, match="a number has the replies"):
        Prediction("1 + 1?", {"2": "", "3": ""}, answer="2", ruler=Ruler(1, 10))
    with pytest.raises(ValueError, match="0 < low < high"):
        Ruler(0, 10)


TRUE = {  # by arithmetic, or as the lesson's text has it; lessons measure them again
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


NEEDS = {  # cells whose variables a measurement uses, beside the setup
    "autocast.error": ["touch-weights"],
    "gradients.scale": ["touch-film"],
}


def measured_by_the_lesson(id: str) -> float:
    """Run the cells of a lesson that lead to this question, and return what its `measure` says."""
    asking = f'predict("{id}", '
    source = next(text for file in LESSONS.glob("*/lesson.py") if asking in (text := file.read_text(encoding="utf-8")))
    cells = dict(re.findall(r'^# %% id="([^"]+)".*\n((?:(?!# %%).*\n?)*)', source, flags=re.MULTILINE))
    names: dict[str, Any] = {}
    for needed in ("setup", *NEEDS.get(id, [])):
        exec(cells[needed], names)
    tree = ast.parse(next(cell for cell in cells.values() if asking in cell))
    call = next(part for part in ast.walk(tree.body.pop()) if isinstance(part, ast.Call))
    exec(compile(tree, id, "exec"), names)
    return float(eval(ast.unparse(call.args[1]), names)())


@pytest.mark.parametrize("id", NUMBERS)
def test_a_lesson_measures_the_number_that_it_asks_for(id: str) -> None:
    ruler, truth = NUMBERS[id], measured_by_the_lesson(id)
    assert truth == pytest.approx(TRUE[id], rel=0.05)
    assert ruler.low < truth < ruler.high


# --- the journal: what was answered is shown again ---


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal that is not there yet, as if a notebook ran in this folder."""
    widget = import_module("labkit.widgets.predict.widget")
    monkeypatch.setattr(widget, "current_journal", lambda: tmp_path / "labkit-answers.jsonl")
    return tmp_path / "labkit-answers.jsonl"


def test_an_answer_is_kept_and_the_next_kernel_shows_it(journal: Path) -> None:
    first = predict("scaling.order")
    assert not journal.exists()  # to be asked is no answer
    first.choice = "2^-27"
    again = predict("scaling.order")
    assert (again.choice, again.answered, again.right) == (first.choice, first.answered, False)
    assert predict("start.warm_up").choice == ""
    for kind, answer in (("prediction", "0"), ("exercise", "2^-27")):  # the last prediction counts
        append_answer(journal, kind, "scaling.order", answer)
    assert predict("scaling.order").choice == "0"
    append_answer(journal, "prediction", "start.warm_up", "a choice of last year")
    assert predict("start.warm_up").choice == "", "what is no longer offered is asked again"


def test_a_number_is_kept_and_measured_again(journal: Path) -> None:
    predict("numbers.tenth", lambda: 0.0244).choice = "1"
    again = predict("numbers.tenth", lambda: 0.0244)
    assert (again.choice, again.truth) == ("1", 0.0244)
    assert again.answered.startswith("Not quite: you said 1%, it was 0.0244%: 41 times less.")
    append_answer(journal, "prediction", "numbers.tenth", "50")  # the line ended elsewhere last year
    assert predict("numbers.tenth", lambda: 0.0244).choice == ""


def test_where_nothing_can_be_kept_the_reply_says_so(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widget = predict("scaling.order")
    journal.mkdir()  # a folder stands where the file belongs
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(Path(__file__)))  # and in the home folder nothing can be written
    widget.choice = "0"
    assert widget.right
    assert "could not be saved" in widget.answered


def test_what_replies_claim_by_arithmetic_is_right() -> None:
    values = np.arange(65536, dtype=np.uint16).view(np.float16)
    assert ((values > 0) & (values < 1)).sum() == 15_359
    arrived = np.float16(2.0**-27 * 2**10)
    assert np.float32(arrived / np.float16(2**10)) == 0
    assert np.float32(arrived) / 2**10 == 2.0**-27
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(2.0**-20 * 2.0**40))


def test_scaling_lost_is_what_the_network_shows() -> None:
    task = TASKS["segmentation"]
    targets = scattered_digits().train_targets
    assert task.batch_size * targets[0].numel() == 552_960
    seen = merge(gradient_snapshot(TrainingRun(task, RECIPES["FP16"])).layers.values())
    assert fate(seen, FP16).underflowed > 0.5


def test_scaling_trap_is_a_trap() -> None:
    weights = "weight gradients"
    a, b = (TrainingRun(TASKS[name], RECIPES["FP16"]) for name in ("segmentation_small", "digits"))
    assert [f"{zeros_inside(run.next_gradients(weights)):.0%}" for run in (a, b)] == ["1%", "24%"]
    assert zeros_inside(b.fp32_twin().next_gradients(weights)) > 0.23
    assert underflow(a.fp32_twin().next_gradients(), a.next_gradients()) > 0.5
