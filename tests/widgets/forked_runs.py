"""Runs of the workbench for tests."""

from labkit.amp import RECIPES
from labkit.train import TASKS
from labkit.widgets.driven.controller import Button
from labkit.widgets.live_training.forked_run import ForkedRun

DIGITS = TASKS["digits"]


def bench_of(recipe: str = "O2", task: str = "digits", steps: int = 24) -> ForkedRun:
    return ForkedRun(TASKS[task], RECIPES[recipe], steps=steps, device="cpu")


def run_through(bench: ForkedRun, steps: int | None = None) -> ForkedRun:
    """Press Start, and let it run to the end or for some steps."""
    bench.handle(Button.START)
    while bench.due and (steps is None or bench.run.done < steps):
        bench.tick()
    if bench.due:
        bench.handle(Button.PAUSE)
    return bench


def losses(steps) -> list[float]:
    return [step.loss for step in steps]
