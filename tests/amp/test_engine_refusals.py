"""Models, optimizers, losses and steps that an engine refuses."""

import itertools

import pytest
import torch
from torch import nn

from labkit.amp import RECIPES, Engine
from tests.amp.small_network import O2, SGD, loss_of, net


def test_a_step_with_a_closure_is_refused() -> None:
    engine = Engine(net(), SGD, O2)
    for call in (lambda: engine.step(lambda: 0.0), lambda: engine.step(closure=lambda: 0.0)):
        with pytest.raises(RuntimeError, match="expected no closure, got one"):
            call()


def test_gradients_of_another_backward_are_refused() -> None:
    engine = Engine(net(), SGD, O2)
    loss_of(engine, 0).backward()
    for call in (engine.step, lambda: engine.backward(loss_of(engine, 1))):
        with pytest.raises(
            RuntimeError, match=r"Call engine.backward\(loss\), not loss.backward\(\)"
        ):
            call()
    engine.zero_grad()
    engine.backward(loss_of(engine, 1))
    loss_of(engine, 2).backward()
    with pytest.raises(RuntimeError, match=r"another engine's backward\(\) mixes two scales"):
        engine.step()


def test_a_model_that_cannot_be_trained_is_refused() -> None:
    with torch.inference_mode():
        made_for_inference = nn.Linear(2, 1)
    cases: list[tuple[object, str]] = [
        (
            nn.Linear(2, 1).requires_grad_(False),
            r"trainable parameters in this Linear, got 2 frozen ones",
        ),
        (nn.Sequential(nn.ReLU()), r"trainable parameters in this Sequential, got none"),
        ([nn.Linear(2, 1), nn.ReLU()], r"got a list. .*nn.Sequential\(\*layers\)"),
        (torch.relu, r"a torch.nn.Module, got a builtin"),
        (
            nn.Linear(2, 1, dtype=torch.complex64),
            r"parameter 'weight': expected a real dtype.*view_as_real",
        ),
        (
            nn.Linear(2, 1).double(),
            r"parameter 'weight': expected FP32 or less, got FP64.*model.float\(\)",
        ),
        (
            made_for_inference,
            r"parameter 'weight': .*made under torch.inference_mode\(\).*deepcopy",
        ),
    ]
    for recipe, (model, expected) in itertools.product(("FP32", "O1", "O2"), cases):
        with pytest.raises(ValueError, match=expected):
            Engine(model, SGD, RECIPES[recipe])


def test_an_optimizer_in_place_of_a_factory_is_refused() -> None:
    with pytest.raises(TypeError, match=r"got an? SGD\. For example: partial"):
        Engine(net(), SGD(net().parameters()), "O2")


def test_an_engine_without_losses_is_refused() -> None:
    with pytest.raises(ValueError, match="losses: expected 1 or more, got 0"):
        Engine(net(), SGD, RECIPES["O2"], losses=0)


def test_a_loss_without_a_graph_or_of_four_elements_is_refused() -> None:
    engine = Engine(net(), SGD, O2)
    for loss, error, expected in (
        (3.0, TypeError, r"got 3.0, which has no graph. Leave out .item\(\)"),
        (
            torch.zeros(4, requires_grad=True),
            ValueError,
            r"one element, got shape \(4,\). Take its mean",
        ),
        (torch.tensor(1.0), RuntimeError, "expected a loss that depends on parameters"),
    ):
        with pytest.raises(error, match=expected):
            engine.backward(loss)
    engine.backward(loss_of(engine, 0))
    assert engine.step().stepped
