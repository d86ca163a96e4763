"""`make gpu` on a CPU with stand-ins for the GPU, also with failures."""

import gc
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit import cli, gpu
from labkit.amp import RECIPES
from labkit.bench import GemmCase, device_report, from_json, sweeps, timing
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
from tests.gpu.checks import test_checks
from tests.gpu.conftest import Asked
from tests.gpu.test_passport import serving

ROOT = Path(__file__).parents[2]


def rehearse(folder, *only):
    """Run parts on the CPU, however busy it is."""
    with pytest.MonkeyPatch.context() as patch:
        for name in only:
            patch.setitem(gpu.PARTS, name, replace(gpu.PARTS[name], seconds=300.0))
        return cli.main(
            ["gpu", "--device", "cpu", "--quick", "--folder", str(folder), "--only", *only]
        )


def order(folder, part="", device="cpu", seconds=60.0, quick=True):
    return gpu.Job(device, part, quick, time.time() + seconds, folder)


def test_sweep_ends_as_a_file_with_its_origin(tmp_path, capsys):
    assert rehearse(tmp_path, "size") == 0
    report = device_report("cpu")
    path = tmp_path / "gemm" / report.slug / "size.json"
    record = from_json(path.read_text())
    assert (record.sweep, record.device, record.kind) == ("size", report.name, "cpu")
    assert {"python", "torch"} <= set(record.versions)
    assert str(path) in capsys.readouterr().out
    assert [file.name for file in path.parent.iterdir()] == ["size.json"], (
        "nothing half-written is left"
    )
    path.write_text("old")
    recordings.save_sweep(path, record, quick=True)
    assert from_json(path.read_text()) == record, "a newer record takes the place of the older"
    fuller = replace(record, runs=2 * record.runs)
    path.write_text(fuller.to_json())
    recordings.save_sweep(path, record, quick=True)
    assert from_json(path.read_text()) == fuller, "but a quick one not that of a fuller one"
    recordings.save_sweep(path, record, quick=False)
    assert from_json(path.read_text()) == record


BARE = """
import importlib.util, sys
find_spec = importlib.util.find_spec

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Bare())
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
]


def test_it_needs_torch_and_numpy_only(tmp_path):
    """As on a machine that has nothing else: every other package that the lab may use is hidden."""
    (tmp_path / "sitecustomize.py").write_text(BARE.replace("{HIDDEN}", repr(HIDDEN)))
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


# In a hurry on a GPU: three minutes, whole cases, and nothing lost of what was recorded at length


def quick_budgets(*words):
    return gpu.command.budgets_of(cli.parser_of("gpu").parse_args(["--quick", *words]))


def test_quick_run_takes_three_minutes(monkeypatch, tmp_path):
    budgets = quick_budgets()
    assert set(budgets) == {"ceilings", "size", "layers", "alignment", "tasks"}
    assert sum(budgets.values()) + gpu.GRACE <= gpu.QUICK_LIMIT == 180
    assert list(quick_budgets("--device", "cpu")) == list(gpu.PARTS), "a rehearsal has them all"
    assert quick_budgets("--only", "mma") == {"mma": gpu.PARTS["mma"].seconds}
    assert sum(part.seconds for part in gpu.PARTS.values()) + gpu.GRACE <= gpu.LIMIT < 9 * 60, (
        "and all, nine minutes"
    )
    assert order(tmp_path, device="cuda").extent is gpu_job.GPU_SHORT
    assert order(tmp_path).extent is gpu_job.QUICK
    assert order(tmp_path, device="cuda", quick=False).extent is None
    assert max(gpu_job.GPU_SHORT.sizes) >= 4096
    longest = 3 * 4 * gpu_job.GPU_SHORT.elements  # a copy's two tensors in FP32, and one in reserve
    assert longest < 2**30, "a card of 4 GiB has room for it"
    monkeypatch.setattr(gpu_job, "device_report", lambda _: HOPPER)
    job = order(tmp_path, device="cuda")
    recording = [
        item.name for part in gpu.PARTS.values() for item in part.items(job) if "sweep" in item.name
    ]
    assert sorted(recording) == sorted(f"sweep {name}" for name in sweeps(HOPPER))


def lines_of(folder, part):
    """Return item -> line of what a part saved, without the first line and the last."""
    (path,) = (folder / "checks").rglob(f"{part}.jsonl")
    return {line["item"]: line for line in map(json.loads, path.read_text().splitlines()[1:-1])}


# Tensor Cores, with the emulator in their place

SERVED = """
import json, sys
from pathlib import Path
from labkit.gpu.worker import Item, Kind, serve
found = {line["item"]: line for line in json.loads(Path(sys.argv[1]).read_text())}
items = []
for name, line in found.items():
    items.append(Item(name, Kind.CAPTURE, lambda _, into, line=line: into.update(line)))
