"""Four processes from a notebook. A short program stands in for them; the real ones are started in the slow tests."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labkit.train import STEPS, Plan
from labkit.widgets import Workers, memory_bars
from labkit.widgets.workers.widget import verdict
from tests.slowness import slowness

PROGRAM = """
import json, sys
print(json.dumps({"ready": 2}), flush=True)
for line in sys.stdin:
    plan = json.loads(line)
    for step in (1, 2):
        alone = [[8.0, True, False, 0.5], [4.0 if step == 2 and not plan["agree"] else 8.0, True, False, 0.5]]
        held = {"model weights": 2 if plan["sharded"] else 4}
        print(json.dumps({"step": step, "loss": 0.5, "ranks": alone, "sent": 2048, "held": held}), flush=True)
    print(json.dumps({"done": plan}), flush=True)
"""


def trained(workers: Workers, **limit: float) -> str:
    """Press Train and wait until Train may be pressed again; return the sentence."""
    done = threading.Event()
    workers.train_button.observe(lambda change: change["new"] or done.set(), "disabled")
    workers.train()
    assert done.wait(**limit)
    return str(workers.sentence.value)


def test_worked_example_a_training_fills_the_table_and_says_what_came_of_it() -> None:
    workers, limit = Workers((sys.executable, "-c", PROGRAM)), {"timeout": 20 * slowness()}
    try:
        assert trained(workers, **limit).startswith("All ranks stepped or skipped as one. Skipped: 0 of 2.")
        assert "missing" not in workers.table.value
        assert workers.table.value.count("<tr>") == 3
        workers.agree.value = False
        assert "parted in step 2, and no error said so. In the end their steps are 0.75, 1.5" in trained(
            workers, **limit
        )
        assert "Train once" in memory_bars(workers).value
        step = {"step": 1, "loss": 1.0, "ranks": [[8.0, False, True, 1.0]] * 2, "sent": None, "held": {}}
        assert verdict([step], Plan()).startswith("All ranks stepped or skipped as one. Skipped: 1 of 1.")
        workers.held.value = False
        trained(workers, **limit)
        assert "4 bytes" in memory_bars(workers).value
    finally:
        workers.close()
    assert workers.sentence.value == "Stopped: no process is left. Train starts them again."
    assert workers.stop_button.disabled


def test_processes_that_end_by_themselves_say_why() -> None:
    workers = Workers((sys.executable, "-c", "raise OSError('no room')"))
    try:
        assert trained(workers, timeout=20 * slowness()) == "The processes ended by themselves: OSError: no room"
    finally:
        workers.close()


@pytest.mark.slow
def test_four_real_processes_skip_as_one_and_part_where_they_do_not_agree() -> None:
    workers, limit = Workers(), {"timeout": 120 * slowness()}
    try:
        assert trained(workers, **limit).startswith(f"All ranks stepped or skipped as one. Skipped: 3 of {STEPS}.")
        agreed = [[rank[:3] for rank in step["ranks"]] for step in workers.steps]
        assert [found for _, _, found in agreed[2]] == [False, False, True, False]
        workers.agree.value = False
        said = trained(workers, **limit)
        assert "parted in step 3" in said
        assert "0.78125, 0.78125, 6.25, 0.78125 times" in said
    finally:
        workers.close()


KERNEL = """
import sys, threading
from labkit.widgets import Workers
workers, done = Workers(), threading.Event()
workers.train_button.observe(lambda change: change["new"] or done.set(), "disabled")
workers.train()
done.wait()
print(workers._process._process.pid, flush=True)
threading.Event().wait()
"""


def with_children(process: int) -> list[int]:
    """Return a process and those that it has started."""
    return [process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_no_process_is_left_when_the_kernel_is_killed() -> None:
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    try:
        processes = with_children(int(kernel.stdout.readline()))
        assert len(processes) == 5  # torchrun and four ranks
        ends = [os.pidfd_open(process) for process in processes]
    finally:
        os.kill(kernel.pid, signal.SIGKILL)
        kernel.wait()
    for end in ends:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        assert poll.poll(60_000 * slowness()), "a process is still there"
        os.close(end)
