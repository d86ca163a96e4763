"""OneFlow in labkit: its tutorial after two imports, and what a graph does and refuses."""

import copy
import math

import pytest
import torch

import labkit.frameworks.oneflow as flow
import labkit.frameworks.oneflow.nn as nn
from tests.frameworks.refusals import not_refused

HALF = flow.float16
# OneFlow's tutorial on mixed precision, after two imports.
DEVICE = "cuda" if flow.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def tutorial():
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    model = model.to(DEVICE)
    model.train()
    loss_fn = nn.CrossEntropyLoss().to(DEVICE)
    optimizer = flow.optim.SGD(model.parameters(), lr=1e-3)

    class CustomGraph(flow.nn.Graph):
        def __init__(self):
            super().__init__()
            self.model = model
            self.loss_fn = loss_fn
            self.add_optimizer(optimizer)
            self.config.enable_amp(True)
            grad_scaler = flow.amp.GradScaler(
                init_scale=3000, growth_factor=2.0, backoff_factor=0.5, growth_interval=1000
            )
            self.set_grad_scaler(grad_scaler)

        def build(self, x, y):
            y_pred = self.model(x)
            self.dtype_of_prediction = y_pred.dtype
            loss = self.loss_fn(y_pred, y)
            loss.backward()
            return y_pred

    return CustomGraph()


def test_script_of_the_tutorial_trains():
    graph_model = tutorial()
    before = copy.deepcopy(graph_model.model)
    for _ in range(10):
        x = flow.randn(128, 256).to(DEVICE)
        y = flow.ones(128, 1, dtype=flow.int64).to(DEVICE)
        y_pred = graph_model(x, y)
    assert graph_model.dtype_of_prediction == flow.float16
    assert not y_pred.requires_grad
    # All targets are class 1.
    assert y_pred[:, 1].mean() > before(x)[:, 1].mean()
    assert all(p.grad is None for p in graph_model.model.parameters())
    assert "(MODULE:model:Sequential(" in repr(graph_model)


# --- what a graph does ----------------------------------------------------------------------------


def line(
    steps=1, scaler=None, schedule=False, clip=None, amp=True, calls_backward=True, optimizers=1
):
    """Return a graph that fits y = 0 by one weight of 1; a batch of ones has the gradient 2.

    Args:
        steps: number of micro-batches.
        scaler: the grad scaler, or None.
        schedule: whether a schedule halves the learning rate after each step.
        clip: the norm at which gradients are clipped, or None.
        amp: whether mixed precision is enabled.
        calls_backward: whether `build` runs the backward pass.
        optimizers: how often the optimizer is added.
    """
    weight = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(weight.weight)
    optimizer = flow.optim.SGD(
        [{"params": weight.parameters(), "clip_grad_max_norm": clip}], lr=0.25
    )

    class Line(nn.Graph):
        # OneFlow does not require super().__init__().
        def __init__(self):
            self.model = weight
            self.config.enable_amp(amp)
            self.config.set_gradient_accumulation_steps(steps)
            if scaler is not None:
                self.set_grad_scaler(scaler)
            for _ in range(optimizers):
                lr_schedule = None
                if schedule:
                    lr_schedule = flow.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
                self.add_optimizer(optimizer, lr_sch=lr_schedule)

        def build(self, x):
            loss = self.model(x).float().square().mean()
            if calls_backward:
                loss.backward()
            return loss

    return Line()


def test_a_graph_zeroes_clips_steps_and_schedules():
    graph = line(schedule=True)
    assert graph(torch.ones(4, 1)) == 1.0
    assert graph.model.weight.item() == 1 - 0.25 * 2
    assert graph.model.weight.grad is None
    assert graph._optimizers[0].param_groups[0]["lr"] == 0.125
    graph = line(clip=0.5, scaler=flow.amp.StaticGradScaler(1024.0))
    graph(torch.ones(4, 1))
    assert graph.model.weight.item() == pytest.approx(1 - 0.25 * 0.5, abs=1e-6)


def test_gradients_of_micro_batches_are_added():
    graph = line(steps=4)
    losses = graph(torch.tensor([[1.0], [1.0], [0.0], [2.0]]))
    assert losses.tolist() == [1.0, 1.0, 0.0, 4.0]
    assert graph.model.weight.item() == 1 - 0.25 * (2 + 2 + 0 + 8)
    with pytest.raises(ValueError, match="multiple of 4, the number of micro-batches"):
        graph(torch.ones(6, 1))


