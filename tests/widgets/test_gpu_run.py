"""The widget that measures a GPU; short programs replace `labkit gpu`."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.bench import DeviceReport, GemmCase, GemmRecord, GemmRun, device_report
from labkit.formats import FP16, FP32
from labkit.train import Place, devices
from labkit.widgets import GpuRun
from labkit.widgets.gpu_run.widget import pictures

pytestmark = pytest.mark.usefixtures("data_folder")

T4 = Place(torch.device("cuda", 0), "Tesla T4", "gpu")


def program(text: str) -> tuple[str, ...]:
    return sys.executable, "-u", "-c", text


# The beginning of programs that replace `labkit gpu --quick`; `part` writes the file of progress.
PROGRESS = """
import json, sys
def part(name, number, outcome=""):
    line = {"name": name, "number": number, "of": 2, "about": f"time {name}", "seconds": 35}
    with open(sys.argv[sys.argv.index("--progress") + 1], "a") as file:
        file.write(json.dumps({**line, "outcome": outcome}) + "\\n")
"""


def measuring(text: str) -> GpuRun:
    """Return a widget that runs a program in place of `labkit gpu --quick`."""
    return GpuRun(T4, command=program(PROGRESS + text))


def record(device: str, date: str = "2026-03-01") -> GemmRecord:
    runs = tuple(
        GemmRun(GemmCase(n, n, n, f, "NT"), n**3 / 1e12 / (4 if f == FP16 else 1), 0, 0, 1, 0.1)
        for n in (512, 1024)
        for f in (FP32, FP16)
    )
    versions = {"python": "3", "torch": "2", "driver": "1"}
    return GemmRecord("size", "How large?", runs, device, "cuda", "CUDA events", versions, date)


def keep(folder: Path, device: str, date: str = "2026-03-01") -> None:
    path = folder / "gemm" / DeviceReport("cuda", device, 0, 1).slug / "size.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record(device, date).to_json())


def test_worked_example_of_a_measurement(data_folder: Path) -> None:
    keep(data_folder, "Tesla T4")
    before = data_folder / "gemm"
    after = data_folder / "later"
    # The program moves the record back, as if it had measured.
    before.rename(after)
    text = f"""
import os
part("size", 1)
print("size begins")
os.rename({str(after)!r}, {str(before)!r})
part("size", 1, "done")
part("tasks", 2)
print("tasks begin")
part("tasks", 2, "done")
"""
    widget = measuring(text)
    assert widget.phase == "ready"
    assert widget.sentence.startswith("Ready to measure Tesla T4: five parts, 3 minutes")
    assert widget.pictures == []
    # The message of a page.
    widget._on_message(None, {"do": "start"}, [])
    assert widget.wait(60).startswith("Done: Tesla T4 is measured.")
    assert widget.phase == "done"
    assert widget.part == 2
    assert widget.parts == 2
    (picture,) = widget.pictures
    assert picture["src"].startswith("data:image/png;base64,iVBOR")
    assert "On Tesla T4, a product of 1024 x 1024 x 1024 in FP32" in picture["alt"]
    assert "FP16 4 times as fast" in picture["alt"]


WAITING = "print('size begins', flush=True); import time; time.sleep(600)"


def wait_for_part(widget: GpuRun) -> None:
    begun = threading.Event()
    widget.observe(lambda _: begun.set(), "part")
    widget.start()
    assert begun.wait(60)


def test_stop_ends_the_command_and_what_it_started() -> None:
    """Like `labkit gpu`, the program starts another one; its pipe closes when both have ended."""
    text = (
        f"part('size', 1); import subprocess; subprocess.run([sys.executable, '-c', {WAITING!r}])"
    )
    widget = measuring(text)
    wait_for_part(widget)
    assert "Part 1 of 2, 35 s at most" in widget.sentence
    process = widget._process
    assert process is not None
    widget.start()
    # A second press starts no second measurement.
    assert widget._process is process
    widget._on_message(None, {"do": "stop"}, [])
    assert widget.wait(60) == "Stopped. What was measured of Tesla T4 until then is kept and drawn."
    assert (widget.phase, process.running) == ("stopped", False)


def test_a_measurement_ends_with_its_widget() -> None:
    widget = measuring(f"part('size', 1); {WAITING}")
    wait_for_part(widget)
    process = widget._process
    widget.close()
    process.wait(60)
    assert not process.running


def test_a_part_that_failed_is_named() -> None:
    widget = measuring(
        """
