"""Several losses of one engine, and several engines of one loss."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit.amp import DYNAMIC, RECIPES, Engine, Recipe
from tests.amp.small_network import O2, SGD, STATIC_SCALE, loss_of, net, unchanged


def test_two_losses_have_a_scale_each() -> None:
    engine = Engine(net(), SGD, O2, losses=2)
    before = [m.clone() for m in engine.weights.master_weights]
    engine.backward(loss_of(engine, 0), loss_id=0)
    engine.backward(loss_of(engine, 1) * 1e8, loss_id=1)
    # A finite backward pass of loss 1 at another scale does not hide that the first overflowed.
    engine.scalers[1] = replace(engine.scalers[1], scale=2.0)
    engine.backward(loss_of(engine, 2), loss_id=1)
    assert not engine.step().stepped
    # Only the scale of the loss that overflowed backs off.
    assert [s.scale for s in engine.scalers] == [2.0**10, 1.0]
    assert engine.scalers[0].growth_tracker == 1
    assert unchanged(before, engine.weights.master_weights)


def test_gradients_of_two_losses_are_unscaled_by_their_scales() -> None:
    mixed = Engine(net(), SGD, O2, losses=2)
    mixed.scalers[1] = replace(mixed.scalers[1], scale=1.0)
    plain = Engine(net(), SGD, RECIPES["FP32"], losses=2)
    for engine, step in itertools.product((mixed, plain), range(3)):
        engine.backward(loss_of(engine, step), loss_id=step % 2)
    gradients = mixed.gradients()
    for name, gradient in plain.gradients().items():
        # FP16 gradients are compared with FP32 ones, by the largest of the tensor.
        torch.testing.assert_close(
            gradients[name], gradient, rtol=0, atol=0.02 * float(gradient.abs().max())
        )


def test_a_sum_of_gradients_beyond_fp16_is_found_under_o3() -> None:
    """The optimizer of O3 steps in FP16, where two finite gradients may have an infinite sum."""
    for flat in (False, True):
        engine = Engine(nn.Linear(1, 1), SGD, "O3", flat=flat)
        before = engine.model.weight.item()
        for _ in range(2):
            engine.backward(engine(torch.full((1, 1), 4e4)).sum())
        report = engine.step()
        assert report.found_inf
        assert not report.stepped
        assert engine.model.weight.item() == before


def test_an_unknown_loss_id_is_refused() -> None:
    engine = Engine(net(), SGD, O2, losses=2)
    with pytest.raises(
        IndexError, match=r"below 2, the engine's losses, got 2. Construct the engine with losses=3"
    ):
        engine.backward(torch.zeros(()), loss_id=2)
    with pytest.raises(IndexError, match="expected a loss_id of 0 or more, got -1"):
        engine.backward(torch.zeros(()), loss_id=-1)
    for loss_id in (True, 0.0, "first", None):
        with pytest.raises(TypeError, match="loss_id: expected an int, got"):
            engine.backward(torch.zeros(()), loss_id=loss_id)


def test_two_engines_share_a_loss_and_step_independently() -> None:
    first = Engine(nn.Linear(4, 4), SGD, O2)
    second = Engine(nn.Linear(4, 1), SGD, Recipe("FP32", scaler=DYNAMIC))
    # A factor of 1e5 overflows the first engine's FP16 gradients; the second's are in FP32.
    for overflow in (1.0, 1e5):
        for engine in (first, second):
            engine.zero_grad()
        with first.forward():
            middle = first(torch.ones(2, 4))
        with second.forward():
            loss = (second(middle) * overflow).mean()
        first.backward(loss, other_engines=[second])
        assert second.model.bias.grad.item() == 2.0**10 * overflow, "not the smaller scale"
        if overflow == 1.0:
            # dL/dW1 is the mean of W2^T x over the two rows of ones in x, so each row of the
            # gradient repeats one number of W2.
            expected = second.model.weight.detach().T.expand(4, 4)
            torch.testing.assert_close(first.gradients()["weight"], expected, rtol=1e-2, atol=1e-3)
        assert [first.step().stepped, second.step().stepped] == [overflow == 1.0, True]
    assert first.scaler.scale == 2.0**9
    assert second.scaler.scale == 2.0**16


def test_sparse_gradients_of_two_losses_are_clipped() -> None:
    updates = []
    for sparse in (True, False):
        torch.manual_seed(0)
        engine = Engine(nn.Embedding(5, 2, sparse=sparse), SGD, STATIC_SCALE, losses=2)
        before = engine.weights.master_weights[0].clone()
        for loss_id, factor in enumerate((1.0, 2.0)):
            with engine.forward():
                engine.backward((engine(torch.tensor([1, 1, 3])) * factor).sum(), loss_id)
        # Row 1 occurs twice: both losses add 2 + 4 to its two elements, and 1 + 2 to those of row
        # 3.
        assert engine.clip(0.5).item() == pytest.approx((2 * (6**2 + 3**2)) ** 0.5)
        engine.step()
        updates.append(before - engine.weights.master_weights[0])
    assert torch.equal(*updates)
    # The learning rate of 0.1 times the maximal norm of 0.5.
    assert updates[0].norm().item() == pytest.approx(0.05, rel=1e-4)
