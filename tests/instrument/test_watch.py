"""A watch of a training loop: what it observes, and that it leaves the training unchanged.

Each training loop runs with and without a watch: weights and random states must be equal bit for
bit, and no hook or patch may stay when a watch has ended. A fixture checks the latter after each
test.
"""

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

from labkit.amp import RECIPES, Engine
from labkit.formats import Format
from labkit.frameworks import GradScaler
from labkit.instrument import exponent_histogram, watch
from labkit.instrument.records import trimmed

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 4


class Net(nn.Module):
    """A small network with running statistics and dropout, which a watch could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout()
        self.last = nn.Linear(16, 4)

    def forward(self, x, *, gain=1.0):
        return self.last(self.drop(self.norm(self.first(x)).relu())) * gain


def hooks_of_model(model):
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks)
        for m in model.modules()
    ) + sum(
        bool(p._backward_hooks) + bool(p._post_accumulate_grad_hooks) for p in model.parameters()
    )


def plain(model, steps, inputs=X):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(inputs).float(), Y).backward()
        optimizer.step()


def scaled(model, steps, scaler=None):
    scaler = scaler or torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(X, gain=0.5), Y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def lbfgs(model, steps):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def engine(model, steps, recipe="O2"):
    trainer = Engine(model, partial(torch.optim.AdamW, lr=1e-3), RECIPES[recipe])
    for _ in range(steps):
        trainer.zero_grad()
        with trainer.forward():
            loss = cross_entropy(trainer(X), Y)
        trainer.backward(loss)
        trainer.step()


def clipped(model, steps):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        for half in (slice(0, 16), slice(16, 32)):
            scaler.scale(cross_entropy(model(X[half]), Y[half]) / 2).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


LOOPS = {
    "plain": plain,
    "scaled": scaled,
    "our scaler": lambda model, steps: scaled(model, steps, GradScaler("cpu", init_scale=2.0**10)),
    "accumulated, clipped": clipped,
    "LBFGS": lbfgs,
    "O1": partial(engine, recipe="O1"),
    "O2": engine,
}


def test_worked_example_of_a_watched_step():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -0.5]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-30)
    with watch(model, every=1) as w:
        model(torch.tensor([[3.0, 0.0]])).sum().backward()
        optimizer.step()
    (step,) = w.report().watched
    histograms = {kind: next(iter(layers.values())) for kind, layers in step.histograms.items()}
    # 0.5 and 1 have the exponents -1 and 0; 3 is in [2, 4), with the exponent 1.
    assert [histograms["weights"].count(e, e) for e in (-1, 0)] == [1, 1]
    assert histograms["activations"].count(1, 1) == 1
    assert histograms["activation gradients"].count(0, 0) == 1
    # The weight gradients are the inputs, 3 and 0.
    assert histograms["weight gradients"].count(1, 1) == 1
    assert histograms["weight gradients"].zeros == 1
    # 3 * 2^-30 is less than half an ulp of 1, so no update changes a weight.
    assert histograms["updates"].zeros == 2
    assert step.moves == {"weight": (1, 1)}
    # A single step of FP32 weights with a tiny learning rate is not a fault.
    assert w.report().findings == ()


def test_fp32_weights_that_no_step_moves_are_a_fault():
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-30)
    with watch(model, every=1) as w:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert [f.name for f in w.report().findings] == ["no parameter moved"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_watch_changes_no_bit_of_a_run(loop):
    torch.manual_seed(0)
    model = Net()
    other = copy.deepcopy(model)
    torch.manual_seed(7)
    LOOPS[loop](other, 5)
    state = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    torch.manual_seed(7)
    with watch(model, every=2, against_fp32_every=2) as w:
        LOOPS[loop](model, 5)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.random.get_state()[1].tolist() == state[1]  # noqa: NPY002
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert hooks_of_model(model) == 0
    report = w.report()
    assert [step.step for step in report.watched] == [0, 2, 4]
    assert set(report.watched[0].histograms) == {
        "weights",
        "activations",
        "activation gradients",
        "weight gradients",
        "updates",
    }
    assert len(report.against_fp32) == (0 if loop == "LBFGS" else 3)
    assert report.steps == 5


# A fused optimizer unscales gradients and skips steps inside of its own kernel.
@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_names_its_sources_and_is_replayed(fused):
    torch.manual_seed(0)
    model = Net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.Adam(model.parameters(), fused=fused)
    with watch(model, every=50) as w:
        for step in range(6):
            optimizer.zero_grad()
            x = X.clone()
            if step == 3:
                x[0, 0] = float("nan")
            scaler.scale(cross_entropy(model(x), Y)).backward()
            scaler.step(optimizer)
            scaler.update()
    report = w.report()
    assert [(skip.step, skip.scale) for skip in report.skips] == [(3, 2.0**10)]
    assert "first.weight" in report.skips[0].culprits
    assert [(bad.step, bad.direction) for bad in report.non_finite] == [(3, "input")]
    assert [finding.name for finding in report.findings] == ["first NaN"]
    assert report.watched[0].clipped == pytest.approx(1.0, abs=1e-3)
    assert report.steps == 6


def test_gradients_are_unscaled_without_unscale():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 4))
    cross_entropy(model(X), Y).backward()
    expected = {name: trimmed(exponent_histogram(p.grad)) for name, p in model.named_parameters()}
    for clip in (False, True):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with watch(model) as w:
            optimizer.zero_grad()
            scaler.scale(cross_entropy(model(X), Y)).backward()
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            scaler.step(optimizer)
        (step,) = w.report().watched
        assert step.histograms["weight gradients"] == expected
        assert step.scale == 2.0**9
        assert (step.clipped < 1) == clip


def test_no_hook_stays_however_the_block_ends():
    def train(model, end):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model, every=1):
            for step in range(3):
                # An input of another width fails inside of the model.
                inputs = X[:, :3] if end == "exception in the model" and step else X
                cross_entropy(model(inputs), Y).backward()
                if end == "exception":
                    raise KeyError(step)
                optimizer.step()
                if end == "break":
                    break

    for end, error in {
        "exception": KeyError,
        "exception in the model": RuntimeError,
        "break": None,
    }.items():
        model = Net()
        reference = weakref.ref(model)
        with pytest.raises(error) if error else nullcontext():
            train(model, end)
        assert hooks_of_model(model) == 0, end
        assert model(X).grad_fn is not None
        del model
        gc.collect()
        assert reference() is None, end


def test_a_run_without_gradients_or_steps_is_reported():
    model = Net()
    with watch(model, every=1) as w:
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert w.report().histograms("weight gradients") == {}
    assert "no gradient" in str(w.report())
    with watch(model, every=1) as w:
        model(X)
    assert "No optimizer of this model stepped" in str(w.report())
    assert "Nothing wrong was found" not in str(w.report())


def test_a_step_that_has_only_begun_is_not_a_sampled_one() -> None:
    model = Net()
    with watch(model, every=1) as w:
        plain(model, 3)
        # as for a validation that records gradients
        model(X)
    report = w.report()
    assert [step.step for step in report.watched] == [0, 1, 2, 3]
    assert "3 steps, 3 sampled, 0 skipped, 1 not finished" in str(report)
    assert "memory: weights" in str(report)


def test_two_watches_observe_the_same():
    model = Net()
    stack_of_first = ExitStack()
    first = stack_of_first.enter_context(watch(model, every=1))
    with watch(model, every=1) as second:
        plain(model, 2)
        stack_of_first.close()
        plain(model, 1)
    assert first.report().watched == second.report().watched[:2]
    assert first.report().steps == 2
    assert second.report().steps == 3


def test_a_training_in_another_thread_is_observed():
    model = Net()
    with watch(model, every=1) as w:
        thread = threading.Thread(target=plain, args=(model, 2))
        thread.start()
        thread.join()
    assert w.report().steps == 2
    assert set(w.report().watched[0].histograms) >= {"activations", "activation gradients"}


def test_a_copy_of_a_watched_model_is_not_watched():
    model = Net()
    with watch(model, every=1) as w:
        plain(model, 1)
        copied = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        plain(copied, 3)
    assert hooks_of_model(copied) == 0
    assert hooks_of_model(loaded) == 0
    assert w.report().steps == 1


def test_a_report_in_the_middle_of_a_step_does_not_change() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
    first, second = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model)
    with watch(model, every=1) as w:
        cross_entropy(model(X), Y).backward()
        first.step()
        early = w.report()
        before = early.histograms("updates")
        second.step()
        assert early.histograms("updates") == before
        assert w.report().histograms("updates").keys() > before.keys()


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("sides", [(1,), (1, 1)], ids=["sharded", "hybrid"])
@pytest.mark.usefixtures("process_group")
def test_a_model_on_a_mesh_of_any_dimension_is_watched(sides: tuple[int, ...]) -> None:
    mesh = init_device_mesh("cpu", sides, mesh_dim_names=("replicas", "parts")[-len(sides) :])
    model = fully_shard(nn.Linear(8, 4), mesh=mesh)
    with watch(model, every=1) as w:
        plain(model, 2)
    assert w.report().steps == 2
    assert w.report().histograms("updates").keys() == {"weight", "bias"}


def test_invalid_arguments_of_a_watch_are_refused():
    for error, message, model, options in (
        (TypeError, "expected a torch.nn.Module, or an object with one as .model; got int", 3, {}),
        (ValueError, "ReLU has no parameter", nn.ReLU(), {}),
        (ValueError, "every: expected a positive integer, got 0", Net(), {"every": 0}),
        (
            ValueError,
            "a multiple of every=30, got 50",
            Net(),
            {"every": 30, "against_fp32_every": 50},
        ),
        (
            ValueError,
            "expected 0 or a multiple of every=50, got -50",
            Net(),
            {"against_fp32_every": -50},
        ),
        (TypeError, "every: expected an int, got True", Net(), {"every": True}),
        (ValueError, "formats: expected at least one format", Net(), {"formats": ()}),
        (ValueError, "a sign and a zero, got E8M0", Net(), {"formats": ["E8M0"]}),
        (ValueError, "got another one, .*'E6M9'", Net(), {"formats": [Format("E6M9", 6, 9)]}),
        (TypeError, r"write \['FP16'\]", Net(), {"formats": "FP16"}),
        (TypeError, "optimizer: expected a torch.optim.Optimizer", Net(), {"optimizer": "Adam"}),
        (TypeError, "got a Linear without scale, unscale_", Net(), {"scaler": nn.Linear(1, 1)}),
        (TypeError, "loss: expected a function of the model's", Net(), {"loss": "mse"}),
    ):
        with pytest.raises(error, match=message):
            watch(model, **options)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_watch_leaves_an_iterator_of_losses_to_torch(by_name: bool) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1):
        losses = iter([model(torch.ones(4, 3)).sum()])
        if by_name:
            torch.autograd.backward(tensors=losses)
        else:
            torch.autograd.backward(losses)
        optimizer.step()
    assert model.bias.grad is not None
    assert model.bias.grad.item() == 4.0


def test_a_number_of_numpy_is_an_interval_of_a_watch() -> None:
    with watch(Net(), every=np.int64(2)) as w:
        pass
    assert type(w.every) is int


def test_a_lazy_module_is_watched_like_another(tmp_path) -> None:
    reports = []
    for layer in (nn.Linear(8, 16), nn.LazyLinear(16)):
        torch.manual_seed(0)
        model = nn.Sequential(layer, nn.Linear(16, 4))
        with watch(model, every=1).record(tmp_path / "run.labkit") as w:
            plain(model, 2)
        reports.append(w.report())
    usual, lazy = reports
    assert lazy.unseen == usual.unseen
    assert [step.memory for step in lazy.watched] == [step.memory for step in usual.watched]
    for kind in ("activation gradients", "weight gradients", "updates"):
        assert lazy.histograms(kind, step=0).keys() == usual.histograms(kind, step=0).keys()


def test_a_backward_pass_from_an_edge_is_observed() -> None:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1) as w:
        edge = get_gradient_edge(cross_entropy(model(X), Y))
        torch.autograd.backward(edge, torch.tensor(1.0))
        optimizer.step()
    report = w.report()
    assert report.unseen == ()
    assert report.against_fp32[0].arrived == (32 * 4, 32 * 4)


def test_a_bias_before_a_batch_norm_is_not_a_finding():
    """Its gradient is zero but for rounding errors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    with watch(model, every=1) as w:
        plain(model, 4)
    assert w.report().findings == ()


def test_exports_have_unscaled_histograms(monkeypatch):
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with watch(model) as w:
        scaler.scale(model(torch.tensor([[3.0, 0.0]])).sum()).backward()
        scaler.step(optimizer)
    writer = MagicMock()
    run = MagicMock()
    wandb = SimpleNamespace(
        Histogram=lambda np_histogram: [array.tolist() for array in np_histogram]
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    w.report().to_tensorboard(writer)
    w.report().to_wandb(run)
    written = {call.args[0]: call.kwargs for call in writer.add_histogram_raw.call_args_list}
    (logged,), _ = run.log.call_args
    of_gradients = written["gradients/weight"]
    # One bucket for the zero, and one for 3, which is in [2, 4).
    assert of_gradients["bucket_limits"] == [2.0, 4.0]
    assert of_gradients["bucket_counts"] == [1, 1]
    assert of_gradients["num"] == 2
    assert of_gradients["global_step"] == 0
    assert run.log.call_args.kwargs == {"step": 0}
    assert of_gradients["sum"] == 3.0
    assert of_gradients["sum_squares"] == 9.0
    assert logged["gradients/weight"] == [[1, 1], [0.0, 2.0, 4.0]]
    assert "parameters/weight" in written.keys() & logged.keys()
