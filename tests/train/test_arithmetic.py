"""Arithmetic of a training: products in IEEE FP32 or TF32, as its record says.

A dispatch mode reads torch's switches at each matrix product and convolution, forward and backward.
Before and after a step, the switches must have the values of the session.
"""

import json
import threading
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.amp import RECIPES, Recipe
from labkit.formats import FP16
from labkit.records import arithmetic_settings, versions
from labkit.train import (
    TASKS,
    Comparison,
    Place,
    TrainingRun,
    compare,
    load,
    one_thread,
    train,
    watch_step,
)
from labkit.train.determinism import preserve_rng, seeded_rng
from labkit.widgets import CastPasses

CNN = replace(TASKS["digits_cnn"], steps=3)
CPU = Place(torch.device("cpu"), "CPU (a machine with eight GPUs)", "cpu")
PRODUCTS = ("aten::convolution", "aten::convolution_backward", "aten::mm", "aten::addmm")


class SwitchesAtProducts(TorchDispatchMode):
    """A mode that records torch's switches at each product."""

    def __init__(self, cpu: Collection[str] = ("ieee",)) -> None:
        super().__init__()
        self.cpu = cpu
        self.recorded: dict[str, set[tuple[str, bool, bool]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in PRODUCTS:
            cudnn = torch.backends.cudnn
            assert torch.backends.mkldnn.matmul.fp32_precision in self.cpu
            switches = (cudnn.conv.fp32_precision, cudnn.deterministic, cudnn.benchmark)
            self.recorded.setdefault(func._schema.name, set()).add(switches)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def session() -> Iterator[None]:
    """A session with BF16 products on the CPU, and with cuDNN's benchmark mode on."""
    # torch.backends.cudnn.benchmark by its C function, because torch's tests may freeze the flag.
    torch._C._set_cudnn_benchmark(True)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    yield
    torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch._C._set_cudnn_benchmark(False)


def one_step(recipe: Recipe) -> None:
    TrainingRun(CNN, recipe, measure_every=1).step()


def watched_step(recipe: Recipe) -> None:
    watch_step(TrainingRun(CNN, recipe))


def gradients_and_evaluation(recipe: Recipe) -> None:
    run = TrainingRun(CNN, recipe)
    run.next_gradients()
    run.evaluate()


def test_products_in_training_are_ieee_fp32(session: None) -> None:
    cudnn = torch.backends.cudnn
    for name, work in (
        ("FP32", one_step),
        ("O2", one_step),
        ("TF32", one_step),
        ("O1", watched_step),
        ("O1", gradients_and_evaluation),
    ):
        with SwitchesAtProducts() as switches:
            work(RECIPES[name])
        # Products of both passes were recorded.
        assert set(switches.recorded) >= {
            "aten::convolution",
            "aten::convolution_backward",
            "aten::mm",
        }
        assert set().union(*switches.recorded.values()) == {("ieee", True, False)}, (name, work)
        assert (cudnn.conv.fp32_precision, cudnn.deterministic, cudnn.benchmark) == (
            "tf32",
            False,
            True,
        )


def test_default_switches_are_not_changed_on_a_cpu() -> None:
    """A CPU multiplies FP32 as IEEE by default; the switches of cuDNN do not concern it."""
    with SwitchesAtProducts(cpu=("none", "ieee")) as switches:
        one_step(RECIPES["FP32"])
    assert set().union(*switches.recorded.values()) == {("tf32", False, False)}


def test_overlapping_runs_restore_the_switches_at_the_end(session: None) -> None:
    """The first run ends during a step of the second, which began while one thread was set."""
    inside = threading.Event()
    first_done = threading.Event()
    during_second = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        inside.set()
        assert first_done.wait(60)
        during_second.append(
            (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic)
        )
        return CNN.loss(outputs, targets)

    second = threading.Thread(
        target=lambda: TrainingRun(replace(CNN, loss=loss), RECIPES["FP32"]).take_step()
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            second.start()
            assert inside.wait(60)
            TrainingRun(CNN, RECIPES["FP32"]).take_step()
            assert torch.get_num_threads() == 1, "a nested block restored the count of threads"
        first_done.set()
        second.join(60)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert during_second == [("ieee", True)]
    cudnn = torch.backends.cudnn
    assert (cudnn.conv.fp32_precision, cudnn.deterministic, cudnn.benchmark) == (
        "tf32",
        False,
        True,
    )


@pytest.mark.parametrize("formats", [{"model": FP16}, {"autocast": FP16}])
def test_tf32_is_refused_with_fp16(formats: Any) -> None:
    with pytest.raises(ValueError, match="TF32 is for FP32 operands"):
        Recipe("mine", tf32=True, **formats)


def test_tf32_trains_as_well_as_fp32() -> None:
    task = replace(TASKS["digits"], steps=60)
    fp32, tf32 = (train(task, RECIPES[name], measure_every=0) for name in ("FP32", "TF32"))
    assert [s.loss for s in fp32.steps] != [s.loss for s in tf32.steps]
    assert tf32.final_loss == pytest.approx(fp32.final_loss, rel=0.01)
    assert tf32.metric > 0.5
    # TF32 has the range of FP32, so nothing underflows.
    assert TrainingRun(task, RECIPES["TF32"]).step().underflow == 0


def test_a_record_has_the_arithmetic_of_its_products() -> None:
    fp32, tf32 = (train(CNN, RECIPES[name], steps=1) for name in ("FP32", "TF32"))
    switches = ("FP32 matmul", "FP32 conv", "FP32 rnn")
    assert {fp32.arithmetic[name] for name in switches} == {"ieee"}
    assert {tf32.arithmetic[name] for name in switches} == {"tf32, emulated"}
    assert fp32.arithmetic["deterministic algorithms"] == "no"
    # A run on a CPU has no settings of cuDNN, and no versions of CUDA, cuDNN and a driver.
    assert not {"cuDNN deterministic", "cuDNN benchmark"} & set(fp32.arithmetic)
    assert not {"cuda", "cudnn", "driver"} & set(fp32.versions)


def test_a_record_without_arithmetic_can_be_loaded(tmp_path: Path) -> None:
    fp32 = train(CNN, RECIPES["FP32"], steps=1)
    path = fp32.save(tmp_path / "run.json")
    assert load(path) == fp32
    old = json.loads(path.read_text())
    # Early records have no field for the arithmetic.
    del old["arithmetic"]
    path.write_text(json.dumps(old))
    assert load(path) == replace(fp32, arithmetic={})


def test_a_record_of_a_gpu_has_cuda_cudnn_driver_and_flags(
    monkeypatch: pytest.MonkeyPatch, session: None
) -> None:
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.backends.cudnn.m, "version", lambda: 91002)
    monkeypatch.setattr("labkit.records.provenance.gpu_driver", lambda: "570.86")
    found = versions(gpu)
    assert {name: found[name] for name in ("cuda", "cudnn", "driver")} == {
        "cuda": "12.8",
        "cudnn": "91002",
        "driver": "570.86",
    }
    assert arithmetic_settings(gpu) == {
        "deterministic algorithms": "no",
        "FP32 matmul": "ieee",
        "FP32 conv": "tf32",
        "FP32 rnn": "tf32",
        "cuDNN deterministic": "no",
        "cuDNN benchmark": "yes",
    }
    monkeypatch.setattr("labkit.records.provenance.gpu_driver", lambda: None)
    # An unknown driver is left out.
    assert "driver" not in versions(gpu)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Runs of three recipes on this machine."""
    recipes = [RECIPES[name] for name in ("FP32", "TF32", "O1")]
    folder = tmp_path_factory.mktemp("runs")
    return compare(CNN, recipes, seeds=(0, 1), folder=folder, workers=1)


def with_first(comparison: Comparison, **changes: Any) -> Comparison:
    """Return a comparison, without TF32, whose first record has these fields."""
    first, *others = [record for record in comparison.records if record.recipe != "TF32"]
    return replace(comparison, records=(replace(first, **changes), *others))


def test_a_recipe_in_tf32_is_no_difference_of_provenance(compared: Comparison) -> None:
    assert compared.differing_provenance() == {}
    assert "differ in how they were made" not in str(compared)


def test_runs_of_different_provenance_are_named(compared: Comparison) -> None:
    first = compared.records[0]
    changed = with_first(
        compared,
        arithmetic=first.arithmetic | {"FP32 conv": "tf32"},
        versions={**first.versions, "torch": "2"},
    )
    assert set(changed.differing_provenance()) == {"FP32 conv", "torch"}
    assert "these runs differ in how they were made" in str(changed)
    assert "FP32 conv: tf32 (FP32 seed 0); ieee (O1 seed 0, FP32 seed 1, O1 seed 1)" in str(changed)


def test_a_run_of_unknown_provenance_is_named(compared: Comparison) -> None:
    unknown = with_first(compared, arithmetic={})
    assert list(unknown.differing_provenance()) == ["torch settings"]


def test_the_generator_of_mps_is_seeded_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []
    functions = {
        name: lambda value, name=name: calls.append((name, value))
        for name in ("manual_seed", "set_rng_state")
    }
    monkeypatch.setattr(torch, "mps", SimpleNamespace(get_rng_state=lambda: "state", **functions))
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded_rng(torch.device("mps"), 5):
        raise ZeroDivisionError
    (name, seed), last_call = calls
    assert name == "manual_seed"
    assert last_call == ("set_rng_state", "state")
    with seeded_rng(torch.device("cpu"), 5):
        assert torch.initial_seed() == seed, "the CPU has another seed"
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_uses_the_generator_of_its_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that record the device stand in for the generators of eight GPUs."""
    touched: set[Any] = set()

    def get(device: Any = "cuda") -> torch.Tensor:
        touched.add(torch.device(*device) if isinstance(device, tuple) else torch.device(device))
        return torch.zeros(16, dtype=torch.uint8)

    for name, answer in {
        "is_available": lambda: True,
        "device_count": lambda: 8,
        "get_rng_state": get,
        "set_rng_state": lambda state, device="cuda": touched.add(torch.device(device)),
        "manual_seed_all": lambda seed: touched.update(range(8)),
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.random, "_fork_rng_warned_already", False)
    with warnings.catch_warnings(action="error"):
        TrainingRun(replace(CNN, make_model=lambda: nn.Linear(2, 2)), RECIPES["FP32"], device=CPU)
        CastPasses(nn.Linear(2, 2), torch.ones(1, 2))
        # A training and a graph on the CPU use no GPU's generator, which would make a context.
        assert touched == set()
        with preserve_rng(torch.device("cuda", 3)):
            pass
    assert touched == {torch.device("cuda", 3)}
