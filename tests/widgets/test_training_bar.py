"""A bar of a training: its phases, its losses, and its ends."""

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, StepRecord, train
from labkit.widgets import TrainingBar

TASK = TASKS["digits"]
RECIPE = RECIPES["FP16 dynamic"]


def test_worked_example_of_a_bar() -> None:
    bar = TrainingBar(TASK, RECIPE, seed=1, steps=5, device="cpu")
    # The message of a page.
    bar.wanted = "start"
    record = bar.wait(60)
    assert record is not None
    assert record.steps == train(TASK, RECIPE, 1, steps=5).steps
    assert bar.phase == "finished"
    assert bar.done == 5
    assert bar.sentence.startswith("Finished after 5 steps")
    assert bar.losses == [step.loss for step in record.steps]


def test_a_new_bar_is_ready_and_has_no_record() -> None:
    bar = TrainingBar(TASK, RECIPE, device="cpu")
    assert (bar.phase, bar.done, bar.record) == ("ready", 0, None)


def test_a_training_that_was_not_started_is_not_waited_for() -> None:
    with pytest.raises(RuntimeError, match="call start"):
        TrainingBar(TASK, RECIPE, steps=3, device="cpu").wait()


def test_a_finished_training_is_not_started_again() -> None:
    bar = TrainingBar(TASK, RECIPE, steps=2, device="cpu")
    bar.start()
    record = bar.wait(60)
    bar.start()
    assert bar.phase == "finished"
    assert bar.wait(60) is record


def test_a_long_training_has_a_hundred_losses() -> None:
    bar = TrainingBar(TASK, RECIPE, steps=1000, device="cpu")
    for step in range(1, 1001):
        bar._tell(
            StepRecord(step, math.inf if step > 900 else 1 / step, 1.0, step > 900, step <= 900)
        )
    assert len(bar.losses) == 100
    assert bar.losses[0] == 0.1
    # an infinite loss is a gap
    assert bar.losses[-1] is None


def hide(bar: TrainingBar) -> None:
    """Send the message of a page that is hidden."""
    content: dict[str, Any] = {"method": "custom", "content": {"do": "unseen"}}
    bar._handle_msg({"content": {"data": content}, "buffers": []})


def press_stop(bar: TrainingBar) -> None:
    bar.wanted = "stop"


@pytest.mark.parametrize("end", [hide, press_stop])
def test_stop_or_a_hidden_page_ends_a_training(end: Callable[[TrainingBar], None]) -> None:
    bar = TrainingBar(TASK, RECIPE, steps=10_000, device="cpu")
    begun = threading.Event()
    bar.observe(lambda _: begun.set(), "done")
    bar.start()
    assert begun.wait(60)
    end(bar)
    record = bar.wait(60)
    assert record is not None
    assert record.stopped
    assert 1 <= len(record.steps) < 10_000
    assert bar.phase == "stopped"
    assert bar.sentence.startswith("Stopped after ")


def test_page_that_is_hidden_before_the_start_stops_nothing() -> None:
    bar = TrainingBar(TASK, RECIPE, steps=2, device="cpu")
    hide(bar)
    bar.start()
    record = bar.wait(60)
    assert record is not None
    assert not record.stopped


def test_a_training_that_fails_is_reported() -> None:
    def broken() -> object:
        raise RuntimeError("no such network")

    bar = TrainingBar(replace(TASK, make_model=broken), RECIPE, steps=2)
    bar.start()
    assert bar.wait(60) is None
    assert bar.phase == "failed"
    assert bar.sentence == "It failed: RuntimeError: no such network"
