"""Grids of trainings: processes, devices, records that are reused, and several ranks.

In most tests, the CPU with another label stands in for a GPU. One slow test shares runs between two
real ranks of torchrun.
"""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from labkit import cli
from labkit.amp import RECIPES
from labkit.bench import interleaved_timing
from labkit.train import (
    GPU_TASKS,
    TASKS,
    Place,
    RunRecord,
    Task,
    TrainingRun,
    devices,
    load,
    place,
    places,
    record_path,
    steps_per_second,
    throughput_sentence,
    train,
    train_grid,
)
from labkit.train.record import fingerprint
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
SHORT, THIRTEEN_STEPS = (replace(TASKS["digits"], steps=steps) for steps in (3, 13))
FP32 = RECIPES["FP32"]
O1 = RECIPES["O1"]


def test_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    recipes = [FP32, RECIPES["FP16 dynamic"]]
    by_one = train_grid(SHORT, recipes, [0, 1], tmp_path / "one", workers=1)
    by_two = train_grid(SHORT, recipes, [0, 1], tmp_path / "two", workers=2)
    for alone, side_by_side in zip(by_one, by_two, strict=True):
        assert replace(alone, seconds=0, date="") == replace(side_by_side, seconds=0, date="")
        # Runs that share the machine are not timed.
        assert alone.step_seconds is not None
        assert side_by_side.step_seconds is None


GRID_SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from labkit.amp import RECIPES
from labkit.train import TASKS, train_grid
task = replace(TASKS["digits"], steps=3)
train_grid(task, [RECIPES["FP32"]], range(1000), Path(sys.argv[1]), workers=int(sys.argv[2]),
     progress=lambda record: print(record.seed, flush=True))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="the test kills a group of processes")
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_killed_grid_keeps_its_finished_runs(tmp_path: Path, workers: str) -> None:
    command = [sys.executable, "-c", GRID_SCRIPT, str(tmp_path), workers]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        assert child.stdout is not None
        done = [int(child.stdout.readline()) for _ in range(3)]
        child.kill()
    with contextlib.suppress(ProcessLookupError):
        # Its workers would run until they notice that their parent has ended.
        os.killpg(child.pid, signal.SIGKILL)
    whole = {path.name: load(path) for path in (tmp_path / "digits").glob("*.json")}
    assert {f"fp32-seed{seed}.json" for seed in done} <= whole.keys()
    again = train_grid(SHORT, [FP32], sorted(done), tmp_path, workers=1)
    # The records of before are returned, so no run was trained twice.
    assert again == [whole[f"fp32-seed{seed}.json"] for seed in sorted(done)]


def test_a_grid_can_be_stopped_and_runs_no_pair_twice(tmp_path: Path) -> None:
    finished: list[RunRecord] = []
    records = train_grid(
        SHORT,
        [FP32, FP32],
        [0, 0, *range(9)],
        tmp_path,
        workers=1,
        progress=finished.append,
        stop=lambda: len(finished) > 1,
    )
    assert records == finished
    assert [record.seed for record in finished] == [0, 1]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_grid_that_is_stopped_at_once_trains_nothing(workers: int, tmp_path: Path) -> None:
    begun: list[int] = []
    records = train_grid(
        SHORT,
        [FP32],
        range(3),
        tmp_path,
        workers=workers,
        begins=lambda task, recipe, seed: begun.append(seed),
        stop=lambda: True,
    )
    assert (records, begun) == ([], [])


