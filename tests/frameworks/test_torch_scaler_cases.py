"""What PyTorch's own tests ask of its GradScaler, asked anew of both: torch's and ours.

Each docstring names the case of pytorch/test/test_torch.py (or test_cuda.py) that it restates; what the random walk of
test_torch_scaler.py meets (two optimizers of which one overflows, clipping, fused steps) is not repeated. Most
train twice, with a scaler and with a disabled one, on four batches of which the third overflows, and compare: powers of
two scale and unscale without a trace, so the two runs may differ only where sums are taken in another order.
"""

import copy
import itertools
import math
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

OPTIMIZERS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]
KINDS = [{"foreach": False}, {"foreach": True}, {"fused": True}]
OVERFLOWS_AT = 2  # of the batches 0 to 3
START = {"init_scale": 128.0, "growth_interval": 1}


def task():
    """Return a model, its twin, and four batches."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    batches = [tuple(torch.randn(2, 8, 8, generator=generator)) for _ in range(4)]
    return model, copy.deepcopy(model), batches


def overflow(model):
    model[1].weight.grad.fill_(math.inf)


def assert_same_weights(model, twin, **tolerance):
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def ordinary(scaler, model, optimizer, x, target, spoil):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16, enabled=scaler.is_enabled()):
        loss = mse_loss(model(x), target)
    scaler.scale(loss).backward()
    spoil(model)
    scaler.step(optimizer)
    scaler.update()


def follows(make_scaler, step, optimizer_class=torch.optim.SGD, pickled=False, tolerance=None, **knobs):
    """Train by `step` with a disabled scaler, without the batch that overflows, and with one that skips it.

    The weights have to be the same. Return the optimizer whose steps were scaled.
    """
    model, twin, batches = task()
    plain, scaled = (optimizer_class(m.parameters(), **{"lr": 1.0, **knobs}) for m in (model, twin))
    disabled, scaler = make_scaler(enabled=False), make_scaler(**START)
    for number, batch in enumerate(batches):
        overflows = number == OVERFLOWS_AT
        if not overflows:
            step(disabled, model, plain, *batch, lambda model: None)
        step(scaler, twin, scaled, *batch, overflow if overflows else lambda model: None)
        scaler = pickle.loads(pickle.dumps(scaler)) if pickled else scaler
    assert scaler.get_scale() == 128.0 * 2**3 / 2
    assert disabled.get_scale() == 1.0
    assert_same_weights(model, twin, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))
    return scaled


def test_gradients_of_any_layout_and_dtype_are_divided_and_searched(make_scaler):
    """Restates test_grad_scaling_unscale: contiguous, transposed, sliced and FP16 gradients in one optimizer."""
    for where, bad in [(None, 0.0), *itertools.product(range(5), (math.inf, -math.inf, math.nan))]:
        four = torch.full((20, 20), 4.0)
        gradients = [four.clone(), four.clone().t(), four.clone()[:, :5], four.half(), four.half()]
        if where is not None:
            gradients[where][2, 2] = bad
        parameters = [nn.Parameter(torch.zeros_like(g)) for g in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        quarter, nothing = torch.tensor([0.25]), torch.tensor([0.0])
        found = make_scaler()._unscale_grads_(torch.optim.SGD(parameters), quarter, nothing, True)
        found = {str(device): flag.item() for device, flag in found.items()}
        assert found == {"cpu": float(where is not None)}, (where, bad)
        assert nothing.item() == 0, "the caller's flag is copied, not written to"
        for parameter, gradient in zip(parameters, gradients, strict=True):
            assert parameter.grad is gradient, "in place"
            assert where is not None or (gradient == 1).all()


def sparse(values, indices=((0, 1, 1), (2, 0, 2)), dtype=torch.float32):
    return torch.sparse_coo_tensor(
        torch.tensor(indices), torch.tensor(values), (2, 3), dtype=dtype, check_invariants=True
    )


def test_sparse_gradients_are_divided_and_searched(make_scaler):
    """Restates test_grad_scaling_unscale_sparse."""
    for gradient, found_inf in (
        (sparse([16.0, 32.0, 64.0]), 0.0),
        (sparse([16.0, 32.0, math.inf]), 1.0),
        (sparse([16.0, 32.0, math.nan]), 1.0),
        (sparse([16.0, 32.0, 64.0], dtype=torch.float16), 0.0),
        (sparse([64000.0, 32.0, 64000.0], ((0, 1, 0), (2, 0, 2)), torch.float16), 1.0),  # 64,000 twice in one place
    ):
        weight = nn.Parameter(torch.zeros(2, 3, dtype=gradient.dtype))
        weight.grad = gradient.clone()
        quarter, nothing = torch.tensor([0.25]), torch.tensor([0.0])
        found = make_scaler()._unscale_grads_(torch.optim.SGD([weight]), quarter, nothing, True)
        assert [flag.item() for flag in found.values()] == [found_inf], gradient
        assert weight.grad.is_sparse
        assert found_inf or torch.equal(weight.grad.to_dense(), gradient.to_dense() / 4)


def test_mixed_precision_follows_fp32(make_scaler):
    """Restates test_grad_scaling_autocast: FP16 regions and scaling against neither, also with a scaler that is
    pickled after each step. Adam divides by the gradient's size, so a small difference of a small gradient counts in
    full: a small learning rate keeps the runs together (upstream expects them to part)."""
    close = {"atol": 1e-3, "rtol": 1e-5}
    for optimizer_class, kind, pickled in itertools.product(OPTIMIZERS, KINDS, (False, True)):
        scaled = follows(make_scaler, ordinary, optimizer_class, pickled, close, lr=2.0**-10, **kind)
        if "fused" not in kind:
            steps = {int(state["step"]) for state in scaled.state.values() if "step" in state}
            assert steps <= {3}, "a skipped step is not counted by the optimizer either"


def test_gradients_that_are_spoilt_after_unscaling_reach_the_weights(make_scaler):
    """Restates test_params_invalidated_with_grads_invalidated_between_unscale_and_step: unscale_ looks once."""
    for optimizer_class, kind in itertools.product(OPTIMIZERS, KINDS):
        model, _, batches = task()
        optimizer = optimizer_class(model.parameters(), lr=1.0, **kind)
        scaler = make_scaler(init_scale=128.0)
        for x, target in batches:
            optimizer.zero_grad()
            scaler.scale(mse_loss(model(x), target)).backward()
            scaler.unscale_(optimizer)
            for number, parameter in enumerate(model.parameters()):
                parameter.grad.fill_(math.inf if number % 2 else math.nan)
            scaler.step(optimizer)
            scaler.update()
        assert not any(torch.isfinite(p).all() for p in model.parameters()), (optimizer_class, kind)


def with_a_penalty_on_the_gradient(scaler, model, optimizer, x, target, spoil):
    """Restates test_grad_scaling_penalty: gradients of scaled losses, unscaled by hand, in a loss of their own."""
    optimizer.zero_grad()
    loss = mse_loss(model(x), target)
    gradients = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    penalty = sum((g / scaler.get_scale()).square().sum() for g in gradients).sqrt()
    scaler.scale(loss + penalty).backward()
    spoil(model)
    scaler.step(optimizer)
    scaler.update()


def accumulated(scaler, model, optimizer, x, target, spoil):
    """Restates test_grad_scaling_accumulation: several backward passes before a step."""
    optimizer.zero_grad()
    for half in (slice(0, 4), slice(4, 8)):
        scaler.scale(mse_loss(model(x[half]), target[half]) / 2).backward()
    spoil(model)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("step", [with_a_penalty_on_the_gradient, accumulated])
def test_what_is_done_to_gradients_is_done_as_without_a_scaler(make_scaler, step):
    follows(make_scaler, step)


class Recorder(torch.optim.Optimizer):
    """An optimizer that unscales by itself and only notes what it is given."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.given = None

    def step(self, closure=None):
        self.given = self.grad_scale, self.found_inf


class OldRecorder(Recorder):
    """The same by the older contract: it is handed the scaler."""

    def step(self, closure=None, *, grad_scaler=None):
        self.given = grad_scaler
        assert not hasattr(self, "grad_scale")
        assert not hasattr(self, "found_inf")


def test_an_optimizer_that_unscales_by_itself_is_handed_what_it_needs(make_scaler):
    """Restates test_grad_scaler_pass_itself: the scaler itself, with a warning, or scale and found_inf as tensors."""
    weight = nn.Parameter(torch.ones(3))
    old, new = OldRecorder([weight]), Recorder([weight])
    scaler = make_scaler(init_scale=2.0)
    scaler.scale(weight.mean()).backward()
    with pytest.warns(FutureWarning, match="stop passing itself"):
        scaler.step(old)
    assert old.given is scaler
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaler.step(new)
    scaler.update()
    scale, found_inf = new.given
    assert (scale.item(), found_inf.item()) == (2.0, 0.0)
    assert not hasattr(new, "grad_scale")
    assert not hasattr(new, "found_inf")
