"""Checkpoints and copies of `labkit.frameworks.apex`."""

import copy
import math

import numpy as np
import pytest
import torch

from labkit.frameworks.apex import amp
from tests.frameworks.apex_networks import BATCH, FLOAT, LEVELS, small, started, train_on, trained

pytestmark = pytest.mark.usefixtures("restored_torch")


def parameters_in_fp32(model):
    return [p.detach().float() for p in model.parameters()]


@pytest.mark.parametrize("after", LEVELS)
@pytest.mark.parametrize("before", LEVELS)
def test_a_checkpoint_of_each_level_continues_in_each(before, after):
    model, optimizer = trained(before)
    model_state = copy.deepcopy(model.state_dict())
    optimizer_state = copy.deepcopy(optimizer.state_dict())
    amp_state = copy.deepcopy(amp.state_dict())
    saved = parameters_in_fp32(model)

    other, optimizer = started(after, momentum=0.9)
    other.load_state_dict(model_state)
    optimizer.load_state_dict(optimizer_state)
    amp.load_state_dict(amp_state)
    torch.testing.assert_close(parameters_in_fp32(other), saved, atol=0.0, rtol=2.0**-10)
    assert amp.state_dict() == amp_state
    assert math.isfinite(train_on(other, optimizer, 2))
    assert not all(map(torch.equal, parameters_in_fp32(other), saved))


@pytest.fixture
def state_of_three_losses():
    """The state of amp after an overflow of the first loss and a step of the second."""
    amp.initialize(small(), num_losses=3, verbosity=0)
    first, second, _ = amp._amp_state.loss_scalers
    assert first.must_skip(found_inf=True)
    assert not second.must_skip(found_inf=False)
    return amp.state_dict()


def test_the_scale_of_each_loss_is_in_the_state_dict(state_of_three_losses):
    assert state_of_three_losses == {
        "loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 0},
        "loss_scaler1": {"loss_scale": 2.0**16, "unskipped": 1},
        "loss_scaler2": {"loss_scale": 2.0**16, "unskipped": 0},
    }


def test_a_state_of_more_losses_is_loaded_with_a_warning(state_of_three_losses):
    amp.initialize(small(), num_losses=2, verbosity=0)
    with pytest.warns(UserWarning, match="num_losses=3"):
        amp.load_state_dict(state_of_three_losses)
    del state_of_three_losses["loss_scaler2"]
    assert amp.state_dict() == state_of_three_losses


def test_the_state_of_a_disabled_amp_is_loaded_with_a_warning():
    amp.initialize(small(), enabled=False)
    empty = amp.state_dict()
    amp.initialize(small(), verbosity=0)
    with pytest.warns(UserWarning, match="it was saved with enabled=False"):
        amp.load_state_dict(empty)
    assert amp.state_dict() == {"loss_scaler0": {"loss_scale": 2.0**16, "unskipped": 0}}


def test_a_state_with_keys_that_are_numbers_is_refused():
    amp.initialize(small(), verbosity=0)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\) in state_dict: 3"):
        amp.load_state_dict({3: {}})


def test_a_number_of_losses_may_be_one_of_numpy():
    amp.initialize(small(), num_losses=np.int64(2), verbosity=0)
    assert len(amp.state_dict()) == 2


def deep_copy(model, folder):
    return copy.deepcopy(model)


def saved_copy(model, folder):
    torch.save(model, folder / "model.pt")
    return torch.load(folder / "model.pt", weights_only=False)


@pytest.mark.parametrize("copied", [deep_copy, saved_copy])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_copied_model_is_cast_and_independent(level, copied, tmp_path):
    model, _ = trained(level, cast_model_outputs=FLOAT)
    twin = copied(model, tmp_path)
    assert torch.equal(twin(BATCH), model(BATCH))
    assert twin(BATCH).dtype == FLOAT
    with torch.no_grad():
        twin[3].weight.zero_()
        twin[3].bias.zero_()
    assert twin(BATCH).abs().sum() == 0
    assert model(BATCH).abs().sum() > 0
