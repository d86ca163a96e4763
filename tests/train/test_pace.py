"""Steps a second of several recipes: each has the same turns, and the clock's answer is what is told."""

from __future__ import annotations

import pytest

from labkit.amp import RECIPES
from labkit.records import turns
from labkit.train import TASKS, TrainingRun, steps_per_second

FP32, O1 = RECIPES["FP32"], RECIPES["O1"]


def test_worked_example_by_a_clock_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of half a second under FP32, of an eighth under O1, and a first round that is slow and does not count."""
    seconds = {"FP32": 0.5, "O1": 0.125}
    clock = [0.0]
    order: list[str] = []

    def step(run: TrainingRun) -> None:
        clock[0] += seconds[run.recipe.name] * (100 if len(order) < 4 else 1)
        order.append(run.recipe.name)

    monkeypatch.setattr(TrainingRun, "step", step)
    monkeypatch.setattr(turns.time, "perf_counter", lambda: clock[0])
    assert steps_per_second(TASKS["digits"], [FP32, O1], steps=2, rounds=3) == {"FP32": 2.0, "O1": 8.0}
    assert order == ["FP32", "FP32", "O1", "O1"] * 4


def test_a_recipe_without_a_turn_is_not_told_and_nothing_cannot_be_timed() -> None:
    assert steps_per_second(TASKS["digits"], [FP32], stop=lambda: True) == {}
    for asked in ({"steps": 0}, {"rounds": 0}):
        with pytest.raises(ValueError, match="1 step and 1 round or more"):
            steps_per_second(TASKS["digits"], [FP32], **asked)
