"""Widgets that run a process: the measurement of a GPU and several workers.

Short programs replace `labkit gpu` and torchrun in most tests.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.bench import DeviceReport, GemmCase, GemmRecord, GemmRun, device_report
from labkit.formats import FP16, FP32
from labkit.train import STEPS, Place, WorkerPlan, devices
from labkit.train.plan import load_workers
from labkit.widgets import GpuRun, Workers, memory_bars
from labkit.widgets.gpu_run.widget import pictures
from labkit.widgets.workers.widget import verdict
from tests.slowness import slowness
from tests.widgets.pages import Page

RECORDED = Path(__file__).parents[2] / "data" / "workers"
T4 = Place(torch.device("cuda", 0), "Tesla T4", "gpu")


def program(text: str) -> tuple[str, ...]:
    return sys.executable, "-u", "-c", text


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    return tmp_path


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


def test_worked_example_of_a_measurement(folder: Path) -> None:
    keep(folder, "Tesla T4")
    before = folder / "gemm"
    after = folder / "later"
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


def test_only_records_of_this_gpu_are_drawn(folder: Path) -> None:
    keep(folder, "NVIDIA A100")
    assert GpuRun(T4).pictures == []
    keep(folder, "Tesla T4", "2026-04-01")
    assert len(GpuRun(T4).pictures) == 1


def test_recorded_speeds_of_tasks_are_shown(folder: Path) -> None:
    path = folder / "checks" / "tesla-t4" / "tasks.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(
        json.dumps(
            {"item": "pace gpt", "kind": "timing", "steps_per_second": {"FP32": 10.0, "O1": 25.0}}
        )
        + "\n"
    )
    assert GpuRun(T4).paces == ["gpt: Steps a second on Tesla T4: FP32 10, O1 25 (2.5 times FP32)."]


def test_a_record_that_cannot_be_drawn_is_named(folder: Path) -> None:
    keep(folder, "Tesla T4")
    # Without copies there is no roofline.
    lacking = replace(record("Tesla T4"), sweep="ceilings")
    (folder / "gemm" / "tesla-t4" / "ceilings.json").write_text(lacking.to_json())
    first, second = pictures(T4)
    assert first["src"] == ""
    assert first["alt"][:23] == "ceilings is not drawn: "
    assert second["src"], "the other record was not drawn"
    (folder / "gemm" / "tesla-t4" / "size.json").write_text("{")
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


# A program that replaces torchrun: it answers each plan with two steps of two ranks.
PROGRAM = """
import json, sys
print(json.dumps({"ready": 2}), flush=True)
for line in sys.stdin:
    plan = json.loads(line)
    for step in (1, 2):
        second_scale = 4.0 if step == 2 and not plan["agree"] else 8.0
        alone = [[8.0, True, False, 0.5], [second_scale, True, False, 0.5]]
        held = {"model weights": 2 if plan["sharded"] else 4}
        record = {"step": step, "loss": 0.5, "ranks": alone, "sent": 2048, "held": held}
        print(json.dumps(record), flush=True)
    print(json.dumps({"done": plan}), flush=True)
"""


def trained(workers: Workers, **limit: float) -> str:
    """Press Train and wait until Train may be pressed again; return the sentence."""
    done = threading.Event()
    workers.observe(lambda change: change["new"] == "ready" and done.set(), "phase")
    workers.train()
    assert done.wait(**limit)
    return str(workers.sentence)


LIMIT = {"timeout": 200 * slowness()}


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Workers of two processes; the data folder of the tests has no record."""
    made = Workers((sys.executable, "-c", PROGRAM))
    yield made
    made.close()


def test_training_fills_the_lanes(workers: Workers) -> None:
    trained(workers, **LIMIT)
    assert workers._lanes["recorded"] == ""
    assert len(workers._lanes["steps"]) == 2
    assert len(workers._lanes["lanes"]) == 2


def test_training_of_ranks_that_agree_says_so(workers: Workers) -> None:
    sentence = trained(workers, **LIMIT)
    assert sentence.startswith("All ranks stepped or skipped as one. Skipped: 0 of 2.")


def test_training_of_ranks_that_part_says_where(workers: Workers) -> None:
    workers.agree = False
    expected = "parted in step 2, and no error said so. In the end their steps are 0.75, 1.5"
    assert expected in trained(workers, **LIMIT)


def test_verdict_counts_skipped_steps() -> None:
    step = {
        "step": 1,
        "loss": 1.0,
        "ranks": [[8.0, False, True, 1.0]] * 2,
        "sent": None,
        "held": {},
    }
    sentence = verdict([step], WorkerPlan())
    assert sentence.startswith("All ranks stepped or skipped as one. Skipped: 1 of 1.")


def test_memory_is_shown_after_a_training(workers: Workers) -> None:
    workers.sharded = False
    assert "Train once" in memory_bars(workers).value
    trained(workers, **LIMIT)
    assert "4 bytes" in memory_bars(workers).value


def test_closed_workers_leave_no_process(workers: Workers) -> None:
    trained(workers, **LIMIT)
    workers.close()
    assert workers.sentence == "Stopped: no process is left. Train starts them again."
    assert (workers.phase, workers.running) == ("ready", False)


def test_processes_that_end_are_reported() -> None:
    limit = {"timeout": 200 * slowness()}
    workers = Workers((sys.executable, "-c", "raise OSError('no room')"))
    assert trained(workers, **limit) == "The processes ended by themselves: OSError: no room"
    workers.close()


