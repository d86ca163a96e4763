"""The parts of `labkit gpu`, on a CPU and with stand-ins for the GPU.

The tests run parts, plant failures into single items, and check which results are saved and what is
printed.
"""

import gc
import io
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit import cli, gpu
from labkit.amp import RECIPES
from labkit.bench import GemmCase, device_report, from_json, sweeps, timing
from labkit.faults.gpu import GpuCard
from labkit.formats import FP32
from labkit.gemm import SPECS
from labkit.gpu import catalogue, measure, passport, recordings, worker
from labkit.gpu import job as gpu_job
from labkit.gpu.progress import read_progress
from labkit.gpu.worker import answer
from labkit.train import TASKS, Place, device_folder, load, place
from labkit.train.record import fingerprint
from tests.gpu.capture import tiles
from tests.gpu.capture.kernel import INSTRUCTIONS
from tests.gpu.capture.test_capture import HOPPER, stand_in
from tests.gpu.capture.tiles import load_capture
from tests.gpu.checks import __main__ as served_checks
from tests.gpu.checks import test_checks
from tests.gpu.conftest import CheckRun
from tests.gpu.test_passport import serving

ROOT = Path(__file__).parents[2]


def rehearse(folder, *only):
    """Run parts on the CPU, with enough time for a busy machine, and return the exit status."""
    with pytest.MonkeyPatch.context() as patch:
        for name in only:
            patch.setitem(gpu.PARTS, name, replace(gpu.PARTS[name], seconds=300.0))
        return cli.main(
            ["gpu", "--device", "cpu", "--quick", "--folder", str(folder), "--only", *only]
        )


def order(folder, part="", device="cpu", seconds=60.0, quick=True):
    return gpu.Job(device, part, quick, time.time() + seconds, folder)


def test_a_sweep_is_saved_with_its_origin(tmp_path, capsys):
    assert rehearse(tmp_path, "size") == 0
    report = device_report("cpu")
    path = tmp_path / "gemm" / report.slug / "size.json"
    record = from_json(path.read_text())
    assert record.sweep == "size"
    assert record.device == report.name
    assert record.kind == "cpu"
    assert {"python", "torch"} <= set(record.versions)
    assert str(path) in capsys.readouterr().out
    # No temporary file stays.
    assert [file.name for file in path.parent.iterdir()] == ["size.json"]


