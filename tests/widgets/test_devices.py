"""Devices of the widgets that train: the GPU if there is one, otherwise the CPU.

Two devices stand in for a GPU: `meta`, which computes nothing, and the CPU with a second label.
"""

import json
import math
import re
import threading
from dataclasses import replace
from functools import partial

import pytest
import torch

from labkit.amp import RECIPES
from labkit.train import GPU_TASKS, TASKS, Place, StepRecord, load, train
from labkit.widgets import BeatTheScaler, LiveTraining, TrainingBar, Workbench
from labkit.widgets.driven.controller import Button, Phase

META = Place(torch.device("meta"), "a card that computes nothing", "gpu")
# The CPU with the label of a GPU.
LABELLED = Place(torch.device("cpu"), "Tesla T4", "gpu")


@pytest.fixture
def gpu(monkeypatch):
    """Offer the CPU twice, once as a GPU."""
    monkeypatch.setattr("labkit.train.devices.gpus", lambda: (LABELLED,))
    return LABELLED


def widgets(**options):
    """Yield one short training of each widget; it is closed before the next one is made."""
    for make in (
        partial(LiveTraining, "digits", "O2"),
        partial(Workbench, "digits", "O2"),
        BeatTheScaler,
    ):
        widget = make(steps=4, **options)
        yield widget
        widget.close()


def run_to_the_end(runs):
    runs.handle(Button.START)
    while runs.due:
        runs.tick()
    assert runs.error == ""


def test_every_run_uses_the_chosen_device():
    for widget in widgets(device=META):
        widget.controller.handle(Button.START)
        widget.controller.build()
        runs = [side.run for side in widget.controller.sides]
        assert {p.device.type for run in runs for p in run.model.parameters()} == {"meta"}
        assert {tensor.device.type for run in runs for tensor in run.batch(1)} == {"meta"}


def test_a_gpu_is_the_default(gpu):
    for widget in (*widgets(), TrainingBar(TASKS["digits"], RECIPES["O2"])):
        assert widget.place == gpu


def test_a_cpu_can_be_chosen_beside_a_gpu(gpu):
    assert {widget.place.key for widget in widgets(device="cpu")} == {"cpu"}


def test_without_a_gpu_the_cpu_is_the_default(monkeypatch):
    monkeypatch.setattr("labkit.train.devices.gpus", lambda: ())
    assert {widget.place.label for widget in widgets()} == {"CPU, emulated"}


def test_a_gpu_that_is_missing_is_refused(monkeypatch):
    monkeypatch.setattr("labkit.train.devices.gpus", lambda: ())
    with pytest.raises(ValueError, match=r'expected a device of this machine, .*got "gpu"'):
        Workbench("digits", device="gpu")


def test_sentence_record_and_figure_name_the_device(gpu, tmp_path):
    bench = Workbench("digits", "O2", steps=24)
    assert "trains beside FP32 on this GPU: Tesla T4, with the same" in bench.sentence
    run_to_the_end(bench.controller)
    assert "on this GPU: Tesla T4, FP32 did " in bench.sentence
    rates = bench.state()["place"]["rates"]
    assert rates.startswith("trains on this GPU: Tesla T4; steps a second: FP32 ")
    assert all(float(word.strip(",").split()[-1]) > 0 for word in rates.split(": ")[-1].split(","))
    record = bench.record()
    assert record.device == "Tesla T4"
    assert record.steps_per_second == pytest.approx(1 / bench.forked_run.run.step_seconds)
    assert load(record.save(tmp_path / "record.json")).device == "Tesla T4"
    assert any("Tesla T4" in text.get_text() for text in bench.figure().texts)
    bench.close()
    assert "on this GPU: Tesla T4" in BeatTheScaler(steps=4).state()["place"]["rates"]


def test_another_device_begins_a_run_again(gpu, monkeypatch):
    live = LiveTraining("digits", "O2", steps=4)
    offers = live._offers["places"]
    assert [place["label"] for place in offers] == ["this GPU: Tesla T4", "CPU, emulated"]
    run_to_the_end(live.controller)
    live.controller.handle(live.command({"do": "choose", "place": "cpu"}))
    assert live.phase == Phase.IDLE
    assert live.history == ()
    assert live.place.key == "cpu"
    run_to_the_end(live.controller)
    assert "on the CPU, emulated, FP32 did" in live.sentence
    live.close()


