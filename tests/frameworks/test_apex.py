"""`labkit.frameworks.apex`: levels, their arguments, and what `initialize` refuses."""

import inspect
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import labkit.frameworks.apex as apex
from labkit.amp import autocast
from labkit.frameworks.apex import amp, optimizers
from tests.frameworks.apex_networks import FLOAT, HALF, LEVELS, scale_backward, small, trained
from tests.frameworks.refusals import not_refused
from tests.frameworks.restoring import restore_torch

pytestmark = pytest.mark.usefixtures("restored_torch")


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
        lambda m, o: scale_backward(*amp.initialize(m, o), loss_id=2),
        IndexError,
        "num_losses=3",
    ),
    "loss -1": (
        lambda m, o: scale_backward(*amp.initialize(m, o), loss_id=-1),
        IndexError,
        "counted from 0. Use 0 to 0",
    ),
    "in another": (
        lambda m, o: _nested(*amp.initialize(m, o)),
        RuntimeError,
        "End the first block before",
    ),
    "a number": (
        lambda m, o: scale_backward(*amp.initialize(m, o), loss=1.0),
        TypeError,
        "expected the loss as a tensor",
    ),
    "stranger": (
        lambda m, o: scale_backward(amp.initialize(m), o),
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
        scale_backward(model, optimizer)


def _half_buffer(model):
    model[1].running_mean = model[1].running_mean.half()
    return model


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


def test_before_initialize_no_loss_is_scaled(never_initialized):
    with pytest.raises(RuntimeError, match="must be called before"):
        scale_backward(None, None, loss=torch.ones(1))


def test_before_initialize_no_state_is_loaded(never_initialized):
    with pytest.raises(RuntimeError, match="after amp"):
        _load(loss_scale=8.0, unskipped=0)


def test_disabled_amp_has_no_state(never_initialized):
    amp.initialize(small(), enabled=False)
    _load(loss_scale=8.0, unskipped=0)
    assert amp.state_dict(destination={"epoch": 3}) == {"epoch": 3}


@pytest.mark.parametrize("level", [0, ["O1"], "O4"])
def test_an_unknown_level_is_refused(level):
    with pytest.raises(RuntimeError, match="Unexpected optimization level"):
        amp.initialize(small(), opt_level=level)


def test_two_threads_train_beside_each_other():
    """State and casts belong to a thread; those of apex are global."""
    barrier = threading.Barrier(2, timeout=60)

    def train(level, loss_scale):
        barrier.wait()
        model, _ = trained(level, steps=20, loss_scale=loss_scale)
        barrier.wait()
        return amp.state_dict()["loss_scaler0"]["loss_scale"], model(torch.ones(4, 4)).dtype

    with ThreadPoolExecutor(2) as pool:
        o1 = pool.submit(train, "O1", 1024.0)
        o2 = pool.submit(train, "O2", "dynamic")
        assert o1.result() == (1024.0, HALF)
        assert o2.result() == (2.0**16, FLOAT)
