"""`labkit.frameworks.apex`: levels, casts, steps, misuses and checkpoints, as apex's own tests."""

import copy
import inspect
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import labkit.frameworks.apex as apex
from labkit.amp import autocast
from labkit.frameworks.apex import amp, optimizers
from tests.frameworks.refusals import not_refused

HALF = torch.float16
FLOAT = torch.float32
LEVELS = ("O0", "O1", "O2", "O3")


def restore_torch():
    """Undo `amp.initialize` and `amp.init`, and forget registered functions."""
    amp._deactivate()
    amp._amp_state.registrations.clear()


@pytest.fixture(autouse=True)
def restored_torch():
    yield
    restore_torch()


@pytest.fixture
def casts():
    return amp.init()


def small():
    """Return a network of four inputs and two outputs, with a norm."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def started(level="O1", lr=0.1, momentum=0.0, **options):
    """Return a model and an optimizer that amp has initialized."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)


def trained(level, steps=3, **options):
    """Return a model and an optimizer after some steps in mixed precision."""
    model, optimizer = started(level, momentum=0.9, **options)
    train_on(model, optimizer, steps)
    return model, optimizer


def train_on(model, optimizer, steps):
    """Train as scripts with apex do; return the last loss."""
    torch.manual_seed(1)
    for _ in range(steps):
        x = torch.randn(16, 4)
        y = torch.randint(2, (16,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
    return loss.item()


# --- the levels -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "weight", "norm", "master", "scale", "output"),
    [
        ("O0", FLOAT, FLOAT, FLOAT, 1.0, FLOAT),
        ("O1", FLOAT, FLOAT, FLOAT, 2.0**16, HALF),
        ("O2", HALF, FLOAT, FLOAT, 2.0**16, FLOAT),
        ("O3", HALF, HALF, HALF, 1.0, FLOAT),
    ],
)
def test_a_level_has_its_dtypes_and_scale(level, weight, norm, master, scale, output):
    model, optimizer = trained(level, steps=1)
    assert model[0].weight.dtype == weight
    assert model[1].weight.dtype == norm
    assert next(amp.master_params(optimizer)).dtype == master
    assert amp._amp_state.loss_scalers[0].loss_scale() == scale
    assert model(torch.ones(4, 4)).dtype == output


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_trains(level):
    model, _ = trained(level, steps=1)
    assert not torch.equal(model[3].bias.float(), small()[3].bias)


@pytest.mark.parametrize("level", LEVELS)
def test_a_state_dict_is_in_fp32(level):
    model, _ = trained(level, steps=1)
    dtype = model[0].weight.dtype
    assert {value.dtype for value in model.state_dict().values()} == {FLOAT, torch.int64}
    # apex registers its O2StateDictHook with each module of a model that it casts.
    assert {value.dtype for value in model[0].state_dict().values()} == {FLOAT}
    assert model[0].weight.dtype == dtype


def test_arguments_of_initialize_are_apexs():
    parameters = inspect.signature(amp.initialize).parameters
    assert {name: p.default for name, p in parameters.items() if name != "models"} == {
        "optimizers": None,
        "enabled": True,
        "opt_level": "O1",
        "cast_model_type": None,
        "patch_torch_functions": None,
        "keep_batchnorm_fp32": None,
        "master_weights": None,
        "loss_scale": None,
        "cast_model_outputs": None,
        "num_losses": 1,
        "verbosity": 1,
        "min_loss_scale": None,
        "max_loss_scale": 2.0**24,
    }


def test_arguments_of_scale_loss_are_apexs():
    assert list(inspect.signature(amp.scale_loss).parameters) == [
        "loss",
        "optimizers",
        "loss_id",
        "model",
        "delay_unscale",
        "delay_overflow_check",
    ]


def test_norms_of_o2_can_be_cast():
    model, _ = trained("O2", keep_batchnorm_fp32="False")
    assert model[1].weight.dtype == HALF


def test_a_static_scale_may_be_text():
    trained("O2", loss_scale="128.0")
    assert amp._amp_state.loss_scalers[0].loss_scale() == 128.0


def test_outputs_of_o3_can_be_fp16():
    model, _ = trained("O3", cast_model_outputs=HALF)
    assert model(torch.ones(4, 4)).dtype == HALF


def test_o3_can_have_masters():
    _, optimizer = trained("O3", master_weights=True)
    assert next(amp.master_params(optimizer)).dtype == FLOAT


def test_a_dynamic_scale_stays_between_its_bounds():
    model, optimizer = trained("O1", min_loss_scale=2.0**10, max_loss_scale=2.0**12)
    scaler = amp._amp_state.loss_scalers[0]
    assert scaler.loss_scale() == 2.0**12
    for _ in range(5):
        with amp.scale_loss(model(torch.ones(4, 4)).sum() * math.inf, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    assert scaler.loss_scale() == 2.0**10


def test_disabled_amp_changes_nothing():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert amp.initialize(model, enabled=False) is model
    assert amp.initialize(model, optimizer, enabled=False) == (model, optimizer)
    loss = model(torch.ones(4, 4)).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss


def test_initialize_returns_models_and_optimizers_as_they_came():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert amp.initialize(model, opt_level="O0") is model
    assert amp.initialize([model], opt_level="O0") == [model]
    assert amp.initialize(model, [optimizer], opt_level="O0") == (model, [optimizer])


# Misuse -> a function of a model and an optimizer that commits it, the error, and a part of its
# message.
MISUSES = {
    "zero one": (
        lambda m, o: amp.initialize(m, o, opt_level="01"),
        RuntimeError,
        "letter, not the number",
    ),
    "half model": (
        lambda m, o: amp.initialize(m.half(), o),
        RuntimeError,
        "do not need to call .half",
    ),
    "half buffer": (
        lambda m, o: amp.initialize(_half_buffer(m), o),
        RuntimeError,
        "Found buffer 1.running_mean",
    ),
    "parameters": (lambda m, o: amp.initialize(m, m.parameters()), TypeError, "list of optimizers"),
    "wrapped": (
        lambda m, o: amp.initialize(nn.DataParallel(m), o),
        RuntimeError,
        "AFTER the model",
    ),
    "twice": (
        lambda m, o: [amp.initialize(m, o, opt_level="O0") for _ in range(2)],
        RuntimeError,
        "only be passed",
    ),
    "O1 cast": (
        lambda m, o: amp.initialize(m, o, cast_model_type=HALF),
        RuntimeError,
        "use 'O2' or 'O3'",
    ),
    "O1 norms": (
        lambda m, o: amp.initialize(m, o, keep_batchnorm_fp32=True),
        RuntimeError,
        "Leave the argument out",
    ),
    "O1 masters": (
        lambda m, o: amp.initialize(m, o, master_weights=True),
        RuntimeError,
        "need no masters",
    ),
    "O2 patch": (
        lambda m, o: amp.initialize(m, o, opt_level="O2", patch_torch_functions=True),
        RuntimeError,
        "functions are cast under O1 only",
    ),
    "cast to int8": (
        lambda m, o: amp.initialize(m, opt_level="O2", cast_model_type=torch.int8),
        ValueError,
        "expected cast_model_type torch.float16",
    ),
    "scale": (
        lambda m, o: amp.initialize(m, o, loss_scale="big"),
        ValueError,
        "a number, such as 128.0",
    ),
    "scale below 0": (
        lambda m, o: amp.initialize(m, o, loss_scale=-8),
        ValueError,
        "loss_scale=-8",
    ),
    "bounds": (
        lambda m, o: amp.initialize(m, min_loss_scale=8.0, max_loss_scale=4.0),
        ValueError,
        "min_loss_scale=8",
    ),
    "no losses": (
        lambda m, o: amp.initialize(m, o, num_losses=0),
        ValueError,
        "expected num_losses >= 1",
    ),
    "third loss": (
        lambda m, o: _scale(*amp.initialize(m, o), loss_id=2),
        IndexError,
        "num_losses=3",
    ),
    "loss -1": (
        lambda m, o: _scale(*amp.initialize(m, o), loss_id=-1),
        IndexError,
        "counted from 0. Use 0 to 0",
    ),
    "in another": (
        lambda m, o: _nested(*amp.initialize(m, o)),
        RuntimeError,
        "End the first block before",
    ),
    "a number": (
        lambda m, o: _scale(*amp.initialize(m, o), loss=1.0),
        TypeError,
        "expected the loss as a tensor",
    ),
    "stranger": (
        lambda m, o: _scale(amp.initialize(m), o),
        RuntimeError,
        "that amp.initialize returned",
    ),
    "no function": (
        lambda m, o: amp.register_half_function(torch, "sigmoida"),
        ValueError,
        "No function named",
    ),
    "too late": (
        lambda m, o: [amp.initialize(m), amp.register_float_function(torch, "sigmoid")],
        RuntimeError,
        "sigmoid comes too late",
    ),
    "wrong state": (
        lambda m, o: [amp.initialize(m), amp.load_state_dict(m.state_dict())],
        RuntimeError,
        "Unexpected key",
    ),
    "half a state": (
        lambda m, o: [amp.initialize(m), _load(unskipped=3)],
        RuntimeError,
        "no 'loss_scale'",
    ),
    "a scale of -1": (
        lambda m, o: [amp.initialize(m), _load(loss_scale=-1, unskipped=0)],
        RuntimeError,
        "scale must be a number .* Nothing was loaded",
    ),
    "fused": (lambda m, o: optimizers.FusedAdam(m.parameters()), AttributeError, "kernel of apex"),
    "the rest of apex": (lambda m, o: apex.parallel, AttributeError, "DistributedDataParallel"),
    "a closure": (
        lambda m, o: amp.initialize(m, o, opt_level="O2")[1].step(lambda: None),
        RuntimeError,
        "Amp does not support closure use",
    ),
    "a region": (
        lambda m, o: _inside(amp.disable_casts(), amp.init),
        RuntimeError,
        "outside of it",
    ),
    "old style": (
        lambda m, o: amp.init().scale_loss(m(torch.ones(4, 4)).sum(), o),
        RuntimeError,
        "The old Amp API is no longer supported",
    ),
}


def _inside(region, call):
    with region:
        call()


def _load(**values):
    amp.load_state_dict({"loss_scaler0": values})


def _nested(model, optimizer):
    with amp.scale_loss(model(torch.ones(4, 4)).sum(), optimizer):
        _scale(model, optimizer)


def _half_buffer(model):
    model[1].running_mean = model[1].running_mean.half()
    return model


def _scale(model, optimizer, loss=None, **options):
    """Enter and leave a block of `scale_loss`."""
    if loss is None:
        loss = model(torch.ones(4, 4)).sum()
    with amp.scale_loss(loss, optimizer, **options):
        pass


def test_misuses_are_refused_with_a_reason():
    def new_arguments():
        restore_torch()
        model = small()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    assert not_refused(MISUSES, new_arguments) == {}


@pytest.fixture
def never_initialized(monkeypatch):
    monkeypatch.setattr(amp, "_amp_state", amp.AmpState())


def test_initialize_inside_autocast_can_be_repeated_outside():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with autocast(), pytest.raises(RuntimeError, match="outside of it; under O1"):
        amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)


def test_a_refused_model_leaves_the_others_in_fp32():
    models = [nn.Linear(2, 1), nn.Linear(2, 1)]
    nn.init.constant_(models[1].weight, 1e6)
    with pytest.raises(ValueError, match="holds 1e\\+06, which FP16 cannot"):
        amp.initialize(models, opt_level="O3", verbosity=0)
    assert [model.weight.dtype for model in models] == [torch.float32] * 2
    assert models[0](torch.ones(1, 2)).dtype == torch.float32


def test_a_refused_optimizer_leaves_models_and_others():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    closures = torch.optim.LBFGS(nn.Linear(2, 1).parameters())
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times"):
        amp.initialize(model, [optimizer, closures], opt_level="O2", verbosity=0)
    assert model.weight.dtype == torch.float32
    amp.initialize(model, optimizer, opt_level="O2", verbosity=0)


def test_a_refused_initialize_leaves_the_training_before():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.initialize(model, optimizer, opt_level="O1", verbosity=0)
    with pytest.raises(RuntimeError, match="Unexpected optimization level O9"):
        amp.initialize(nn.Linear(2, 1), opt_level="O9")
    output = model(torch.ones(1, 2))
    assert output.dtype == torch.float16
    loss = output.sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss.item() == loss.item() * 2.0**16
        scaled_loss.backward()


def test_the_last_rule_of_a_registered_function_counts():
    module = SimpleNamespace(dtype_of=lambda tensor: tensor.dtype)
    amp.register_half_function(module, "dtype_of")
    amp.register_float_function(module, "dtype_of")
    amp.initialize(nn.Linear(2, 1), opt_level="O1", verbosity=0)
    assert module.dtype_of(torch.ones(1).half()) == torch.float32


def test_before_initialize_no_loss_is_scaled(never_initialized):
    with pytest.raises(RuntimeError, match="must be called before"):
        _scale(None, None, loss=torch.ones(1))


def test_before_initialize_no_state_is_loaded(never_initialized):
    with pytest.raises(RuntimeError, match="after amp"):
        _load(loss_scale=8.0, unskipped=0)


def test_disabled_amp_has_no_state(never_initialized):
    amp.initialize(small(), enabled=False)
    _load(loss_scale=8.0, unskipped=0)
    assert amp.state_dict(destination={"epoch": 3}) == {"epoch": 3}


def test_an_inf_in_a_closure_of_a_step_is_an_error():
    """The step has used the gradient already, so it cannot be skipped."""
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters())
    model, optimizer = amp.initialize(model, optimizer, verbosity=0)

    def closure(factor=1.0):
        optimizer.zero_grad()
        out = model(x)
        # Casts are the same as outside of the step.
        assert out.dtype == HALF
        loss = out.float().square().mean() * factor
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        return loss

    assert optimizer.step(closure=closure).isfinite()
    with pytest.raises(RuntimeError, match="weights are corrupt"):
        optimizer.step(lambda: closure(math.inf))


