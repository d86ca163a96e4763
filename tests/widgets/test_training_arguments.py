"""Arguments and commands of a live training that are refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from labkit.widgets import LiveTraining
from tests.widgets.trainings import TASK, live


@pytest.mark.parametrize("steps", [0, 1.5, "3", True])
def test_invalid_numbers_of_steps_of_a_widget_are_refused(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps: expected a whole number from 1 on"):
        live(steps)


@pytest.mark.parametrize("task", [None, 3])
def test_what_is_no_task_is_refused(task: Any) -> None:
    with pytest.raises(ValueError, match=rf"task: expected one of .*, or a Task, got {task}"):
        LiveTraining(task)


@pytest.fixture
def widget() -> Iterator[LiveTraining]:
    training = LiveTraining(TASK, "FP16", steps=5, device="cpu")
    yield training
    training.close()


def test_an_unknown_press_is_refused(widget: LiveTraining) -> None:
    with pytest.raises(ValueError, match=r"press: expected one of 'start', .*, got 'go'"):
        widget.press("go")


def test_an_unknown_position_is_refused(widget: LiveTraining) -> None:
    with pytest.raises(
        ValueError, match=r"scaling: expected one of 'off', 'static', 'dynamic', got 'nope'"
    ):
        widget.change(scaling="nope")
