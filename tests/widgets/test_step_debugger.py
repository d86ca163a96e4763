"""The step debugger: its sentences hold against numbers read elsewhere, in every recipe. No browser is needed."""

from dataclasses import replace

import pytest

from labkit.amp import RECIPES
from labkit.train import STAGES, TASKS, TrainingRun
from labkit.widgets import StepDebugger

DIGITS = replace(TASKS["digits"], batch_size=16)


@pytest.fixture
def steps():
    return StepDebugger(DIGITS)


def view(steps):
    """What the page has of the step."""
    return steps.get_state()["_view"]


def said(steps):
    return dict(zip(STAGES, view(steps)["sentences"], strict=True))


class TestStages:
    def test_it_begins_before_the_first_step_of_o2(self, steps):
        assert (steps.recipe_name, steps.log2_scale, steps.stage, steps.watched.step) == ("O2", 16, 0, 1)
        assert steps.sentence == "The model computes with FP16 copies of FP32 master weights."
        for number, sentence in enumerate(said(steps).values()):
            steps.stage = number
            assert steps.sentence == sentence
        assert len(set(said(steps).values())) == 8
        text = steps.still()["text/plain"]
        assert all(f"{number} {name}: " in text for number, name in enumerate(STAGES, 1))

    def test_numbers_are_those_of_a_run(self, steps):
        run = TrainingRun(DIGITS, RECIPES["O2"], measure_every=0)
        record = run.step()
        assert steps.watched.loss == record.loss
        assert f"The loss is {record.loss:.3g}, in FP32. Times the scale 2^16" in said(steps)["loss"]
        assert said(steps)["check for inf"].startswith("All 26,122 gradients are finite")

    def test_fp32(self, steps):
        steps.recipe_name = "FP32"
        words = said(steps)
        assert steps.log2_scale == 0
        assert words["cast weights"] == "Nothing is cast: everything in this step is FP32."
        assert words["loss"].endswith("in FP32, and nothing scales it.")
        assert words["scaled backward"].startswith("Nothing is scaled: they go from ")
        assert "6 return FP32" in words["forward"]

    def test_o1_keeps_the_weights_and_o3_has_no_master(self, steps):
        steps.recipe_name = "O1"
        assert "every weight stays in FP32" in said(steps)["cast weights"]
        assert said(steps)["copy back"].startswith("Nothing to copy")
        assert "of 26,122 FP32 weights" in said(steps)["step"]
        steps.recipe_name = "O3"
        assert said(steps)["cast weights"] == "The weights are FP16, and there is no FP32 master behind them."

    def test_norms_keep_fp32(self):
        steps = StepDebugger(replace(TASKS["segmentation_small"], batch_size=2))
        assert said(steps)["cast weights"].endswith("; 3 normalisation layers keep FP32.")
        steps.recipe_name = "O3"
        # Adam divides by the root of squared gradients plus 1e-8, and in FP16 both are 0.
        assert said(steps)["step"].endswith("25,152 of its 25,152 updates are inf or NaN.")


class TestScale:
    def test_too_high_is_skipped_and_the_slider_shows_the_scalers_scale(self, steps):
        steps.log2_scale = 40
        words = said(steps)
        assert not steps.watched.stepped
        assert "gradients overflow" in words["scaled backward"]
        assert words["check for inf"].startswith("found_inf: ")
        assert words["check for inf"].endswith("The step is skipped, and the scale goes down to 2^39.")
        assert words["step"] == "Skipped: the weights and the optimizer's state stay as they were."
        assert words["copy back"] == "Nothing moved, so nothing changes."
        steps.another_step()
        assert (steps.log2_scale, steps.watched.scale, steps.watched.step) == (39, 2.0**39, 2)

    def test_each_power_of_two_moves_the_bars_by_one_place(self, steps):
        steps.recipe_name = "FP32"
        plain = view(steps)["stages"][3][-1]["bar"]
        steps.log2_scale = 4
        scaled = view(steps)["stages"][3][-1]["bar"]
        assert [b - a for a, b in zip(plain, scaled, strict=True)] == pytest.approx([4 / 68] * 2)

    def test_reset_begins_again(self, steps):
        first = steps.watched.loss
        for step in (2, 3):
            steps.another_step()
            assert steps.watched.step == step
        steps.reset()
        assert (steps.watched.step, steps.watched.loss) == (1, first)


def test_a_step_whose_gradients_are_all_zero_says_so():
    """A network that died: every output is multiplied by 0."""
    dead = replace(DIGITS, loss=lambda outputs, _targets: (outputs * 0).sum())
    steps = StepDebugger(dead)
    assert said(steps)["scaled backward"].endswith("of them are zero: no weight will learn from this step.")
    assert "no finite gradient other than zero is left" in said(steps)["unscale"]