@pytest.mark.parametrize(
    ("recipes", "seeds", "workers", "kind", "message"),
    [
        (
            [FP32, replace(O1, name="FP32")],
            [0],
            1,
            ValueError,
            "different recipes, got 'FP32' and 'FP32'",
        ),
        ([FP32], [0], 0, ValueError, "expected workers >= 1"),
        ([FP32], [0], 1.5, TypeError, r"workers: expected an int, got 1\.5"),
        ([FP32], [0, 1.0], 1, TypeError, r"seed: expected an int, got 1\.0"),
    ],
    ids=["equal names", "no workers", "workers", "seeds"],
)
def test_an_invalid_grid_is_refused_before_it_runs(
    recipes: Any, seeds: Any, workers: Any, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        train_grid(SHORT, recipes, seeds, tmp_path, workers=workers)
    assert not list(tmp_path.iterdir())


def test_recipes_whose_records_share_a_path_are_refused(tmp_path: Path) -> None:
    """The record of the second one would replace that of the first."""
    recipes = [replace(FP32, name="my recipe"), replace(O1, name="My-Recipe")]
    with pytest.raises(ValueError, match="got 'my recipe' and 'My-Recipe': their records"):
        train_grid(SHORT, recipes, [0], tmp_path, workers=1)


def test_a_recipes_name_leads_out_of_no_folder(tmp_path: Path) -> None:
    recipe = replace(FP32, name="../E4M3/E5M2")
    train_grid(SHORT, [recipe], [0], tmp_path / "runs", workers=1)
    (path,) = tmp_path.rglob("*.json")
    assert path == tmp_path / "runs" / SHORT.name / "..-e4m3-e5m2-seed0.json"


def test_a_seed_may_be_a_number_of_numpy(tmp_path: Path) -> None:
    (record,) = train_grid(SHORT, [FP32], [np.int64(2)], str(tmp_path), workers=1)
    assert type(record.seed) is int
    assert load(record_path(tmp_path, SHORT.name, "FP32", 2)) == record


def test_a_record_of_changed_settings_is_not_reused(tmp_path: Path) -> None:
    train_grid(SHORT, [FP32], [0], tmp_path, workers=1)
    for changed, recipe in (
        (replace(SHORT, steps=4), FP32),
        (replace(SHORT, make_optimizer=partial(torch.optim.SGD, lr=0.2)), FP32),
        (SHORT, replace(O1, name="FP32")),
    ):
        with pytest.raises(ValueError, match="values have changed since"):
            train_grid(changed, [recipe], [0], tmp_path, workers=1)


NAMELESS = lambda outputs, targets: F.cross_entropy(outputs, targets)  # noqa: E731


def loss_of_a_notebook(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets)


def test_a_task_of_a_notebook_is_trained_in_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a notebook, whose functions a worker process cannot import.
    monkeypatch.setattr(loss_of_a_notebook, "__module__", "__main__")
    custom = replace(SHORT, name="custom", loss=loss_of_a_notebook)
    assert len(train_grid(custom, [FP32], [0, 1], tmp_path, workers=2)) == 2


@dataclass(frozen=True, eq=False)
class Setting:
    """A value of a user's task."""

    values: object


class BaseLoss:
    """Has a class method that two classes inherit."""

    @classmethod
    def of_sum(cls, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs, targets, reduction="sum")


class FirstLoss(BaseLoss):
    pass


class SecondLoss(BaseLoss):
    pass


def test_fingerprints_depend_on_every_nested_value() -> None:
    def fingerprint_of(**keywords: object) -> str:
        return fingerprint(replace(SHORT, loss=partial(F.cross_entropy, **keywords)), FP32)

    weights = torch.ones(2000)
    # The repr of a tensor has three numbers of each end with four digits, and does not show this.
    weights[1000] += 2.0**-20
    different = (
        {},
        {"of": F.mse_loss},
        {"of": F.l1_loss},
        {"of": partial(F.mse_loss, reduction="sum")},
        {"of": [F.mse_loss]},
        {"of": {"one": F.mse_loss}},
        {"of": torch.ones(2000)},
        {"of": weights},
        {"of": loss_of_a_notebook},
        {"of": torch.nn.CrossEntropyLoss()},
        {"of": torch.nn.CrossEntropyLoss(label_smoothing=0.1)},
        {"of": torch.nn.CrossEntropyLoss(torch.ones(2))},
        {"of": Setting(torch.ones(2000))},
        {"of": Setting(weights)},
        {"of": FirstLoss.of_sum},
        {"of": SecondLoss.of_sum},
        {"of": torch.ones(2).add},
        {"of": torch.zeros(2).add},
    )
    assert len({fingerprint_of(**keywords) for keywords in different}) == len(different)


def test_fingerprints_of_equal_sets_are_equal() -> None:
    # Whole numbers that differ by the size of a small table collide, so their order is that in
    # which they were inserted.
    sets: list[set[int]] = []
    for numbers in ((0, 8), (8, 0)):
        filled: set[int] = set()
        for number in numbers:
            filled.add(number)
        sets.append(filled)
    assert repr(sets[0]) != repr(sets[1])
    for value_of in (set, lambda each: Setting(frozenset(each))):
        values = [value_of(each) for each in sets]
        tasks = [replace(SHORT, loss=partial(F.cross_entropy, of=each)) for each in values]
        assert fingerprint(tasks[0], FP32) == fingerprint(tasks[1], FP32)


@dataclass(frozen=True, eq=False)
class WeightedTask(Task):
    """A user's task with a field of its own."""

    class_weights: object = None


def test_a_field_with_an_array_has_a_fingerprint() -> None:
    values = {f.name: getattr(SHORT, f.name) for f in fields(SHORT)}
    tasks = [WeightedTask(**values, class_weights=np.full(3, weight)) for weight in (1.0, 2.0)]
    assert fingerprint(tasks[0], FP32) != fingerprint(tasks[1], FP32)


def test_a_loss_without_an_importable_name_is_refused(tmp_path: Path) -> None:
    class Losses:
        def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(outputs, targets)

    for loss, message in (
        (NAMELESS, "value of loss .*<lambda>.* top level of a module"),
        (partial(F.cross_entropy, weight=[lambda: 1]), "value of loss .*<lambda>"),
        (Losses.loss, r"value of loss .*<locals>\.Losses\.loss"),
        (Losses().loss, r"<locals>\.Losses"),
        (partial(F.cross_entropy, weight=object()), "<object object at 0x.*frozen dataclass"),
    ):
        with pytest.raises(ValueError, match=message):
            train_grid(replace(SHORT, loss=loss), [FP32], [0], tmp_path, workers=1)
    assert not list(tmp_path.iterdir())


def test_shipped_records_match_their_task_and_recipe() -> None:
    tasks = {**TASKS, **GPU_TASKS}
    # Forks are left out: they train under two recipes, one after the other.
    forks = ROOT / "data" / "forks"
    paths = [path for path in (ROOT / "data").rglob("*-seed*.json") if forks not in path.parents]
    records = [load(path) for path in paths]
    # More than 300 records are shipped; fewer mean that they were not found.
    assert len(records) > 300
    assert [
        r for r in records if r.fingerprint != fingerprint(tasks[r.task], RECIPES[r.recipe])
    ] == []


def test_fingerprints_do_not_change_with_names_of_fields() -> None:
    # Recorded when a recipe's `gradient_format` was called `gradients`.
    assert fingerprint(TASKS["digits"], RECIPES["FP8"]) == "64424e3a4683"


CARD = Place(torch.device("cpu"), "Stand-in T4", "gpu")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: (CARD,))


