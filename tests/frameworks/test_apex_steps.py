"""Steps of `labkit.frameworks.apex`: delayed unscaling, failing blocks, and groups added later."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labkit.frameworks.apex import amp
from tests.frameworks.apex_networks import (
    BATCH,
    FLOAT,
    HALF,
    LEVELS,
    scale_backward,
    small,
    started,
    train_on,
)

pytestmark = pytest.mark.usefixtures("restored_torch")


def test_an_inf_in_a_closure_of_a_step_is_an_error():
    """The step has used the gradient already, so it cannot be skipped."""
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters())
    model, optimizer = amp.initialize(model, optimizer, verbosity=0)

    def closure(factor=1.0):
        optimizer.zero_grad()
        out = model(BATCH)
        # Casts are the same as outside of the step.
        assert out.dtype == HALF
        loss = out.float().square().mean() * factor
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        return loss

    assert optimizer.step(closure=closure).isfinite()
    with pytest.raises(RuntimeError, match="weights are corrupt"):
        optimizer.step(lambda: closure(math.inf))


def backward(loss, optimizer, **options):
    """Compute the gradients of a loss in a block of `scale_loss`."""
    with amp.scale_loss(loss, optimizer, **options) as scaled_loss:
        scaled_loss.backward()


def test_delayed_unscaling_gives_the_same_step():
    weights = []
    for delay in (False, True):
        model, optimizer = started("O2", loss_scale=64.0)
        backward(model(BATCH).sum(), optimizer, delay_unscale=delay)
        backward(model(BATCH).sum(), optimizer)
        optimizer.step()
        weights.append(model[3].weight.clone())
    assert not torch.equal(weights[0].float(), small()[3].weight.half().float())
    torch.testing.assert_close(*weights, atol=0.0, rtol=2.0**-9)


def test_a_step_with_scaled_gradients_is_refused():
    model, optimizer = started("O2", loss_scale=64.0)
    backward(model(BATCH).sum(), optimizer, delay_unscale=True)
    with pytest.raises(RuntimeError, match="64 times too large"):
        optimizer.step()


def fail_after_backward(model, optimizer):
    with amp.scale_loss(model(BATCH).float().mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
        raise KeyError


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_failing_block_leaves_earlier_gradients(level):
    model, optimizer = started(level)
    backward(model(BATCH).float().mean(), optimizer)
    before = [p.grad.clone() for p in amp.master_params(optimizer)]
    with pytest.raises(KeyError):
        fail_after_backward(model, optimizer)
    for p, gradient in zip(amp.master_params(optimizer), before, strict=True):
        assert torch.equal(p.grad, gradient)
    # The failed block has ended, so another one can begin.
    scale_backward(model, optimizer)


def test_gradients_deleted_before_a_block_do_not_count():
    model, optimizer = started(num_losses=2)
    backward(model(BATCH).sum() * 100, optimizer, delay_unscale=True)
    optimizer.zero_grad()
    backward(model[3].bias.sum(), optimizer, loss_id=1)
    assert torch.equal(model[3].bias.grad, torch.ones(2))
    assert model[0].weight.grad is None


def test_gradients_deleted_inside_a_block_do_not_count():
    model, optimizer = started(num_losses=2)
    backward(model(BATCH).sum() * 100, optimizer)
    with amp.scale_loss(model[3].bias.sum(), optimizer, loss_id=1) as scaled_loss:
        optimizer.zero_grad()
        scaled_loss.backward()
    assert torch.equal(model[3].bias.grad, torch.ones(2))
    assert model[0].weight.grad is None


def test_gradients_of_two_scales_are_not_added():
    model, optimizer = started(num_losses=2)
    amp._amp_state.loss_scalers[1]._loss_scale = 4.0
    backward(model(BATCH).sum(), optimizer, delay_unscale=True)
    with pytest.raises(RuntimeError, match="their sum would have no scale"):
        scale_backward(model, optimizer, loss_id=1)


@pytest.mark.parametrize("after_a_step", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_a_group_that_is_added_later_is_stepped(level, after_a_step):
    model = small()
    added = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    [model, added], optimizer = amp.initialize(
        [model, added], optimizer, opt_level=level, verbosity=0
    )
    if after_a_step:
        train_on(model, optimizer, 1)
    optimizer.add_param_group({"params": added.parameters(), "lr": 0.5})
    before = added.weight.detach().clone()
    train_on(nn.Sequential(model, added), optimizer, 1)
    assert not torch.equal(added.weight, before)
    stepped = optimizer.param_groups[1]["params"][0]
    assert torch.equal(stepped.to(added.weight.dtype), added.weight)


class CheckedSGD(torch.optim.SGD):
    """SGD that checks the learning rate of each group, not that of its constructor alone."""

    def add_param_group(self, param_group):
        if param_group.get("lr", 0.0) < 0:
            raise ValueError("a learning rate below 0")
        super().add_param_group(param_group)


def test_a_group_that_the_optimizer_refuses_can_be_added_again():
    model, added = small(), nn.Linear(2, 2)
    optimizer = CheckedSGD(model.parameters(), lr=0.1)
    [model, added], optimizer = amp.initialize(
        [model, added], optimizer, opt_level="O2", verbosity=0
    )
    with pytest.raises(ValueError, match="below 0"):
        optimizer.add_param_group({"params": added.parameters(), "lr": -1.0})
    # A step does without the refused group, also if its weights have gradients.
    before = added.weight.detach().clone()
    train_on(nn.Sequential(model, added), optimizer, 1)
    assert torch.equal(added.weight, before)
    optimizer.add_param_group({"params": added.parameters(), "lr": 0.5})
    train_on(nn.Sequential(model, added), optimizer, 1)
    assert not torch.equal(added.weight, before)


class Shrinking:
    """An optimizer around another, as LARC is: it halves gradients, then calls the other's step."""

    def __init__(self, optimizer):
        self.optim = optimizer

    def __getattr__(self, name):
        return getattr(self.optim, name)

    def step(self):
        for group in self.optim.param_groups:
            for p in group["params"]:
                p.grad.mul_(0.5)
        self.optim.step()


