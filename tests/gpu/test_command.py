"""The command `labkit gpu`: how its parts end, and what it prints about them."""

import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from labkit import cli, gpu
from labkit.amp import RECIPES
from labkit.bench import device_report
from labkit.gpu import passport
from labkit.gpu.worker import answer
from labkit.train import TASKS, Place, device_folder, load
from labkit.train.record import fingerprint
from tests.gpu.capture.test_capture import HOPPER
from tests.gpu.rehearsal import job_of, rehearse
from tests.gpu.served_items import serving

ROOT = Path(__file__).parents[2]

# A sitecustomize that hides packages: importing them fails, and they are not found.
HIDES_PACKAGES = """
import importlib.util, sys
find_spec = importlib.util.find_spec

class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hider())
importlib.util.find_spec = lambda name: None if name in {HIDDEN} else find_spec(name)
"""
HIDDEN = [
    "ipywidgets",
    "anywidget",
    "matplotlib",
    "IPython",
    "jupyterlab",
    "pytest",
    "nbformat",
    "triton",
    "expecttest",
    "scipy",
    "numba",
    "jinja2",
    "nbclient",
    "nbconvert",
    "traitlets",
    "pygments",
]


def test_parts_need_torch_and_numpy_only(tmp_path: Path) -> None:
    """All other packages that labkit may use are hidden, as on a machine without them."""
    (tmp_path / "sitecustomize.py").write_text(HIDES_PACKAGES.replace("{HIDDEN}", repr(HIDDEN)))
    command = [sys.executable, "-m", "labkit", "gpu", "--device", "cpu", "--quick"]
    command += ["--folder", str(tmp_path), "--only", "layers", "kernel"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "The checks need pytest (pip install pytest) and are left out; all" in done.stdout
    names = {path.name for path in tmp_path.rglob("*.json")}
    assert names == {"layers.json", "bandwidth.json"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("option", ["--folder", "--passport"])
def test_without_a_gpu_the_command_ends_with_2(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["gpu", option, str(tmp_path / "results")]) == 2
    message = capsys.readouterr().err
    assert "torch reaches no GPU here, so nothing was recorded" in message
    assert "--device cpu --quick" in message
    assert not list(tmp_path.iterdir())


# --- how parts end --------------------------------------------------------------------------------

HANGS = """
import json, threading
print(json.dumps({"items": [["sweep", "timing"]]}), flush=True)
threading.Event().wait()
"""


@dataclass(frozen=True)
class TroubledRun:
    """A finished run: its exit status, what it printed, and the parts that it started."""

    status: int
    printed: str
    started: list[str]


@pytest.fixture(scope="module")
def troubled_run(tmp_path_factory: pytest.TempPathFactory) -> TroubledRun:
    """A run in which the part "ceilings" hangs, "size" fails, and the others have no items."""
    programs = {"ceilings": HANGS, "size": "raise SystemExit(7)"}
    started = []

    def command_of(job: gpu.Job) -> list[str]:
        started.append(job.part)
        return [sys.executable, "-c", programs.get(job.part, "print('{\"items\": []}')")]

    folder = tmp_path_factory.mktemp("troubled")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as printed:
        patch.setattr(gpu.command, "worker_command", command_of)
        patch.setattr(gpu.command, "GRACE", 1.0)
        patch.setitem(gpu.PARTS, "ceilings", replace(gpu.PARTS["ceilings"], seconds=2.0))
        status = cli.main(["gpu", "--device", "cpu", "--folder", str(folder)])
    return TroubledRun(status, printed.getvalue(), started)


def test_a_part_that_hangs_or_fails_stops_no_other(troubled_run: TroubledRun) -> None:
    assert troubled_run.started == list(gpu.PARTS)
    assert "runs       done" in troubled_run.printed


def test_a_run_with_a_failed_part_ends_with_1(troubled_run: TroubledRun) -> None:
    assert troubled_run.status == 1


def test_a_part_that_hangs_is_stopped_at_its_limit(troubled_run: TroubledRun) -> None:
    expected = "ceilings   stopped after 3 s; its results so far are saved"
    assert expected in troubled_run.printed


def test_a_part_that_fails_is_named_with_its_status(troubled_run: TroubledRun) -> None:
    expected = "size       failed, its process ended with status 7; its last lines say why"
    assert expected in troubled_run.printed


def test_a_job_ends_with_the_time_of_its_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs = []

    def run_part(job: gpu.Job, seconds: float) -> str:
        jobs.append(job)
        return "done"

    monkeypatch.setattr(gpu.command, "run_part", run_part)
    before = time.time()
    cli.main(["gpu", "--device", "cpu", "--folder", str(tmp_path), "--only", "mma"])
    seconds = gpu.PARTS["mma"].seconds
    (job,) = jobs
    assert before + seconds <= job.until <= time.time() + seconds


def test_ctrl_c_in_a_part_ends_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = {"item": "end", "kind": "facts", "outcome": "interrupted", "missing": ["sweep size"]}
    monkeypatch.setattr(passport, "lines", lambda *_, **__: iter([ended]))
    with pytest.raises(KeyboardInterrupt):
        gpu.command.run_part(job_of(tmp_path, "size"), 1.0)


def test_a_part_for_which_no_time_is_left_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpu", "--device", "cpu", "--folder", str(tmp_path), "--seconds", "5", "--only", "mma"]
    assert cli.main(words) == 1
    assert "mma        not begun, the time was up" in capsys.readouterr().out


def test_a_part_without_items_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rehearse(tmp_path, "mma") == 0
    printed = capsys.readouterr().out
    assert "has no instruction that the lab knows how to ask" in printed
    assert "mma        done" in printed
    assert not list(tmp_path.rglob("*.jsonl"))


# --- items that fail ------------------------------------------------------------------------------


@pytest.fixture
def _three_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts have three items: the second fails, and the third ends the process."""
    command = serving("time prints", "time fails", "time aborts")
    monkeypatch.setattr(gpu.command, "worker_command", lambda _: command)


@pytest.mark.usefixtures("_three_items")
def test_a_part_keeps_its_items_as_a_passport_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = gpu.command.run_part(job_of(tmp_path, "speed"), 60.0)
    assert outcome == "failed, its process ended with SIGABRT; its last lines say why"
    (path,) = tmp_path.rglob("speed.jsonl")
    assert capsys.readouterr().out.splitlines() == [
        "time prints: done",
        "time fails: FAILED, ValueError: expected an even number, got 3",
        "time aborts: PROCESS LOST, its process ended with SIGABRT",
        f"{path}: 3 of 3 items",
    ]
    assert passport.read_file(path).whole


@pytest.mark.usefixtures("_three_items")
def test_a_part_without_time_names_the_items_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.command.run_part(job_of(tmp_path, "speed", seconds=-1), -1.0) == "done"
    *printed, _ = capsys.readouterr().out.splitlines()
    assert printed == [
        f"time {name}: LEFT OUT, the time was up" for name in ("prints", "fails", "aborts")
    ]


# --- trainings ------------------------------------------------------------------------------------


def summary_of_training(job: gpu.Job) -> str:
    (item,) = gpu.PARTS["runs"].items(job)
    return str(answer(item, "cpu")["summary"])


def test_a_training_without_time_leaves_no_record(tmp_path: Path) -> None:
    job = job_of(tmp_path, seconds=-1)
    assert summary_of_training(job) == "not finished, the time was up"
    assert not list(tmp_path.rglob("*.json"))


def test_a_training_is_recorded_in_the_folder_of_its_device(tmp_path: Path) -> None:
    summary = summary_of_training(job_of(tmp_path))
    folder = tmp_path / "runs" / device_report("cpu").slug / "quick" / "segmentation"
    path = folder / "fp32-seed0.json"
    assert str(path) in summary
    record = load(path)
    # A quick run trains a shorter task, so it has another fingerprint.
    shorter = replace(TASKS["segmentation"], steps=2)
    assert record.fingerprint == fingerprint(shorter, RECIPES["FP32"])
    assert len(record.steps) == 2


@pytest.mark.parametrize("name", ["Tesla T4", "NVIDIA GeForce RTX 4060 Laptop GPU"])
def test_runs_of_a_gpu_are_read_from_the_folder_of_its_sweeps(name: str, tmp_path: Path) -> None:
    folder = device_folder(tmp_path, Place(torch.device("cuda"), name, "gpu"))
    assert folder == tmp_path / replace(HOPPER, name=name).slug