@pytest.fixture(scope="module")
def quick_sweep(tmp_path_factory):
    """The record of a quick sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    rehearse(folder, "size")
    (path,) = folder.rglob("size.json")
    return from_json(path.read_text())


@pytest.fixture
def longer_sweep(quick_sweep, tmp_path):
    """The file of a sweep with twice the runs."""
    path = tmp_path / "size.json"
    path.write_text(replace(quick_sweep, runs=2 * quick_sweep.runs).to_json())
    return path


def test_a_quick_sweep_replaces_no_longer_one(quick_sweep, longer_sweep):
    before = longer_sweep.read_text()
    recordings.save_sweep(longer_sweep, quick_sweep, quick=True)
    assert longer_sweep.read_text() == before


def test_a_sweep_that_is_not_quick_replaces_a_longer_one(quick_sweep, longer_sweep):
    recordings.save_sweep(longer_sweep, quick_sweep, quick=False)
    assert from_json(longer_sweep.read_text()) == quick_sweep


def test_a_quick_sweep_replaces_a_file_that_is_no_record(quick_sweep, tmp_path):
    path = tmp_path / "size.json"
    path.write_text("not a record")
    recordings.save_sweep(path, quick_sweep, quick=True)
    assert from_json(path.read_text()) == quick_sweep


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


def test_parts_need_torch_and_numpy_only(tmp_path):
    """All other packages that labkit may use are hidden, as on a machine without them."""
    (tmp_path / "sitecustomize.py").write_text(HIDES_PACKAGES.replace("{HIDDEN}", repr(HIDDEN)))
    command = [
        sys.executable,
        "-m",
        "labkit",
        "gpu",
        "--device",
        "cpu",
        "--quick",
        "--folder",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [*command, "--only", "layers", "kernel"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "The checks need pytest (pip install pytest) and are left out; all" in done.stdout
    names = {path.name for path in tmp_path.rglob("*.json")}
    assert names == {"layers.json", "bandwidth.json"}


# Quick runs on a GPU


def quick_budgets(*words):
    return gpu.command.budgets_of(cli.parser_of("gpu").parse_args(["--quick", *words]))


def test_a_quick_run_has_five_parts():
    assert set(quick_budgets()) == {"ceilings", "size", "layers", "alignment", "tasks"}


def test_a_quick_run_takes_three_minutes():
    assert sum(quick_budgets().values()) + gpu.GRACE <= gpu.QUICK_LIMIT == 3 * 60


def test_a_quick_rehearsal_on_a_cpu_has_all_parts():
    assert list(quick_budgets("--device", "cpu")) == list(gpu.PARTS)


def test_a_quick_run_of_a_chosen_part_has_its_time():
    assert quick_budgets("--only", "mma") == {"mma": gpu.PARTS["mma"].seconds}


def test_all_parts_take_nine_minutes():
    assert sum(part.seconds for part in gpu.PARTS.values()) + gpu.GRACE <= gpu.LIMIT < 9 * 60


def test_a_quick_run_has_the_sizes_of_its_device(tmp_path):
    assert order(tmp_path, device="cuda").extent is gpu_job.GPU_SHORT
    assert order(tmp_path).extent is gpu_job.QUICK
    assert order(tmp_path, device="cuda", quick=False).extent is None


def test_a_quick_run_on_a_gpu_reaches_size_4096():
    assert max(gpu_job.GPU_SHORT.sizes) >= 4096


def test_a_quick_copy_on_a_gpu_takes_less_than_a_gibibyte():
    # A copy has two tensors of 4 bytes an element; a third may be needed beside them.
    assert 3 * 4 * gpu_job.GPU_SHORT.elements < 2**30


def test_parts_record_every_sweep(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_job, "device_report", lambda _: HOPPER)
    job = order(tmp_path, device="cuda")
    recording = [
        item.name for part in gpu.PARTS.values() for item in part.items(job) if "sweep" in item.name
    ]
    assert sorted(recording) == sorted(f"sweep {name}" for name in sweeps(HOPPER))


def lines_of(folder, part):
    """Return the lines that a part saved by their items, without the first line and the last."""
    (path,) = (folder / "checks").rglob(f"{part}.jsonl")
    return {line["item"]: line for line in map(json.loads, path.read_text().splitlines()[1:-1])}


# Tensor Cores, with the emulator in their place

# The program of a worker process that serves saved lines.
SERVE_SAVED_LINES = """
import json, sys
from pathlib import Path
from labkit.gpu.worker import Item, Kind, serve
found = {line["item"]: line for line in json.loads(Path(sys.argv[1]).read_text())}
items = []
for name, line in found.items():
    items.append(Item(name, Kind.CAPTURE, lambda _, into, line=line: into.update(line)))
