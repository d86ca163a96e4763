"""`labkit.frameworks.oneflow`: OneFlow's tutorial, the steps of a graph, and its refusals."""

import copy
import math

import numpy as np
import pytest
import torch

import labkit.frameworks.oneflow as flow
import labkit.frameworks.oneflow.nn as nn
from tests.frameworks.refusals import not_refused

HALF = flow.float16
DEVICE = "cuda" if flow.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(0)


def tutorial():
    """Return the graph of OneFlow's tutorial on mixed precision; only the imports are others."""
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
            self.dtype_in_build = y_pred.dtype
            loss = self.loss_fn(y_pred, y)
            loss.backward()
            return y_pred

    return CustomGraph()


def test_the_tutorial():
    graph_model = tutorial()
    before = copy.deepcopy(graph_model.model)
    for _ in range(10):
        x = flow.randn(128, 256).to(DEVICE)
        y = flow.ones(128, 1, dtype=flow.int64).to(DEVICE)
        y_pred = graph_model(x, y)
    assert graph_model.dtype_in_build == flow.float16
    assert not y_pred.requires_grad
    # Class 1 is the target of all rows.
    assert y_pred[:, 1].mean() > before(x)[:, 1].mean()
    assert all(p.grad is None for p in graph_model.model.parameters())
    assert "(MODULE:model:Sequential(" in repr(graph_model)


# --- what a graph does ----------------------------------------------------------------------------


def line(
    steps=1, scaler=None, schedule=False, clip=None, amp=True, calls_backward=True, optimizers=1
):
    """Return a graph that fits y = 0 by one weight of 1; a batch of ones has the gradient 2."""
    weight = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(weight.weight)
    sgd = flow.optim.SGD([{"params": weight.parameters(), "clip_grad_max_norm": clip}], lr=0.25)

    class Line(nn.Graph):
        def __init__(self):
            # OneFlow allows leaving super().__init__() out.
            self.model = weight
            self.config.enable_amp(amp)
            self.config.set_gradient_accumulation_steps(steps)
            if scaler is not None:
                self.set_grad_scaler(scaler)
            lr_sch = None
            if schedule:
                lr_sch = flow.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)
            for _ in range(optimizers):
                self.add_optimizer(sgd, lr_sch=lr_sch)

        def build(self, x):
            loss = self.model(x).float().square().mean()
            if calls_backward:
                loss.backward()
            return loss

    return Line()


def test_a_graph_steps_its_optimizer():
    graph = line()
    assert graph(torch.ones(4, 1)) == 1.0
    assert graph.model.weight.item() == 1 - 0.25 * 2


def test_a_graph_leaves_no_gradients():
    graph = line()
    graph(torch.ones(4, 1))
    assert graph.model.weight.grad is None


def test_a_graph_steps_its_schedule():
    graph = line(schedule=True)
    graph(torch.ones(4, 1))
    assert graph._optimizers[0].param_groups[0]["lr"] == 0.125


def test_a_graph_clips_after_unscaling():
    graph = line(clip=0.5, scaler=flow.amp.StaticGradScaler(1024.0))
    graph(torch.ones(4, 1))
    assert graph.model.weight.item() == pytest.approx(1 - 0.25 * 0.5, abs=1e-6)


def test_gradients_of_micro_batches_are_added():
    graph = line(steps=4)
    losses = graph(torch.tensor([[1.0], [1.0], [0.0], [2.0]]))
    assert losses.tolist() == [1.0, 1.0, 0.0, 4.0]
    assert graph.model.weight.item() == 1 - 0.25 * (2 + 2 + 0 + 8)


def test_a_number_of_micro_batches_may_be_one_of_numpy():
    assert line(steps=np.int64(2))(torch.ones(4, 1)).shape == line(steps=2)(torch.ones(4, 1)).shape


@pytest.mark.parametrize(("steps", "error"), [(0, ValueError), (2.0, TypeError)])
def test_a_number_of_micro_batches_that_is_not_one_is_refused(steps, error):
    with pytest.raises(error, match=r"number of micro-batches|1 micro-batch or more"):
        line(steps=steps)


def test_a_batch_that_micro_batches_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="multiple of 4, the number of micro-batches"):
        line(steps=4)(torch.ones(6, 1))


@pytest.mark.parametrize("amp", [True, False])
def test_skipped_step_still_calls_the_schedule(amp, recwarn):
    scaler = flow.amp.GradScaler(init_scale=8.0, growth_interval=2)
    graph = line(scaler=scaler, schedule=True, amp=amp)
    graph(torch.full((4, 1), math.inf))
    assert graph.model.weight.item() == 1.0
    assert graph._scale.state.scale == 4.0
    assert graph._optimizers[0].param_groups[0]["lr"] == 0.125
    # torch would warn that the schedule stepped before the optimizer.
    assert not recwarn.list


