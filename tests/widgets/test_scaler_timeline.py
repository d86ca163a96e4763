"""The scaler timeline without a browser: trace, replay against torch, and texts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.amp import PRESETS, RECIPES, ScalerConfig, static
from labkit.instrument import exponent_histogram
from labkit.train import TASKS, TrainingRun
from labkit.widgets.scaler_timeline import trace as traces
from labkit.widgets.scaler_timeline.trace import (
    OVERFLOWS_FROM,
    Trace,
    keeps_from,
    load_trace,
    measure_trace,
    replay,
)
from labkit.widgets.scaler_timeline.widget import ScalerPresets, ScalerTimeline
from tests.widgets.pages import Scripts


def trace_of(*largest, keeps=0):
    """Return a trace with given largest gradients."""
    return Trace(
        "made up",
        "by hand",
        0,
        largest,
        (keeps,) * len(largest),
        "cpu",
        {"torch": "2"},
        "2026-01-01T00:00",
    )


RECORDED = traces.recorded_trace()


class Replays(Scripts):
    """The page's functions as methods of Python."""

    def replay(
        self, config: ScalerConfig, trace: Trace, steps: int | None = None
    ) -> dict[str, list[float]]:
        return self.run("replayOf", traces.config_state(config), traces.trace_state(trace, steps))

    def sentence(self, config: ScalerConfig, trace: Trace, name: str = "") -> str:
        function = (
            "(name, config, replay) => (name ? presetSentence(name, config, replay) : "
            "replaySentence(replay))"
        )
        return str(
            self.run(function, name, traces.config_state(config), self.replay(config, trace))
        )


FOLDERS = ("exact", "scaler_timeline")
SCRIPTS = Replays
# The heights at which `drawTimeline` draws lines. Without bounds it needs no patterns, and so no
# page.
DRAWN_HEIGHTS = """(replay, before) => {
  const heights = [];
  const drawing = {
    font: "12px sans-serif",
    lineTo: (_, y) => heights.push(y),
    measureText: () => ({ width: 0 }),
  };
  const pen = new Proxy(drawing, { get: (known, name) => known[name] ?? (() => {}) });
  const model = { get: (name) => (name === "_about" ? { steps: replay.scale.length } : 20) };
  const bounds = { top: [], low: [] };
  const palette = { size: 13, font: "sans-serif" };
  drawTimeline({ model, replay, before, bounds, palette }, pen, 800, null);
  return heights;
}"""


# The heights of the edge of a zone in a panel from 30 to 204, whose points have these heights; None
# is far above. Without hatching it needs no page.
EDGE_HEIGHTS = """(ys) => {
  const heights = [];
  const pen = new Proxy({ lineTo: (_, y) => heights.push(y) }, {
    get: (known, name) => known[name] ?? (() => {}),
  });
  const plot = { pen, tint: {}, left: 0, end: 100 };
  inkZone(plot, { top: 30, height: 174 }, ys.map((y, x) => [x, y ?? -Infinity]), "normal");
  return heights;
}"""


def test_the_scale_before_a_change_stays_in_the_picture(js):
    steps = {"tracker": [0, 0], "skipped": [0, 0], "lossy": [0, 0]}
    low = steps | {"scale": [4, 4]}
    high = steps | {"scale": [60, 60]}
    assert min(js.run(DRAWN_HEIGHTS, low, high)) >= 0


@pytest.mark.parametrize("largest", [0.0, 1e-30])
def test_a_step_that_overflows_at_no_scale_is_drawn(js, largest):
    """Gradients that are all 0, or too small for any scale to bring them to overflow."""
    trace = trace_of(*[2.0**-10] * 5, largest)
    (axes,) = ScalerTimeline(trace).figure().axes
    overflow = axes.collections[0].get_paths()[0]
    assert overflow.contains_point((2, axes.get_ylim()[1] - 0.5))
    assert not overflow.contains_point((5.9, 60))
    state = traces.trace_state(trace)
    text = js.run(
        "(config, trace) => stepText(replayOf(config, trace), windowOf(trace), 6)",
        traces.config_state(ScalerConfig()),
        state,
    )
    assert ("no overflow" in text) == (largest == 0), text


def test_the_edge_of_a_zone_stays_beside_its_panel(js):
    """The canvas ignores a point at infinity, and would join its neighbours instead."""
    heights = js.run(EDGE_HEIGHTS, [None, 50, 250])
    assert min(heights) >= 20
    assert max(heights) <= 214


