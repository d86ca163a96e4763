"""A copy of an engine trains on as the original does, to the bit, and neither notices the other."""

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine
from labkit.gemm import SPECS

ADAM = partial(torch.optim.Adam, lr=1e-2, eps=1e-4)  # FP16 holds 1e-4, so that O3 trains too
ROWS = {name: RECIPES[name] for name in ("FP32", "O1", "O2", "O3", "BF16", "FP16 stochastic", "FP16 Kahan")}
ROWS["on a V100"] = replace(RECIPES["O2"], accumulator=SPECS["V100"])


def through_torch(engine: Engine) -> Engine:
    file = io.BytesIO()
    torch.save(engine, file)
    file.seek(0)
    loaded: Engine = torch.load(file, weights_only=False)
    return loaded


WAYS: dict[str, Callable[[Engine], Engine]] = {
    "deepcopy": copy.deepcopy,
    "torch.save": through_torch,
}


def engine_for(name: str, flat: bool = False) -> Engine:
    torch.manual_seed(0)
    return Engine(nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3)), ADAM, ROWS[name], flat=flat)


def backward(engine: Engine, number: int) -> float:
    generator = torch.Generator().manual_seed(number)
    inputs, targets = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
    with engine.forward():
        loss = F.cross_entropy(engine(inputs), targets)
    engine.backward(loss)
    return loss.item()


def steps(engine: Engine, *numbers: int) -> list[float]:
    losses = []
    for number in numbers:
        engine.zero_grad()
        losses.append(backward(engine, number))
        engine.step()
    return losses


def same(a: Engine, b: Engine) -> bool:
    states = (a.fp32_model(), b.fp32_model())
    return a.scalers == b.scalers and all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", ROWS)
def test_a_copy_after_a_step_trains_on_alike_and_alone(name: str) -> None:
    for flat, (way, copied) in itertools.product((False, True), WAYS.items()):
        engine = engine_for(name, flat)
        steps(engine, 0, 1)
        twin = copied(engine)
        before = {key: value.clone() for key, value in engine.fp32_model().items()}
        ahead = steps(twin, 2, 3)
        unmoved = engine.fp32_model()
        assert all(torch.equal(value, before[key]) for key, value in unmoved.items()), (way, flat)
        assert steps(engine, 2, 3) == ahead, (way, flat)
        assert same(engine, twin), (way, flat)


@pytest.mark.parametrize("name", ["O2", "BF16", "FP32"])
def test_a_copy_between_backward_and_step_takes_its_gradients_along(name: str) -> None:
    for flat, (way, copied) in itertools.product((False, True), WAYS.items()):
        engine = engine_for(name, flat)
        steps(engine, 0)
        engine.zero_grad()
        backward(engine, 1)
        backward(engine, 2)
        twin = copied(engine)
        for each in (twin, engine):
            backward(each, 3)
            each.clip(0.1)
        third = copied(twin)
        reports = [each.step() for each in (engine, twin, third)]
        assert reports[0] == reports[1] == reports[2], (way, flat)
        assert reports[0].stepped
        assert same(engine, twin), (way, flat)
        assert same(engine, third), (way, flat)


def test_a_copy_remembers_what_was_done_to_gradients_and_weights() -> None:
    engine = engine_for("O2")
    backward(engine, 0)
    nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)
    for each in (engine, copy.deepcopy(engine)):
        with pytest.raises(RuntimeError, match="gradients were changed between"):
            each.step()
    engine = engine_for("O2")
    engine.model[0].weight.data.clamp_(-0.01, 0.01)
    twin = pickle.loads(pickle.dumps(engine))
    assert steps(engine, 1) == steps(twin, 1)
    assert same(engine, twin)
    assert engine.fp32_model()["0.weight"].abs().max() < 0.03, "the clamp, and one step of 0.01"