serve(items, "cpu")
"""


def test_answers_of_a_tensor_core_are_kept(monkeypatch, tmp_path, capsys):
    wrong = "mma.sync.m16n8k8.f32.f16.f16.f32"
    answers = {True: stand_in(SPECS["H100"], wrong=(5,)), False: stand_in(SPECS["H100"])}
    monkeypatch.setattr(
        tiles, "capture", lambda row, *words: answers[row.name == wrong](row, *words)
    )
    for module in (tiles, gpu_job):
        monkeypatch.setattr(module, "device_report", lambda _: HOPPER)
    captures = []
    for row in (row for row in INSTRUCTIONS if row.runs_on((9, 0)) and not row.grouped):
        asked = Asked(thorough=False)
        with pytest.raises(AssertionError) if row.name == wrong else nullcontext():
            test_checks.test_a_real_tensor_core_answers_as_the_emulator_does(asked, row)
        assert bool(asked.found["mismatches"]) == (row.name == wrong)
        captures.append({"item": f"capture {row.name}", "kind": "capture", **asked.found})
    served = tmp_path / "served.json"
    served.write_text(json.dumps(captures))
    monkeypatch.setattr(
        gpu.command, "worker_command", lambda _: [sys.executable, "-c", SERVED, str(served)]
    )
    assert gpu.command.run_part(order(tmp_path, "mma", "cuda"), 60.0) == "done"
    said = capsys.readouterr().out.splitlines()
    files = sorted((tmp_path / "mma" / "a-stand-in").iterdir())
    assert [f"capture {file.stem}" for file in files] == sorted(line["item"] for line in captures)
    assert load_capture(files[-1]).device == "A stand-in"
    assert sum(": 0 of " in line for line in said) == len(captures) - 1
    lines = lines_of(tmp_path, "mma")
    assert len(lines) == len(captures)
    assert not any("npz" in line for line in lines.values())


# Checks and trainings


def test_the_labs_tasks_are_timed_and_reported(tmp_path, capsys):
    assert rehearse(tmp_path, "tasks") == 0
    said = capsys.readouterr().out
    assert f"digits: Steps a second on {place('cpu').name}: FP32 " in said
    assert "train digits O1: trained twice: the same losses" in said
    assert set(lines_of(tmp_path, "tasks")["pace digits"]["steps_per_second"]) == {
        "FP32",
        "FP16 dynamic",
        "O1",
        "BF16",
    }
    (path,) = (tmp_path / "checks").rglob("tasks.jsonl")
    assert cli.main(["gpu", "--read", str(path)]) == 0, "it is read as a passport is"
    assert f"Passport of {device_report('cpu').facts}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_step_is_timed_by_every_way():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    items = measure.speed({"width": 64, "batch": 8}, steps=1, rounds=1)
    assert len({each.name for each in items}) == len(items) == 3 * 2 * (1 + len(measure.COMPILED))
    (unet,) = [each for each in items if each.name == "training of UNet of width 64, batch 1"]
    assert not answer(unet, "cpu")["failed"]
    lines = [answer(each, "cpu") for each in items if "MLP of width 4," in each.name]
    assert [*lines[0]["seconds_a_call"]] == [*measure.SPEED_WAYS]
    assert [[*line["seconds_a_call"]][1] for line in lines[2::2]] == [*measure.COMPILED]
    for line in lines:
        assert min(line["seconds_a_call"].values()) > 0
        assert not line["failed"]
        assert line["summary"].count("x as fast as FP32") == len(line["seconds_a_call"])
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_without_a_checkout_the_rest_is_done_and_one_line_says_so(monkeypatch, tmp_path, capsys):
    why = worker.why_no_checks(tmp_path)
    assert why.startswith(
        "The checks need a checkout of the lab and are left out; records, measurements and "
    )
    for module in (gpu.command, catalogue):
        monkeypatch.setattr(module, "why_no_checks", lambda: why)
    assert rehearse(tmp_path, "amp") == 0
    said = capsys.readouterr().out
    assert f"{why}\n" in said
    mlp = "training of MLP of width 64, batch 8"
    assert f"{mlp}: " in said
    assert list(lines_of(tmp_path, "amp")[mlp]["seconds_a_call"]) == [*measure.AMP_WAYS]
    assert list(quick_budgets("--device", "cpu")) == [
        part for part in gpu.PARTS if part not in ("mma", "many")
    ]
    monkeypatch.setattr(passport, "make", lambda path, command, **_: command[2])
    words = ["gpu", "--device", "cpu", "--quick", "--passport", str(tmp_path / "p.jsonl")]
    assert cli.main(words) == 1
    assert capsys.readouterr().out.startswith(f"{why}\nlabkit.gpu. The passport is in")


def test_training_is_recorded_apart_from_other_devices(
    tmp_path,
):
    def trained(job):
        (item,) = gpu.PARTS["runs"].items(job)
        return answer(item, "cpu")["summary"]

    assert trained(order(tmp_path, seconds=-1)) == "not finished, the time was up"
    assert not list(tmp_path.rglob("*.json"))
    said = trained(order(tmp_path))
    path = (
        tmp_path / "runs" / device_report("cpu").slug / "quick" / "segmentation" / "fp32-seed0.json"
    )
    record = load(path)
    assert (record.task, record.recipe, len(record.steps)) == ("segmentation", "FP32", 2)
    assert record.fingerprint == fingerprint(
        replace(TASKS["segmentation"], steps=2), RECIPES["FP32"]
    ), "a shorter task"
    assert str(path) in said
    # where a race looks for a GPU's runs
    for name in ("Tesla T4", "NVIDIA GeForce RTX 4060 Laptop GPU"):
        report = replace(HOPPER, name=name)
        assert (
            device_folder(tmp_path, Place(torch.device("cuda"), name, "gpu"))
            == tmp_path / report.slug
        )


def test_the_parts_with_checks_are_those_that_checks_are_marked_with():
    """A check of an unknown part would run nowhere, and one of an unknown kind would
    not be read.
    """
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
def test_without_a_gpu_it_says_so_and_ends_with_2(tmp_path, capsys):
    for words in (["--folder", str(tmp_path)], ["--passport", str(tmp_path / "p.jsonl")]):
        assert cli.main(["gpu", *words]) == 2
        said = capsys.readouterr().err
        assert "torch reaches no GPU here, so nothing was recorded" in said
        assert "--device cpu --quick" in said
    assert not list(tmp_path.iterdir())


HANGS = """
import json, threading
print(json.dumps({"items": [["sweep", "timing"]]}), flush=True)
threading.Event().wait()
"""


def test_parts_run_apart_and_one_that_fails_or_hangs_stops_no_other(monkeypatch, tmp_path, capsys):
    begun = []

    def command_of(job):
        begun.append((job.part, job.until - time.time()))
        text = {"ceilings": HANGS, "size": "raise SystemExit(7)"}.get(
            job.part, "print('{\"items\": []}')"
        )
        return [sys.executable, "-c", text]

    monkeypatch.setattr(gpu.command, "worker_command", command_of)
    monkeypatch.setattr(gpu.command, "GRACE", 1.0)
    monkeypatch.setitem(gpu.PARTS, "ceilings", replace(gpu.PARTS["ceilings"], seconds=2.0))
    assert cli.main(["gpu", "--device", "cpu", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert [name for name, _ in begun] == list(gpu.PARTS)
    assert begun[0][1] == pytest.approx(gpu.PARTS["mma"].seconds, abs=1.0)
    assert "ceilings   stopped after 3 s; its results so far are saved" in said
    assert "size       failed, its process ended with status 7; its last lines say why" in said
    assert "runs       done" in said


def test_ctrl_c_in_a_part_ends_the_command(monkeypatch, tmp_path, capsys):
    ended = {"item": "end", "kind": "facts", "outcome": "interrupted", "missing": ["sweep size"]}
    monkeypatch.setattr(passport, "lines", lambda *_, **__: iter([ended]))
    with pytest.raises(KeyboardInterrupt):
        gpu.command.run_part(order(tmp_path, "size"), 1.0)
    assert (
        cli.main(
            ["gpu", "--device", "cpu", "--folder", str(tmp_path), "--seconds", "5", "--only", "mma"]
        )
        == 1
    )
    assert "mma        not begun, the time was up" in capsys.readouterr().out


def test_progress_is_a_line_as_a_part_begins_and_one_as_it_ends(monkeypatch, tmp_path):
    """While a part runs, its first line is there; one for which there is no time has
    only a last.
    """
    file = tmp_path / "progress.jsonl"
    seen = []
    file.write_text("of another run")
    monkeypatch.setattr(
        gpu.command, "run_part", lambda *_: seen.append(read_progress(file)) or "failed, for once"
    )
    words = ["gpu", "--device", "cpu", "--folder", str(tmp_path), "--only", "size", "mma"]
    assert cli.main([*words, "--progress", str(file)]) == 1
    size, mma = read_progress(file)
    assert seen[0] == [replace(size, outcome="")]
    assert (size.name, size.number, size.of, size.about, size.seconds, size.outcome) == (
        "size",
        1,
        2,
        gpu.PARTS["size"].about,
        gpu.PARTS["size"].seconds,
        "failed, for once",
    )
    assert seen[1] == [size, replace(mma, outcome="")]
    assert len(file.read_text().splitlines()) == 4
    assert cli.main([*words, "--progress", str(file), "--seconds", "1"]) == 1
    assert [part.outcome for part in read_progress(file)] == 2 * ["not begun, the time was up"]
    with file.open("a") as half:
        half.write('{"name": "spe')
    assert len(read_progress(file)) == 2, "a line that is being written is not read"


def test_progress_that_cannot_be_written_or_of_a_passport_is_refused(tmp_path, capsys):
    words = ["gpu", "--device", "cpu", "--progress"]
    assert cli.main([*words, str(tmp_path / "none" / "p.jsonl")]) == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err
    for other in ("--passport", "--read"):
        assert cli.main([*words, str(tmp_path / "p"), other, str(tmp_path / "q")]) == 2
        assert "--progress is of parts" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_part_without_items_says_why(tmp_path, capsys):
    assert rehearse(tmp_path, "mma") == 0
    said = capsys.readouterr().out
    assert "has no instruction that the lab knows how to ask" in said
    assert "mma        done" in said
    assert not list(tmp_path.rglob("*.jsonl"))


# Parts of which one item fails: it is named, and the others stay; what fails is planted

PLANTED = "RuntimeError: expected a healthy item, got a planted fault"


def planted(*_, **__):
    raise RuntimeError(PLANTED.partition(": ")[2])


def items_with_planted_failures():
    """Run items on the card, one with a recipe that fails and one that fails altogether."""
    costs = measure.cost(
        "LSTM", "training", measure.AMP_WAYS, {"width": 32, "batch": 4}, steps=1, rounds=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measure.REGIONS, measure.DROP_IN, (planted, planted))
        kept = {"cost": answer(costs, "cuda")}
    broken = replace(TASKS["digits"], name="broken", make_model=planted)
    kept["pace"] = answer(measure.pace(broken, lambda: 60.0, steps=1, rounds=1), "cuda")
    kept["twice"] = answer(measure.twice(broken, RECIPES["O1"]), "cuda")
    return dict(json.loads(json.dumps(kept)))


def memory_held_by_what_came_before():
    """Return what `prepared` says that a step of 1 MiB holds, while a cycle of 8 MiB of an earlier
    one is there.
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
    found = simulated_gpu("T4", [items_with_planted_failures, memory_held_by_what_came_before])
    assert 1 <= found[memory_held_by_what_came_before] < 1.1, "no less than a step holds"
    cost, pace, twice = found[items_with_planted_failures].values()
    assert cost["failed"] == {"drop-in": PLANTED}
    assert set(cost["seconds_a_call"]) == {"torch.amp", "O1", "O2", "FP32"}
    assert all(mebibytes > 0 for mebibytes in cost["mebibytes"].values())
    assert f"  drop-in: LEFT OUT, {PLANTED}" in cost["summary"].splitlines()
    assert pace["failed"]["O1"] == PLANTED
    assert (twice["outcome"], twice["error"]) == ("failed", PLANTED)