@pytest.mark.parametrize("amp", [True, False])
def test_the_scale_grows_after_its_interval(amp):
    scaler = flow.amp.GradScaler(init_scale=8.0, growth_interval=2)
    graph = line(scaler=scaler, amp=amp)
    for _ in range(2):
        graph(torch.ones(4, 1))
    assert graph._scale.state.scale == 16.0


@pytest.mark.parametrize("scale", [None, 8.0])
def test_without_a_dynamic_scaler_an_overflow_is_not_skipped(scale):
    scaler = None if scale is None else flow.amp.StaticGradScaler(scale)
    graph = line(scaler=scaler)
    graph(torch.full((4, 1), math.inf))
    assert not math.isfinite(graph.model.weight.item())


def test_a_static_scale_may_be_a_number_of_numpy():
    assert flow.amp.StaticGradScaler(np.float32(8.0)).config.init_scale == 8.0


@pytest.mark.parametrize("factor", [0, "2", math.nan])
def test_a_growth_factor_that_is_out_of_range_is_refused(factor):
    with pytest.raises(ValueError, match="growth_factor must be a number, more than 1"):
        flow.amp.GradScaler(growth_factor=factor)


def test_gradients_that_were_there_before_a_call_do_not_count():
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


def after_a_skipped_step():
    """Return a graph after a step that overflowed, and another one."""
    graph = line(scaler=flow.amp.GradScaler(init_scale=8.0), schedule=True)
    graph(torch.full((4, 1), math.inf))
    graph(torch.ones(4, 1))
    return graph


def test_a_state_dict_restores_weight_scale_and_schedule():
    saved = after_a_skipped_step()
    loaded = line(scaler=flow.amp.GradScaler(init_scale=8.0), schedule=True)
    loaded.load_state_dict(saved.state_dict())
    assert loaded.model.weight.item() == saved.model.weight.item()
    assert loaded._scale.state == saved._scale.state
    saved_rate = saved._optimizers[0].param_groups[0]["lr"]
    assert loaded._optimizers[0].param_groups[0]["lr"] == saved_rate


def test_a_state_dict_is_refused_after_the_first_call():
    graph = after_a_skipped_step()
    with pytest.raises(RuntimeError, match="before the first call"):
        graph.load_state_dict(graph.state_dict())


def test_a_state_dict_has_the_modules_of_a_list():
    saved = Building(Counting())
    trained(saved)
    loaded = Building(Counting())
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(loaded.layers[3].weight, saved.layers[3].weight)
    assert "(MODULE:layers[3]:Linear(" in repr(saved)


@pytest.mark.parametrize("name", ["scale", "steps"])
def test_a_parameter_with_a_key_of_the_state_dict_is_refused(name):
    class Predicting(nn.Graph):
        def build(self, x):
            return getattr(self, name) * x

    graph = Predicting()
    setattr(graph, name, nn.Parameter(torch.ones(1)))
    with pytest.raises(ValueError, match=f"another name than '{name}' for a parameter"):
        graph(torch.ones(1))


def test_a_state_dict_without_states_of_optimizers_is_refused():
    graph = line()
    modules = {"model.weight": torch.zeros_like(graph.model.weight)}
    with pytest.raises(RuntimeError, match="this graph's 1 optimizers and schedules, got none"):
        graph.load_state_dict(modules, strict=False)
    assert graph.model.weight.item() != 0


# --- casts are decided in the first calls ---------------------------------------------------------


class Building(nn.Graph):
    """A graph with dropout, clipping and micro-batches.

    `on_loss` is a function of the loss that `build` calls before the backward pass; its result is
    the loss.
    """

    def __init__(self, on_loss):
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
        self.on_loss = on_loss

    def build(self, x, y):
        for layer in self.layers:
            x = layer(x)
        loss = self.on_loss(flow.nn.functional.cross_entropy(x, y))
        loss.backward()
        return loss, {"predicted": x}


