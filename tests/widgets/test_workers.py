"""The widget of several workers; short programs replace torchrun in most tests."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.train import STEPS, WorkerPlan
from labkit.train.plan import load_workers
from labkit.widgets import Workers, memory_bars
from labkit.widgets.workers.widget import verdict
from tests.slowness import slowness
from tests.widgets.pages import Page

pytestmark = pytest.mark.usefixtures("data_folder")

RECORDED = Path(__file__).parents[2] / "data" / "workers"

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


def test_saved_record_of_workers_is_loaded(workers: Workers, data_folder: Path) -> None:
    trained(workers, **LIMIT)
    record = workers.record()
    again = load_workers(record.save(data_folder / "saved.json"))
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