serve(items, "cpu")
"""


def test_answers_of_a_tensor_core_are_saved(monkeypatch, tmp_path, capsys):
    wrong = "mma.sync.m16n8k8.f32.f16.f16.f32"
    answers = {True: stand_in(SPECS["H100"], wrong=(5,)), False: stand_in(SPECS["H100"])}
    monkeypatch.setattr(
        tiles, "capture", lambda row, *words: answers[row.name == wrong](row, *words)
    )
    for module in (tiles, gpu_job):
        monkeypatch.setattr(module, "device_report", lambda _: HOPPER)
    captures = []
    for row in (row for row in INSTRUCTIONS if row.runs_on((9, 0)) and not row.grouped):
        check_run = CheckRun(thorough=False)
        with pytest.raises(AssertionError) if row.name == wrong else nullcontext():
            test_checks.test_a_real_tensor_core_equals_the_emulator(check_run, row)
        assert bool(check_run.found["mismatches"]) == (row.name == wrong)
        captures.append({"item": f"capture {row.name}", "kind": "capture", **check_run.found})
    served = tmp_path / "served.json"
    served.write_text(json.dumps(captures))
    monkeypatch.setattr(
        gpu.command,
        "worker_command",
        lambda _: [sys.executable, "-c", SERVE_SAVED_LINES, str(served)],
    )
    assert gpu.command.run_part(order(tmp_path, "mma", "cuda"), 60.0) == "done"
    printed = capsys.readouterr().out.splitlines()
    files = sorted((tmp_path / "mma" / "a-stand-in").iterdir())
    assert [f"capture {file.stem}" for file in files] == sorted(line["item"] for line in captures)
    assert load_capture(files[-1]).device == "A stand-in"
    assert sum(": 0 of " in line for line in printed) == len(captures) - 1
    lines = lines_of(tmp_path, "mma")
    assert len(lines) == len(captures)
    assert not any("npz" in line for line in lines.values())


# Checks and trainings


@pytest.fixture(scope="module")
def rehearsed_tasks(tmp_path_factory):
    """The folder of a rehearsal of the part "tasks", and what it printed."""
    folder = tmp_path_factory.mktemp("tasks")
    with redirect_stdout(io.StringIO()) as printed:
        assert rehearse(folder, "tasks") == 0
    return folder, printed.getvalue()


def test_tasks_are_timed_and_reported(rehearsed_tasks):
    folder, printed = rehearsed_tasks
    assert f"digits: Steps a second on {place('cpu').name}: FP32 " in printed
    assert "train digits O1: trained twice: the same losses" in printed
    assert set(lines_of(folder, "tasks")["pace digits"]["steps_per_second"]) == {
        "FP32",
        "FP16 dynamic",
        "O1",
        "BF16",
    }


def test_the_file_of_a_part_can_be_read_like_a_passport(rehearsed_tasks, capsys):
    folder, _ = rehearsed_tasks
    (path,) = (folder / "checks").rglob("tasks.jsonl")
    assert cli.main(["gpu", "--read", str(path)]) == 0
    assert f"Passport of {device_report('cpu').facts}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_step_is_timed_under_every_recipe_of_the_comparison():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    items = measure.speed({"width": 64, "batch": 8}, steps=1, rounds=1)
    # Three networks, training and evaluation, plain and compiled in each way.
    assert len({item.name for item in items}) == len(items)
    assert len(items) == 3 * 2 * (1 + len(measure.COMPILED))
    (unet,) = [item for item in items if item.name == "training of UNet of width 64, batch 1"]
    assert not answer(unet, "cpu")["failed"]
    lines = [answer(item, "cpu") for item in items if "MLP of width 4," in item.name]
    assert [*lines[0]["seconds_a_call"]] == [*measure.SPEED_WAYS]
    # the second way of a compiled network is how it is compiled
    compiled = [list(line["seconds_a_call"])[1] for line in lines[2::2]]
    assert compiled == list(measure.COMPILED)
    for line in lines:
        assert min(line["seconds_a_call"].values()) > 0
        assert not line["failed"]
        assert line["summary"].count("x as fast as FP32") == len(line["seconds_a_call"])
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


@pytest.fixture
def no_checkout(monkeypatch, tmp_path):
    """The sentence about checks that are left out, in a lab that is no checkout."""
    why = worker.why_no_checks(tmp_path)
    for module in (gpu.command, catalogue):
        monkeypatch.setattr(module, "why_no_checks", lambda: why)
    return why


def test_without_a_checkout_it_says_that_checks_are_left_out(no_checkout):
    assert no_checkout.startswith(
        "The checks need a checkout of the lab and are left out; records, measurements and "
    )


def test_without_a_checkout_a_part_of_checks_cannot_be_run(no_checkout, tmp_path, capsys):
    assert rehearse(tmp_path, "mma") == 2
    assert capsys.readouterr().err == (
        f"labkit gpu: the chosen parts consist of checks. {no_checkout}\n"
    )


def test_without_a_checkout_a_part_has_its_measurements(no_checkout, tmp_path, capsys):
    assert rehearse(tmp_path, "amp") == 0
    printed = capsys.readouterr().out
    assert f"{no_checkout}\n" in printed
    mlp = "training of MLP of width 64, batch 8"
    assert f"{mlp}: " in printed
    assert list(lines_of(tmp_path, "amp")[mlp]["seconds_a_call"]) == [*measure.AMP_WAYS]


@pytest.mark.usefixtures("no_checkout")
def test_without_a_checkout_parts_of_checks_alone_are_left_out():
    assert list(quick_budgets("--device", "cpu")) == [
        part for part in gpu.PARTS if part not in ("mma", "many")
    ]


def test_a_passport_without_a_checkout_is_made_by_the_package(
    no_checkout, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(passport, "make", lambda path, command, **_: command[2])
    words = ["gpu", "--device", "cpu", "--quick", "--passport", str(tmp_path / "p.jsonl")]
    assert cli.main(words) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"{no_checkout}\nlabkit.gpu. The passport is in")


def test_a_training_is_recorded_in_the_folder_of_its_device(tmp_path):
    def summary_of_training(job):
        (item,) = gpu.PARTS["runs"].items(job)
        return answer(item, "cpu")["summary"]

    assert summary_of_training(order(tmp_path, seconds=-1)) == "not finished, the time was up"
    assert not list(tmp_path.rglob("*.json"))
    summary = summary_of_training(order(tmp_path))
    path = (
        tmp_path / "runs" / device_report("cpu").slug / "quick" / "segmentation" / "fp32-seed0.json"
    )
    record = load(path)
    assert record.task == "segmentation"
    assert record.recipe == "FP32"
    assert len(record.steps) == 2
    # A quick run trains a shorter task, so it has another fingerprint.
    shorter = replace(TASKS["segmentation"], steps=2)
    assert record.fingerprint == fingerprint(shorter, RECIPES["FP32"])
    assert str(path) in summary


def test_runs_of_a_gpu_are_read_from_their_folder(tmp_path):
    for name in ("Tesla T4", "NVIDIA GeForce RTX 4060 Laptop GPU"):
        report = replace(HOPPER, name=name)
        assert (
            device_folder(tmp_path, Place(torch.device("cuda"), name, "gpu"))
            == tmp_path / report.slug
        )


def test_checks_are_marked_with_existing_parts():
    """A check of an unknown part would run nowhere, one of an unknown kind would not be read."""
    marks = [
        mark.args
        for function in vars(test_checks).values()
        for mark in getattr(function, "pytestmark", [])
        if mark.name == "check"
    ]
    assert {part for part, _ in marks} == {name for name, part in gpu.PARTS.items() if part.checks}
    assert {kind for _, kind in marks} <= set(worker.Kind)
    assert catalogue.PASSPORT.checks


# The command


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_ends_with_2(tmp_path, capsys):
    for words in (["--folder", str(tmp_path)], ["--passport", str(tmp_path / "p.jsonl")]):
        assert cli.main(["gpu", *words]) == 2
        message = capsys.readouterr().err
        assert "torch reaches no GPU here, so nothing was recorded" in message
        assert "--device cpu --quick" in message
    assert not list(tmp_path.iterdir())


HANGS = """
import json, threading
print(json.dumps({"items": [["sweep", "timing"]]}), flush=True)
threading.Event().wait()
"""


def test_a_part_that_fails_or_hangs_stops_no_other(monkeypatch, tmp_path, capsys):
    started = []

    def command_of(job):
        started.append((job.part, job.until - time.time()))
        text = {"ceilings": HANGS, "size": "raise SystemExit(7)"}.get(
            job.part, "print('{\"items\": []}')"
        )
        return [sys.executable, "-c", text]

    monkeypatch.setattr(gpu.command, "worker_command", command_of)
    monkeypatch.setattr(gpu.command, "GRACE", 1.0)
    monkeypatch.setitem(gpu.PARTS, "ceilings", replace(gpu.PARTS["ceilings"], seconds=2.0))
    assert cli.main(["gpu", "--device", "cpu", "--folder", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert [name for name, _ in started] == list(gpu.PARTS)
    assert started[0][1] == pytest.approx(gpu.PARTS["mma"].seconds, abs=1.0)
    assert "ceilings   stopped after 3 s; its results so far are saved" in printed
    assert "size       failed, its process ended with status 7; its last lines say why" in printed
    assert "runs       done" in printed


def test_ctrl_c_in_a_part_ends_the_command(monkeypatch, tmp_path):
    ended = {"item": "end", "kind": "facts", "outcome": "interrupted", "missing": ["sweep size"]}
    monkeypatch.setattr(passport, "lines", lambda *_, **__: iter([ended]))
    with pytest.raises(KeyboardInterrupt):
        gpu.command.run_part(order(tmp_path, "size"), 1.0)


def test_a_part_for_which_no_time_is_left_is_not_begun(tmp_path, capsys):
    words = ["gpu", "--device", "cpu", "--folder", str(tmp_path), "--seconds", "5", "--only", "mma"]
    assert cli.main(words) == 1
    assert "mma        not begun, the time was up" in capsys.readouterr().out


def test_progress_has_a_line_at_both_ends_of_a_part(monkeypatch, tmp_path):
    """While a part runs, its first line can be read."""
    file = tmp_path / "progress.jsonl"
    during_parts = []
    file.write_text("of another run")
    monkeypatch.setattr(
        gpu.command,
        "run_part",
        lambda *_: during_parts.append(read_progress(file)) or "failed, for once",
    )
    words = ["gpu", "--device", "cpu", "--folder", str(tmp_path), "--only", "size", "mma"]
    assert cli.main([*words, "--progress", str(file)]) == 1
    size, mma = read_progress(file)
    assert during_parts[0] == [replace(size, outcome="")]
    assert size.name == "size"
    assert size.number == 1
    assert size.of == 2
    assert size.about == gpu.PARTS["size"].about
    assert size.seconds == gpu.PARTS["size"].seconds
    assert size.outcome == "failed, for once"
    assert during_parts[1] == [size, replace(mma, outcome="")]
    assert len(file.read_text().splitlines()) == 4


@pytest.fixture
def progress_without_time(tmp_path):
    """The file of progress of a run that had no time for its two parts."""
    file = tmp_path / "progress.jsonl"
    words = ["gpu", "--device", "cpu", "--folder", str(tmp_path), "--only", "size", "mma"]
    assert cli.main([*words, "--progress", str(file), "--seconds", "1"]) == 1
    return file


def test_progress_has_one_line_of_a_part_without_time(progress_without_time):
    parts = read_progress(progress_without_time)
    assert [part.outcome for part in parts] == 2 * ["not begun, the time was up"]
    assert len(progress_without_time.read_text().splitlines()) == 2


def test_a_line_of_progress_that_is_being_written_is_not_read(progress_without_time):
    before = read_progress(progress_without_time)
    with progress_without_time.open("a") as unfinished:
        unfinished.write('{"name": "spe')
    assert read_progress(progress_without_time) == before


def test_invalid_uses_of_progress_are_refused(tmp_path, capsys):
    words = ["gpu", "--device", "cpu", "--progress"]
    assert cli.main([*words, str(tmp_path / "none" / "p.jsonl")]) == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err
    for other in ("--passport", "--read"):
        assert cli.main([*words, str(tmp_path / "p"), other, str(tmp_path / "q")]) == 2
        assert "--progress reports on parts" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_part_without_items_says_why(tmp_path, capsys):
    assert rehearse(tmp_path, "mma") == 0
    printed = capsys.readouterr().out
    assert "has no instruction that the lab knows how to ask" in printed
    assert "mma        done" in printed
    assert not list(tmp_path.rglob("*.jsonl"))


# Parts with an item that fails: it is named, and the results of the others are kept

PLANTED = "RuntimeError: expected a healthy item, got a planted fault"


def planted(*_, **__):
    raise RuntimeError(PLANTED.partition(": ")[2])


def items_with_planted_failures():
    """Return the lines of items on the card in which a recipe or the whole task fails."""
    costs = measure.cost(
        "LSTM", "training", measure.AMP_WAYS, {"width": 32, "batch": 4}, steps=1, rounds=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measure.REGIONS, measure.DROP_IN, (planted, planted))
        lines = {"cost": answer(costs, "cuda")}
    broken = replace(TASKS["digits"], name="broken", make_model=planted)
    lines["pace"] = answer(measure.pace(broken, lambda: 60.0, steps=1, rounds=1), "cuda")
    lines["twice"] = answer(measure.twice(broken, RECIPES["O1"]), "cuda")
    return dict(json.loads(json.dumps(lines)))


def memory_of_a_step_beside_garbage():
    """Return the MiB that `prepared` measures for a step of 1 MiB.

    A cycle of references holds 8 MiB from before, which a collection during the step frees.
    """
    gc.disable()
    cycle = SimpleNamespace(tensor=torch.zeros(2**21, device="cuda"))
    cycle.itself = cycle
    del cycle

    def make():
        gc.collect()
        held = torch.zeros(2**18, device="cuda")
        return lambda: held.sum()

    return measure.prepared(make, "cuda")[1]


@pytest.mark.slow
def test_one_item_that_fails_is_named_and_the_others_are_kept(simulated_gpu):
    outcomes = simulated_gpu("T4", [items_with_planted_failures])
    cost, pace, twice = outcomes[items_with_planted_failures].values()
    assert cost["failed"] == {"drop-in": PLANTED}
    assert set(cost["seconds_a_call"]) == {"torch.amp", "O1", "O2", "FP32"}
    assert all(mebibytes > 0 for mebibytes in cost["mebibytes"].values())
    assert f"  drop-in: LEFT OUT, {PLANTED}" in cost["summary"].splitlines()
    assert pace["failed"]["O1"] == PLANTED
    assert twice["outcome"] == "failed"
    assert twice["error"] == PLANTED


@pytest.mark.slow
def test_memory_of_a_step_excludes_garbage_from_before(simulated_gpu):
    outcomes = simulated_gpu("T4", [memory_of_a_step_beside_garbage])
    assert 1 <= outcomes[memory_of_a_step_beside_garbage] < 1.1


@pytest.fixture
def _three_items(monkeypatch):
    """A worker whose second item fails, and whose third one ends the process."""
    command = serving("time prints", "time fails", "time aborts")
    monkeypatch.setattr(gpu.command, "worker_command", lambda _: command)


@pytest.mark.usefixtures("_three_items")
def test_a_part_keeps_its_items_as_a_passport_does(tmp_path, capsys):
    outcome = gpu.command.run_part(order(tmp_path, "speed"), 60.0)
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
def test_a_part_without_time_names_the_items_left_out(tmp_path, capsys):
    assert gpu.command.run_part(order(tmp_path, "speed", seconds=-1), -1.0) == "done"
    *printed, _ = capsys.readouterr().out.splitlines()
    assert printed == [
        f"time {name}: LEFT OUT, the time was up" for name in ("prints", "fails", "aborts")
    ]


def test_a_sweep_is_on_the_disk_after_each_round(monkeypatch, tmp_path):
    rounds = 0

    def measure(*words, progress, **options):
        def fail_in_third_round(record):
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                planted()
            progress(record)

        return original(*words, progress=fail_in_third_round, **options)

    original = recordings.measure
    monkeypatch.setattr(recordings, "measure", measure)
    (item,) = gpu.PARTS["size"].items(order(tmp_path, "size"))
    line = answer(item, "cpu")
    assert line["error"] == PLANTED
    assert "8 cases" in line["summary"]
    (path,) = tmp_path.rglob("size.json")
    assert from_json(path.read_text()).runs


def card_of(broken, cured):
    """Return a fault of a GPU whose forms return these numbers, or raise these errors."""

    def function(device, fixed, size):
        """A made-up fault.

        Symptom: None.
        Cause: None.
        Reading: None.
        Repair: None.
        Error: no such kernel
        """
        outcome = cured if fixed else broken
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return GpuCard(function, unit="times")


@pytest.mark.parametrize(
    ("broken", "cured", "summary"),
    [
        (1.0, 4.0, "1 as it fails, 4 repaired (times); it shows here"),
        (4.0, 4.0, "4 as it fails, 4 repaired (times); it does not show here"),
        (
            RuntimeError("no such kernel"),
            4.0,
            "RuntimeError: no such kernel as it fails, 4 repaired (times); it shows here",
        ),
        (
            RuntimeError("no such kernel"),
            RuntimeError("no memory"),
            "not measured, the repaired form failed: RuntimeError: no memory",
        ),
        (
            1.0,
            RuntimeError("no memory"),
            "not measured, the repaired form failed: RuntimeError: no memory",
        ),
    ],
)
def test_a_fault_of_a_gpu_has_a_summary(broken, cured, summary):
    (item,) = measure.cards([card_of(broken, cured)], 8)
    assert answer(item, "cpu")["summary"] == summary


def test_failing_case_is_left_out(monkeypatch):
    cases = [GemmCase(n, n, n, FP32) for n in (16, 24, 32)]
    original = timing._PreparedCase.seconds
    timed = []

    def seconds(prepared):
        timed.append(prepared.case)
        # The first two calls of a case are its warm-up.
        if prepared.case == cases[1] and timed.count(cases[1]) > 2:
            planted()
        return original(prepared)

    monkeypatch.setattr(timing._PreparedCase, "seconds", seconds)
    left_out = []
    runs = timing.run_cases(
        cases, rounds=2, left_out=lambda case, why: left_out.append((case, why))
    )
    assert [run.case for run in runs] == [cases[0], cases[2]]
    assert left_out == [(cases[1], PLANTED.partition(": ")[2])]


def test_a_check_that_fails_by_pytest_is_an_assertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of pytest are no Exceptions, and the server catches only these."""
    served = served_checks.Served(gpu_job.Job("cpu", quick=True), only=())

    def fails(*_: object, **__: object) -> None:
        served.raised = pytest.fail.Exception("expected a card")

    monkeypatch.setattr(served_checks, "runtestprotocol", fails)
    with pytest.raises(AssertionError, match="expected a card"):
        served.run(None, "cpu", {})
