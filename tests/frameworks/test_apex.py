"""apex.amp in labkit: levels, casts, refusals and checkpoints, as in apex's own tests."""

import copy
import inspect
import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import labkit.frameworks.apex as apex
from labkit.frameworks.apex import amp, optimizers
from tests.frameworks.refusals import not_refused

HALF, FLOAT = torch.float16, torch.float32
LEVELS = ("O0", "O1", "O2", "O3")


def reset_amp():
    amp._deactivate()
    amp._amp_state.registrations.clear()


@pytest.fixture(autouse=True)
def reset_after_each_test():
    yield
    reset_amp()


@pytest.fixture
def casts():
    return amp.init()


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def started(level="O1", lr=0.1, momentum=0.0, **options):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)


def trained(level, steps=3, **options):
    """Train as apex's tutorial does, by three lines more than in FP32."""
    model, optimizer = started(level, momentum=0.9, **options)
    train_on(model, optimizer, steps)
    return model, optimizer


def train_on(model, optimizer, steps):
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


def test_each_level_has_its_dtypes_and_scale():
    for level, weight, norm, master, scale in (
        ("O0", FLOAT, FLOAT, FLOAT, 1.0),
        ("O1", FLOAT, FLOAT, FLOAT, 2.0**16),
        ("O2", HALF, FLOAT, FLOAT, 2.0**16),
        ("O3", HALF, HALF, HALF, 1.0),
    ):
        model, optimizer = trained(level, steps=1)
        assert model[0].weight.dtype == weight, level
        assert model[1].weight.dtype == norm, level
        assert next(amp.master_params(optimizer)).dtype == master, level
        assert amp._amp_state.loss_scalers[0].loss_scale() == scale, level
        assert model(torch.ones(4, 4)).dtype == (HALF if level == "O1" else FLOAT), level
        assert not torch.equal(model[3].bias.float(), small()[3].bias), f"{level} trains nothing"
        # apex's O2StateDictHook is registered with each module of a model that it casts
        assert {value.dtype for value in model.state_dict().values()} == {FLOAT, torch.int64}, level
        assert {value.dtype for value in model[0].state_dict().values()} == {FLOAT}, level
        assert model[0].weight.dtype == weight, "the state dict changed the model"


def test_signatures_equal_those_of_apex():
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
    assert list(inspect.signature(amp.scale_loss).parameters) == [
        "loss",
        "optimizers",
        "loss_id",
        "model",
        "delay_unscale",
        "delay_overflow_check",
    ]