part("size", 1, "failed with status 1; its last lines say why")
part("tasks", 2, "not begun, the time was up")
print("what is printed    is shown")
raise SystemExit(1)
"""
    )
    widget.start()
    late = "its last lines say why; tasks not begun, the time was up."
    assert f"Not all of it was done: size failed with status 1; {late}" in widget.wait(60)
    assert widget.phase == "failed"
    assert widget.printed == "what is printed    is shown"


def test_a_command_that_cannot_start_is_reported() -> None:
    missing = GpuRun(T4, command=("no such program",))
    missing.start()
    assert missing.phase == "failed"
    assert "could not be started" in missing.sentence


def test_without_a_gpu_the_widget_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", tuple)
    widget = GpuRun(command=program("raise SystemExit(1)"))
    widget.start()
    assert widget.phase == "no gpu"
    for words in (
        "expected a device of this machine",
        "torch reaches no GPU",
        "labkit gpu --quick",
    ):
        assert words in widget.sentence
    assert widget.sentence in widget._repr_mimebundle_()[0]["text/plain"]


def test_a_command_that_writes_no_progress_ends_normally() -> None:
    widget = GpuRun(T4, command=program("print('--- 1 of 2, size: time products, 35 s')"))
    widget.start()
    assert widget.wait(60).startswith("Done")
    assert widget.part == 0
    assert widget.printed == "--- 1 of 2, size: time products, 35 s"


def test_a_damaged_file_of_progress_stops_no_measurement() -> None:
    damaged = """
with open(sys.argv[-1], "w") as file:
    file.write("{}\\n")
print("it goes on", flush=True)
sys.stdin.readline()
"""
    widget = measuring(damaged)
    named = threading.Event()
    widget.observe(lambda change: "cannot be read" in change["new"] and named.set(), "sentence")
    widget.start()
    assert named.wait(60)
    assert "expected in line 1 a part that `labkit gpu --progress` wrote" in widget.sentence
    widget._process.end_input()
    assert widget.wait(60).startswith("Done")


def test_only_records_of_this_gpu_are_drawn(data_folder: Path) -> None:
    keep(data_folder, "NVIDIA A100")
    assert GpuRun(T4).pictures == []
    keep(data_folder, "Tesla T4", "2026-04-01")
    assert len(GpuRun(T4).pictures) == 1


def test_recorded_speeds_of_tasks_are_shown(data_folder: Path) -> None:
    path = data_folder / "checks" / "tesla-t4" / "tasks.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps(
            {"item": "pace gpt", "kind": "timing", "steps_per_second": {"FP32": 10.0, "O1": 25.0}}
        )
        + "\n"
    )
    assert GpuRun(T4).paces == ["gpt: Steps a second on Tesla T4: FP32 10, O1 25 (2.5 times FP32)."]


def test_a_record_that_cannot_be_drawn_is_named(data_folder: Path) -> None:
    keep(data_folder, "Tesla T4")
    # Without copies there is no roofline.
    lacking = replace(record("Tesla T4"), sweep="ceilings")
    (data_folder / "gemm" / "tesla-t4" / "ceilings.json").write_text(lacking.to_json())
    first, second = pictures(T4)
    assert first["src"] == ""
    assert first["alt"][:23] == "ceilings is not drawn: "
    assert second["src"], "the other record was not drawn"
    (data_folder / "gemm" / "tesla-t4" / "size.json").write_text("{")
    assert "could not be drawn" in GpuRun(T4).sentence


@pytest.mark.slow
def test_the_widget_follows_the_progress_of_the_command() -> None:
    """The widget follows the file that `labkit gpu` writes; here it measures the CPU."""
    cpu = Place(torch.device("cpu"), device_report("cpu").name, "gpu")
    rehearsal = (
        sys.executable,
        "-m",
        "labkit",
        "gpu",
        "--device",
        "cpu",
        "--quick",
        "--only",
        "size",
    )
    widget = GpuRun(cpu, command=rehearsal)
    widget.start()
    assert widget.wait(200).startswith("Done")
    assert widget.part == 1
    assert widget.parts == 1
    (picture,) = widget.pictures
    assert cpu.name in picture["alt"]