def test_a_part_keeps_its_items_as_a_passport_does(monkeypatch, tmp_path, capsys):
    command = serving("time prints", "time fails", "time aborts")
    monkeypatch.setattr(gpu.command, "worker_command", lambda _: command)
    how = gpu.command.run_part(order(tmp_path, "speed"), 60.0)
    assert how == "failed, its process ended with SIGABRT; its last lines say why"
    (path,) = tmp_path.rglob("speed.jsonl")
    assert capsys.readouterr().out.splitlines() == [
        "time prints: done",
        "time fails: FAILED, ValueError: expected an even number, got 3",
        "time aborts: PROCESS LOST, its process ended with SIGABRT",
        f"{path}: 3 of 3 items",
    ]
    assert passport.read_file(path).whole
    assert gpu.command.run_part(order(tmp_path, "speed", seconds=-1), -1.0) == "done"
    *said, _ = capsys.readouterr().out.splitlines()
    assert said == [
        f"time {name}: LEFT OUT, the time was up" for name in ("prints", "fails", "aborts")
    ]


def test_a_sweep_is_on_the_disk_after_each_round(monkeypatch, tmp_path):
    rounds = 0

    def measure(*words, progress, **options):
        def third(record):
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                planted()
            progress(record)

        return before(*words, progress=third, **options)

    before = recordings.measure
    monkeypatch.setattr(recordings, "measure", measure)
    (item,) = gpu.PARTS["size"].items(order(tmp_path, "size"))
    line = answer(item, "cpu")
    assert (line["error"], "8 cases" in line["summary"]) == (PLANTED, True)
    (path,) = tmp_path.rglob("size.json")
    assert from_json(path.read_text()).runs


def test_failing_case_is_left_out(monkeypatch):
    cases = [GemmCase(n, n, n, FP32) for n in (16, 24, 32)]
    turns = timing._PreparedCase.seconds
    seen = []

    def seconds(ready):
        seen.append(ready.case)
        # in the first round after the warm-up
        if ready.case == cases[1] and seen.count(cases[1]) > 2:
            planted()
        return turns(ready)

    monkeypatch.setattr(timing._PreparedCase, "seconds", seconds)
    left_out = []
    runs = timing.run_cases(
        cases, rounds=2, left_out=lambda case, why: left_out.append((case, why))
    )
    assert [run.case for run in runs] == [cases[0], cases[2]]
    assert left_out == [(cases[1], PLANTED.partition(": ")[2])]
