"""Devices of the widgets that train: the GPU if there is one, otherwise the CPU.

Two devices stand in for a GPU: `meta`, which computes nothing, and the CPU with a second label.
"""

import json
import re
from functools import partial

import pytest
import torch

from labkit.amp import RECIPES
from labkit.train import GPU_TASKS, TASKS, Place, load
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


def test_sentence_before_a_run_names_the_device(gpu):
    bench = Workbench("digits", "O2", steps=24)
    assert "trains beside FP32 on this GPU: Tesla T4, with the same" in bench.sentence
    bench.close()


@pytest.fixture
def finished(gpu):
    """A workbench whose run has ended on the card."""
    bench = Workbench("digits", "O2", steps=24)
    run_to_the_end(bench.controller)
    yield bench
    bench.close()


def test_sentence_after_a_run_names_the_device(finished):
    assert "on this GPU: Tesla T4, FP32 did " in finished.sentence


def test_speeds_of_a_run_name_the_device(finished):
    rates = finished.state()["place"]["rates"]
    start = "trains on this GPU: Tesla T4; steps a second: "
    assert rates.startswith(start)
    # such as "FP32 120, FP16 95"
    speeds = dict(each.rsplit(" ", 1) for each in rates.removeprefix(start).split(", "))
    assert [*speeds] == ["FP32", "FP16"]
    assert min(map(float, speeds.values())) > 0


def test_saved_record_of_a_run_names_the_device(finished, tmp_path):
    record = finished.record()
    assert record.steps_per_second == pytest.approx(1 / finished.forked_run.run.step_seconds)
    assert load(record.save(tmp_path / "record.json")).device == record.device == "Tesla T4"


def test_figure_of_a_run_names_the_device(finished):
    assert any("Tesla T4" in text.get_text() for text in finished.figure().texts)


def test_game_names_its_device(gpu):
    game = BeatTheScaler(steps=4)
    assert "on this GPU: Tesla T4" in game.state()["place"]["rates"]
    game.close()


def test_another_device_begins_a_run_again(gpu):
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


def test_a_training_bar_trains_on_the_gpu(gpu):
    bar = TrainingBar(TASKS["digits"], RECIPES["FP16 dynamic"], steps=5)
    assert bar.sentence.endswith("5 steps on this GPU: Tesla T4.")
    bar.start()
    record = bar.wait(60)
    assert record is not None
    assert record.device == "Tesla T4"
    assert bar.sentence.endswith("It ran on this GPU: Tesla T4.")
    assert re.search(
        r"on Tesla T4: FP32 [\d.,]+, FP16 dynamic [\d.,]+ \([\d.,]+ times FP32\)\.", bar.sentence
    )
