"""One training through the calls of every framework, compared bit by bit where their rules agree.

The adapters for the real frameworks are tested without these frameworks, which are not installed
here; `make hosts` runs the adapters with them.
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

LR, MOMENTUM = 0.05, 0.875


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def batches():
    """Return nine batches; the loss of three is so large that the scale backs off five times."""
    numbers = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 4, generator=numbers), factor * torch.randn(8, 3, generator=numbers))
        for factor in (30.0, 1.0, 1.0, 200.0, 200.0, 1.0, 1.0, 1.0, 1.0)
    ]


def loss_of(pred, y):
    return 10.0 * nn.functional.mse_loss(pred, y)


def sgd(weights):
    return torch.optim.SGD(weights, lr=LR, momentum=MOMENTUM)


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


def by_torch_amp(net):
    """Train by the loop of torch's tutorial, in which two names are imported from labkit."""
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


def by_non_native_fastai(net):
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


CASTING = [
    by_engine,
    by_hand,
    by_torch_amp,
    by_apex,
    by_fastai,
    by_oneflow,
]
HALF = [
    partial(by_engine, recipe="O2"),
    partial(by_apex, level="O2"),
    by_non_native_fastai,
]


@pytest.mark.parametrize("loops", [CASTING, HALF], ids=["casts", "half model"])
def test_all_frameworks_train_the_same_weights(loops):
    ends = []
    for train in loops:
        net = model()
        scale = train(net)
        assert scale == 2.0**11, "of nine steps, five were skipped"
        ends.append([p.detach().half() if loops is HALF else p.detach() for p in net.parameters()])
    assert not torch.equal(ends[0][0].float(), model()[0].weight), "no step was taken"
    for train, weights in zip(loops, ends, strict=True):
        assert all(map(torch.equal, weights, ends[0])), train


ROOT = Path(__file__).parents[2]


def test_page_of_frameworks_imports_existing_classes():
    """The adapters' own frameworks are not installed here, so their files are read."""
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    named = re.findall(r"from labkit\.frameworks\.(\w+) import (\w+)", page)
    assert {module for module, _ in named} == {
        "lightning",
        "fastai_learner",
        "accelerate",
        "transformers",
    }
    for module, name in named:
        tree = ast.parse(
            (ROOT / "labkit" / "frameworks" / f"{module}.py").read_text(encoding="utf-8")
        )
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}, (
            module,
            name,
        )


def step(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def test_a_callback_watches_twice_from_open_to_close():
    model = nn.Linear(3, 1)
    watching = Watching(every=1)
    with pytest.raises(RuntimeError, match="nothing was watched yet"):
        watching.report()
    # An error may leave a watch open; the next `open` closes it.
    watching.open(nn.Linear(3, 1))
    for steps in (2, 3):
        watching.open(model)
        for _ in range(steps):
            step(model)
        watching.close()
        # The watch has ended, so this step does not count.
        step(model)
        assert watching.report().steps == steps
    watching.close()
    assert not nn.modules.module._global_forward_hooks


def test_watch_observes_an_optimizer_outside_of_torch():
    """fastai's optimizers are not torch's, so torch's hooks do not report their steps.

    Under a loss scale, the scaler steps the callback in place of the optimizer.
    """
    for scale in (None, 2.0**8, 2.0**127):
        torch.manual_seed(0)
        learn = synth_learner(cbs=None if scale is None else MixedPrecision(init_scale=scale))
        with watch(learn.model, every=5) as w:
            learn.fit(1)
        report = w.report()
        assert report.steps == 10
        if scale == 2.0**127:
            assert len(report.skips) == 10 - len(learn.mixed_precision.scales) > 0
        else:
            assert [step.step for step in report.watched] == [0, 5]
            assert report.skips == ()
            # One update of the only number in each of the two sampled steps.
            assert report.histograms("updates")["a"].finite_non_zero == 2


# --- steps on master weights, which the trainings above do not cover ---


def test_masters_take_over_state_and_edits():
    half = nn.Parameter(torch.ones(2).half())
    own = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([half, own], lr=1.0, momentum=0.5)
    optimizer.state[half]["momentum_buffer"] = torch.ones(2).half()
    steps = Steps(optimizer, masters=True)
    master, same = optimizer.param_groups[0]["params"]
    assert same is own
    assert optimizer.state[master]["momentum_buffer"].dtype is torch.float32
    half.data.fill_(3.0)
    steps.before_backward()
    assert master.tolist() == [3.0, 3.0]
    (half.float().sum() + own.sum()).backward()
    assert not steps.unscale(1.0)
    steps.forget()
    assert master.grad is None
    # The optimizer steps this weight of the model itself, whose own zero_grad clears it.
    assert own.grad.tolist() == [1.0, 1.0]
