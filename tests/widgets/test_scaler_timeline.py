"""The scaler timeline, without a browser: the trace is true, the replay is torch's, the words follow the knobs."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import traitlets

from labkit.amp import PRESETS, RECIPES, ScalerConfig, static
from labkit.instrument import exponent_histogram
from labkit.train import TASKS, TrainingRun
from labkit.widgets.scaler_timeline.trace import (
    OVERFLOWS_FROM,
    Trace,
    keeps_from,
    load_trace,
    measure_trace,
    packed,
    recorded_trace,
    replay,
    sentence,
    window,
)
from labkit.widgets.scaler_timeline.widget import KNOBS, ScalerPresets, ScalerTimeline, preset_sentence


def made_up(*largest, keeps=0):
    """A trace of these largest gradients."""
    return Trace("made up", "by hand", 0, largest, (keeps,) * len(largest), "cpu", {"torch": "2"}, "2026-01-01T00:00")


RECORDED = recorded_trace()


# --- the trace --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short():
    return measure_trace(TASKS["segmentation_small"], steps=3)


def test_what_is_recorded_is_what_is_measured_now(short):
    """The same task, recipe and seed: the same gradients, up to what another processor adds in another order."""
    assert short.largest == pytest.approx(RECORDED.largest[:3], rel=1e-2)
    assert np.abs(np.subtract(short.keeps_from, RECORDED.keeps_from[:3])).max() <= 1


def test_a_real_fp16_step_overflows_where_the_trace_says(short):
    """The oracle is the FP16 backward pass itself, half a binade on either side of the edge."""
    run = TrainingRun(TASKS["segmentation_small"], RECIPES["FP16 static"], seed=0, measure_every=0)
    edge = OVERFLOWS_FROM / short.largest[0]
    for scale in (edge * 0.7, edge * 1.4):
        gradients = run.next_gradients("weight gradients", scale=scale)
        finite = all(bool(torch.isfinite(g).all()) for g in gradients.values())
        assert finite is not (scale * short.largest[0] >= OVERFLOWS_FROM)


def test_a_scale_keeps_gradients_from_where_one_in_a_hundred_underflows():
    values = torch.full((1000,), 2.0**-20)
    values[:10] = 2.0**-40  # 1%: allowed to go
    assert keeps_from(exponent_histogram(values)) == 0
    values[:11] = 2.0**-40
    assert keeps_from(exponent_histogram(values)) == 15  # 2^-25 survives: it rounds up to 2^-24


def test_a_trace_is_kept_whole_and_nothing_else_is_taken_for_one(tmp_path):
    trace = made_up(0.5, 2.0**-20, keeps=3)
    assert load_trace(trace.save(tmp_path / "trace.json")) == trace
    for text in ("[]", "{}", '{"schema": "labkit.run/1"}', "no JSON", '{"schema": "labkit.trace/1", "task": "x"}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match="is not a trace of a training"):
            load_trace(tmp_path / "other.json")

    too_high = replace(RECIPES["FP16 static"], scaler=static(2.0**40))
    with pytest.raises(ValueError, match="step 1 of 'segmentation_small' under 'FP16 static' was skipped"):
        measure_trace(TASKS["segmentation_small"], too_high)


# --- the replay -------------------------------------------------------------------------------------------------------


def test_the_worked_example():
    """2^27 overflows, 2^26 just so, 2^25 is clean; with an interval of 1 the next step tries 2^26 again."""
    what = replay(ScalerConfig(init_scale=2.0**27, growth_interval=1), made_up(*[2.0**-10] * 4, keeps=3))
    assert np.log2(what.scale).tolist() == [27, 26, 25, 26]
    assert what.skipped.tolist() == [1, 1, 0, 1]
    assert what.skips == 3
    assert what.lossy.tolist() == [0, 0, 0, 0]


def test_torchs_own_scaler_goes_the_same_way():
    """The oracle: torch.amp.GradScaler, fed the recorded found_inf through a gradient that overflows or does not."""
    for knobs in ({}, {"growth_interval": 7}, {"backoff_factor": 0.25, "growth_factor": 3.0}):
        config = ScalerConfig(**{"init_scale": 2.0**24, "growth_interval": 20, **knobs})
        names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
        theirs = torch.amp.GradScaler("cpu", **{name: getattr(config, name) for name in names})
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        theirs.scale(torch.zeros(1))
        for i, scale in enumerate(replay(config, RECORDED, 300).scale):
            assert scale == pytest.approx(theirs.get_scale(), rel=1e-6), (knobs, i)
            weight.grad = torch.tensor([RECORDED.largest[i] * theirs.get_scale()]).half().float()
            theirs.step(optimizer)
            theirs.update()


def test_a_low_scale_loses_gradients_and_one_that_nobody_checks_skips_nothing():
    what = replay(static(4.0), made_up(*[2.0**-10] * 4, keeps=3))
    assert what.lossy.tolist() == [1, 1, 1, 1]
    assert sentence(what).endswith("stays at 2^2, and 100% of the steps run at a scale that loses gradients.")
    unchecked = replay(static(2.0**40, skip_on_inf=False), made_up(*[2.0**-10] * 5))
    assert (unchecked.skips, set(unchecked.scale)) == (0, {2.0**40})


def test_what_the_browser_gets_is_what_was_computed():
    what = replay(PRESETS["Megatron"], RECORDED, 100)
    scale, tracker, skipped, lossy = np.frombuffer(packed(what), "<f4").reshape(4, 100)
    assert (scale == np.log2(what.scale)).all()
    assert (tracker == what.tracker).all()
    assert ((skipped > 0) == what.skipped).all()
    assert ((skipped > 1) == what.held).all()
    assert (lossy == what.lossy).all()
    top, low = np.frombuffer(window(RECORDED, 100), "<f4").reshape(2, 100)
    assert top[0] == pytest.approx(math.log2(OVERFLOWS_FROM / RECORDED.largest[0]))
    assert (low == RECORDED.keeps_from[:100]).all()


# --- the widget -------------------------------------------------------------------------------------------------------


def test_each_knob_moves_the_picture():
    timeline = ScalerTimeline()
    knobs = {"init_log2_scale": 30, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 5}
    for name, value in knobs.items():
        before, skips = timeline.get_state(), timeline.replay.skips
        setattr(timeline, name, value)
        now = timeline.get_state()
        assert now["_buffer"] != before["_buffer"]
        assert now["_now"][name] == value
        assert timeline.sentence == sentence(timeline.replay)
        assert timeline.replay.skips != skips
    with pytest.raises(traitlets.TraitError, match="from 0 to 32"):
        ScalerTimeline(init_log2_scale=33)

    assert len(ScalerTimeline(made_up(0.1, 0.2), steps=400).replay) == 2
    with pytest.raises(ValueError, match="1 or more"):
        ScalerTimeline(steps=0)


def test_looking_ahead_finds_what_asking_would():
    timeline, sent = ScalerTimeline(steps=50), []
    timeline.send = lambda content, buffers: sent.append((content, buffers))
    timeline._look_ahead(None, {"ahead": {name: getattr(timeline, name) for name in KNOBS}}, None)
    [(content, buffers)] = sent
    assert len(content["places"]) == len(buffers) == 33 + 7 + 7 + 19
    for i in (0, 32, 35, 45, 60):
        place = content["places"][i]
        for name in KNOBS:
            setattr(timeline, name, place[name])
        assert (buffers[i], place["sentence"]) == (timeline.get_state()["_buffer"], timeline.sentence)
    for nonsense in ("ahead", {"ahead": 3}, {"ahead": {"growth_factor": 2}}):
        timeline._look_ahead(None, nonsense, None)
    assert len(sent) == 1


# --- presets ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def presets():
    return ScalerPresets()


def test_what_a_learner_sees_of_the_six(presets):
    skips = {name: what.skips for name, what in presets.replays.items()}
    assert list(skips) == ["torch", "apex", "DeepSpeed", "Megatron", "OneFlow", "fastai"]
    assert skips["torch"] == skips["OneFlow"]  # the same rule, but at the ends of FP32
    assert skips["DeepSpeed"] > skips["torch"]  # hysteresis skips twice before it backs off
    assert skips["apex"] < skips["torch"]  # the cap at 2^24 spares the overflows above
    presets.alike = False
    try:
        ends = {name: what.skips for name, what in presets.replays.items()}
        assert [name for name, count in ends.items() if count] == ["Megatron"]  # it alone starts above the window
        assert len(presets.replays["torch"]) == 2000
    finally:
        presets.alike = True


def test_hysteresis_is_named_where_it_acts(presets):
    presets.selected = "DeepSpeed"
    held = int(presets.replays["DeepSpeed"].held.sum())
    assert held > 0
    assert f"{held} of the skips leave the scale where it is: with hysteresis 2," in presets.sentence
    assert "it backs off from overflow number 2 on, counted since it last grew" in presets.sentence
    presets.selected = "torch"
    assert "hysteresis" not in presets.sentence
    trace = made_up(*[2.0**-10] * 3)
    for consecutive, words in ((True, "in a row"), (False, "since it last grew")):
        config = ScalerConfig(init_scale=2.0**30, hysteresis=2, consecutive_hysteresis=consecutive)
        assert words in preset_sentence("mine", config, replay(config, trace))
