"""Measurements of `labkit gpu`: trainings, steps, memory, and faults of a GPU."""

import gc
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labkit import cli
from labkit.amp import RECIPES
from labkit.bench import device_report
from labkit.faults.gpu import GpuCard
from labkit.gpu import measure
from labkit.gpu.worker import answer
from labkit.train import TASKS, place
from tests.gpu.rehearsal import Rehearsal, lines_of, rehearsal

# --- the part "tasks" -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A rehearsal of the part "tasks"."""
    return rehearsal(tmp_path_factory.mktemp("tasks"), "tasks")


def test_a_part_of_tasks_ends_with_0(tasks: Rehearsal) -> None:
    assert tasks.status == 0


def test_a_task_is_timed_under_four_recipes(tasks: Rehearsal) -> None:
    line = lines_of(tasks.folder, "tasks")["pace digits"]
    assert set(line["steps_per_second"]) == {"FP32", "FP16 dynamic", "O1", "BF16"}


def test_the_steps_a_second_of_a_task_are_printed(tasks: Rehearsal) -> None:
    assert f"digits: Steps a second on {place('cpu').name}: FP32 " in tasks.printed


def test_a_task_is_trained_twice_with_the_same_losses(tasks: Rehearsal) -> None:
    assert "train digits O1: trained twice: the same losses" in tasks.printed


