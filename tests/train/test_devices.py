"""Devices to train on, with a GPU put in the place of what torch would answer, and steps a second by our clock."""

from types import SimpleNamespace

import pytest
import torch

from labkit.amp import RECIPES
from labkit.records import interleaved_timing
from labkit.train import TASKS, Place, TrainingRun, devices, place, places, steps_per_second

T4 = Place(torch.device("cuda", 0), "Tesla T4", "gpu")
SECOND = Place(torch.device("cuda", 1), "Tesla T4", "gpu:1")


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: (T4, SECOND))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())


def test_worked_example_the_gpu_is_first_and_the_cpu_always_there(with_gpu: None) -> None:
    assert [each.label for each in places()] == ["this GPU: Tesla T4", "this GPU: Tesla T4", "CPU, emulated"]
    assert [each.key for each in places()] == ["gpu", "gpu:1", "cpu"]
    assert place(None) == place() == T4


def test_a_place_is_called_as_the_knob_or_as_torch_calls_it(with_gpu: None) -> None:
    for said in ("gpu", "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0), T4):
        assert place(said) == T4, said
    assert place("cuda:1") == place("gpu:1") == SECOND
    assert place("cpu") == place("cpu:0") == place(torch.device("cpu")) == places()[-1]
    with pytest.raises(ValueError, match=r'expected .*"gpu" \(Tesla T4\), "gpu:1" \(Tesla T4\), "cpu"'):
        place("cuda:2")


def test_without_a_gpu_none_means_the_cpu_and_what_is_not_there_is_refused(without_gpu: None) -> None:
    (only,) = places()
    assert place(None) == only
    assert (only.device, only.key, only.emulated) == (torch.device("cpu"), "cpu", True)
    assert "emulated on this CPU" in only.sentence
    for said in ("cuda", "gpu", "cuda:0", torch.device("cuda"), "mps", "GPU please"):
        with pytest.raises(ValueError, match=rf'expected a device of this machine, "cpu" \(CPU.*got "{said}"'):
            place(said)
    meta = place("meta")  # another device of torch's is taken when it is named, and never offered
    assert (meta.device, meta.label, meta.emulated) == (torch.device("meta"), "this device: meta", False)
    assert places() == (only,)


def test_a_stand_in_on_the_cpu_does_not_take_the_cpus_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = Place(torch.device("cpu"), "a stand-in", "gpu")
    monkeypatch.setattr(devices, "gpus", lambda: (stand_in,))
    assert place("gpu") == place() == stand_in
    assert place("cpu").emulated
    assert place(torch.device("cpu")).emulated


def test_a_gpu_that_this_torch_cannot_use_is_left_out_and_the_reason_given(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [
        SimpleNamespace(name="Tesla V100", major=7, minor=0),
        SimpleNamespace(name="NVIDIA A10", major=8, minor=6),
    ]
    answers = {
        "is_available": lambda: True,
        "get_arch_list": lambda: ["sm_75", "sm_80"],
        "device_count": lambda: 2,
        "get_device_properties": cards.__getitem__,
        "get_device_name": lambda number: cards[number].name,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert [(each.name, each.device, each.key) for each in places()[:-1]] == [
        ("NVIDIA A10", torch.device("cuda", 1), "gpu")
    ]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"has no kernels for this machine.s GPU \(Tesla V100\)"):
        place("cuda")


FP32, O1 = RECIPES["FP32"], RECIPES["O1"]


def test_worked_example_by_a_clock_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of half a second under FP32, of an eighth under O1, and a first round that is slow and does not count."""
    seconds = {"FP32": 0.5, "O1": 0.125}
    clock = [0.0]
    order: list[str] = []

    def step(run: TrainingRun) -> None:
        clock[0] += seconds[run.recipe.name] * (100 if len(order) < 4 else 1)
        order.append(run.recipe.name)

    monkeypatch.setattr(TrainingRun, "step", step)
    monkeypatch.setattr(interleaved_timing.time, "perf_counter", lambda: clock[0])
    assert steps_per_second(TASKS["digits"], [FP32, O1], steps=2, rounds=3) == {"FP32": 2.0, "O1": 8.0}
    assert order == ["FP32", "FP32", "O1", "O1"] * 4


def test_recipes_without_a_round_are_left_out_and_no_recipe_is_an_error() -> None:
    assert steps_per_second(TASKS["digits"], [FP32], stop=lambda: True) == {}
    for asked in ({"steps": 0}, {"rounds": 0}):
        with pytest.raises(ValueError, match="expected steps and rounds of at least 1"):
            steps_per_second(TASKS["digits"], [FP32], **asked)