def test_override_replaces_a_property_of_the_level():
    model, _ = trained("O2", keep_batchnorm_fp32="False", loss_scale="128.0")
    assert model[1].weight.dtype == HALF
    assert amp._amp_state.loss_scalers[0].loss_scale() == 128.0
    assert trained("O3", cast_model_outputs=HALF)[0](torch.ones(4, 4)).dtype == HALF
    assert next(amp.master_params(trained("O3", master_weights=True)[1])).dtype == FLOAT
    model, optimizer = trained("O1", min_loss_scale=2.0**10, max_loss_scale=2.0**12)
    scaler = amp._amp_state.loss_scalers[0]
    assert scaler.loss_scale() == 2.0**12
    for _ in range(5):
        with amp.scale_loss(model(torch.ones(4, 4)).sum() * math.inf, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    assert scaler.loss_scale() == 2.0**10


def test_initialize_returns_models_in_their_containers():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert amp.initialize(model, enabled=False) is model
    assert amp.initialize(model, optimizer, enabled=False) == (model, optimizer)
    loss = model(torch.ones(4, 4)).sum()
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        assert scaled_loss is loss
    assert amp.initialize(model, opt_level="O0") is model
    assert amp.initialize([model], opt_level="O0") == [model]
    assert amp.initialize(model, [optimizer], opt_level="O0") == (model, [optimizer])


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
    "wrapped": (lambda m, o: amp.initialize(nn.DataParallel(m), o), RuntimeError, "AFTER"),
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
        "O1",
    ),
    "cast to int8": (
        lambda m, o: amp.initialize(m, opt_level="O2", cast_model_type=torch.int8),
        ValueError,
        "float16",
    ),
    "scale": (lambda m, o: amp.initialize(m, o, loss_scale="big"), ValueError, "128.0"),
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
    "a number": (lambda m, o: _scale(*amp.initialize(m, o), loss=1.0), TypeError, "item"),
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
        "late",
    ),
    "wrong state": (
        lambda m, o: [amp.initialize(m), amp.load_state_dict(m.state_dict())],
        RuntimeError,
        "Unexpected",
    ),
    "half a state": (
        lambda m, o: [amp.initialize(m), _load(unskipped=3)],
        RuntimeError,
        "no 'loss_scale'",
    ),
    "a scale of -1": (
        lambda m, o: [amp.initialize(m), _load(loss_scale=-1, unskipped=0)],
        RuntimeError,
        "Nothing was",
    ),
    "fused": (lambda m, o: optimizers.FusedAdam(m.parameters()), AttributeError, "torch.optim"),
    "the rest of apex": (lambda m, o: apex.parallel, AttributeError, "DistributedDataParallel"),
    "a closure": (
        lambda m, o: amp.initialize(m, o, opt_level="O2")[1].step(lambda: None),
        RuntimeError,
        "closure",
    ),
    "a region": (
        lambda m, o: _inside(amp.disable_casts(), amp.init),
        RuntimeError,
        "outside of it",
    ),
    "old style": (
        lambda m, o: amp.init().scale_loss(m(torch.ones(4, 4)).sum(), o),
        RuntimeError,
        "no longer",
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
    with amp.scale_loss(
        model(torch.ones(4, 4)).sum() if loss is None else loss, optimizer, **options
    ):
        pass


def test_misuses_are_refused_with_a_message():
    def make_arguments():
        reset_amp()
        model = small()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    assert not_refused(MISUSES, make_arguments) == {}


def test_before_initialize_nothing_is_scaled_or_loaded(monkeypatch):
    monkeypatch.setattr(amp, "_amp_state", amp.AmpState())
    with (
        pytest.raises(RuntimeError, match="must be called before"),
        amp.scale_loss(torch.ones(1), None),
    ):
        pass
    with pytest.raises(RuntimeError, match="after amp"):
        _load(loss_scale=8.0, unskipped=0)
    amp.initialize(small(), enabled=False)
    # With enabled=False there is no scaler, so nothing is loaded.
    _load(loss_scale=8.0, unskipped=0)
    assert amp.state_dict(destination={"epoch": 3}) == {"epoch": 3}


def test_inf_in_the_closure_of_a_step_raises():
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters())
    model, optimizer = amp.initialize(model, optimizer, verbosity=0)

    def closure(factor=1.0):
        optimizer.zero_grad()
        out = model(x)
        assert out.dtype == HALF, "as outside of the step"
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
# Operation -> the function, and the dtype of its result for any dtype of x; None: that of x.
DTYPES = {
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
    "add": (lambda x: x + ONES, FLOAT),
    "cat": (lambda x: torch.cat([x, ONES]), FLOAT),
    "cat of FP16": (lambda x: torch.cat([x, ONES.half()]), None),
}


def test_basic_casts(casts):
    for (name, (operation, dtype)), of_x in itertools.product(DTYPES.items(), (HALF, FLOAT)):
        expected = of_x if dtype is None else dtype
        assert operation(x.to(of_x)).dtype == expected, (name, of_x)


def test_unsafe_operations_in_fp16_are_errors(casts):
    assert x.clone().exp_().dtype == FLOAT
    with pytest.raises(NotImplementedError, match="exp"):
        x.half().exp_()
    p = torch.rand(4)
    # It is banned for FP16 numbers only.
    assert F.binary_cross_entropy(p, torch.ones(4)).dtype == FLOAT
    with pytest.raises(NotImplementedError, match="with_logits"):
        F.binary_cross_entropy(p.half(), torch.ones(4).half())
    amp.init(allow_banned=True)
    assert F.binary_cross_entropy(p.half(), torch.ones(4).half()).dtype == FLOAT


def fails_without_casts():
    with amp.disable_casts():
        assert (x @ x).dtype == FLOAT
        with amp.disable_casts():
            assert (x @ x).dtype == FLOAT
        assert (x @ x).dtype == FLOAT
        raise KeyError