def test_the_file_of_a_part_can_be_read_like_a_passport(
    tasks: Rehearsal, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (tasks.folder / "checks").rglob("tasks.jsonl")
    assert cli.main(["gpu", "--read", str(path)]) == 0
    assert f"Passport of {device_report('cpu').facts}" in capsys.readouterr().out


# --- steps ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    """Name -> item of a step of a network, of the smallest size."""
    items = measure.speed({"width": 64, "batch": 8}, steps=1, rounds=1)
    named = {item.name: item for item in items}
    assert len(named) == len(items)
    return named


def test_three_networks_are_timed_plain_and_compiled(steps: dict[str, Any]) -> None:
    # training and inference; plain, and compiled in each way
    assert len(steps) == 3 * 2 * (1 + len(measure.COMPILED))


@pytest.mark.slow
def test_training_of_a_unet_is_timed(steps: dict[str, Any]) -> None:
    line = answer(steps["training of UNet of width 64, batch 1"], "cpu")
    assert line["outcome"] == "done"
    assert not line["failed"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", measure.KINDS)
def test_a_step_is_timed_in_every_way(steps: dict[str, Any], kind: str) -> None:
    line = answer(steps[f"{kind} of MLP of width 4, batch 2"], "cpu")
    assert not line["failed"]
    assert list(line["seconds_a_call"]) == [*measure.SPEED_WAYS]
    assert min(line["seconds_a_call"].values()) > 0
    assert line["summary"].count("x as fast as FP32") == len(measure.SPEED_WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", measure.KINDS)
@pytest.mark.parametrize("way", measure.COMPILED)
def test_a_compiled_step_is_timed_beside_fp32(steps: dict[str, Any], way: str, kind: str) -> None:
    line = answer(steps[f"{kind} of MLP of width 4, batch 2, {way}"], "cpu")
    assert list(line["seconds_a_call"]) == ["FP32", way]
    assert not line["failed"]


@pytest.mark.slow
def test_a_timed_step_restores_the_settings_of_products(steps: dict[str, Any]) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    answer(steps["training of MLP of width 4, batch 2"], "cpu")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


# --- items in which something fails ---------------------------------------------------------------

PLANTED = "expected a healthy item, got a planted fault"


def planted(*_: object, **__: object) -> Any:
    raise RuntimeError(PLANTED)


def items_with_planted_failures() -> dict[str, Any]:
    """Return the lines of items on the card in which a recipe or the whole task fails."""
    size = {"width": 32, "batch": 4}
    cost = measure.cost("LSTM", "training", measure.AMP_WAYS, size, steps=1, rounds=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measure.REGIONS, measure.DROP_IN, (planted, planted))
        lines = {"cost": answer(cost, "cuda")}
    broken = replace(TASKS["digits"], name="broken", make_model=planted)
    lines["pace"] = answer(measure.pace(broken, lambda: 60.0, steps=1, rounds=1), "cuda")
    lines["twice"] = answer(measure.twice(broken, RECIPES["O1"]), "cuda")
    return dict(json.loads(json.dumps(lines)))


def memory_of_a_step_beside_garbage() -> float:
    """Return the MiB that `prepared` measures for a step of 1 MiB.

    A cycle of references holds 8 MiB from before, which a collection during the step frees.
    """
    gc.disable()
    cycle = SimpleNamespace(tensor=torch.zeros(2**21, device="cuda"))
    cycle.itself = cycle
    del cycle

    def make() -> Any:
        gc.collect()
        held = torch.zeros(2**18, device="cuda")
        return lambda: held.sum()

    return measure.prepared(make, "cuda")[1]


@pytest.fixture(scope="module")
def failing_items(simulated_gpu: Any) -> dict[str, Any]:
    """Item -> its line, measured on a simulated card."""
    outcomes = simulated_gpu("T4", [items_with_planted_failures])
    return dict(outcomes[items_with_planted_failures])


@pytest.mark.slow
def test_a_way_that_fails_is_named(failing_items: dict[str, Any]) -> None:
    cost = failing_items["cost"]
    assert cost["failed"] == {"drop-in": f"RuntimeError: {PLANTED}"}
    assert f"  drop-in: LEFT OUT, RuntimeError: {PLANTED}" in cost["summary"].splitlines()


@pytest.mark.slow
def test_the_other_ways_have_their_time_and_memory(failing_items: dict[str, Any]) -> None:
    cost = failing_items["cost"]
    assert set(cost["seconds_a_call"]) == {"torch.amp", "O1", "O2", "FP32"}
    assert all(mebibytes > 0 for mebibytes in cost["mebibytes"].values())


@pytest.mark.slow
def test_a_recipe_that_fails_is_named_with_its_error(failing_items: dict[str, Any]) -> None:
    assert failing_items["pace"]["failed"]["O1"] == f"RuntimeError: {PLANTED}"


@pytest.mark.slow
def test_a_task_that_fails_fails_its_item(failing_items: dict[str, Any]) -> None:
    twice = failing_items["twice"]
    assert (twice["outcome"], twice["error"]) == ("failed", f"RuntimeError: {PLANTED}")


@pytest.mark.slow
def test_memory_of_a_step_excludes_garbage_from_before(simulated_gpu: Any) -> None:
    outcomes = simulated_gpu("T4", [memory_of_a_step_beside_garbage])
    assert 1 <= outcomes[memory_of_a_step_beside_garbage] < 1.1


# --- faults of a GPU ------------------------------------------------------------------------------


def card_of(broken: float | Exception, repaired: float | Exception) -> GpuCard:
    """Return a fault of a GPU whose forms return these numbers, or raise these errors."""

    def function(device: str, fixed: bool, size: int) -> float:
        """A made-up fault.

        Symptom: None.
        Cause: None.
        Reading: None.
        Repair: None.
        Error: no such kernel
        """
        outcome = repaired if fixed else broken
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return GpuCard(function, unit="times")


NO_KERNEL = RuntimeError("no such kernel")
NO_MEMORY = RuntimeError("no memory")


@pytest.mark.parametrize(
    ("broken", "repaired", "summary"),
    [
        (1.0, 4.0, "1 as it fails, 4 repaired (times); it shows here"),
        (4.0, 4.0, "4 as it fails, 4 repaired (times); it does not show here"),
        (
            NO_KERNEL,
            4.0,
            "RuntimeError: no such kernel as it fails, 4 repaired (times); it shows here",
        ),
        (
            NO_KERNEL,
            NO_MEMORY,
            "not measured, the repaired form failed: RuntimeError: no memory",
        ),
        (1.0, NO_MEMORY, "not measured, the repaired form failed: RuntimeError: no memory"),
    ],
)
def test_a_fault_of_a_gpu_has_a_summary(
    broken: float | Exception, repaired: float | Exception, summary: str
) -> None:
    (item,) = measure.cards([card_of(broken, repaired)], 8)
    assert answer(item, "cpu")["summary"] == summary
