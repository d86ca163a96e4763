"""Where does a race run, and are its records kept apart? A second label for the CPU stands in for a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit import cli
from labkit.amp import RECIPES
from labkit.train import GPU_TASKS, TASKS, Place, TrainingRun, compare, devices, load, race, record_path, train

SHORT = replace(TASKS["digits"], steps=13)
FP32, O1 = RECIPES["FP32"], RECIPES["O1"]
CARD = Place(torch.device("cpu"), "Stand-in T4", "gpu")


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: (CARD,))


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())


def test_worked_example_each_device_has_its_folder_and_its_name_on_record(with_gpu: None, tmp_path: Path) -> None:
    (there,) = race(SHORT, [FP32], [0], tmp_path, device=None)
    (here,) = race(SHORT, [FP32], [0], tmp_path)
    assert there.device == "Stand-in T4"
    assert here.device.startswith("CPU")
    assert load(tmp_path / "stand-in-t4" / "digits" / "fp32-seed0.json") == there
    assert load(tmp_path / "digits" / "fp32-seed0.json") == here


def test_what_decides_grades_and_evidence_stays_on_the_cpu_unless_a_device_is_named(with_gpu: None) -> None:
    assert TrainingRun(SHORT, FP32).place.emulated
    assert train(SHORT, FP32, steps=1).device.startswith("CPU")
    assert train(SHORT, FP32, steps=1, device=None).device == "Stand-in T4"


def test_a_record_of_another_device_is_not_taken_for_this_ones(with_gpu: None, tmp_path: Path) -> None:
    """Somebody copied a CPU's records to where the GPU's are, and the other way round."""
    race(SHORT, [FP32], [0], tmp_path)
    (tmp_path / "digits").rename(tmp_path / "moved")
    race(SHORT, [FP32], [0], tmp_path, device="gpu")
    (tmp_path / "stand-in-t4" / "digits").rename(tmp_path / "digits")
    (tmp_path / "moved").rename(tmp_path / "stand-in-t4" / "digits")
    with pytest.raises(ValueError, match=r"is a record of CPU .*, and Stand-in T4 was asked for: .* not mixed"):
        race(SHORT, [FP32], [0], tmp_path, device="gpu")
    with pytest.raises(ValueError, match=r"is a record of Stand-in T4, and CPU .* was asked for"):
        race(SHORT, [FP32], [0], tmp_path, device="cpu")


def test_a_run_is_made_on_the_device_that_was_named() -> None:
    """On torch's meta device, where tensors have shapes and no numbers: only the wiring is seen."""
    run = TrainingRun(SHORT, O1, device="meta")
    assert {t.device.type for t in (*run.model.parameters(), *run.batch(1))} == {"meta"}


def test_without_a_gpu_asking_for_one_is_refused_before_anything_is_made(without_gpu: None, tmp_path: Path) -> None:
    for asked in (
        lambda: train(SHORT, FP32, device="cuda"),
        lambda: compare(SHORT, [FP32], folder=tmp_path, device="gpu"),
    ):
        with pytest.raises(ValueError, match="this machine has"):
            asked()
    assert not list(tmp_path.iterdir())


# How fast it was: only where it was alone on its device


def test_a_run_says_how_many_steps_a_second_it_made(tmp_path: Path) -> None:
    alone = train(SHORT, FP32)
    assert alone.step_seconds is not None
    assert 0 < alone.step_seconds < alone.seconds
    assert alone.steps_per_second == pytest.approx(1 / alone.step_seconds)
    assert load(alone.save(tmp_path / "run.json")).step_seconds == alone.step_seconds
    assert replace(alone, step_seconds=1.0) == alone, "what a clock said is no part of what a run is"


def test_runs_on_a_gpu_are_never_side_by_side(with_gpu: None, tmp_path: Path) -> None:
    assert all(r.step_seconds for r in race(SHORT, [FP32, O1], [0], tmp_path, device="gpu"))


# The command


@pytest.fixture
def short_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.train import race_cli

    monkeypatch.setattr(race_cli, "BOTH", {"digits": SHORT, "digits_gpu": replace(SHORT, name="digits_gpu")})


def test_the_command_takes_the_gpu_where_there_is_one_and_says_so(
    with_gpu: None, short_tasks: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"race digits --recipes FP32 O1 --seeds 0 --folder {tmp_path}".split()
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    for part in ("digits on this GPU: Stand-in T4", "digits_gpu is large enough", "[Stand-in T4, torch"):
        assert part in said
    assert "Steps a second on Stand-in T4: FP32 " in said
    assert record_path(tmp_path / "stand-in-t4", "digits", "O1", 0).exists()
    assert cli.main([*words, "--device", "cpu", "--workers", "1"]) == 0
    assert "digits on CPU, emulated. FP16 products are emulated" in capsys.readouterr().out
    assert cli.main(["race", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in (*TASKS, *GPU_TASKS))


def test_a_device_that_is_not_there_is_a_question_it_cannot_answer(
    without_gpu: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["race", "digits", "--device", "cuda"]) == 2
    assert 'no device "cuda" to train on here; this machine has "cpu"' in capsys.readouterr().err
    assert cli.main(["race"]) == 2
    assert "labkit race --list" in capsys.readouterr().err
