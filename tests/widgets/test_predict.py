"""Predictions: asked first, answered after; and what their replies claim holds against real runs."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.instrument import fate, merge, underflow, zeros_inside
from labkit.train import TASKS, TrainingRun, gradient_snapshot, scattered_digits
from labkit.widgets import Prediction, predict, predictions


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
    assert [f"{zeros_inside(run.gradients(weights)):.0%}" for run in (a, b)] == ["1%", "24%"]
    assert zeros_inside(b.fp32_twin().gradients(weights)) > 0.23
    assert underflow(a.fp32_twin().gradients(), a.gradients()) > 0.5


def test_scaling_order_and_too_high_are_arithmetic() -> None:
    arrived = np.float16(2.0**-27 * 2**10)
    assert np.float32(arrived / np.float16(2**10)) == 0
    assert np.float32(arrived) / 2**10 == 2.0**-27
    with np.errstate(over="ignore"):
        assert np.isinf(np.float16(2.0**-20 * 2.0**40))
