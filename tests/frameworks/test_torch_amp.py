"""A scaler's state in torch's words: what one begins, the other goes on with."""

import math

import pytest
import torch

from labkit.amp import ScalerConfig, ScalerState, advance, static
from labkit.frameworks import GradScaler, from_state_dict, state_dict, torch_amp


def test_torch_goes_on_where_we_stopped() -> None:
    config = ScalerConfig(init_scale=64.0, growth_interval=5)
    ours = ScalerState(64.0, growth_tracker=3)
    theirs = torch.amp.GradScaler("cpu", growth_interval=1)
    parameter = torch.nn.Parameter(torch.zeros(1))
    theirs.scale(parameter.sum())  # torch creates its state lazily
    theirs.load_state_dict(state_dict(ours, config))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for found_inf in [False, False, True, False, False, False, False, False]:
        theirs.scale(parameter.sum()).backward()
        parameter.grad = torch.tensor([math.inf if found_inf else 1.0])
        theirs.step(optimizer)
        theirs.update()
        ours = advance(ours, found_inf, config)
        assert (ours.scale, ours.growth_tracker) == (theirs.get_scale(), theirs._get_growth_tracker())


def test_there_and_back() -> None:
    config = ScalerConfig(init_scale=2.0**11, growth_factor=4.0, backoff_factor=0.25, growth_interval=9)
    assert from_state_dict(state_dict(ScalerState(2.0**11, 5), config)) == (ScalerState(2.0**11, 5), config)
    _, knobs = from_state_dict(torch.amp.GradScaler("cpu").state_dict())
    assert knobs == ScalerConfig(), "our defaults are torch's"


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(ValueError, match="always dynamic"):
        state_dict(ScalerState(8.0), static(8))
    with pytest.raises(ValueError, match="missing here"):
        from_state_dict(torch.amp.GradScaler("cpu", enabled=False).state_dict())


@pytest.mark.parametrize("call", ["step", "unscale_"])
def test_a_model_is_no_optimizer(call: str) -> None:
    scaler, model = GradScaler("cpu"), torch.nn.Linear(1, 1)
    scaler.scale(model(torch.ones(1, 1)).sum()).backward()
    with pytest.raises(AttributeError, match="Linear has no param_groups: step and unscale_ take the optimizer"):
        getattr(scaler, call)(model)


def test_every_name_of_torch_amp_is_here() -> None:
    public = {name for name in torch.amp.__all__ if name not in ("autocast_mode", "grad_scaler")}
    assert public <= set(torch_amp.__all__)
