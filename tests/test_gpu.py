"""Does `make gpu` do what it says, also when something goes wrong? Rehearsed on a CPU, with stand-ins for the GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from labkit import cli, gpu
from labkit.bench import DeviceReport, device_report, from_json
from labkit.bench.device import GENERATIONS
from labkit.capture import tiles
from labkit.capture.tiles import load_capture
from labkit.gemm import SPECS
from labkit.train import load

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


def test_recorded_twice_the_newer_record_takes_the_place_of_the_older(tmp_path):
    rehearse(tmp_path, "size")
    path = next(tmp_path.rglob("size.json"))
    path.write_text("old")
    rehearse(tmp_path, "size")
    assert from_json(path.read_text()).runs


def test_it_needs_torch_and_numpy_only(tmp_path):
    """As on a machine that has nothing else: every other package that the lab may use is hidden."""
    program = (
        "import sys\n"
        "for name in 'ipywidgets anywidget matplotlib IPython jupyterlab pytest nbformat triton'.split():\n"
        "    sys.modules[name] = None\n"
        "from labkit.cli import main\n"
        f"sys.exit(main(['gpu', '--device', 'cpu', '--quick', '--here', '--folder', {str(tmp_path)!r},\n"
        "               '--only', 'layers', 'kernel']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Triton is not installed" in done.stdout
    names = {path.name for path in tmp_path.rglob("*.json")}
    assert names == {"layers.json", "bandwidth.json", "triton.json"}


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


def test_captures_are_kept_and_compared(hopper, tmp_path):
    hopper.add("mma.sync.m16n8k8.f32.f16.f16.f32")
    lines = list(gpu._captures(order(tmp_path, HOPPER)))
    files = sorted((tmp_path / "mma" / "a-stand-in").iterdir())
    assert len(files) == len(lines) == 12
    assert load_capture(files[-1]).device == "A stand-in"
    unlike = [line for line in lines if ": 0 of " not in line]
    assert len(unlike) == 1
    assert "m16n8k8.f32.f16" in unlike[0]


def test_an_instruction_that_fails_does_not_keep_the_others_from_being_asked(hopper, monkeypatch, tmp_path):
    answer = tiles.capture

    def refuse(row, *words):
        if row.grouped:
            raise RuntimeError("the GPU's driver refused: invalid (error 1)")
        return answer(row, *words)

    monkeypatch.setattr(tiles, "capture", refuse)
    lines = list(gpu._captures(order(tmp_path, HOPPER)))
    assert len(list(tmp_path.rglob("mma.sync*.npz"))) == 6
    assert sum("NOT CAPTURED, the GPU's driver refused" in line for line in lines) == 6


def test_when_the_time_is_up_the_rest_is_named(hopper, tmp_path):
    lines = list(gpu._captures(order(tmp_path, HOPPER, seconds=-1)))
    assert all(line.endswith("not asked, the time was up") for line in lines)
    assert not list(tmp_path.rglob("*.npz"))


def test_a_gpu_that_cannot_be_asked_is_told_so(tmp_path):
    old = DeviceReport("cuda", "Tesla V100", 0, 1, (7, 0), GENERATIONS[0])
    assert list(gpu._captures(order(tmp_path, old))) == ["Tesla V100 has no instruction that the lab knows how to ask"]


# Checks and trainings


def test_a_check_is_run_told_and_kept(monkeypatch, tmp_path, capsys):
    (tmp_path / "check_amp.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Found:\n"
        "    number: int\n"
        "def main(device, *, width=1024):\n"
        "    return {'device asked': device, 'width': Found(width).number}\n"
        "def told(answers):\n"
        "    return f\"asked {answers['device asked']} with width {answers['width']}\"\n"
    )
    monkeypatch.setattr(gpu, "CHECKS", tmp_path)
    assert rehearse(tmp_path, "amp") == 0
    assert "asked cpu with width 64" in capsys.readouterr().out
    kept = json.loads(next((tmp_path / "checks").rglob("amp.json")).read_text())
    assert kept["width"] == 64
    assert kept["device"] == device_report("cpu").name
    assert {"versions", "date"} <= set(kept)


def test_a_check_that_is_not_there_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "CHECKS", tmp_path)
    assert rehearse(tmp_path, "speed") == 0
    assert "check_speed.py is not in this checkout" in capsys.readouterr().out


def test_a_training_is_on_record_apart_from_those_of_other_devices(tmp_path):
    (line,) = gpu._races(order(tmp_path))
    path = tmp_path / "runs" / device_report("cpu").slug / "segmentation" / "fp32-seed0.json"
    record = load(path)
    assert (record.task, record.recipe, len(record.steps)) == ("segmentation", "FP32", 2)
    assert record.fingerprint
    assert str(path) in line


def test_a_training_that_was_cut_short_is_not_kept(tmp_path):
    (line,) = gpu._races(order(tmp_path, seconds=-1))
    assert line.endswith("not finished, the time was up")
    assert not list(tmp_path.rglob("*.json"))


# The command


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_2(capsys):
    assert cli.main(["gpu"]) == 2
    said = capsys.readouterr().err
    assert "torch reaches no GPU here, so nothing was recorded" in said
    assert "--device cpu --quick" in said


def test_all_parts_together_stay_under_nine_minutes():
    assert sum(part.seconds for part in gpu.PARTS.values()) + gpu.GRACE <= gpu.LIMIT
    assert gpu.LIMIT < 9 * 60


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


def test_the_device_is_told_in_two_sentences(capsys):
    assert cli.main(["device"]) == 0
    assert capsys.readouterr().out == f"{device_report()}\n"