def test_each_device_has_a_folder_for_its_records(stand_in: None, tmp_path: Path) -> None:
    (on_gpu,) = train_grid(THIRTEEN_STEPS, [FP32], [0], tmp_path, device=None)
    (on_cpu,) = train_grid(THIRTEEN_STEPS, [FP32], [0], tmp_path)
    assert on_gpu.device == "Stand-in T4"
    assert on_cpu.device.startswith("CPU")
    assert load(tmp_path / "stand-in-t4" / "digits" / "fp32-seed0.json") == on_gpu
    assert load(tmp_path / "digits" / "fp32-seed0.json") == on_cpu


def test_records_of_two_devices_are_not_mixed(stand_in: None, tmp_path: Path) -> None:
    train_grid(THIRTEEN_STEPS, [FP32], [0], tmp_path, device=None)
    train_grid(THIRTEEN_STEPS, [FP32], [0], tmp_path)
    # Exchange the records of the CPU and of the GPU.
    (tmp_path / "digits").rename(tmp_path / "moved")
    (tmp_path / "stand-in-t4" / "digits").rename(tmp_path / "digits")
    (tmp_path / "moved").rename(tmp_path / "stand-in-t4" / "digits")
    with pytest.raises(
        ValueError, match=r"expected a record of Stand-in T4, got one of CPU .* not mixed"
    ):
        train_grid(THIRTEEN_STEPS, [FP32], [0], tmp_path, device="gpu")
    with pytest.raises(ValueError, match=r"expected a record of CPU .*, got one of Stand-in T4"):
        train_grid(THIRTEEN_STEPS, [FP32], [0], tmp_path, device="cpu")


def test_runs_use_the_cpu_unless_a_device_is_chosen(stand_in: None) -> None:
    assert TrainingRun(THIRTEEN_STEPS, FP32).place.emulated
    assert train(THIRTEEN_STEPS, FP32, steps=1).device.startswith("CPU")


def test_a_run_on_no_named_device_uses_the_gpu(stand_in: None) -> None:
    assert train(THIRTEEN_STEPS, FP32, steps=1, device=None).device == "Stand-in T4"


def test_the_default_place_is_the_gpu(stand_in: None) -> None:
    assert place() == place("gpu") == CARD


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_name_cpu_means_the_cpu_itself(stand_in: None, device: Any) -> None:
    """The stand-in for a GPU is a CPU, too."""
    assert place(device).emulated


