"""Sweeps of products that `labkit gpu` records, run on a CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit import gpu
from labkit.bench import GemmCase, GemmRecord, device_report, from_json, sweeps, timing
from labkit.formats import FP32
from labkit.gpu import job as gpu_job
from labkit.gpu import recordings
from labkit.gpu.worker import answer
from tests.gpu.capture.test_capture import HOPPER
from tests.gpu.rehearsal import Rehearsal, job_of, rehearsal


@pytest.fixture(scope="module")
def size(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A rehearsal of the part "size"."""
    return rehearsal(tmp_path_factory.mktemp("sweep"), "size")


@pytest.fixture(scope="module")
def quick_sweep(size: Rehearsal) -> GemmRecord:
    """The record of a quick sweep."""
    (path,) = size.folder.rglob("size.json")
    return from_json(path.read_text())


@pytest.fixture
def longer_sweep(quick_sweep: GemmRecord, tmp_path: Path) -> Path:
    """The file of a sweep with twice the runs."""
    path = tmp_path / "size.json"
    path.write_text(replace(quick_sweep, runs=2 * quick_sweep.runs).to_json())
    return path


def test_a_sweep_is_saved_in_the_folder_of_its_device(size: Rehearsal) -> None:
    assert size.status == 0
    folder = size.folder / "gemm" / device_report("cpu").slug
    # No temporary file is left.
    assert [file.name for file in folder.iterdir()] == ["size.json"]


def test_a_sweep_has_its_origin(quick_sweep: GemmRecord) -> None:
    assert quick_sweep.sweep == "size"
    assert (quick_sweep.device, quick_sweep.kind) == (device_report("cpu").name, "cpu")
    assert {"python", "torch"} <= set(quick_sweep.versions)


def test_a_part_prints_the_file_of_its_sweep(size: Rehearsal) -> None:
    (path,) = size.folder.rglob("size.json")
    assert str(path) in size.printed


def test_a_quick_sweep_replaces_no_longer_one(quick_sweep: GemmRecord, longer_sweep: Path) -> None:
    before = longer_sweep.read_text()
    recordings.save_sweep(longer_sweep, quick_sweep, quick=True)
    assert longer_sweep.read_text() == before


def test_a_sweep_that_is_not_quick_replaces_a_longer_one(
    quick_sweep: GemmRecord, longer_sweep: Path
) -> None:
    recordings.save_sweep(longer_sweep, quick_sweep, quick=False)
    assert from_json(longer_sweep.read_text()) == quick_sweep


def test_a_quick_sweep_replaces_a_file_that_is_no_record(
    quick_sweep: GemmRecord, tmp_path: Path
) -> None:
    path = tmp_path / "size.json"
    path.write_text("not a record")
    recordings.save_sweep(path, quick_sweep, quick=True)
    assert from_json(path.read_text()) == quick_sweep


def test_parts_record_every_sweep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_job, "device_report", lambda _: HOPPER)
    job = job_of(tmp_path, device="cuda")
    items = [item.name for part in gpu.PARTS.values() for item in part.items(job)]
    recording = [name for name in items if "sweep" in name]
    assert sorted(recording) == sorted(f"sweep {name}" for name in sweeps(HOPPER))


def test_a_sweep_is_on_the_disk_after_each_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measure = recordings.measure
    rounds = 0

    def measure_two_rounds(*words: Any, progress: Any, **options: Any) -> GemmRecord:
        def fail_in_third_round(record: GemmRecord) -> None:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                raise RuntimeError("no third round")
            progress(record)

        return measure(*words, progress=fail_in_third_round, **options)

    monkeypatch.setattr(recordings, "measure", measure_two_rounds)
    (item,) = gpu.PARTS["size"].items(job_of(tmp_path, "size"))
    line = answer(item, "cpu")
    assert line["error"] == "RuntimeError: no third round"
    assert "8 cases" in line["summary"]
    (path,) = tmp_path.rglob("size.json")
    assert from_json(path.read_text()).runs


def test_failing_case_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [GemmCase(n, n, n, FP32) for n in (16, 24, 32)]
    seconds = timing._PreparedCase.seconds
    timed = []

    def seconds_or_failure(prepared: timing._PreparedCase) -> float:
        timed.append(prepared.case)
        # The first two calls of a case are its warm-up.
        if prepared.case == cases[1] and timed.count(cases[1]) > 2:
            raise RuntimeError("no memory")
        return seconds(prepared)

    monkeypatch.setattr(timing._PreparedCase, "seconds", seconds_or_failure)
    left_out = []
    runs = timing.run_cases(
        cases, rounds=2, left_out=lambda case, why: left_out.append((case, why))
    )
    assert [run.case for run in runs] == [cases[0], cases[2]]
    assert left_out == [(cases[1], "no memory")]
