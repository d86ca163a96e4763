"""Swallowed updates: counted by hand, then in a real step of training."""

from __future__ import annotations

import pytest
import torch

from labkit.instrument import swallowed


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
    with pytest.raises(ValueError, match="have one shape"):
        swallowed([weight], [weight], [torch.ones(3)])
    with pytest.raises(ValueError, match="shorter"):
        swallowed([weight], [weight], [])