# --- casts, as O1 and init open them --------------------------------------------------------------

x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).abs()
ONES = torch.ones(4, 4)
# Name of an operation -> a function of x, and the dtype of its result; None is that of x.
OPERATIONS = {
    "linear": (lambda x: F.linear(x, torch.ones(3, 4, dtype=x.dtype)), HALF),
    "conv2d": (lambda x: F.conv2d(x.view(1, 1, 4, 4), torch.ones(1, 1, 2, 2)), HALF),
    "matmul method": (lambda x: x.matmul(ONES), HALF),
    "matmul operator": (lambda x: x @ ONES, HALF),
    "rnn cell": (lambda x: nn.RNNCell(4, 3)(x), HALF),
    "gru": (lambda x: nn.GRU(4, 3)(x)[0], HALF),
    "lstm of a packed sequence": (
        lambda x: nn.LSTM(4, 3)(nn.utils.rnn.pack_sequence([x, x[:2]]))[0].data,
        HALF,
    ),
    "softmax": (lambda x: F.softmax(x, dim=-1), FLOAT),
    "group_norm": (lambda x: F.group_norm(x, 2), FLOAT),
    "mse_loss": (lambda x: F.mse_loss(x, torch.zeros_like(x)), FLOAT),
    "sum": (lambda x: x.sum(), FLOAT),
    "pow": (lambda x: x**2.0, FLOAT),
    "relu": (F.relu, None),
    "batch_norm": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True), None),
    "in-place add": (lambda x: x.clone().add_(ONES), None),
    "in-place add of FP16": (lambda x: x.clone().add_(ONES.half()), None),
    "in-place product by name": (lambda x: x.clone().addmm_(mat1=ONES.half(), mat2=ONES), None),
    "add": (lambda x: x + ONES, FLOAT),
    "cat": (lambda x: torch.cat([x, ONES]), FLOAT),
    "cat of FP16": (lambda x: torch.cat([x, ONES.half()]), None),
}


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_dtype_of_its_list(name, dtype, casts):
    operation, result_dtype = OPERATIONS[name]
    assert operation(x.to(dtype)).dtype == (result_dtype or dtype)