def train_once(model, optimizer):
    backward(F.cross_entropy(model(BATCH), torch.tensor([0, 1, 0, 1])), optimizer)
    optimizer.step()


def weight_after_a_step(level, lr, wrap=None):
    """Return the last weight after one step.

    Args:
        level: The level of apex.
        lr: The learning rate.
        wrap: The class of an optimizer around torch's, or None.
    """
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if wrap is not None:
        optimizer = wrap(optimizer)
    model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
    train_once(model, optimizer)
    return model[3].weight.detach().float()


@pytest.mark.parametrize("level", LEVELS)
def test_an_optimizer_may_wrap_another(level):
    wrapped = weight_after_a_step(level, lr=0.5, wrap=Shrinking)
    plain = weight_after_a_step(level, lr=0.25)
    # A step moves some weight by more than the tolerance.
    assert (plain - small()[3].weight).abs().max() > 2.0**-7
    torch.testing.assert_close(wrapped, plain, atol=2.0**-11, rtol=2.0**-10)


def with_momentum_and_a_frozen_layer():
    """Return a model and an optimizer after a step in FP32."""
    model = small()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    F.cross_entropy(model(BATCH), torch.tensor([0, 1, 0, 1])).backward()
    optimizer.step()
    return model, optimizer


def test_momentum_from_before_initialize_is_kept():
    model, optimizer = with_momentum_and_a_frozen_layer()
    before = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    masters = [p for p in amp.master_params(optimizer) if p.requires_grad and p.dtype == FLOAT]
    for master, momentum in zip(masters, before, strict=True):
        assert optimizer.state[master]["momentum_buffer"].dtype == FLOAT
        assert torch.equal(optimizer.state[master]["momentum_buffer"], momentum)


def test_a_frozen_parameter_has_no_master():
    model, optimizer = with_momentum_and_a_frozen_layer()
    frozen = model[0].weight.half()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    train_once(model, optimizer)
    assert torch.equal(model[0].weight, frozen)
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
