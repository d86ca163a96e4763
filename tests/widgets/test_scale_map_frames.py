"""The map of loss scales that a live training sends."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from labkit.instrument import scale_map
from labkit.train import TrainingRun, gradient_snapshot
from labkit.widgets import LiveTraining
from tests.widgets.trainings import TASK, live, losses, ticked


def map_of(content: Any, buffers: Any) -> Any:
    """Return the rows of a frame's map: the step, and two shares at each scale."""
    scales = len(content["map"]["log2_scales"])
    return np.frombuffer(buffers[content["map"]["buffer"]], "<f4").reshape(-1, 1 + 2 * scales)


def after_25_steps() -> tuple[LiveTraining, list[Any]]:
    """Return a training after 25 steps, and the list of its frames, which later ones join."""
    widget = LiveTraining(TASK, "FP16", steps=40, device="cpu")
    run = widget.forked_run
    sent: list[Any] = []
    run.send = lambda content, buffers: sent.append((content, buffers))
    ticked(run, 25)
    run.post(urgent=True)
    return widget, sent


def test_frames_have_the_map_of_loss_scales() -> None:
    widget, sent = after_25_steps()
    run = widget.forked_run
    rows = map_of(*sent[-1])
    assert rows[:, 0].tolist() == [1, 11, 21]
    exact = scale_map([gradient_snapshot(TrainingRun(TASK, "FP16", 0))], range(31))
    assert rows[0, 1:32] == pytest.approx(exact.lost[0], abs=1e-6)
    assert rows[0, 32:] == pytest.approx(exact.overflowing[0], abs=1e-6)
    for row, step in zip(rows, run.run.steps[::10], strict=True):
        assert row[1] == pytest.approx(step.underflow, abs=0.01), (
            "the share at a scale of 1 is not the measured one"
        )
    widget.close()


def test_the_map_of_scales_goes_back_with_the_run() -> None:
    widget, sent = after_25_steps()
    run = widget.forked_run
    run.handle(partial(run.go_back, 15))
    run.post(urgent=True)
    assert map_of(*sent[-1])[:, 0].tolist() == [1, 11]
    ticked(run, 10)
    run.post(urgent=True)
    # Rows that were sent before are not sent again.
    assert map_of(*sent[-1])[:, 0].tolist() == [21]
    widget.close()


def test_the_map_does_not_change_a_run() -> None:
    run = ticked(live(recipe="FP16 dynamic"), 22)
    plain = TrainingRun(TASK, "FP16 dynamic", 0)
    assert losses(run.run.steps) == [plain.step().loss for _ in range(22)]
    assert plain.exponents is None