def test_disable_casts_survives_an_exception_and_nests(casts):
    with pytest.raises(KeyError):
        fails_without_casts()
    assert (x @ x).dtype == HALF
    casts._deactivate()
    assert (x @ x).dtype == FLOAT


def test_registered_functions_hold_until_next_initialize():
    module = SimpleNamespace(double=lambda x: x + x)
    original = module.double
    amp.register_float_function(torch, "sigmoid")
    amp.register_half_function(module, "double")
    amp.register_promote_function(torch, "relu")
    assert torch.sigmoid(x.half()).dtype == HALF, "registered before initialize"
    amp.initialize(small(), verbosity=0)
    assert torch.sigmoid(x.half()).dtype == FLOAT
    assert x.half().sigmoid().dtype == FLOAT
    assert module.double(x).dtype == HALF
    amp.initialize(small(), verbosity=0)
    assert torch.sigmoid(x.half()).dtype == HALF, "registered after the next initialize"
    assert module.double is original


def test_decorated_functions_cast_only_under_amp():
    half, wide, widest = (
        decorate(lambda a, b: a + b)
        for decorate in (amp.half_function, amp.float_function, amp.promote_function)
    )
    assert half(x, x).dtype == FLOAT
    amp.init()
    assert [f(x.half(), x.half()).dtype for f in (half, wide, widest)] == [HALF, FLOAT, HALF]
    assert [f(x, x.half()).dtype for f in (half, wide, widest)] == [HALF, FLOAT, FLOAT]


# --- steps ----------------------------------------------------------------------------------------


def test_gradients_of_several_losses_are_added():
    ends = []
    for delay in (False, True):
        model, optimizer = started("O2", loss_scale=64.0)
        for last in (False, True):
            with amp.scale_loss(
                model(x).sum(), optimizer, delay_unscale=delay and not last
            ) as scaled_loss:
                scaled_loss.backward()
            if delay and not last:
                with pytest.raises(RuntimeError, match="64 times too large"):
                    optimizer.step()
        optimizer.step()
        ends.append(model[3].weight.clone())
    torch.testing.assert_close(ends[0], ends[1], atol=0.0, rtol=2.0**-9)


def test_failing_block_leaves_earlier_gradients():
    def step(fails):
        with amp.scale_loss(model(x).float().mean(), optimizer) as scaled_loss:
            scaled_loss.backward()
            if fails:
                raise KeyError

    for level in ("O1", "O2"):
        model, optimizer = started(level)
        step(fails=False)
        before = [p.grad.clone() for p in amp.master_params(optimizer)]
        with pytest.raises(KeyError):
            step(fails=True)
        assert all(
            torch.equal(p.grad, b)
            for p, b in zip(amp.master_params(optimizer), before, strict=True)
        )
        # Another block may begin.
        _scale(model, optimizer)


def test_gradients_of_two_scales_are_kept_apart():
    model, optimizer = started(num_losses=2)
    amp._amp_state.loss_scalers[1]._loss_scale = 4.0
    for delay in (True, False):
        with amp.scale_loss(model(x).sum() * 100, optimizer, delay_unscale=delay) as scaled_loss:
            scaled_loss.backward()
        if delay:
            # Without this, gradients of two scales would be added up.
            optimizer.zero_grad()
        with amp.scale_loss(model[3].bias.sum(), optimizer, loss_id=1) as scaled_loss:
            optimizer.zero_grad()
            scaled_loss.backward()
        assert torch.equal(model[3].bias.grad, torch.ones(2))
        assert model[0].weight.grad is None
    _scale(model, optimizer, delay_unscale=True)
    with pytest.raises(RuntimeError, match="their sum would have no scale"):
        _scale(model, optimizer, loss_id=1)


def test_a_group_that_is_added_later_is_stepped():
    for level, after_a_step in itertools.product(LEVELS, (False, True)):
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
        assert not torch.equal(added.weight, before), (level, after_a_step)
        assert torch.equal(
            optimizer.param_groups[1]["params"][0].to(added.weight.dtype), added.weight
        )


