"""Where unscaled FP16 stops learning: an edge in the number of elements that the mean runs over, and one in depth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, RunRecord, TrainingRun, train


def run(recipe: str, batch_size: int) -> RunRecord:
    task = replace(TASKS["small_targets"], batch_size=batch_size)
    return train(task, RECIPES[recipe], measure_every=task.steps)


@pytest.mark.parametrize(("batch_size", "learns"), [(300, True), pytest.param(1000, False, marks=pytest.mark.slow)])
def test_a_mean_over_more_elements_loses_more_and_at_some_size_everything(batch_size: int, learns: bool) -> None:
    fp16 = run("FP16", batch_size)
    assert fp16.steps[0].underflow > 0.5  # most gradients are lost on both sides of the edge
    assert (fp16.metric > 0.6) is learns
    if not learns:
        assert run("O2", batch_size).metric > 0.6  # with a scale it is there again


def test_each_layer_of_small_weights_loses_more() -> None:
    def lost(depth: int) -> float:
        deeper = partial(TASKS["gauss_conv"].make_model, depth=depth)
        share = TrainingRun(replace(TASKS["gauss_conv"], make_model=deeper), RECIPES["FP16"]).step().underflow
        assert share is not None
        return share

    shares = [lost(depth) for depth in (2, 4, 6)]
    assert shares[0] < 0.05 < shares[1] < 0.4 < shares[2]
