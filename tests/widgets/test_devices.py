"""Where the live widgets train: the GPU where there is one, the CPU else, and they say which.

There need be no GPU here. `meta`, torch's device that computes nothing, stands in for one where it is about which
device the runs are made on; a second label for the CPU where it is about words.
"""

from __future__ import annotations

import json

import pytest
import torch

from labkit.amp import RECIPES
from labkit.train import GPU_TASKS, TASKS, Place, load
from labkit.widgets import BeatTheScaler, LiveTraining, TrainingBar, Workbench
from labkit.widgets.beat_scaler.widget import state as duel_state
from labkit.widgets.driven.driver import Button, Phase
from labkit.widgets.workbench.widget import state

META = Place(torch.device("meta"), "a card that computes nothing", "gpu")
LABELLED = Place(torch.device("cpu"), "Tesla T4", "gpu")  # the CPU, under a GPU's name


@pytest.fixture
def gpu(monkeypatch):
    """A machine on which the CPU is there twice, once as a GPU."""
    monkeypatch.setattr("labkit.train.devices.gpus", lambda: (LABELLED,))
    return LABELLED


def widgets(**options):
    """One of each that trains, at work on little."""
    yield LiveTraining("digits", "O2", steps=4, **options)
    yield Workbench("digits", "O2", steps=4, **options)
    yield BeatTheScaler(steps=4, **options)


def run_to_the_end(lockstep):
    lockstep.handle(Button.START)
    while lockstep.due:
        lockstep.tick()
    assert lockstep.error == ""


def test_every_run_is_made_on_the_device_that_was_asked_for():
    for widget in widgets(device=META):
        widget.lockstep.handle(Button.START)
        widget.lockstep.build()
        sides = [widget.duel.yours, widget.duel.scalers] if isinstance(widget, BeatTheScaler) else []
        runs = [s.run for s in sides or (widget.bench.fp32, widget.bench.run)]
        assert {p.device.type for run in runs for p in run.model.parameters()} == {"meta"}
        assert {tensor.device.type for run in runs for tensor in run.batch(1)} == {"meta"}
        widget.close()


def test_a_gpu_is_taken_where_there_is_one_and_the_cpu_where_it_is_asked_for(gpu, monkeypatch):
    for widget in (*widgets(), TrainingBar(TASKS["digits"], RECIPES["O2"])):
        assert widget.place == gpu
        widget.close()
    for widget in widgets(device="cpu"):
        assert widget.place.key == "cpu"
        widget.close()
    monkeypatch.setattr("labkit.train.devices.gpus", lambda: ())
    for widget in widgets():
        assert widget.place.label == "CPU, emulated"
        widget.close()
    with pytest.raises(ValueError, match='no device "gpu" to train on here; this machine has "cpu"'):
        Workbench("digits", device="gpu")


def test_sentence_record_and_page_say_where_it_ran(gpu, tmp_path):
    bench = Workbench("digits", "O2", steps=24)
    assert "trains beside FP32 on this GPU: Tesla T4, with the same" in bench.sentence
    run_to_the_end(bench.lockstep)
    assert "On this GPU: Tesla T4, FP32 did " in bench.sentence
    rates = state(bench.bench)["place"]["rates"]
    assert rates.startswith("trains on this GPU: Tesla T4; steps a second: FP32 ")
    assert all(float(word.strip(",").split()[-1]) > 0 for word in rates.split(": ")[-1].split(","))
    record = bench.record()
    assert record.device == "Tesla T4"
    assert record.steps_per_second == pytest.approx(1 / bench.bench.run.step_seconds)
    assert load(record.save(tmp_path / "record.json")).device == "Tesla T4"
    assert any("Tesla T4" in text.get_text() for text in bench.figure().texts)
    bench.close()
    assert "on this GPU: Tesla T4" in duel_state(BeatTheScaler(steps=4).duel)["place"]["rates"]


def test_the_knob_offers_every_place_and_begins_anew_there(gpu):
    live = LiveTraining("digits", "O2", steps=4)
    offers = live._offers["places"]
    assert [place["label"] for place in offers] == ["this GPU: Tesla T4", "CPU, emulated"]
    run_to_the_end(live.lockstep)
    live.lockstep.handle(live.command({"do": "choose", "place": "cpu"}))
    assert (live.phase, live.history, live.place.key) == (Phase.IDLE, (), "cpu")
    run_to_the_end(live.lockstep)
    assert "On the CPU, emulated, FP32 did" in live.sentence
    live.close()
    game = BeatTheScaler(steps=4, pace=1e6)
    game.lockstep.handle(Button.START)
    game.lockstep.tick()
    game.lockstep.handle(game.command({"do": "choose", "place": "cpu"}))
    assert (game.phase, game.history, game.place.key) == (Phase.IDLE, (), "cpu")
    game.close()


def test_tasks_that_are_worth_a_gpu_are_offered_where_there_is_one(gpu, monkeypatch):
    bench = Workbench("digits", steps=4)
    offered = state(bench.bench)["tasks"]
    assert offered == [*TASKS, *GPU_TASKS]
    assert bench.command({"do": "choose", "task": "unet_gpu"}).task is GPU_TASKS["unet_gpu"]
    json.dumps(state(bench.bench), allow_nan=False)
    bench.close()
    LiveTraining("gpt_gpu").close()
    monkeypatch.setattr("labkit.train.devices.gpus", lambda: ())
    with pytest.raises(ValueError, match=r"task is one of .* given 'gpt_gpu'"):
        LiveTraining("gpt_gpu")


def test_a_bar_says_where_it_trains(gpu):
    bar = TrainingBar(TASKS["digits"], RECIPES["O2"], steps=2)
    assert bar.sentence.endswith(": 2 steps on this GPU: Tesla T4.")
    bar.start()
    assert bar.wait(60).device == "Tesla T4"
    assert bar.sentence.endswith(" It ran on this GPU: Tesla T4.")
