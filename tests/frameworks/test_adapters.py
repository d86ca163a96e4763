"""One training through the calls of each framework, and the adapters of real frameworks.

Where the rules of the frameworks agree, the weights must be equal bit by bit. The frameworks
themselves are not installed here; `make hosts` runs the adapters with them.
"""

import ast
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit.amp import DYNAMIC, RECIPES, Engine, autocast, decide, initial, unscale
from labkit.frameworks import oneflow as flow
from labkit.frameworks.apex import amp
from labkit.frameworks.fastai.basics import SGD, DataLoaders, Learner
from labkit.frameworks.fastai.callback.fp16 import (
    MixedPrecision,
    ModelToHalf,
    NonNativeMixedPrecision,
)
from labkit.frameworks.steps import Steps
from labkit.frameworks.torch_amp import GradScaler
from labkit.frameworks.torch_amp import autocast as torch_autocast
from labkit.frameworks.watching import Watching
from labkit.gemm import half_storage
from labkit.instrument import watch
from tests.frameworks.learners import synth_learner

LR = 0.05
MOMENTUM = 0.875


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def batches():
    """Return nine batches; the first five overflow, so the scale backs off five times."""
    numbers = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 4, generator=numbers), factor * torch.randn(8, 3, generator=numbers))
        for factor in (30.0, 1.0, 1.0, 200.0, 200.0, 1.0, 1.0, 1.0, 1.0)
    ]


def loss_of(pred, y):
    return 10.0 * nn.functional.mse_loss(pred, y)


def sgd(weights):
    return torch.optim.SGD(weights, lr=LR, momentum=MOMENTUM)


# Each of these functions trains a network on the batches, and returns the last loss scale.


def by_engine(net, recipe="O1"):
    engine = Engine(net, sgd, RECIPES[recipe])
    for x, y in batches():
        engine.zero_grad()
        with engine.forward():
            loss = loss_of(engine(x), y)
        engine.backward(loss)
        engine.step()
    return engine.scaler.scale


def by_hand(net):
    optimizer = sgd(net.parameters())
    state = initial(DYNAMIC)
    for x, y in batches():
        optimizer.zero_grad()
        with half_storage("cpu"), autocast():
            loss = loss_of(net(x), y)
        (loss * state.scale).backward()
        _, found_inf = unscale([p.grad for p in net.parameters()], state.scale, in_place=True)
        decision = decide(state, found_inf, DYNAMIC)
        if not decision.skip:
            optimizer.step()
        state = decision.after
    return state.scale


def by_torchs_tutorial(net):
    """Train by the loop of torch's tutorial, with autocast and scaler of the lab."""
    optimizer = sgd(net.parameters())
    scaler = GradScaler("cpu")
    for x, y in batches():
        with torch_autocast(device_type="cpu", dtype=torch.float16):
            output = net(x)
            assert output.dtype is torch.float16
            loss = loss_of(output, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale()


def by_apex(net, level="O1"):
    net, optimizer = amp.initialize(net, sgd(net.parameters()), opt_level=level, verbosity=0)
    for x, y in batches():
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    amp._deactivate()
    return amp._amp_state.loss_scalers[0].loss_scale()


def learner(net, cbs=None):
    return Learner(
        DataLoaders(batches(), []), net, loss_of, partial(SGD, mom=MOMENTUM), lr=LR, cbs=cbs
    )


def by_fastai(net):
    learn = learner(net).to_fp16()
    learn.fit(1)
    return learn.scaler.get_scale()


def by_fastais_masters(net):
    learn = learner(net, [ModelToHalf(), NonNativeMixedPrecision(max_loss_scale=2.0**16)])
    learn.fit(1)
    return learn.non_native_mixed_precision.loss_scale


def by_oneflow(net):
    class Training(flow.nn.Graph):
        def __init__(self):
            self.net = net
            self.config.enable_amp(True)
            self.set_grad_scaler(flow.amp.GradScaler())
            self.add_optimizer(flow.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM))

        def build(self, x, y):
            loss = loss_of(self.net(x), y)
            loss.backward()
            return loss

    graph = Training()
    for x, y in batches():
        graph(x, y)
    return graph._scale.state.scale


def trained_by(train, dtype):
    """Return the weights of a training in a dtype; five of its nine steps are skipped."""
    net = model()
    scale = train(net)
    assert scale == 2.0**16 / 2**5
    return [p.detach().to(dtype) for p in net.parameters()]


@pytest.mark.parametrize("train", [by_hand, by_torchs_tutorial, by_apex, by_fastai, by_oneflow])
def test_training_with_casts_is_the_same_in_each_framework(train):
    wanted = trained_by(by_engine, torch.float32)
    for ours, theirs in zip(wanted, trained_by(train, torch.float32), strict=True):
        assert torch.equal(ours, theirs)


