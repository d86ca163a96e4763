"""A training run behind a bar: started once, stopped when asked, and its record kept."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest
import torch

from labkit.amp import RECIPES
from labkit.train import TASKS, Place, devices, train
from labkit.widgets import TrainingBar

TASK, RECIPE = TASKS["digits"], RECIPES["FP16 dynamic"]


def test_worked_example() -> None:
    bar = TrainingBar(TASK, RECIPE, seed=1, steps=5, device="cpu")
    assert (bar.phase, bar.done, bar.record) == ("ready", 0, None)
    bar.wanted = "start"  # as the browser says it
    record = bar.wait(60)
    assert record is not None
    assert record.steps == train(TASK, RECIPE, 1, steps=5).steps, "the very run that train gives"
    assert (bar.phase, bar.done) == ("finished", 5)
    assert bar.sentence.startswith("Finished after 5 steps")
    bar.start()
    assert bar.phase == "finished", "a second start does nothing"


def test_it_trains_on_the_gpu_where_there_is_one_and_times_fp32_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = Place(torch.device("cpu"), "Stand-in T4", "gpu")
    monkeypatch.setattr(devices, "gpus", lambda: (stand_in,))
    bar = TrainingBar(TASK, RECIPE, steps=5)
    assert bar.sentence.endswith("5 steps on this GPU: Stand-in T4.")
    bar.start()
    record = bar.wait(60)
    assert record is not None
    assert record.device == "Stand-in T4"
    assert bar.sentence.endswith("It ran on this GPU: Stand-in T4.")
    number = r"[\d.e+]+"
    told = rf"Steps a second on Stand-in T4: FP32 {number}, FP16 dynamic {number} \({number} times FP32\)\."
    assert re.search(told, bar.sentence)
    assert TrainingBar(TASK, RECIPE, device="cpu").place.emulated


def test_stop_ends_it_and_the_record_says_so() -> None:
    bar = TrainingBar(TASK, RECIPE, steps=10_000)
    begun = threading.Event()
    bar.observe(lambda _: begun.set(), "done")
    bar.start()
    assert begun.wait(60)
    bar.wanted = "stop"
    record = bar.wait(60)
    assert record is not None
    assert record.stopped
    assert 1 <= len(record.steps) < 10_000
    assert bar.phase == "stopped"


def test_what_nobody_sees_stops_and_what_was_not_started_can_still_be() -> None:
    bar = TrainingBar(TASK, RECIPE, steps=10_000, device="cpu")
    unseen = {"method": "custom", "content": {"do": "unseen"}}
    bar._handle_msg({"content": {"data": unseen}, "buffers": []})
    begun = threading.Event()
    bar.observe(lambda _: begun.set(), "done")
    bar.start()
    assert begun.wait(60)
    bar._handle_msg({"content": {"data": unseen}, "buffers": []})
    record = bar.wait(60)
    assert record is not None
    assert record.stopped
    assert bar.sentence.startswith("Stopped after ")


def test_an_error_is_shown() -> None:
    def broken() -> object:
        raise RuntimeError("no such network")

    bar = TrainingBar(replace(TASK, make_model=broken), RECIPE, steps=2)  # type: ignore[arg-type]
    bar.start()
    assert bar.wait(60) is None
    assert (bar.phase, bar.sentence) == ("failed", "It failed: RuntimeError: no such network")
