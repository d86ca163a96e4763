"""Predictions: asked first, answered after; and what their replies claim holds against real runs."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.instrument import fate, merge, underflow, zeros_inside
from labkit.records.journal import note
from labkit.train import TASKS, TrainingRun, gradient_snapshot, scattered_digits
from labkit.widgets import MmaBlock, Prediction, predict, predictions
from labkit.widgets.mma_block.presets import PRESETS


def test_worked_example() -> None:
    widget = predict("scaling.order")
    assert (widget.choice, widget.answered, widget.right) == ("", "", False)
    widget.choice = "2^-27"
    assert not widget.right
    assert widget.answered.startswith("Not quite: 0. A division by a power of two looks harmless")


def test_the_browser_does_not_hold_the_answer_before_the_learner_commits() -> None:
    for id, prediction in predictions().items():
        sent = str(predict(id).get_state())
        assert not any(reply in sent for reply in prediction.choices.values())


@pytest.mark.parametrize("id", predictions())
def test_each_choice_has_a_reply_and_one_is_right(id: str) -> None:
    widgets = {choice: predict(id) for choice in predictions()[id].choices}
    assert len(widgets) >= 3
    for choice, widget in widgets.items():
        widget.choice = choice
        assert len(widget.answered) > 40
    assert [w.right for w in widgets.values()].count(True) == 1


def test_bad_questions_and_answers_are_refused() -> None:
    with pytest.raises(KeyError, match=r"scaling\.lost"):
        predict("scaling.loss")
    with pytest.raises(ValueError, match="none of the choices"):
        Prediction("1 + 1?", {"3": ""}, answer="2")
    with pytest.raises(ValueError, match="none of the choices"):
        predict("scaling.order").choice = "7"


def test_a_host_without_widgets_reads_the_question() -> None:
    bundle = predict("scaling.order")._repr_mimebundle_()
    assert "( ) 2^-24" in bundle[0]["text/plain"]


# --- the journal: what was answered is shown again ---


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal that is not there yet, as if a notebook ran in this folder."""
    widget = import_module("labkit.widgets.predict.widget")
    monkeypatch.setattr(widget, "journal_here", lambda: tmp_path / "labkit-answers.jsonl")
    return tmp_path / "labkit-answers.jsonl"


def test_an_answer_is_kept_and_the_next_kernel_shows_it(journal: Path) -> None:
    first = predict("scaling.order")
    assert not journal.exists()  # to be asked is no answer
    first.choice = "2^-27"
    again = predict("scaling.order")
    assert (again.choice, again.answered, again.right) == (first.choice, first.answered, False)
    assert predict("start.warm_up").choice == ""
    (line,) = journal.read_text(encoding="utf-8").splitlines()
    entry = json.loads(line)
    assert entry.pop("when").endswith("+00:00")
    assert entry == {"kind": "prediction", "id": "scaling.order", "answer": "2^-27"}


def test_the_last_answer_counts_and_other_kinds_do_not(journal: Path) -> None:
    for kind, answer in (("prediction", "0"), ("prediction", "2^-27"), ("exercise", "0")):
        note(journal, kind, "scaling.order", answer)
    assert predict("scaling.order").choice == "2^-27"
    assert len(journal.read_text(encoding="utf-8").splitlines()) == 3


def test_an_answer_that_is_no_longer_offered_is_asked_again(journal: Path) -> None:
    note(journal, "prediction", "scaling.order", "a choice of last year")
    assert predict("scaling.order").choice == ""


def test_where_nothing_can_be_kept_the_reply_says_so(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widget = predict("scaling.order")
    journal.mkdir()  # a folder stands where the file belongs
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(Path(__file__)))  # and in the home folder nothing can be written
    widget.choice = "0"
    assert widget.right
    assert "could not be kept for next time" in widget.answered


def test_start_warm_up_counts_right() -> None:
    values = np.arange(65536, dtype=np.uint16).view(np.float16)
    assert ((values > 0) & (values < 1)).sum() == 15_359


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


def test_scaling_order_and_too_high_are_arithmetic() -> None:
    arrived = np.float16(2.0**-27 * 2**10)
    assert np.float32(arrived / np.float16(2**10)) == 0
    assert np.float32(arrived) / 2**10 == 2.0**-27
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(2.0**-20 * 2.0**40))


# --- the lessons: no widget shows the answer to the question above it before the learner has moved it ---

SOURCES = Path(__file__).parents[2] / "notebooks" / "source"


@pytest.mark.parametrize(
    ("lesson", "question", "numbers", "opens"),
    [
        ("02_rounding", "rounding.tie", ("2049", "2051"), "NumberLine(FP16, x=2052.6,"),
        ("02_rounding", "rounding.swallowed", ("2^-12",), "update=2**-10)"),
        ("03_tensor_cores", "tensor.same", ("2^-25",), 'MmaBlock("1 and small terms", "V100")'),
        ("06_loss_scaling", "scaling.lost", (), "log2_scale=10)"),
    ],
)
def test_a_widget_below_a_question_opens_in_another_state(lesson, question, numbers, opens) -> None:
    assert all(number in predictions()[question].question for number in numbers)
    below = (SOURCES / f"{lesson}.py").read_text().split(f'predict("{question}")')[1]
    widget = next(
        line for line in below.splitlines() if line.startswith(("NumberLine(", "Swallowed", "Mma", "Underflow"))
    )
    assert widget.endswith(opens) or widget.startswith(opens)
    assert not any(number.replace("^", "**") in widget for number in numbers)


def test_the_tensor_block_opens_at_another_power_than_the_question_asks_for() -> None:
    assert (MmaBlock("1 and small terms", "V100").knob, PRESETS["1 and small terms"].start) == (-24, -24)