def test_in_place_operations_of_the_fp32_list_refuse_fp16(casts):
    assert x.clone().exp_().dtype == FLOAT
    with pytest.raises(NotImplementedError, match="exp"):
        x.half().exp_()


def test_binary_cross_entropy_is_refused_in_fp16(casts):
    p = torch.rand(4)
    ones = torch.ones(4)
    assert F.binary_cross_entropy(p, ones).dtype == FLOAT
    with pytest.raises(NotImplementedError, match="with_logits"):
        F.binary_cross_entropy(p.half(), ones.half())


def test_allow_banned_casts_a_refused_operation():
    amp.init(allow_banned=True)
    p = torch.rand(4).half()
    assert F.binary_cross_entropy(p, torch.ones(4).half()).dtype == FLOAT


def test_disable_casts_nests(casts):
    with amp.disable_casts():
        with amp.disable_casts():
            assert (x @ x).dtype == FLOAT
        assert (x @ x).dtype == FLOAT
    assert (x @ x).dtype == HALF


def fail_without_casts():
    with amp.disable_casts():
        raise KeyError


def test_an_exception_ends_disable_casts(casts):
    with pytest.raises(KeyError):
        fail_without_casts()
    assert (x @ x).dtype == HALF


def test_deactivated_amp_casts_nothing(casts):
    casts._deactivate()
    assert (x @ x).dtype == FLOAT


