"""Models and batches on several devices, for which the meta device stands in for a GPU."""

import pytest
import torch
from torch import nn

from labkit.amp import RECIPES, Engine
from labkit.frameworks import torch_amp
from labkit.frameworks.apex import amp as apex
from tests.amp.small_network import SGD

# The meta device takes the place of a GPU to which only a part of the tensors was moved.
META = torch.device("meta")
TWO_DEVICES = (
    "(?i)linear: expected all tensors on one device, got some on .* Move the batch to where the "
    "weights are"
)


def test_an_engine_moves_its_model_to_the_device() -> None:
    engine = Engine(nn.Linear(2, 2), SGD, RECIPES["FP32"], device="meta")
    assert engine.model.weight.device == META


@pytest.mark.parametrize("name", RECIPES)
def test_a_batch_on_another_device_is_refused(name: str) -> None:
    engine = Engine(nn.Linear(4, 1), SGD, RECIPES[name])
    assert engine.device == torch.device("cpu")
    with pytest.raises(RuntimeError, match=TWO_DEVICES), engine.forward():
        engine(torch.randn(3, 4, device=META))


@pytest.mark.parametrize("name", RECIPES)
def test_a_model_without_data_is_refused(name: str) -> None:
    for model in (
        nn.Linear(4, 1, device=META),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, device=META)),
    ):
        with pytest.raises(RuntimeError, match="with data, got one on the meta device"):
            Engine(model, SGD, RECIPES[name])


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_autocast_refuses_a_batch_on_another_device(dtype: torch.dtype | None) -> None:
    region = torch_amp.autocast("cpu", dtype)
    with pytest.raises(RuntimeError, match=TWO_DEVICES), region:
        nn.Linear(4, 1)(torch.randn(3, 4, device=META))


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_apex_refuses_a_batch_on_another_device(level: str) -> None:
    model = apex.initialize(nn.Linear(4, 1), opt_level=level, verbosity=0)
    try:
        with pytest.raises(RuntimeError, match=TWO_DEVICES):
            model(torch.randn(3, 4, device=META))
    finally:
        # Under O1, apex casts torch's own functions until it is disabled.
        apex.initialize(nn.Linear(4, 1), enabled=False)