def test_skipped_step_still_calls_the_schedule(recwarn):
    for amp in (True, False):
        graph = line(
            scaler=flow.amp.GradScaler(init_scale=8.0, growth_interval=2), schedule=True, amp=amp
        )
        graph(torch.full((4, 1), math.inf))
        assert graph.model.weight.item() == 1.0
        assert graph._scale.state.scale == 4.0
        assert graph._optimizers[0].param_groups[0]["lr"] == 0.125
        for _ in range(2):
            graph(torch.ones(4, 1))
        assert graph.model.weight.item() != 1.0
        assert graph._scale.state.scale == 8.0
    assert not recwarn.list


def test_without_a_dynamic_scaler_no_gradient_is_checked():
    for scaler in (None, flow.amp.StaticGradScaler(8.0)):
        graph = line(scaler=scaler)
        graph(torch.full((4, 1), math.inf))
        assert not math.isfinite(graph.model.weight.item())


def test_gradients_of_other_passes_are_discarded():
    graph = line(scaler=flow.amp.StaticGradScaler(8.0))
    graph.model.weight.grad = torch.ones(1, 1)
    graph(torch.ones(4, 1))
    assert graph.model.weight.item() == 0.5


def test_a_graph_without_an_optimizer_predicts():
    class Predicting(nn.Graph):
        def __init__(self, model):
            super().__init__()
            self.model = model
            self.config.enable_amp(dtype=flow.bfloat16)

        def build(self, x):
            return {"y": self.model(x), "none": None}

    graph = Predicting(nn.Linear(2, 3))
    out = graph(flow.randn(4, 2))
    assert out["y"].dtype == flow.bfloat16
    assert not out["y"].requires_grad
    assert out["none"] is None
    assert not graph.training
    assert graph.is_compiled


def test_a_state_dict_is_loaded_before_the_first_call():
    one, other = (line(scaler=flow.amp.GradScaler(init_scale=8.0), schedule=True) for _ in range(2))
    one(torch.full((4, 1), math.inf))
    one(torch.ones(4, 1))
    other.load_state_dict(one.state_dict())
    assert other.model.weight.item() == one.model.weight.item()
    assert other._scale.state == one._scale.state
    assert other._optimizers[0].param_groups[0]["lr"] == one._optimizers[0].param_groups[0]["lr"]
    with pytest.raises(RuntimeError, match="before the first call"):
        one.load_state_dict(other.state_dict())
    # modules in a list
    listed = Building(Counting())
    again = Building(Counting())
    trained(listed)
    again.load_state_dict(listed.state_dict())
    assert torch.equal(again.layers[3].weight, listed.layers[3].weight)
    assert "(MODULE:layers[3]:Linear(" in repr(listed)


# --- casts that are decided once ------------------------------------------------------------------


class Building(nn.Graph):
    """A graph with dropout, clipping and micro-batches.

    Args:
        ends: called with the loss at the end of `build`; returns the loss.
    """

    def __init__(self, ends):
        torch.manual_seed(0)
        self.layers = [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)]
        groups = [
            {"params": layer.parameters(), "clip_grad_max_norm": 0.5} for layer in self.layers[::3]
        ]
        optimizer = flow.optim.SGD(groups, lr=0.25, momentum=0.5)
        self.add_optimizer(optimizer, lr_sch=flow.optim.lr_scheduler.StepLR(optimizer, 2))
        self.set_grad_scaler(flow.amp.GradScaler(init_scale=2.0**12, growth_interval=2))
        self.config.enable_amp()
        self.config.set_gradient_accumulation_steps(2)
        self.ends = ends

    def build(self, x, y):
        for layer in self.layers:
            x = layer(x)
        loss = self.ends(flow.nn.functional.cross_entropy(x, y))
        loss.backward()
        return loss, {"predicted": x}


def trained(graph, steps=6):
    """Train a graph, whose third step overflows.

    Returns:
        The weights, the running statistics, the scale and the last outputs.
    """
    numbers = torch.Generator().manual_seed(1)
    for i in range(steps):
        x = flow.randn(8, 8, generator=numbers) * (1e6 if i == 2 else 1.0)
        loss, out = graph(x, flow.randint(0, 3, (8,), generator=numbers))
    states = [value for layer in graph.layers for value in layer.state_dict().values()]
    return [*states, torch.tensor(graph.state_dict()["scale"]), loss, out["predicted"]]


class Counting:
    """A function that returns a loss unchanged, and counts its calls.

    Args:
        reads: whether it reads the number in the loss, which a graph cannot do.
    """

    def __init__(self, reads=False):
        self.count = [0]
        self.reads = reads

    def __call__(self, loss):
        self.count[0] += 1
        assert not self.reads or loss.item() != 0.0
        return loss


