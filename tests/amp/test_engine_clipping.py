"""Clipping by an engine, against torch's on unscaled gradients."""

import itertools
import math

import pytest
import torch
from torch import nn

from labkit.amp import RECIPES, Engine
from tests.amp.small_network import O2, SGD, STATIC_SCALE, loss_of, net


def test_clipping_equals_torch_s_on_unscaled_gradients() -> None:
    for flat, max_norm in itertools.product((False, True), (0.1, 100.0)):
        engine, other = (
            Engine(net(), SGD, STATIC_SCALE, flat=is_flat) for is_flat in (flat, False)
        )
        for fresh in (engine, other):
            fresh.backward(loss_of(fresh, 0))
        unscaled = [nn.Parameter(torch.zeros_like(g)) for g in other.gradients().values()]
        for p, g in zip(unscaled, other.gradients().values(), strict=True):
            p.grad = g.clone()
        torch.testing.assert_close(
            engine.clip(max_norm), nn.utils.clip_grad_norm_(unscaled, max_norm)
        )
        for ours, theirs in zip(engine.gradients().values(), unscaled, strict=True):
            torch.testing.assert_close(ours, theirs.grad)
        assert engine.step().stepped


def test_a_maximal_norm_that_is_not_positive_is_refused() -> None:
    for max_norm in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="expected max_norm > 0"):
            Engine(net(), SGD, O2).clip(max_norm)


def test_clipping_of_scaled_gradients_is_refused() -> None:
    def clip_in_place(engine: Engine) -> None:
        nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)

    def replace_gradients(engine: Engine) -> None:
        for p in engine.model.parameters():
            p.grad = p.grad.clamp(-1, 1)

    engine = Engine(net(), SGD, STATIC_SCALE)
    for clip in (clip_in_place, replace_gradients):
        engine.backward(loss_of(engine, 0))
        clip(engine)
        with pytest.raises(
            RuntimeError, match=r"changed between.*1024 times too large. .*engine.clip\(max"
        ):
            engine.step()
        engine.zero_grad()
    # Without a loss scale, the caller clips what it sees.
    fp32 = Engine(net(), SGD, RECIPES["FP32"])
    fp32.backward(loss_of(fp32, 0))
    replace_gradients(fp32)
    assert fp32.step().stepped


def test_backward_after_clipping_is_refused() -> None:
    engine = Engine(net(), SGD, O2)
    engine.backward(loss_of(engine, 1))
    engine.clip(1.0)
    with pytest.raises(RuntimeError, match=r"already unscaled, and maybe clipped. Call zero_grad"):
        engine.backward(loss_of(engine, 2))