def trained(graph, steps=6):
    """Train a graph; the third step overflows.

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
    """Returns a loss unchanged, and counts the calls."""

    def __init__(self):
        # a list, which a copy of the function shares
        self.count = [0]

    def __call__(self, loss):
        self.count[0] += 1
        return loss


class Reading(Counting):
    """Reads the value of the loss, so that the operations may depend on it."""

    def __call__(self, loss):
        assert loss.item() != 0.0
        return super().__call__(loss)


def test_graph_replaces_build_after_two_calls():
    on_loss = Counting()
    trained(Building(lambda loss: on_loss(loss)))
    assert on_loss.count == [2]


def test_a_build_that_reads_a_value_runs_in_every_call(recwarn):
    on_loss = Reading()
    trained(Building(lambda loss: on_loss(loss)))
    # six steps of two micro-batches
    assert on_loss.count == [12]
    (warning,) = {str(each.message) for each in recwarn.list}
    assert "eager autocast is used" in warning
    line_that_reads = Reading.__call__.__code__.co_firstlineno + 1
    assert f"{__file__}:{line_that_reads}" in warning


@pytest.mark.filterwarnings("ignore:.*eager autocast is used")
def test_a_graph_gives_what_eager_autocast_gives():
    counting = Counting()
    reading = Reading()
    in_graph = trained(Building(lambda loss: counting(loss)))
    eager = trained(Building(lambda loss: reading(loss)))
    torch.testing.assert_close(in_graph, eager, atol=0.0, rtol=0.0, equal_nan=True)


def replace_module(graph):
    graph.layers[3] = nn.Linear(8, 5)


def replace_function(graph):
    before = graph.on_loss
    graph.on_loss = lambda loss: before(loss) * 2


def choose_bf16(graph):
    graph.config.enable_amp(True, dtype=flow.bfloat16)


def disable_amp(graph):
    graph.config.enable_amp(False)


@pytest.mark.parametrize(
    ("change", "shape", "dtype"),
    [
        (replace_module, (8, 5), HALF),
        (replace_function, (8, 3), HALF),
        (choose_bf16, (8, 3), flow.bfloat16),
        (disable_amp, (8, 3), flow.float32),
    ],
)
def test_a_change_after_the_first_calls_makes_another_graph(change, shape, dtype, recwarn):
    on_loss = Counting()
    graph = Building(on_loss)
    trained(graph, steps=2)
    assert on_loss.count == [2]
    change(graph)
    _, out = graph(flow.ones(8, 8), flow.zeros(8, dtype=flow.int64))
    assert on_loss.count[0] > 2
    assert out["predicted"].shape == shape
    assert out["predicted"].dtype == dtype
    assert not recwarn.list


def test_evaluation_and_training_have_a_graph_each(recwarn):
    on_loss = Counting()
    graph = Building(on_loss)
    for training in (True, False) * 8:
        graph.layers[2].train(training)
        trained(graph, steps=1)
    assert on_loss.count == [4]
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

# Misuse -> a function that commits it, the error, and a part of its message.
MISUSES = {
    "backoff": (
        lambda: flow.amp.GradScaler(growth_factor=4.0),
        ValueError,
        r"with growth_factor=4.0 it is 0.25",
    ),
    "scale of 0": (lambda: flow.amp.StaticGradScaler(0.0), ValueError, "must > 0.0"),
    "ZeRO": (lambda: line().config.enable_zero(True, stage=1), NotImplementedError, "ZeRO shards"),
    "a closure": (
        lambda: line().add_optimizer(flow.optim.LBFGS(_sgd().param_groups[0]["params"])),
        ValueError,
        "LBFGS evaluates the loss several times",
    ),
    "step in build": (lambda: _stepping()(torch.ones(2, 1)), RuntimeError, "remove step"),
    "a gradient of the loss": (
        lambda: _backward_with(gradient=torch.tensor(3.0))(torch.ones(2, 1)),
        RuntimeError,
        r"backward\(\) without gradient",
    ),
    "inputs of backward": (
        lambda: _backward_with(inputs=[torch.ones(1, requires_grad=True)])(torch.ones(2, 1)),
        RuntimeError,
        r"backward\(\) without inputs",
    ),
    "amp maybe": (lambda: line().config.enable_amp(1), TypeError, r"enable_amp\(True\)"),
    "no schedule": (lambda: line().add_optimizer(_sgd(), lr_sch=1), TypeError, "expected lr_sch"),
    "another's schedule": (
        lambda: line().add_optimizer(_sgd(), lr_sch=flow.optim.lr_scheduler.StepLR(_sgd(), 1)),
        ValueError,
        "must be the same optimizer",
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
    "no step": (lambda: line(optimizers=0)(torch.ones(1, 1)), RuntimeError, "without an optimizer"),
    "nested": (lambda: _nested()(torch.ones(2, 1)), RuntimeError, "cannot be nested"),
}


def _sgd():
    return flow.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)


def _stepping():
    graph = line()
    graph.build = lambda x: [graph.model(x).float().mean().backward(), graph._optimizers[0].step()]
    return graph


def _backward_with(**arguments):
    graph = line()
    graph.build = lambda x: graph.model(x).float().mean().backward(**arguments)
    return graph


def _nested():
    graph = line()
    inner = line()
    graph.build = lambda x: inner(x)
    return graph


def test_misuses_are_refused_with_a_reason():
    assert not_refused(MISUSES) == {}