# fastai returns the model to FP32, so the weights are compared in FP16.
@pytest.mark.parametrize("train", [partial(by_apex, level="O2"), by_fastais_masters])
def test_training_with_masters_is_the_same_in_each_framework(train):
    wanted = trained_by(partial(by_engine, recipe="O2"), torch.float16)
    for ours, theirs in zip(wanted, trained_by(train, torch.float16), strict=True):
        assert torch.equal(ours, theirs)


def test_the_training_moves_the_weights():
    weights = trained_by(by_engine, torch.float32)
    assert not torch.equal(weights[0], model()[0].weight)


ROOT = Path(__file__).parents[2]


def test_every_import_on_the_page_for_users_exists():
    """The modules cannot be imported without their frameworks, so their source is read."""
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    named = re.findall(r"from labkit\.frameworks\.(\w+) import (\w+)", page)
    assert {module for module, _ in named} == {
        "lightning",
        "fastai_learner",
        "accelerate",
        "transformers",
    }
    for module, name in named:
        file = ROOT / "labkit" / "frameworks" / f"{module}.py"
        tree = ast.parse(file.read_text(encoding="utf-8"))
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        assert name in classes, module


def step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def test_without_a_training_there_is_no_report():
    with pytest.raises(RuntimeError, match="nothing was watched yet"):
        Watching(every=1).report()


def test_a_callback_watches_from_open_to_close():
    model = nn.Linear(3, 1)
    watching = Watching(every=1)
    for steps in (2, 3):
        watching.open(model)
        for _ in range(steps):
            step(model)
        watching.close()
        # A step after the end does not count.
        step(model)
        assert watching.report().steps == steps


def test_a_closed_callback_leaves_no_hooks():
    hooks = nn.modules.module._global_forward_hooks
    before = len(hooks)
    watching = Watching(every=1)
    # An error ended the first training, so it was not closed.
    watching.open(nn.Linear(3, 1))
    watching.open(nn.Linear(3, 1))
    assert len(hooks) > before
    watching.close()
    watching.close()
    assert len(hooks) == before


def watched_fit(cbs=None):
    """Return the report of a fit of ten steps by fastai's optimizer, and its learner."""
    torch.manual_seed(0)
    learn = synth_learner(cbs=cbs)
    with watch(learn.model, every=5) as watcher:
        learn.fit(1)
    return watcher.report(), learn


# fastai's optimizer has none of torch's hooks; with a scaler, the callback takes its steps.
@pytest.mark.parametrize("cbs", [None, MixedPrecision(init_scale=2.0**8)], ids=["FP32", "scaled"])
def test_watch_observes_an_optimizer_outside_of_torch(cbs):
    report, _ = watched_fit(cbs)
    assert report.steps == 10
    assert [step.step for step in report.watched] == [0, 5]
    assert report.skips == ()
    # The parameter moves in both sampled steps.
    assert report.histograms("updates")["a"].finite_non_zero == 2


def test_watch_counts_skips_of_an_optimizer_outside_of_torch():
    report, learn = watched_fit(MixedPrecision(init_scale=2.0**127))
    taken = len(learn.mixed_precision.scales)
    assert report.steps == 10
    assert taken < 10
    assert len(report.skips) == 10 - taken


# --- facts of masters that the equal trainings above do not show ---


@pytest.fixture
def half_and_own():
    """A parameter in FP16, one in FP32, and their optimizer with momentum of the first."""
    half = nn.Parameter(torch.ones(2).half())
    own = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([half, own], lr=1.0, momentum=0.5)
    optimizer.state[half]["momentum_buffer"] = torch.ones(2).half()
    return half, own, optimizer


def test_an_fp32_parameter_is_its_own_master(half_and_own):
    _, own, optimizer = half_and_own
    Steps(optimizer, masters=True)
    assert optimizer.param_groups[0]["params"][1] is own


def test_a_master_takes_over_the_state_in_fp32(half_and_own):
    _, _, optimizer = half_and_own
    Steps(optimizer, masters=True)
    master = optimizer.param_groups[0]["params"][0]
    assert optimizer.state[master]["momentum_buffer"].dtype is torch.float32
    assert optimizer.state[master]["momentum_buffer"].tolist() == [1.0, 1.0]


def test_an_edit_of_a_parameter_reaches_its_master(half_and_own):
    half, _, optimizer = half_and_own
    steps = Steps(optimizer, masters=True)
    half.data.fill_(3.0)
    steps.before_backward()
    assert optimizer.param_groups[0]["params"][0].tolist() == [3.0, 3.0]


def test_only_masters_of_halves_forget_their_gradients(half_and_own):
    """The model's zero_grad deletes the gradient of an FP32 parameter."""
    half, own, optimizer = half_and_own
    steps = Steps(optimizer, masters=True)
    steps.before_backward()
    (half.float().sum() + own.sum()).backward()
    assert not steps.unscale(1.0)
    master = optimizer.param_groups[0]["params"][0]
    assert master.grad.tolist() == [1.0, 1.0]
    steps.forget()
    assert master.grad is None
    assert own.grad.tolist() == [1.0, 1.0]