def test_registered_functions_are_cast_from_the_next_initialize():
    module = SimpleNamespace(double=lambda x: x + x)
    amp.register_float_function(torch, "sigmoid")
    amp.register_half_function(module, "double")
    amp.register_promote_function(torch, "relu")
    assert torch.sigmoid(x.half()).dtype == HALF
    amp.initialize(small(), verbosity=0)
    assert torch.sigmoid(x.half()).dtype == FLOAT
    assert x.half().sigmoid().dtype == FLOAT
    assert module.double(x).dtype == HALF


def test_registrations_are_for_one_initialize():
    module = SimpleNamespace(double=lambda x: x + x)
    original = module.double
    amp.register_float_function(torch, "sigmoid")
    amp.register_half_function(module, "double")
    amp.initialize(small(), verbosity=0)
    amp.initialize(small(), verbosity=0)
    assert torch.sigmoid(x.half()).dtype == HALF
    assert module.double is original


def add(a, b):
    return a + b


@pytest.mark.parametrize("decorate", [amp.half_function, amp.float_function, amp.promote_function])
def test_decorated_functions_cast_nothing_before_amp(decorate):
    assert decorate(add)(x, x).dtype == FLOAT


@pytest.mark.parametrize(
    ("decorate", "both_half", "one_half"),
    [
        (amp.half_function, HALF, HALF),
        (amp.float_function, FLOAT, FLOAT),
        (amp.promote_function, HALF, FLOAT),
    ],
)
def test_decorated_functions_cast_their_arguments(decorate, both_half, one_half, casts):
    assert decorate(add)(x.half(), x.half()).dtype == both_half
    assert decorate(add)(x, x.half()).dtype == one_half


