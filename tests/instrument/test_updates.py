"""Swallowed updates: counted by hand, then in a real step of training."""

from __future__ import annotations

import pytest
import torch

from labkit.amp import RECIPES
from labkit.instrument import swallowed
from labkit.train import TASKS, TrainingRun


def test_worked_example() -> None:
    # FP16's spacing from 1 up is 2^-10: half of it is swallowed (a tie, and 1 is even), a little more is not.
    weights = torch.ones(4).half()
    updates = torch.tensor([2.0**-11, 2.0**-11 + 2.0**-18, 2.0**-10, 0.0])
    after = (weights.float() + updates).half()
    assert swallowed([weights], [after], [updates]) == pytest.approx(1 / 3)


def test_parameters_without_a_gradient_are_not_counted() -> None:
    weight = torch.ones(2)
    assert swallowed([weight, weight], [weight, weight + 1], [None, torch.ones(2)]) == 0.0
    assert swallowed([weight], [weight], [torch.zeros(2)]) == 0.0


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="have one shape"):
        swallowed([torch.ones(2)], [torch.ones(2)], [torch.ones(3)])
    with pytest.raises(ValueError, match="shorter"):
        swallowed([torch.ones(2)], [torch.ones(2)], [])


@pytest.mark.parametrize(
    ("recipe", "low", "high"), [("FP32", 0, 0.02), ("FP16 static", 0, 0.02), ("FP16 no master", 0.4, 0.8)]
)
def test_fine_tuning_swallows_updates_only_without_a_master(recipe: str, low: float, high: float) -> None:
    run = TrainingRun(TASKS["fine_tuning"], RECIPES[recipe], measure_every=0)
    masters = run.weights.master_weights
    before = [weight.detach().clone() for weight in masters]
    run.step()
    gradients = [weight.grad for weight in masters]
    assert all(gradient is not None and gradient.any() for gradient in gradients)
    assert low <= swallowed(before, masters, gradients) <= high