def test_graph_replaces_build_after_two_calls(recwarn):
    """A `build` that reads a number of a tensor has no graph, and runs eagerly in each call."""
    traced = Counting()
    eager = Counting(reads=True)
    by_graph = trained(Building(lambda loss: traced(loss)))
    by_build = trained(Building(lambda loss: eager(loss)))
    assert traced.count == [2]
    # Six steps of two micro-batches.
    assert eager.count == [12]
    torch.testing.assert_close(by_graph, by_build, atol=0.0, rtol=0.0, equal_nan=True)
    (warning,) = {str(w.message) for w in recwarn.list}
    # The warning names the line that reads the number.
    assert f"{__file__}:{Counting.__call__.__code__.co_firstlineno + 2}" in warning
    assert "eager autocast is used" in warning


def test_changes_after_the_first_calls_are_traced_again(recwarn):
    dtypes = {
        "another module": HALF,
        "another end": HALF,
        "BF16": flow.bfloat16,
        "no AMP": flow.float32,
    }
    for how, dtype in dtypes.items():
        ends = Counting()
        graph = Building(ends)
        trained(graph, steps=2)
        assert ends.count == [2]
        if how == "another module":
            graph.layers[3] = nn.Linear(8, 5)
        elif how == "another end":
            graph.ends = lambda loss, ends=ends: ends(loss) * 2
        else:
            graph.config.enable_amp(how != "no AMP", dtype=flow.bfloat16)
        _, out = graph(flow.ones(8, 8), flow.zeros(8, dtype=flow.int64))
        assert ends.count > [2], how
        assert out["predicted"].shape == (8, 5 if how == "another module" else 3)
        assert out["predicted"].dtype == dtype, how
    ends = Counting()
    graph = Building(ends)
    for training in (True, False) * 8:
        graph.layers[2].train(training)
        trained(graph, steps=1)
    # Evaluation and training have a graph each, which two calls decide.
    assert ends.count == [4]
    assert not recwarn.list


def test_bare_parameter_is_trained():
    class Plain(nn.Graph):
        def __init__(self):
            self.weight = nn.Parameter(torch.ones(1))
            self.config.set_gradient_accumulation_steps(2)
            self.add_optimizer(flow.optim.SGD([self.weight], lr=0.5))

        def build(self, x):
            (x * self.weight).mean().backward()
            return {"x": x, "batch": "of two", "none": None}

    graph = Plain()
    out = graph(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert out["x"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert out["batch"] == "of two"
    assert out["none"] is None
    assert graph.weight.item() == 1 - 0.5 * (1.5 + 3.5)


# --- refusals -------------------------------------------------------------------------------------

MISUSES = {
    "backoff": (
        lambda: flow.amp.GradScaler(growth_factor=4.0),
        ValueError,
        r"with growth_factor=4.0 it is 0.25",
    ),
    "scale of 0": (lambda: flow.amp.StaticGradScaler(0.0), ValueError, "must > 0.0"),
    "ZeRO": (lambda: line().config.enable_zero(True, stage=1), NotImplementedError, "drop it"),
    "a closure": (
        lambda: line().add_optimizer(flow.optim.LBFGS(_sgd().param_groups[0]["params"])),
        ValueError,
        "Adam",
    ),
    "step in build": (lambda: _stepping()(torch.ones(2, 1)), RuntimeError, "remove step"),
    "amp maybe": (lambda: line().config.enable_amp(1), TypeError, r"enable_amp\(True\)"),
    "no schedule": (lambda: line().add_optimizer(_sgd(), lr_sch=1), TypeError, "lr_scheduler"),
    "another's schedule": (
        lambda: line().add_optimizer(_sgd(), lr_sch=flow.optim.lr_scheduler.StepLR(_sgd(), 1)),
        ValueError,
        "same",
    ),
    "torch's scaler": (
        lambda: line().set_grad_scaler(torch.amp.GradScaler("cpu")),
        TypeError,
        "flow.amp.GradScaler",
    ),
    "no build": (lambda: nn.Graph()(), NotImplementedError, "overridden"),
    "no backward": (
        lambda: line(calls_backward=False)(torch.ones(1, 1)),
        RuntimeError,
        "expected loss.backward",
    ),
    "no step": (lambda: line(optimizers=0)(torch.ones(1, 1)), RuntimeError, "add_optimizer"),
    "nested": (lambda: _nested()(torch.ones(2, 1)), RuntimeError, "cannot be nested"),
}


def _sgd():
    return flow.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def _stepping():
    graph = line()
    graph.build = lambda x: [graph.model(x).float().mean().backward(), graph._optimizers[0].step()]
    return graph


def _nested():
    graph = line()
    inner = line()
    graph.build = lambda x: inner(x)
    return graph


def test_misuses_are_refused_with_a_message():
    assert not_refused(MISUSES) == {}