# --- steps ----------------------------------------------------------------------------------------


def backward(loss, optimizer, **options):
    """Compute the gradients of a loss in a block of `scale_loss`."""
    with amp.scale_loss(loss, optimizer, **options) as scaled_loss:
        scaled_loss.backward()


def test_delayed_unscaling_gives_the_same_step():
    weights = []
    for delay in (False, True):
        model, optimizer = started("O2", loss_scale=64.0)
        backward(model(x).sum(), optimizer, delay_unscale=delay)
        backward(model(x).sum(), optimizer)
        optimizer.step()
        weights.append(model[3].weight.clone())
    assert not torch.equal(weights[0].float(), small()[3].weight.half().float())
    torch.testing.assert_close(*weights, atol=0.0, rtol=2.0**-9)


def test_a_step_with_scaled_gradients_is_refused():
    model, optimizer = started("O2", loss_scale=64.0)
    backward(model(x).sum(), optimizer, delay_unscale=True)
    with pytest.raises(RuntimeError, match="64 times too large"):
        optimizer.step()


def fail_after_backward(model, optimizer):
    with amp.scale_loss(model(x).float().mean(), optimizer) as scaled_loss:
        scaled_loss.backward()
        raise KeyError


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_failing_block_leaves_earlier_gradients(level):
    model, optimizer = started(level)
    backward(model(x).float().mean(), optimizer)
    before = [p.grad.clone() for p in amp.master_params(optimizer)]
    with pytest.raises(KeyError):
        fail_after_backward(model, optimizer)
    for p, gradient in zip(amp.master_params(optimizer), before, strict=True):
        assert torch.equal(p.grad, gradient)
    # The failed block has ended, so another one can begin.
    _scale(model, optimizer)