def test_a_command_for_workers_that_cannot_start_is_reported() -> None:
    workers = Workers(("no-such-program-of-labkit",))
    with pytest.raises(OSError, match="no-such-program-of-labkit"):
        workers.train()
    assert workers.phase == "ready"
    assert workers.sentence.startswith("The processes could not be started")
    workers.close()


def test_buttons_without_an_effect_send_nothing(page: Page) -> None:
    root = page.show(Workers((sys.executable, "-c", PROGRAM)))
    page.page.evaluate(
        "() => { globalThis.sent = []; shown.model.send = (message) => sent.push(message.do) }"
    )
    for phase in ("ready", "training", "ending"):
        page.set(phase=phase)
        for name in ("Train", "Stop"):
            # A page without a kernel hides the buttons.
            root.locator("button", has_text=name).dispatch_event("click")
    assert page.page.evaluate("sent") == ["train", "stop"]


def test_no_training_begins_while_processes_end() -> None:
    workers = Workers((sys.executable, "-c", PROGRAM))
    workers.phase = "ending"
    workers.train()
    assert (workers.phase, workers.running) == ("ending", False)
    workers.close()


def test_the_last_training_after_stop_does_not_invite_another() -> None:
    workers = Workers((sys.executable, "-c", PROGRAM))
    workers._stopped = True
    workers.phase = "ending"
    step = {"step": 1, "loss": 1.0, "ranks": [[8.0, True, False, 1.0]], "sent": None, "held": {}}
    workers._on_line(json.dumps(step).encode())
    workers._on_line(b'{"done": {"sharded": true}}')
    assert workers.phase == "ending"
    workers._on_end(0)
    assert workers.phase == "ready"
    workers.close()


def test_a_line_that_is_almost_json_is_taken_as_text() -> None:
    workers = Workers((sys.executable, "-c", PROGRAM))
    workers._on_line(b"{'error': 'RankLost'}\n")
    workers._on_end(1)
    assert workers.sentence.endswith("{'error': 'RankLost'}")
    workers.close()


def test_without_a_record_no_training_is_drawn(workers: Workers) -> None:
    assert workers._lanes["recorded"] == ""
    assert workers._lanes["steps"] == []


def test_record_of_no_training_is_refused(workers: Workers) -> None:
    with pytest.raises(ValueError, match="got none; press Train first"):
        workers.record()


@pytest.fixture
def recorded_workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Workers that draw the record of the lab's data."""
    monkeypatch.delenv("LABKIT_DATA")
    made = Workers((sys.executable, "-c", PROGRAM))
    yield made
    made.close()


def test_recorded_training_is_drawn(recorded_workers: Workers) -> None:
    lanes = recorded_workers._lanes
    assert lanes["recorded"].startswith("recorded: CPU")
    found = [rank["found"] for rank in lanes["steps"][2]["ranks"]]
    assert found == [False, False, True, False]


def test_recorded_training_is_called_one(recorded_workers: Workers) -> None:
    assert "Drawn faintly, from a record: All ranks" in recorded_workers.sentence
    assert memory_bars(recorded_workers).value.count("(recorded: CPU") == 2


def test_training_replaces_the_recorded_one(recorded_workers: Workers) -> None:
    trained(recorded_workers, **LIMIT)
    assert recorded_workers._lanes["recorded"] == ""
    assert len(recorded_workers._lanes["steps"]) == 2
    assert memory_bars(recorded_workers).value.count("(recorded: CPU") == 1


def test_saved_record_of_workers_is_loaded(workers: Workers, folder: Path) -> None:
    trained(workers, **LIMIT)
    record = workers.record()
    again = load_workers(record.save(folder / "saved.json"))
    assert again.plan == WorkerPlan()
    assert len(again.steps) == 2
    assert again.device == record.device


def test_a_file_that_is_not_a_record_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a record of a training by several"):
        load_workers(Path(__file__))


@pytest.mark.slow
def test_four_real_processes_skip_together() -> None:
    workers = Workers()
    limit = {"timeout": 120 * slowness()}
    try:
        assert trained(workers, **limit).startswith(
            f"All ranks stepped or skipped as one. Skipped: 3 of {STEPS}."
        )
        agreed = [[rank[:3] for rank in step["ranks"]] for step in workers.steps]
        recorded = [
            [tuple(rank[:3]) for rank in step["ranks"]]
            for step in load_workers(RECORDED / "fsdp2.json").steps
        ]
        # The shipped record is of this training.
        assert recorded == [[tuple(rank) for rank in ranks] for ranks in agreed]
        assert [found for _, _, found in agreed[2]] == [False, False, True, False]
        workers.agree = False
        sentence = trained(workers, **limit)
        assert "parted in step 3" in sentence
        assert "0.78125, 0.78125, 6.25, 0.78125 times" in sentence
    finally:
        workers.close()


KERNEL = """
import sys, threading
from labkit.widgets import Workers
workers, done = Workers(), threading.Event()
workers.observe(lambda change: change["new"] == "ready" and done.set(), "phase")
workers.train()
done.wait()
print(workers._process._process.pid, flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_all_processes_end_when_the_kernel_is_killed() -> None:
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    try:
        launcher = int(kernel.stdout.readline())
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        processes = [launcher, *map(int, children)]
        # torchrun and four ranks.
        assert len(processes) == 5
        ends = [os.pidfd_open(process) for process in processes]
    finally:
        os.kill(kernel.pid, signal.SIGKILL)
        kernel.wait()
    for end in ends:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        assert poll.poll(60_000 * slowness()), "a process is still there"
        os.close(end)
