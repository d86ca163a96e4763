"""Live trainings for tests."""

from typing import Any

from labkit.train import TASKS
from labkit.widgets import LiveTraining
from labkit.widgets.driven.controller import Button
from labkit.widgets.live_training.forked_run import ForkedRun

TASK = TASKS["painted_picture"]


def live(steps: int = 40, recipe: str = "FP16", **arguments: Any) -> ForkedRun:
    return LiveTraining(TASK, recipe, steps=steps, device="cpu", **arguments).forked_run


def ticked(run: ForkedRun, times: int) -> ForkedRun:
    run.handle(Button.START)
    for _ in range(times):
        run.tick()
    return run


def losses(steps: Any) -> list[float]:
    return [step.loss for step in steps]