def test_gradients_deleted_before_a_block_do_not_count():
    model, optimizer = started(num_losses=2)
    backward(model(x).sum() * 100, optimizer, delay_unscale=True)
    optimizer.zero_grad()
    backward(model[3].bias.sum(), optimizer, loss_id=1)
    assert torch.equal(model[3].bias.grad, torch.ones(2))
    assert model[0].weight.grad is None


def test_gradients_deleted_inside_a_block_do_not_count():
    model, optimizer = started(num_losses=2)
    backward(model(x).sum() * 100, optimizer)
    with amp.scale_loss(model[3].bias.sum(), optimizer, loss_id=1) as scaled_loss:
        optimizer.zero_grad()
        scaled_loss.backward()
    assert torch.equal(model[3].bias.grad, torch.ones(2))
    assert model[0].weight.grad is None


def test_gradients_of_two_scales_are_not_added():
    model, optimizer = started(num_losses=2)
    amp._amp_state.loss_scalers[1]._loss_scale = 4.0
    backward(model(x).sum(), optimizer, delay_unscale=True)
    with pytest.raises(RuntimeError, match="their sum would have no scale"):
        _scale(model, optimizer, loss_id=1)


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
    backward(F.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])), optimizer)
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
    F.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])).backward()
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


# --- checkpoints, copies and threads --------------------------------------------------------------


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


@pytest.mark.parametrize("level", [0, ["O1"], "O4"])
def test_an_unknown_level_is_refused(level):
    with pytest.raises(RuntimeError, match="Unexpected optimization level"):
        amp.initialize(small(), opt_level=level)


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
    assert torch.equal(twin(x), model(x))
    assert twin(x).dtype == FLOAT
    with torch.no_grad():
        twin[3].weight.zero_()
        twin[3].bias.zero_()
    assert twin(x).abs().sum() == 0
    assert model(x).abs().sum() > 0


def test_two_threads_train_beside_each_other():
    """State and casts belong to a thread; those of apex are global."""
    barrier = threading.Barrier(2, timeout=60)

    def train(level, loss_scale):
        barrier.wait()
        model, _ = trained(level, steps=20, loss_scale=loss_scale)
        barrier.wait()
        return amp.state_dict()["loss_scaler0"]["loss_scale"], model(x).dtype

    with ThreadPoolExecutor(2) as pool:
        o1 = pool.submit(train, "O1", 1024.0)
        o2 = pool.submit(train, "O2", "dynamic")
        assert o1.result() == (1024.0, HALF)
        assert o2.result() == (2.0**16, FLOAT)
