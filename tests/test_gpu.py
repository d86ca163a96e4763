"""`make gpu`, also where something goes wrong: rehearsed on a CPU, with stand-ins for the GPU."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit import cli, gpu
from labkit.amp import RECIPES
from labkit.bench import DeviceReport, device_report, from_json
from labkit.capture import tiles
from labkit.capture.tiles import load_capture
from labkit.commands import gpu as gpu_command
from labkit.gemm import SPECS
from labkit.gpu import checks, parts
from labkit.gpu.checks import many
from labkit.gpu.checks.measure import complete
from labkit.machine.device import GENERATIONS
from labkit.train import TASKS, Place, device_folder, load, place
from labkit.train.record import fingerprint

ROOT = Path(__file__).parents[1]
HOPPER = DeviceReport("cuda", "A stand-in", 0, 1, (9, 0), GENERATIONS[5], driver="1.0")


def rehearse(folder, *only):
    return cli.main(["gpu", "--device", "cpu", "--quick", "--here", "--folder", str(folder), "--only", *only])


def order(folder, report=None, seconds=60.0):
    return gpu.Order(report or device_report("cpu"), folder, time.monotonic() + seconds, quick=True)


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_worked_example_a_sweep_ends_as_a_file_that_says_where_it_was_made(tmp_path, capsys):
    assert rehearse(tmp_path, "size") == 0
    report = device_report("cpu")
    path = tmp_path / "gemm" / report.slug / "size.json"
    record = from_json(path.read_text())
    assert (record.sweep, record.device, record.kind) == ("size", report.name, "cpu")
    assert {"python", "torch"} <= set(record.versions)
    assert str(path) in capsys.readouterr().out
    assert [file.name for file in path.parent.iterdir()] == ["size.json"], "nothing half-written is left"
    path.write_text("old")
    rehearse(tmp_path, "size")
    assert from_json(path.read_text()).runs, "a newer record takes the place of the older"
    fuller = replace(record, runs=2 * record.runs)
    path.write_text(fuller.to_json())
    rehearse(tmp_path, "size")
    assert from_json(path.read_text()) == fuller, "but a quick one not that of a fuller one"
    parts._kept(path, record, quick=False)
    assert from_json(path.read_text()) == record


BARE = """
import sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HIDDEN}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Bare())
from labkit.cli import main
from labkit.gpu.checks import outputs
assert outputs.rows("cpu")
sys.exit(main(["gpu", "--device", "cpu", "--quick", "--here", "--folder", FOLDER, "--only", "layers", "kernel"]))
"""
HIDDEN = "ipywidgets anywidget matplotlib IPython jupyterlab pytest nbformat triton expecttest scipy".split()


def test_it_needs_torch_and_numpy_only(tmp_path):
    """As on a machine that has nothing else: every other package that the lab may use is hidden."""
    program = BARE.replace("{HIDDEN}", repr(HIDDEN)).replace("FOLDER", repr(str(tmp_path)))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Triton is not installed" in done.stdout
    names = {path.name for path in tmp_path.rglob("*.json")}
    assert names == {"layers.json", "bandwidth.json", "triton.json"}


# In a hurry on a GPU: three minutes, whole cases, and nothing lost of what was recorded at length


def quick_budgets(*words):
    from argparse import ArgumentParser

    parser = ArgumentParser()
    gpu_command.add_arguments(parser)
    return gpu.command.budgets_of(parser.parse_args(["--quick", *words]))


def test_quick_on_a_gpu_is_three_minutes_of_what_the_lessons_draw():
    budgets = quick_budgets()
    assert set(budgets) == {"ceilings", "size", "layers", "alignment", "tasks"}
    assert sum(budgets.values()) + gpu.GRACE <= gpu.QUICK_LIMIT == 180
    assert list(quick_budgets("--device", "cpu")) == list(gpu.PARTS), "a rehearsal has them all"
    assert quick_budgets("--only", "mma") == {"mma": gpu.PARTS["mma"].seconds}
    assert sum(part.seconds for part in gpu.PARTS.values()) + gpu.GRACE <= gpu.LIMIT < 9 * 60, "and all, nine minutes"


def test_quick_cases_are_large_enough_to_mean_something_on_a_gpu_and_small_on_a_cpu(tmp_path):
    assert parts._extent(order(tmp_path, HOPPER)) is parts.GPU_SHORT
    assert parts._extent(order(tmp_path)) is parts.QUICK
    assert parts._extent(replace(order(tmp_path, HOPPER), quick=False)) is None
    assert max(parts.GPU_SHORT.sizes) >= 4096
    longest = 3 * 4 * parts.GPU_SHORT.elements  # a copy's two tensors in FP32, and one in reserve
    assert longest < 2**30, "a card of 4 GiB has room for it"


def test_every_sweep_of_a_gpu_belongs_to_some_part():
    from labkit.bench import sweeps

    asked = {name for part in gpu.PARTS.values() for name in _closure_words(part.run)}
    assert set(sweeps(HOPPER)) <= asked


def _closure_words(function):
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    words = {word for cell in cells if isinstance(cell, tuple) for word in cell}
    return words | {"kernel"} if function is gpu.PARTS["kernel"].run else words


# Tensor Cores, with the emulator in their place


@pytest.fixture
def hopper(monkeypatch):
    def answer(row, a, b, c):
        from labkit.gemm import emulate

        asked = tiles.MmaCapture(row, a, b, c, c, (), "H100", "", {}, "")
        words = emulate(*asked.matrices(), SPECS["H100"].for_operands(row.operands), out=row.result).view("<u4")
        return words ^ 1 if row.name in wrong and len(a) > 4 else words  # the first 4 tiles are the trial

    wrong: set[str] = set()
    monkeypatch.setattr(tiles, "capture", answer)
    monkeypatch.setattr(tiles, "device_report", lambda _: HOPPER)
    return wrong


def test_captures_are_kept_and_compared_and_one_that_fails_stops_no_other(hopper, monkeypatch, tmp_path):
    lines = list(parts._captures(order(tmp_path, HOPPER, seconds=-1)))
    assert all(line.endswith("not asked, the time was up") for line in lines)
    assert not list(tmp_path.rglob("*.npz"))
    hopper.add("mma.sync.m16n8k8.f32.f16.f16.f32")
    lines = list(parts._captures(order(tmp_path, HOPPER)))
    files = sorted((tmp_path / "mma" / "a-stand-in").iterdir())
    assert len(files) == len(lines) == 12
    assert load_capture(files[-1]).device == "A stand-in"
    (unlike,) = [line for line in lines if ": 0 of " not in line]
    assert "m16n8k8.f32.f16" in unlike
    answer = tiles.capture

    def refuse(row, *words):
        if row.grouped:
            raise RuntimeError("the GPU's driver refused: invalid (error 1)")
        return answer(row, *words)

    monkeypatch.setattr(tiles, "capture", refuse)
    lines = list(parts._captures(order(tmp_path / "again", HOPPER)))
    assert len(list((tmp_path / "again").rglob("mma.sync*.npz"))) == 6
    assert sum("NOT CAPTURED, RuntimeError: the GPU's driver refused" in line for line in lines) == 6


# Checks and trainings


def test_a_check_is_run_told_and_kept(monkeypatch, tmp_path, capsys):
    def main(device, *, width=1024, seconds=0.0):
        yield {"device asked": device, "width": width, "time": 0 < seconds <= 60}

    monkeypatch.setitem(parts.CHECKS, "speed", checks.Check(main, lambda answers: f"with width {answers['width']}"))
    assert rehearse(tmp_path, "speed") == 0
    assert "with width 64" in capsys.readouterr().out
    kept = json.loads(next((tmp_path / "checks").rglob("speed.json")).read_text())
    assert (kept["device asked"], kept["width"], kept["device"]) == ("cpu", 64, device_report("cpu").name)
    assert {"versions", "date"} <= set(kept)
    list(parts.PARTS["speed"].run(order(tmp_path, seconds=50)))
    kept = json.loads(next((tmp_path / "checks").rglob("speed.json")).read_text())
    assert kept["time"], "a check that can share its time is told how much is left"


def test_the_lab_s_tasks_are_timed_and_told(tmp_path, capsys):
    assert rehearse(tmp_path, "tasks") == 0
    said = capsys.readouterr().out
    assert f"digits: Steps a second on {place('cpu').name}: FP32 " in said
    assert "digits under O1, trained twice: the same losses" in said
    kept = json.loads(next((tmp_path / "checks").rglob("tasks.json")).read_text())
    assert set(kept["rates"]["digits"]) == {"FP32", "FP16 dynamic", "O1", "BF16"}


def test_tasks_for_which_no_time_is_left_are_named():
    answers = complete(checks.tasks.main("cpu", names=("digits",), steps=1, seconds=-1))
    assert answers["left_out"] == dict.fromkeys(["digits", "training twice"], "the time was up")
    assert "digits: LEFT OUT, the time was up" in checks.tasks.told(answers)


def test_a_training_is_on_record_apart_from_those_of_other_devices(tmp_path):
    (line,) = parts._races(order(tmp_path))
    path = tmp_path / "runs" / device_report("cpu").slug / "quick" / "segmentation" / "fp32-seed0.json"
    record = load(path)
    assert (record.task, record.recipe, len(record.steps)) == ("segmentation", "FP32", 2)
    assert record.fingerprint == fingerprint(replace(TASKS["segmentation"], steps=2), RECIPES["FP32"]), "a shorter task"
    assert str(path) in line


def test_a_race_looks_for_a_gpus_runs_where_this_command_keeps_them(tmp_path):
    for name in ("Tesla T4", "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4060 Laptop GPU"):
        report = replace(HOPPER, name=name)
        assert device_folder(tmp_path, Place(torch.device("cuda"), name, "gpu")) == tmp_path / report.slug


def test_a_training_that_was_cut_short_is_not_kept(tmp_path):
    (line,) = parts._races(order(tmp_path, seconds=-1))
    assert line.endswith("not begun, the time was up")
    assert not list(tmp_path.rglob("*.json"))


# The command


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_2(capsys):
    assert cli.main(["gpu"]) == 2
    said = capsys.readouterr().err
    assert "torch reaches no GPU here, so nothing was recorded" in said
    assert "--device cpu --quick" in said


def test_parts_run_apart_and_one_that_fails_or_hangs_stops_no_other(monkeypatch, tmp_path, capsys):
    begun = []

    def child(command, *, env, timeout, check):
        part = command[command.index("--only") + 1]
        begun.append((part, timeout))
        assert env["PYTHONPATH"].startswith(str(ROOT))
        if part == "ceilings":
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 7 if part == "size" else 0)

    monkeypatch.setattr(subprocess, "run", child)
    assert cli.main(["gpu", "--device", "cpu", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert [name for name, _ in begun] == list(gpu.PARTS)
    assert begun[0][1] == pytest.approx(gpu.PARTS["mma"].seconds + gpu.GRACE)
    assert "ceilings   stopped after 33 s" in said
    assert "size       failed with status 7" in said
    assert "runs       done" in said


def test_what_a_part_needed_to_begin_counts_as_its_time(tmp_path, capsys):
    words = ["--only", "size", "--seconds", "60", "--since", str(time.time() - 100)]
    assert cli.main(["gpu", "--device", "cpu", "--quick", "--here", "--folder", str(tmp_path), *words]) == 0
    assert "0 cases, 8 left out" in capsys.readouterr().out


def test_no_part_begins_when_the_time_is_up(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a part was begun"))
    assert cli.main(["gpu", "--device", "cpu", "--folder", str(tmp_path), "--seconds", "5", "--only", "mma"]) == 1
    assert "mma        not begun, the time was up" in capsys.readouterr().out


def test_a_real_child_does_its_part(tmp_path, capfd):
    words = ["gpu", "--device", "cpu", "--quick", "--folder", str(tmp_path), "--only", "mma"]
    assert cli.main(words) == 0
    said = capfd.readouterr().out
    assert "has no instruction that the lab knows how to ask" in said
    assert "mma        done" in said


def test_gpus_are_trained_together_where_there_are_some():
    assert many.told(complete(many.main("cpu"))) == "not run: NCCL needs a GPU, and this is a rehearsal"


@pytest.mark.slow
def test_the_processes_of_that_check_agree_with_one_by_gloo():
    answers = many.trained(2)
    assert answers["ranks"] == 2
    assert set(answers["many"].values()) == {"equal; all skipped as one"}, many.told(answers)