class Shrinking:
    """An optimizer that wraps another one, as LARC does: it halves the gradients before a step."""

    def __init__(self, optimizer):
        self.optim = optimizer

    def __getattr__(self, name):
        return getattr(self.optim, name)

    def step(self):
        for p in (p for group in self.optim.param_groups for p in group["params"]):
            p.grad.mul_(0.5)
        self.optim.step()


def test_an_optimizer_that_wraps_another_is_accepted():
    for level in LEVELS:
        outcome = []
        for lr in (0.5, 0.25):
            model = small()
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            optimizer = Shrinking(optimizer) if lr == 0.5 else optimizer
            model, optimizer = amp.initialize(model, optimizer, opt_level=level, verbosity=0)
            _train_once(model, optimizer)
            outcome.append(model[3].weight.detach().float())
        torch.testing.assert_close(*outcome, atol=2.0**-11, rtol=2.0**-10)


def _train_once(model, optimizer):
    with amp.scale_loss(
        F.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])), optimizer
    ) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()


def test_momentum_from_before_initialize_is_kept():
    model = small()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    F.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])).backward()
    optimizer.step()
    before = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
    frozen = model[0].weight.half()
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    masters = [p for p in amp.master_params(optimizer) if p.requires_grad and p.dtype == FLOAT]
    assert [optimizer.state[m]["momentum_buffer"].dtype for m in masters] == [FLOAT] * 4
    assert all(
        torch.equal(optimizer.state[m]["momentum_buffer"], b)
        for m, b in zip(masters, before, strict=True)
    )
    _train_once(model, optimizer)
    assert torch.equal(model[0].weight, frozen)
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


# --- checkpoints and copies -----------------------------------------------------------------------


def test_each_level_resumes_checkpoints_of_all_levels():
    for before, after in itertools.product(LEVELS, repeat=2):
        model, optimizer = trained(before)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), amp.state_dict()))
        other, optimizer = started(after, momentum=0.9)
        other.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        amp.load_state_dict(saved[2])
        ours, theirs = ([p.detach().float() for p in net.parameters()] for net in (other, model))
        torch.testing.assert_close(ours, theirs, atol=0.0, rtol=2.0**-10)
        assert amp.state_dict() == saved[2], (before, after)
        assert math.isfinite(train_on(other, optimizer, 2)), (before, after)
        moved = [p.detach().float() for p in other.parameters()]
        assert not all(map(torch.equal, moved, theirs)), (before, after)


def test_the_scale_of_each_loss_is_in_the_state_dict():
    amp.initialize(small(), num_losses=3, verbosity=0)
    first, second, _ = amp._amp_state.loss_scalers
    assert first.must_skip(found_inf=True)
    assert not second.must_skip(found_inf=False)
    state = amp.state_dict()
    assert state == {
        "loss_scaler0": {"loss_scale": 2.0**15, "unskipped": 0},
        "loss_scaler1": {"loss_scale": 2.0**16, "unskipped": 1},
        "loss_scaler2": {"loss_scale": 2.0**16, "unskipped": 0},
    }
    amp.initialize(small(), num_losses=2, verbosity=0)
    with pytest.warns(UserWarning, match="num_losses=3"):
        amp.load_state_dict(state)
    assert amp.state_dict() == {key: state[key] for key in ("loss_scaler0", "loss_scaler1")}


def test_copied_half_model_is_independent(tmp_path):
    for level in ("O1", "O2"):
        model, _ = trained(level, cast_model_outputs=FLOAT)
        torch.save(model, tmp_path / "model.pt")
        for twin in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
            assert torch.equal(twin(x), model(x))
            assert twin(x).dtype == FLOAT
            with torch.no_grad():
                twin[3].weight.zero_()
                twin[3].bias.zero_()
            assert twin(x).abs().sum() == 0
            assert model(x).abs().sum() > 0


def test_two_threads_train_independently():
    """As in apex, the state and the casts belong to one thread, and do not affect another one."""
    meet = threading.Barrier(2)

    def train(level):
        meet.wait()
        model, _ = trained(level, steps=20, loss_scale=1024.0 if level == "O1" else "dynamic")
        meet.wait()
        return amp.state_dict()["loss_scaler0"]["loss_scale"], model(x).dtype

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train, ("O1", "O2"))) == [(1024.0, HALF), (65536.0, FLOAT)]