@pytest.mark.parametrize("largest", [np.nan, np.inf, -1.0])
def test_a_trace_has_finite_magnitudes(largest):
    with pytest.raises(ValueError, match="finite magnitudes"):
        trace_of(1.0, largest)


def test_the_recorded_trace_can_be_measured_again():
    """Another processor adds in another order.

    So a difference is allowed, which grows with each step.
    """
    short = measure_trace(TASKS["segmentation_small"], steps=3)
    for step, (now, then) in enumerate(zip(short.largest, RECORDED.largest, strict=False)):
        assert now == pytest.approx(then, rel=0.01 * 2**step), step
    assert np.abs(np.subtract(short.keeps_from, RECORDED.keeps_from[:3])).max() <= 1


def test_overflow_of_a_trace_is_that_of_the_backward_pass():
    short = measure_trace(TASKS["segmentation_small"], steps=1)
    # Half a binade on either side of the scale at which the trace overflows.
    run = TrainingRun(TASKS["segmentation_small"], RECIPES["FP16 static"], seed=0, measure_every=0)
    edge = OVERFLOWS_FROM / short.largest[0]
    for scale in (edge * 0.7, edge * 1.4):
        gradients = run.next_gradients("weight gradients", scale=scale)
        finite = all(bool(torch.isfinite(g).all()) for g in gradients.values())
        assert finite is not (scale * short.largest[0] >= OVERFLOWS_FROM)


def test_scale_keeps_gradients_up_to_one_percent_underflow():
    values = torch.full((1000,), 2.0**-20)
    # 1 % of the gradients may underflow.
    values[:10] = 2.0**-40
    assert keeps_from(exponent_histogram(values)) == 0
    values[:11] = 2.0**-40
    # Gradients from 2^-25 on survive, because they round up to 2^-24.
    assert keeps_from(exponent_histogram(values)) == 15


def test_a_trace_is_saved_and_loaded(tmp_path):
    trace = trace_of(0.5, 2.0**-20, keeps=3)
    assert load_trace(trace.save(tmp_path / "trace.json")) == trace


def test_a_file_that_is_not_a_trace_is_refused(tmp_path):
    for text in (
        "[]",
        "{}",
        '{"schema": "labkit.run/1"}',
        "no JSON",
        '{"schema": "labkit.trace/1", "task": "x"}',
    ):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError, match="is not a trace of a training"):
            load_trace(tmp_path / "other.json")


def test_a_trace_with_a_skipped_step_is_refused():
    too_high = replace(RECIPES["FP16 static"], scaler=static(2.0**40))
    with pytest.raises(
        ValueError, match="step 1 of 'segmentation_small' under 'FP16 static' was skipped"
    ):
        measure_trace(TASKS["segmentation_small"], too_high)


def test_a_timeline_has_at_most_the_steps_of_its_trace():
    assert len(ScalerTimeline(trace_of(0.1, 0.2), steps=400).replay) == 2


def test_a_timeline_of_no_step_is_refused():
    with pytest.raises(ValueError, match="1 or more"):
        ScalerTimeline(steps=0)


@pytest.mark.parametrize("steps", [2.5, True, "10"])
def test_steps_of_a_timeline_are_an_int(steps):
    with pytest.raises(TypeError, match="steps: expected an int, got"):
        ScalerTimeline(steps=steps)


def test_a_replay_equals_torch_s_scaler():
    """The oracle is torch.amp.GradScaler.

    It gets a gradient that overflows where the trace does.
    """
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


def test_low_scale_loses_gradients(js):
    replayed = replay(static(4.0), trace_of(*[2.0**-10] * 4, keeps=3))
    assert replayed.lossy.tolist() == [1, 1, 1, 1]
    sentence = js.sentence(static(4.0), trace_of(*[2.0**-10] * 4, keeps=3))
    assert sentence.endswith(
        "stays at 2^2, and 100% of the steps run at a scale that loses gradients."
    )


def test_an_unchecked_scaler_skips_no_step():
    unchecked = replay(static(2.0**40, skip_on_inf=False), trace_of(*[2.0**-10] * 5))
    assert unchecked.skips == 0
    assert set(unchecked.scale) == {2.0**40}


