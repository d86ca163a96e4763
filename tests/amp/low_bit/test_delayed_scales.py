"""Scales of 8-bit products that follow from earlier steps."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit.amp import RECIPES, Engine, ProductFormat, TensorScale
from labkit.formats import E4M3, E5M2
from tests.amp.low_bit.engines import DELAYED, SGD, engine_with, step


def test_a_delayed_scale_follows_from_the_steps_before() -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data.fill_(1.0)
    engine = engine_with(ProductFormat(E4M3, E5M2, TensorScale.DELAYED, history=2), layer, lr=0.0)
    x = torch.tensor([[1000.0, 0.0005]])
    # The first step has a scale of 1: 1000 saturates, and 0.0005 is zero.
    assert step(engine, x).item() == 448.0
    assert step(engine, x).item() == pytest.approx(1000.0, rel=1e-5)
    # 10,000 saturates at the largest magnitude of the steps before.
    assert step(engine, 10 * x).item() == pytest.approx(1000.0, rel=1e-5)
    assert step(engine, 10 * x).item() == pytest.approx(10000.0, rel=1e-5)
    step(engine, x)
    step(engine, x)
    # The history has two steps and no more.
    assert engine.products.memory.state_dict()["history"]["weight:input"] == [1000.0, 1000.0]


def test_a_margin_divides_the_scale_by_a_power_of_two() -> None:
    """Transformer Engine's rule is scale = (largest number of FP8 / amax) / 2^margin.

    Here amax is 7/16, which E4M3 represents.
    """
    for margin in (0, 2, 6):
        layer = nn.Linear(2, 1, bias=False)
        layer.weight.data.fill_(1.0)
        engine = engine_with(replace(DELAYED, margin=margin), layer, lr=0.0)
        x = torch.tensor([[0.4375, 0.0]])
        step(engine, x)
        step(engine, x)
        scale = engine.products.memory.scale("weight:input", 448.0 / 2**margin)
        assert scale.item() == 1024.0 / 2**margin
        # An operand 2^5 times as large fits a margin of 6, and saturates with less than 5.
        assert step(engine, 2**5 * x).item() == 0.4375 * 2 ** min(5, margin)


def test_a_margin_is_part_of_recipe_and_state() -> None:
    engine = engine_with(replace(DELAYED, margin=6), nn.Linear(2, 1, bias=False))
    assert "margin=6" in repr(engine.recipe)
    state = copy.deepcopy(engine.state_dict())
    with pytest.raises(ValueError, match=r"products.margin 6, now 0"):
        engine_with(DELAYED, nn.Linear(2, 1, bias=False)).load_state_dict(state)


def test_scales_change_only_in_training_steps() -> None:
    """A forward pass without gradients changes no state.

    So unit scales follow from the size of the first loss alone.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 16, bias=False))
    for name in ("unit scaled", "FP8 delayed"):
        engine = engine_with(RECIPES[name].products, copy.deepcopy(model))
        step(engine, torch.randn(8, 64))
        before = copy.deepcopy(engine.state_dict())
        with torch.no_grad(), engine.forward():
            engine(1000 * torch.randn(8, 64))
        assert str(engine.state_dict()) == str(before)
        if name == "unit scaled":
            size_of_first_loss = engine.products.memory.loss_size
            assert size_of_first_loss > 0
            step(engine, 100 * torch.randn(8, 64))
            assert engine.products.memory.loss_size == size_of_first_loss
            assert engine.products.memory.history == {}


def test_a_first_gradient_of_any_size_gives_a_unit_scale() -> None:
    """Its square may be beyond FP32's range, and inf or NaN gives no scale."""
    for factor in (1e-30, 1.0, 1e25):
        engine = engine_with(RECIPES["unit scaled"].products, nn.Linear(16, 16))
        for broken in (math.nan, math.inf, 1.0):
            engine.zero_grad()
            with engine.forward():
                loss = (engine(torch.ones(4, 16)) * (broken * factor)).sum()
            engine.backward(loss)
            assert engine.step().found_inf == (broken != 1.0), (factor, broken)
        # all numbers of the gradient are `factor`, and the layer has a width of 16
        assert engine.products.memory.loss_size == pytest.approx(4 * factor, rel=1e-6, abs=0), (
            factor
        )


def test_a_history_of_zeros_keeps_the_scale() -> None:
    """An operand that was zero for the whole history keeps its scale, as in Transformer Engine.

    The scale is the same after loading a state, and after ranks exchanged their histories.
    """
    # A history of one step is all zeros as soon as the last step is recorded.
    for history, zeros in ((2, 4), (1, 1)):
        format = replace(RECIPES["FP8 delayed"].products, history=history)
        engine, loaded, shared = (
            engine_with(format, nn.Linear(4, 2, bias=False)) for _ in range(3)
        )
        for size in (8.0, *[0.0] * zeros):
            for trained in (engine, shared):
                step(trained, torch.full((3, 4), size))
            # Ranks exchange their histories after each step; here two ranks have the same one.
            memory = shared.products.memory
            memory.take_largest([memory.shared_state()] * 2)
        loaded.load_state_dict(engine.state_dict())
        scales = [
            float(copied.products.memory.scale("weight:input", 448.0))
            for copied in (engine, loaded, shared)
        ]
        assert scales == [448 / 8] * 3, history


def test_delayed_scales_recover_after_a_step_with_inf() -> None:
    """One batch with inf costs one step, not the 16 steps that the history covers."""
    engine = Engine(nn.Linear(4, 2), SGD, RECIPES["FP8 delayed"])
    stepped: list[bool] = []
    for number in (1.0, math.inf, math.nan, 1.0, 1.0):
        engine.zero_grad()
        engine.backward(engine(torch.full((3, 4), number)).square().mean())
        stepped.append(engine.step().stepped)
    assert stepped == [True, False, False, True, True]


def test_a_scale_without_a_history_is_saved() -> None:
    memory = engine_with(DELAYED, nn.Linear(2, 2)).products.memory
    state = memory.state_dict()
    state["scales"] = {"weight:input": 4.0}
    memory.load_state_dict(state)
    assert memory.scale("weight:input", 448.0) == 4.0
    assert memory.state_dict()["scales"] == state["scales"]


def test_inf_in_a_loaded_history_is_ignored() -> None:
    memory = Engine(nn.Linear(4, 2), SGD, RECIPES["FP8 delayed"]).products.memory
    state = memory.state_dict()
    memory.load_state_dict({**state, "history": {"weight:input": [8.0, math.inf, math.nan]}})
    assert memory.history == {"weight:input": [8.0, 0.0, 0.0]}
    assert float(memory.scale("weight:input", 448.0)) == 56.0
