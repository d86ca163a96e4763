"""The items of a passport, on the CPU and on the simulated card."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.gpu import passport
from labkit.gpu.catalogue import catalogue
from labkit.gpu.job import Job
from labkit.gpu.measure import ulps_apart
from labkit.gpu.passport.probes import REFUSALS, reason_of
from labkit.gpu.passport.read import KINDS
from labkit.gpu.worker import Item, Kind, answer
from labkit.train import TASKS
from tests.gpu.rehearsal import lines_by_item
from tests.gpu.served_items import Found


def test_the_cpu_accepts_the_calls_that_cuda_accepts() -> None:
    accepted = [row for row in REFUSALS if not row.refused]
    assert {row.name.partition(" ")[0] for row in accepted} == {"batch_norm"}
    for row in accepted:
        row.call("cpu")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("RuntimeError: \"igamma_cuda\" not implemented for 'Half'", "igamma of Half"),
        ("CUDA error: out of memory", ""),
    ],
)
def test_a_reason_of_a_refusal_is_found_in_its_message(message: str, reason: str) -> None:
    assert reason_of(message) == reason


DRAWN = np.random.default_rng(0).normal(size=20).astype("f4")
SMALLEST = np.float32(2**-149)
SMALLEST_NORMAL = np.float32(2.0**-126)


@pytest.mark.parametrize(
    "start",
    [*DRAWN, np.float32(0), SMALLEST, -SMALLEST, -SMALLEST_NORMAL],
)
def test_ulps_are_counted_as_steps_of_nextafter(start: np.float32) -> None:
    end = start
    for steps in range(4):
        assert ulps_apart(float(start), float(end)) == steps
        end = np.nextafter(end, np.float32(np.inf))


@pytest.mark.parametrize(("a", "ulps"), [(math.inf, 0), (-math.inf, None), (1.0, None)])
def test_only_infinities_of_one_sign_are_ulps_apart(a: float, ulps: int | None) -> None:
    assert ulps_apart(a, math.inf) == ulps


@pytest.fixture(scope="module")
def items() -> list[Item]:
    """The items of a passport on the CPU."""
    return catalogue(Job("cpu"))


def test_items_have_different_names(items: list[Item]) -> None:
    names = [item.name for item in items]
    assert len(set(names)) == len(names)


def test_catalogue_has_every_recipe_and_task(items: list[Item]) -> None:
    trainings = {f"train {task} {recipe}" for task in TASKS for recipe in RECIPES}
    assert trainings <= {item.name for item in items}


def test_timings_are_last(items: list[Item]) -> None:
    kinds = [item.kind for item in items]
    assert kinds.index(Kind.TIMING) == len(kinds) - kinds.count(Kind.TIMING)


def test_the_reader_has_words_for_each_kind_of_item() -> None:
    assert set(KINDS) == set(Kind)


def test_a_training_on_the_cpu_equals_itself() -> None:
    (item,) = (item for item in catalogue(Job("cpu", quick=True)) if item.name == "train digits O1")
    line = json.loads(json.dumps(answer(item, "cpu")))
    assert line["outcome"] == "done"
    assert line["losses"] == line["cpu"]
    assert line["again"] == line["cpu"]
    assert line["ulps"] == [0, 0, 0]


# --- on the simulated card ------------------------------------------------------------------------

REFUSED = "refusal layer_norm of Half with weights of Float"
CAPTURED = "capture mma.sync.m16n8k8.f32.f16.f16.f32"
ON_T4 = (
    "card",
    "versions",
    "flags",
    REFUSED,
    "train digits O1",
    "train gpt FP16",
    "waits O1",
    "autocast torch_fp16",
    "autocast LSTM",
    "torch.amp CNN",
    CAPTURED,
    "pace digits",
)


def write_on_the_card(path: str) -> None:
    """Write a passport of ON_T4."""
    chosen = f"main(Job('cuda', quick=True), only={ON_T4!r})"
    command = [sys.executable, "-c", f"from tests.gpu.checks.__main__ import Job, main\n{chosen}"]
    assert passport.make(Path(path), command) == "complete"


@pytest.fixture(scope="module")
def file_of_t4(simulated_gpu: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a passport that was written on the simulated T4."""
    file = tmp_path_factory.mktemp("passport") / "passport.jsonl"
    simulated_gpu("T4", write_on_the_card, str(file))
    return file


@pytest.fixture(scope="module")
def of_t4(file_of_t4: Path) -> Found:
    """Item -> its line, measured on the simulated T4."""
    return lines_by_item(file_of_t4)


@pytest.mark.slow
def test_a_passport_of_a_card_has_the_chosen_items(of_t4: Found) -> None:
    assert set(of_t4) == {"start", *ON_T4, "end"}


@pytest.mark.slow
def test_a_card_has_its_compute_capability(of_t4: Found) -> None:
    assert of_t4["card"]["capability"] == [7, 5]


@pytest.mark.slow
def test_a_training_on_the_simulated_card_has_the_losses_of_the_cpu(of_t4: Found) -> None:
    assert of_t4["train digits O1"]["losses"] == of_t4["train digits O1"]["cpu"]


@pytest.mark.slow
def test_a_card_refuses_layer_norm_of_two_formats(of_t4: Found) -> None:
    assert of_t4[REFUSED]["refused"]


@pytest.mark.slow
def test_a_step_of_o1_waits_for_the_card(of_t4: Found) -> None:
    assert sum(of_t4["waits O1"]["waits"].values()) >= 1


@pytest.mark.slow
def test_steps_on_a_card_are_timed(of_t4: Found) -> None:
    assert of_t4["pace digits"]["steps_per_second"]["FP32"] > 0


@pytest.mark.slow
def test_autocast_differs_from_torch_only_where_a_call_is_unusable(of_t4: Found) -> None:
    line = of_t4["autocast torch_fp16"]
    assert line["calls"] > 30
    assert all(how.startswith("unusable: ") for how in line["unlike"].values())


@pytest.mark.slow
def test_an_lstm_without_cudnn_has_other_numbers(of_t4: Found, file_of_t4: Path) -> None:
    """Without cuDNN, torch runs an LSTM step by step."""
    expected = dict.fromkeys(("LSTM", "LSTM, packed"), "the numbers differ")
    assert of_t4["autocast LSTM"]["unlike"] == expected
    assert "LSTM, packed: the numbers differ" in passport.report(passport.read_file(file_of_t4))


@pytest.mark.slow
def test_the_simulated_card_has_no_driver_for_ptx(of_t4: Found) -> None:
    assert of_t4[CAPTURED]["outcome"] == "failed"