def test_the_page_replays_as_python_does(js):
    configs = [
        *PRESETS.values(),
        ScalerConfig(
            init_scale=2.0**27, growth_interval=3, growth_factor=1.25, backoff_factor=1 / 3
        ),
        ScalerConfig(
            init_scale=2.0**30, hysteresis=3, consecutive_hysteresis=True, restart_on_inf=False
        ),
        ScalerConfig(init_scale=2.0**26, growth_interval=2, floor=2.0**26, steps_at_floor=True),
        ScalerConfig(init_scale=2.0**120, growth_interval=1, growth_factor=16.0),
        static(2.0**40, skip_on_inf=False),
    ]
    for config in configs:
        expected = replay(config, RECORDED, 600)
        found = js.replay(config, RECORDED, 600)
        assert np.array_equal(found["scale"], np.log2(expected.scale)), config
        assert np.array_equal(found["tracker"], expected.tracker), config
        assert np.array_equal(found["skipped"], expected.skipped + expected.held), config
        assert np.array_equal(found["lossy"], expected.lossy), config


def test_each_knob_moves_the_picture_without_a_kernel(page):
    timeline = ScalerTimeline()
    root = page.show(timeline)
    for name, place, value in (
        ("init_log2_scale", 30, 30),
        ("growth_factor", 4, 4.0),
        ("backoff_factor", 2, 0.25),
        ("growth_interval", 3, 5),
    ):
        before = page.trait("sentence")
        root.locator(f"[data-knob={name}] input").fill(str(place))
        assert page.trait(name) == value
        assert page.trait("sentence") != before
        setattr(timeline, name, value)
        assert page.trait("sentence").startswith(
            f"{timeline.replay.skips} of 400 steps are skipped; "
        )


def test_a_lens_over_a_short_trace_has_one_place(page):
    root = page.show(ScalerPresets(trace_of(*[2.0**-10] * 40)))
    lens = root.get_by_role("slider", name="Lens from step")
    assert lens.get_attribute("max") == "0"
    assert lens.evaluate("input => input.style.getPropertyValue('--lk-filled')") == "0%"


def skips_of(presets: ScalerPresets) -> dict[str, int]:
    """Return the name of each scaler -> the steps that it skips."""
    return {name: what.skips for name, what in presets.replays.items()}


SIX = ["torch", "apex", "DeepSpeed", "Megatron", "OneFlow", "fastai"]


def test_six_scalers_skip_by_their_rules():
    skips = skips_of(ScalerPresets())
    assert list(skips) == SIX
    # The rules of torch and OneFlow differ only at the ends of FP32.
    assert skips["torch"] == skips["OneFlow"]
    # With hysteresis, a scaler skips twice before it backs off.
    assert skips["DeepSpeed"] > skips["torch"]
    # The cap of 2^24 avoids overflows above.
    assert skips["apex"] < skips["torch"]


def test_of_shipped_scalers_only_megatron_starts_too_high():
    presets = ScalerPresets()
    presets.alike = False
    assert [name for name, count in skips_of(presets).items() if count] == ["Megatron"]


def test_shipped_scalers_are_replayed_for_2000_steps():
    presets = ScalerPresets()
    presets.alike = False
    assert {name: len(what) for name, what in presets.replays.items()} == dict.fromkeys(SIX, 2000)


def test_a_table_counts_the_skips_of_each_scaler(page):
    presets = ScalerPresets()
    root = page.show(presets)
    counts = root.locator("tbody tr td:nth-child(3)").all_text_contents()
    assert counts == [str(count) for count in skips_of(presets).values()]


def test_the_sentence_counts_the_skips_that_hysteresis_held(page):
    presets = ScalerPresets()
    root = page.show(presets)
    root.get_by_role("radio", name="DeepSpeed").check()
    sentence = page.trait("sentence")
    held = int(presets.replays["DeepSpeed"].held.sum())
    assert held > 0
    assert f"{held} of the skips leave the scale where it is: with hysteresis 2," in sentence
    assert "it backs off from overflow number 2 on, counted since it last grew" in sentence


def test_the_sentence_of_torch_names_no_hysteresis(page):
    root = page.show(ScalerPresets())
    root.get_by_role("radio", name="DeepSpeed").check()
    root.get_by_role("radio", name="torch").check()
    assert "hysteresis" not in page.trait("sentence")


@pytest.mark.parametrize(
    ("consecutive", "words"), [(True, "in a row"), (False, "since it last grew")]
)
def test_the_sentence_says_how_overflows_are_counted(js, consecutive, words):
    config = ScalerConfig(init_scale=2.0**30, hysteresis=2, consecutive_hysteresis=consecutive)
    assert words in js.sentence(config, trace_of(*[2.0**-10] * 3), "mine")