def test_a_record_has_its_steps_per_second() -> None:
    record = train(THIRTEEN_STEPS, FP32)
    assert record.step_seconds is not None
    assert 0 < record.step_seconds < record.seconds
    assert record.steps_per_second == pytest.approx(1 / record.step_seconds)


def test_the_time_of_a_step_is_saved(tmp_path: Path) -> None:
    record = train(THIRTEEN_STEPS, FP32)
    assert load(record.save(tmp_path / "run.json")).step_seconds == record.step_seconds


def test_the_time_of_a_step_is_not_compared() -> None:
    record = train(THIRTEEN_STEPS, FP32)
    assert replace(record, step_seconds=1.0) == record


def test_runs_on_a_gpu_are_trained_one_after_the_other(stand_in: None, tmp_path: Path) -> None:
    records = train_grid(THIRTEEN_STEPS, [FP32, O1], [0], tmp_path, device="gpu")
    # Only a run that has the device to itself is timed.
    assert all(record.step_seconds for record in records)


def test_command_uses_the_gpu_and_says_so(
    stand_in: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = {name: replace(THIRTEEN_STEPS, name=name) for name in ("digits", "digits_gpu")}
    monkeypatch.setattr("labkit.commands.compare.ALL_TASKS", short)
    words = ["compare", "digits", "--recipes", "FP32", "O1", "--seeds", "0"]
    assert cli.main([*words, "--folder", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for text in (
        "digits on this GPU: Stand-in T4",
        "digits_gpu is large enough",
        "[Stand-in T4, torch",
    ):
        assert text in printed
    assert "Steps a second on Stand-in T4: FP32 " in printed
    assert record_path(tmp_path / "stand-in-t4", "digits", "O1", 0).exists()


def test_command_can_choose_the_cpu_beside_a_gpu(
    stand_in: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = {"digits": replace(THIRTEEN_STEPS, name="digits")}
    monkeypatch.setattr("labkit.commands.compare.ALL_TASKS", short)
    words = ["compare", "digits", "--recipes", "FP32", "--seeds", "0", "--folder", str(tmp_path)]
    assert cli.main([*words, "--device", "cpu", "--workers", "1"]) == 0
    assert "digits on CPU, emulated. FP16 products are emulated" in capsys.readouterr().out


def test_command_lists_all_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--list"]) == 0
    # A line begins with the name of its task; "digits" is the beginning of other names.
    first_words = {line.split(" ")[0] for line in capsys.readouterr().out.splitlines()}
    assert first_words >= {*TASKS, *GPU_TASKS}


def test_missing_device_ends_the_command_with_status_2(
    without_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "digits", "--device", "cuda"]) == 2
    assert 'expected a device of this machine, "cpu"' in capsys.readouterr().err
    assert cli.main(["compare"]) == 2
    assert "labkit compare --list" in capsys.readouterr().err


def race_of_two_ranks(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `labkit compare` with three seeds of the digits on two ranks."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["compare", "digits", "--recipes", "FP32", "--seeds", "0", "1", "2", "--device", "cpu"]
    return subprocess.run(
        [sys.executable, *torchrun, "-m", "labkit", *words, "--folder", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200 * slowness(),
        check=False,
    )


@pytest.mark.slow
def test_two_ranks_share_the_runs_of_a_grid(tmp_path: Path) -> None:
    first = race_of_two_ranks(tmp_path)
    assert first.returncode == 0, first.stderr
    # Only one rank prints, a line for each run.
    assert first.stdout.count("seed ") == 3
    paths = sorted(tmp_path.glob("digits/*.json"))
    assert [path.stem for path in paths] == ["fp32-seed0", "fp32-seed1", "fp32-seed2"]
    before = {path: (path.stat().st_mtime_ns, load(path)) for path in paths}
    paths[1].unlink()

    again = race_of_two_ranks(tmp_path)
    assert again.returncode == 0, again.stderr
    assert [path for path in paths if path.stat().st_mtime_ns != before[path][0]] == [paths[1]]
    assert [s.loss for s in load(paths[1]).steps] == [s.loss for s in before[paths[1]][1].steps]


T4 = Place(torch.device("cuda", 0), "Tesla T4", "gpu")
SECOND = Place(torch.device("cuda", 1), "Tesla T4", "gpu:1")


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: (T4, SECOND))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())


def test_gpu_comes_before_the_cpu(with_gpu: None) -> None:
    assert [device.label for device in places()] == [
        "this GPU: Tesla T4",
        "this GPU: Tesla T4",
        "CPU, emulated",
    ]
    assert [device.key for device in places()] == ["gpu", "gpu:1", "cpu"]
    assert place(None) == T4
    assert place() == T4


@pytest.mark.parametrize(
    "name", ["gpu", "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0), T4]
)
def test_the_first_gpu_has_the_names_of_labkit_and_of_torch(with_gpu: None, name: Any) -> None:
    assert place(name) == T4


@pytest.mark.parametrize("name", ["cuda:1", "gpu:1"])
def test_the_second_gpu_has_the_names_of_labkit_and_of_torch(with_gpu: None, name: str) -> None:
    assert place(name) == SECOND


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_has_the_names_of_torch(with_gpu: None, name: Any) -> None:
    assert place(name) == places()[-1]


def test_a_gpu_that_is_missing_is_refused_with_the_names(with_gpu: None) -> None:
    with pytest.raises(
        ValueError, match=r'expected .*"gpu" \(Tesla T4\), "gpu:1" \(Tesla T4\), "cpu"'
    ):
        place("cuda:2")


def test_without_a_gpu_the_default_is_the_cpu(without_gpu: None) -> None:
    (only,) = places()
    assert place(None) == only
    assert (only.device, only.key, only.emulated) == (torch.device("cpu"), "cpu", True)
    assert "emulated on this CPU" in only.sentence
    for name in ("cuda", "gpu", "cuda:0", torch.device("cuda"), "mps", "GPU please"):
        with pytest.raises(
            ValueError, match=rf'expected a device of this machine, "cpu" \(CPU.*got "{name}"'
        ):
            place(name)


def test_a_cpu_with_an_index_is_the_cpu(without_gpu: None) -> None:
    assert place("cpu:1") == place("cpu")


def test_another_device_of_torch_is_accepted_and_not_offered(without_gpu: None) -> None:
    meta = place("meta")
    assert meta.device == torch.device("meta")
    assert meta.label == "this device: meta"
    assert not meta.emulated
    assert meta not in places()


def test_unusable_gpu_is_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(name="Tesla V100", major=7, minor=0)
    new = SimpleNamespace(name="A10", major=8, minor=6)
    for name, answer in {
        "is_available": lambda: True,
        "get_arch_list": lambda: ["sm_75", "sm_80"],
        "device_count": lambda: 2,
        "get_device_properties": [old, new].__getitem__,
        "get_device_name": lambda number: [old, new][number].name,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    (card, _) = places()
    assert card.name == "A10"
    assert card.device == torch.device("cuda", 1)
    assert card.key == "gpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"has no kernels for this machine.s GPU \(Tesla V100\)"):
        place("cuda")


def test_worked_example_of_steps_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take half a second under FP32 and an eighth under O1.

    The slow first round does not count.
    """
    seconds = {"FP32": 0.5, "O1": 0.125}
    clock = [0.0]
    order = list[str]()

    def step(run: TrainingRun) -> None:
        clock[0] += seconds[run.recipe.name] * (100 if len(order) < 4 else 1)
        order.append(run.recipe.name)

    monkeypatch.setattr(TrainingRun, "step", step)
    monkeypatch.setattr(interleaved_timing.time, "perf_counter", lambda: clock[0])
    assert steps_per_second(TASKS["digits"], [FP32, O1], steps=2, rounds=3) == {
        "FP32": 2.0,
        "O1": 8.0,
    }
    assert order == ["FP32", "FP32", "O1", "O1"] * 4


def test_recipes_without_a_round_are_left_out() -> None:
    assert steps_per_second(TASKS["digits"], [FP32], stop=lambda: True) == {}


def test_nothing_is_timed_after_a_stop() -> None:
    answers = iter([False, False, True])
    rates = steps_per_second(
        TASKS["digits"], [FP32], steps=1, rounds=50, stop=lambda: next(answers)
    )
    # Two timings before the stop: the first is the warm-up. After it, `stop` is not called again.
    assert list(rates) == ["FP32"]
    assert list(answers) == []


def test_timings_of_two_recipes_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="different recipes, got 'FP32' twice"):
        steps_per_second(TASKS["digits"], [FP32, replace(O1, name="FP32")], steps=1, rounds=1)


@pytest.mark.parametrize("counts", [{"steps": 0}, {"rounds": 0}])
def test_timings_without_steps_or_rounds_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected steps and rounds of at least 1"):
        steps_per_second(TASKS["digits"], [FP32], **counts)


def test_a_sentence_without_rates_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the rate of one recipe or more, got none"):
        throughput_sentence({}, "Tesla T4")
