"""Copies of an engine, which train independently of it."""

import copy
import io
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from labkit.amp import Engine
from tests.amp.test_edits import backward, engine_for, steps


def save_and_load(engine: Engine) -> Engine:
    """Return the engine that torch.load makes from what torch.save wrote."""
    file = io.BytesIO()
    torch.save(engine, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPY_FUNCTIONS: dict[str, Callable[[Engine], Engine]] = {
    "deepcopy": copy.deepcopy,
    "torch.save": save_and_load,
}
COPY_RECIPES = (
    "FP32",
    "O1",
    "O1 graph",
    "O2",
    "O3",
    "BF16",
    "FP8 delayed",
    "NVFP4",
    "FP16 stochastic",
    "FP16 Kahan",
)


def equal_states(a: Engine, b: Engine) -> bool:
    states = (a.fp32_model(), b.fp32_model())
    return a.scalers == b.scalers and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]
    )


@pytest.mark.parametrize("name", [*COPY_RECIPES, "on a V100"])
def test_copy_trains_independently(name: str) -> None:
    for flat, (description, copy_engine) in itertools.product(
        (False, True), COPY_FUNCTIONS.items()
    ):
        case = (description, flat)
        engine = engine_for(name, flat)
        steps(engine, 0, 1, 2)
        twin = copy_engine(engine)
        before = {key: value.clone() for key, value in engine.fp32_model().items()}
        losses_of_twin = steps(twin, 3, 4)
        for key, value in engine.fp32_model().items():
            assert torch.equal(value, before[key]), (*case, key)
        assert steps(engine, 3, 4) == losses_of_twin, case
        engine.zero_grad()
        backward(engine, 5)
        # A copy between backward and step takes the gradients along.
        twin = copy_engine(engine)
        for pending in (twin, engine):
            backward(pending, 6)
            pending.clip(0.1)
        third = copy_engine(twin)
        reports = [pending.step() for pending in (engine, twin, third)]
        assert reports[0] == reports[1], case
        assert reports[1] == reports[2], case
        assert equal_states(engine, twin), case
        assert equal_states(engine, third), case


def test_copy_refuses_gradients_that_were_clipped_outside() -> None:
    engine = engine_for("O2")
    backward(engine, 0)
    nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)
    for clipped in (engine, copy.deepcopy(engine)):
        with pytest.raises(RuntimeError, match="gradients were changed between"):
            clipped.step()


def test_copy_takes_an_edit_of_weights_along() -> None:
    engine = engine_for("O2")
    engine.model[0].weight.data.clamp_(-0.01, 0.01)
    twin = save_and_load(engine)
    assert steps(engine, 1) == steps(twin, 1)
    assert equal_states(engine, twin)
    # The clamp allows 0.01, and Adam's first step moves a weight by its learning rate of 0.01.
    assert engine.fp32_model()["0.weight"].abs().max() < 0.03
