"""Averages of an engine's weights, against torch's."""

import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labkit.amp import RECIPES, Ema, Engine, StepReport, load_checkpoint, save_checkpoint
from tests.amp.test_listeners import SGD_BY_1, one_weight


def test_average_equals_torch_s_average_of_the_masters() -> None:
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5)), SGD_BY_1, RECIPES["O2"])
    masters = list(engine.weights.named_masters().values())
    theirs = [m.clone() for m in masters]
    rule = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    ema = Ema(engine, decay=0.99)
    for _ in range(10):
        engine.weights.step([torch.randn_like(m) for m in masters])
        # The average ignores a skipped step.
        ema.update(StepReport(stepped=False, found_inf=True, scale=1.0, why="skipped"))
        ema.update(StepReport(stepped=True, found_inf=False, scale=1.0, why="taken"))
        rule(theirs, masters, torch.tensor(1))
    assert all(torch.equal(a, b) for a, b in zip(ema.averages.values(), theirs, strict=True))


def test_evaluation_of_the_average_changes_no_training_step() -> None:
    for recipe, flat in itertools.product(("FP32", "O2"), (False, True)):
        torch.manual_seed(0)
        averaged, plain = (
            Engine(nn.Linear(2, 2), SGD_BY_1, RECIPES[recipe], flat=flat) for _ in range(2)
        )
        plain.load_model(averaged.fp32_model())
        ema = Ema(averaged, decay=0.5)
        update = [torch.ones_like(m) for m in averaged.weights.optimizer_weights]
        for _ in range(2):
            averaged.weights.step(update)
            plain.weights.step(update)
            ema.update()
            with ema.in_model():
                averaged(torch.ones(1, 2))
                assert torch.equal(
                    averaged.model.weight, ema.averages["weight"].to(averaged.model.weight.dtype)
                )
                assert not torch.equal(averaged.model.weight, plain.model.weight), (recipe, flat)
                for call in (
                    averaged.weights.named_masters,
                    averaged.state_dict,
                    partial(averaged.weights.step, update),
                ):
                    with pytest.raises(
                        RuntimeError, match="the model's weights temporarily hold other values"
                    ):
                        call()
            assert torch.equal(averaged.model.weight, plain.model.weight), (recipe, flat)


def test_average_loads_into_a_plain_model_with_tied_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    engine = Engine(model, SGD_BY_1, RECIPES["O2"])
    ema = Ema(engine, decay=0.5)
    engine.weights.step([torch.ones_like(m) for m in engine.weights.master_weights])
    ema.update()
    engine.model[1].running_mean.fill_(3.0)
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    plain.load_state_dict(ema.model())
    assert torch.equal(plain[0].weight, ema.averages["0.weight"])
    assert torch.equal(plain[2].weight, ema.averages["0.weight"])
    assert (plain[1].running_mean == 3).all()


def test_averages_of_other_names_are_refused() -> None:
    engine = Engine(nn.Linear(2, 2), SGD_BY_1, RECIPES["O2"])
    weight = torch.zeros(2, 2)
    for averages, name in (
        ({"weight": weight}, "bias"),
        ({"weight": weight, "bias": torch.zeros(2), "head": weight}, "head"),
    ):
        with pytest.raises(ValueError, match=f"'{name}' is only on one side"):
            engine.fp32_model(averages)


def test_average_refuses_decays_outside_of_0_to_1() -> None:
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="expected 0 <= decay < 1"):
            Ema(one_weight(), decay)


def test_average_with_a_decay_of_numpy_is_saved_and_loaded(tmp_path: Path) -> None:
    engine = one_weight()
    ema = Ema(engine, np.float64(0.75))
    path = save_checkpoint(tmp_path / "run.pt", engine, ema=ema.state_dict())
    assert load_checkpoint(path, engine)["ema"]["decay"] == 0.75


def test_average_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="of another network"):
        Ema(one_weight()).load_state_dict(
            Ema(Engine(nn.Linear(2, 2), SGD_BY_1, RECIPES["O2"])).state_dict()
        )


@pytest.mark.parametrize("decay", [1.0, -0.5, float("nan")])
def test_an_average_refuses_a_saved_decay_out_of_range(decay: float) -> None:
    ema = Ema(Engine(nn.Linear(2, 1), SGD_BY_1, RECIPES["O2"]), decay=0.5)
    with pytest.raises(ValueError, match="expected 0 <= decay < 1"):
        ema.load_state_dict({**ema.state_dict(), "decay": decay})
    assert ema.decay == 0.5
