"""Failures inside of a watch are reported, and the watched training continues unchanged.

The tests plant an error into each function of a watch that torch or a patched method calls,
directly or through one other function.
"""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import optimizer as torch_optimizers

from labkit.cli import main
from labkit.frameworks import GradScaler
from labkit.instrument import Watch, log, replay, sample, script, watch
from labkit.instrument.guard import describe_failure, guarded, guarded_around
from tests.clinic.trainings import usual

watch_module: Any = sys.modules[Watch.__module__]
X = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(16) % 4


class PlantedError(Exception):
    """The error that the tests plant."""


class SilentError(Exception):
    """An error that cannot make its message."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def test_a_failure_without_a_message_ends_no_run() -> None:
    reported: list[str] = []

    def fail() -> None:
        raise SilentError

    guarded(fail, lambda where, error: reported.append(describe_failure(where, error)))()
    assert reported[0].startswith("fail failed with SilentError: (its message cannot be made)")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))


def by_scaler(model: nn.Module, scaler_class: Any = torch.amp.GradScaler) -> list[float]:
    """A loop with autocast, a scaler that skips its first step, and clipping."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    case = usual(
        model,
        optimizer,
        lambda _: cross_entropy(model(X), Y),
        range(4),
        scaler_class=scaler_class,
        clip=1.0,
        init_scale=2.0**20,
    )
    return [case.step(number) for number in case.batches]


PLANTS: list[tuple[type | ModuleType, str]] = [
    *(
        (Watch, name)
        for name in (
            "before_optimizer",
            "after_optimizer",
            "before_unscale",
            "before_step",
            "after_step",
            "skipped",
            "scaled_by",
            "observes_optimizer",
            "scaler_begins",
            "scaler_ended",
        )
    ),
    *(
        (sample.Sample, name)
        for name in (
            "after_module",
            "add",
            "gradient",
            "inside",
            "before_step_sample",
            "after_step_sample",
            "measure",
        )
    ),
    *(
        (sample, name)
        for name in (
            "count",
            "length",
            "local_part",
            "swallowed_counts",
            "saved_tensors_hooks",
            "dense",
        )
    ),
    *((watch_module, name) for name in ("note_call", "floats", "in_backward")),
    *((log.Log, name) for name in ("record_checksums", "record_moves")),
    *((log, name) for name in ("faults", "checksum")),
    *((watch_module, name) for name in ("against_fp32", "culprit")),
    (replay.Call, "hook_outputs"),
    (watch_module, "state_faults"),
]


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """Replace a function by one that raises, and return the list of its calls."""
    calls: list[str] = []

    def raises(*_: Any, **__: Any) -> Any:
        calls.append(name)
        raise PlantedError(name)

    monkeypatch.setattr(owner, name, raises)
    return calls


@pytest.mark.parametrize(
    "run", [by_scaler, partial(by_scaler, scaler_class=GradScaler)], ids=["torch", "labkit"]
)
def test_a_failure_in_a_watch_changes_no_loss(run, monkeypatch) -> None:
    alone = run(network())
    for owner, name in PLANTS:
        with monkeypatch.context() as patch:
            calls = plant(patch, owner, name)
            model = network()
            with (
                torch.random.fork_rng(devices=[]),
                watch(model, every=1, against_fp32_every=1) as w,
            ):
                assert run(model) == alone, name
            report = w.report()
        assert calls, name
        assert any("PlantedError" in line and name in line for line in report.unseen), report
        assert "PlantedError" in str(report)
        assert not torch_optimizers._global_optimizer_pre_hooks, name


def test_an_error_of_the_run_keeps_its_cause() -> None:
    def fails_for_a_reason() -> None:
        raise ValueError("of the run") from KeyError("the reason")

    def clumsy(call: Callable[[], None]) -> None:
        try:
            call()
        finally:
            raise PlantedError

    failures: list[str] = []
    with pytest.raises(ValueError, match="of the run") as raised:
        guarded_around(clumsy, lambda where, _: failures.append(where), fails_for_a_reason)
    assert isinstance(raised.value.__cause__, KeyError)
    assert failures == ["clumsy"]


def test_error_of_the_run_is_raised_once() -> None:
    model = network()
    calls = []

    class Failing(nn.Module):
        def forward(self, x: Any) -> Any:
            calls.append(1)
            raise KeyError("the model's own")

    model.append(Failing())
    with watch(model, every=1) as w, pytest.raises(KeyError, match="the model's own"):
        model(X)
    assert calls == [1]
    assert not w.failures


MAML = """
import torch
from torch import nn
from torch.func import functional_call, grad
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
def loss_of(parameters, x, y):
    return nn.functional.mse_loss(functional_call(model, parameters, (x,)), y)
for step in range(4):
    optimizer.zero_grad()
    x = torch.randn(8, 1)
    parameters = dict(model.named_parameters())
    inner = grad(loss_of)(parameters, x, x.sin())
    adapted = {n: p - 0.1 * inner[n] for n, p in parameters.items()}
    loss = loss_of(adapted, x, x.sin())
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""
SPARSE = """
import torch, warnings
warnings.simplefilter("ignore")
torch.manual_seed(0)
class Graph(torch.nn.Linear):
    def forward(self, edges, x):
        return torch.sparse.mm(edges, super().forward(x))
model = Graph(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
indices = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
coo = torch.sparse_coo_tensor(indices, torch.rand(5), (5, 5))
for edges in (coo, coo.coalesce(), coo.to_sparse_csr(), coo.to_sparse_csc()):
    optimizer.zero_grad()
    loss = model(edges, torch.randn(5, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


@pytest.mark.parametrize("text", [MAML, SPARSE], ids=["MAML", "sparse"])
def test_scripts_with_torch_func_or_sparse_run(text, tmp_path, capsys) -> None:
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    assert script.run_script(path, []) == 0
    alone = capsys.readouterr().out
    assert alone.count("loss") == 4
    assert main(["watch", "--every", "1", "--folder", str(tmp_path / "report"), str(path)]) == 0
    watched = capsys.readouterr()
    assert watched.out.startswith(alone)
    assert "4 steps" in watched.out
    assert "Nothing wrong was found" in watched.out
    assert main(["diagnose", str(path)]) == 0
    diagnosed = capsys.readouterr().out
    assert diagnosed.startswith(alone)
    assert "not looked at" not in diagnosed


def test_failure_under_the_command_is_reported(tmp_path, capsys, monkeypatch) -> None:
    path = tmp_path / "train.py"
    path.write_text(MAML + "raise SystemExit(7)\n", encoding="utf-8")
    assert script.run_script(path, []) == 7
    alone = capsys.readouterr().out
    for owner, name in (
        (script, "model_of"),
        (script, "watch"),
        (Watch, "before_optimizer"),
        (log, "faults"),
    ):
        with monkeypatch.context() as patch:
            plant(patch, owner, name)
            assert main(["watch", "--every", "1", "--folder", str(tmp_path / name), str(path)]) == 7
        printed = capsys.readouterr().out
        assert printed.startswith(alone), name
        assert "PlantedError" in printed, name