def test_another_device_begins_a_game_again(gpu):
    game = BeatTheScaler(steps=4, pace=1e6)
    game.controller.handle(Button.START)
    game.controller.tick()
    game.controller.handle(game.command({"do": "choose", "place": "cpu"}))
    assert game.phase == Phase.IDLE
    assert game.history == ()
    assert game.place.key == "cpu"
    game.close()


def test_large_tasks_are_offered_where_a_gpu_is(gpu, monkeypatch):
    bench = Workbench("digits", steps=4)
    offered = bench.state()["tasks"]
    assert offered == [*TASKS, *GPU_TASKS]
    json.dumps(bench.state(), allow_nan=False)
    bench.forked_run.handle(bench.command({"do": "choose", "task": "unet_gpu"}))
    assert bench.forked_run.task is GPU_TASKS["unet_gpu"]
    bench.close()
    LiveTraining("gpt_gpu").close()
    monkeypatch.setattr("labkit.train.devices.gpus", lambda: ())
    with pytest.raises(ValueError, match=r"task: expected one of .*, got 'gpt_gpu'"):
        LiveTraining("gpt_gpu")


TASK = TASKS["digits"]
RECIPE = RECIPES["FP16 dynamic"]


def test_worked_example_of_a_bar() -> None:
    bar = TrainingBar(TASK, RECIPE, seed=1, steps=5, device="cpu")
    assert bar.phase == "ready"
    assert bar.done == 0
    assert bar.record is None
    # The message of a page.
    bar.wanted = "start"
    record = bar.wait(60)
    assert record is not None
    assert record.steps == train(TASK, RECIPE, 1, steps=5).steps
    assert bar.phase == "finished"
    assert bar.done == 5
    assert bar.sentence.startswith("Finished after 5 steps")
    assert bar.losses == [step.loss for step in record.steps]
    # A second start does nothing.
    bar.start()
    assert bar.phase == "finished"


def test_a_long_training_has_a_hundred_losses() -> None:
    bar = TrainingBar(TASK, RECIPE, steps=1000, device="cpu")
    for step in range(1, 1001):
        bar._tell(
            StepRecord(step, math.inf if step > 900 else 1 / step, 1.0, step > 900, step <= 900)
        )
    # An infinite loss is a gap.
    assert len(bar.losses) == 100
    assert bar.losses[0] == 0.1
    assert bar.losses[-1] is None


def test_widget_trains_on_the_gpu_if_there_is_one(gpu) -> None:
    bar = TrainingBar(TASK, RECIPE, steps=5)
    assert bar.sentence.endswith("5 steps on this GPU: Tesla T4.")
    bar.start()
    record = bar.wait(60)
    assert record is not None
    assert record.device == "Tesla T4"
    assert bar.sentence.endswith("It ran on this GPU: Tesla T4.")
    assert re.search(
        r"on Tesla T4: FP32 [\d.,]+, FP16 dynamic [\d.,]+ \([\d.,]+ times FP32\)\.", bar.sentence
    )
    assert TrainingBar(TASK, RECIPE, device="cpu").place.emulated


def test_stop_and_a_hidden_page_end_a_training() -> None:
    unseen = {"content": {"data": {"method": "custom", "content": {"do": "unseen"}}}, "buffers": []}
    for end in (lambda bar: setattr(bar, "wanted", "stop"), lambda bar: bar._handle_msg(unseen)):
        bar = TrainingBar(TASK, RECIPE, steps=10_000, device="cpu")
        begun = threading.Event()
        # A page that is hidden before the start does not prevent it.
        bar._handle_msg(unseen)
        bar.observe(lambda _, begun=begun: begun.set(), "done")
        bar.start()
        assert begun.wait(60)
        end(bar)
        record = bar.wait(60)
        assert record is not None
        assert record.stopped
        assert 1 <= len(record.steps) < 10_000
        assert bar.phase == "stopped"
        assert bar.sentence[:14] == "Stopped after "


def test_a_training_that_fails_is_reported() -> None:
    def broken() -> object:
        raise RuntimeError("no such network")

    bar = TrainingBar(replace(TASK, make_model=broken), RECIPE, steps=2)
    bar.start()
    assert bar.wait(60) is None
    assert bar.phase == "failed"
    assert bar.sentence == "It failed: RuntimeError: no such network"
