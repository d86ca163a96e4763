"""The debugger of a training step: its stages, and their sentences."""

import re
from dataclasses import replace

import pytest

from labkit.amp import RECIPES
from labkit.train import STAGES, TASKS, TrainingRun
from labkit.widgets import StepDebugger

DIGITS = replace(TASKS["digits"], batch_size=16)


@pytest.fixture
def steps():
    return StepDebugger(DIGITS)


def sentences(steps):
    """Return the sentence of each stage of a step."""
    return dict(zip(STAGES, steps.get_state()["_view"]["sentences"], strict=True))


class TestStages:
    def test_debugger_begins_at_the_first_stage_of_the_first_step(self, steps):
        assert (steps.watched.step, steps.stage) == (1, 0)
        assert steps.sentence == "The model computes with FP16 copies of FP32 master weights."

    def test_debugger_begins_with_o2_and_a_scale_of_2_16(self, steps):
        assert (steps.recipe_name, steps.log2_scale) == ("O2", 16)

    def test_each_stage_has_its_own_sentence(self, steps):
        assert len(set(sentences(steps).values())) == len(STAGES) == 8

    def test_the_sentence_is_that_of_the_stage(self, steps):
        for number, sentence in enumerate(sentences(steps).values()):
            steps.stage = number
            assert steps.sentence == sentence

    def test_a_still_has_all_stages(self, steps):
        text = steps.still()["text/plain"]
        assert all(f"{number} {name}: " in text for number, name in enumerate(STAGES, 1))

    def test_the_watched_step_is_that_of_a_training_run(self, steps):
        record = TrainingRun(DIGITS, RECIPES["O2"], measure_every=0).step()
        assert steps.watched.loss == record.loss

    def test_the_sentences_have_the_numbers_of_the_step(self, steps):
        loss = f"{steps.watched.loss:.3g}"
        assert f"The loss is {loss}, in FP32. Times the scale 2^16" in sentences(steps)["loss"]
        assert sentences(steps)["check for inf"].startswith("All 26,122 gradients are finite")

    def test_fp32_casts_nothing(self, steps):
        steps.recipe_name = "FP32"
        found = sentences(steps)
        assert found["cast weights"] == "Nothing is cast: everything in this step is FP32."
        assert "6 return FP32" in found["forward"]

    def test_fp32_scales_nothing(self, steps):
        steps.recipe_name = "FP32"
        assert steps.log2_scale == 0
        found = sentences(steps)
        assert found["loss"].endswith("in FP32, and nothing scales it.")
        assert found["scaled backward"].startswith("Nothing is scaled: they go from ")

    def test_each_power_of_two_moves_a_bar_by_one_place_of_68(self, steps):
        steps.recipe_name = "FP32"
        plain = steps.get_state()["_view"]["stages"][3][-1]["bar"]
        steps.log2_scale = 4
        scaled = steps.get_state()["_view"]["stages"][3][-1]["bar"]
        assert [b - a for a, b in zip(plain, scaled, strict=True)] == pytest.approx([4 / 68] * 2)

    def test_o1_copies_no_weight_back(self, steps):
        steps.recipe_name = "O1"
        assert "every weight stays in FP32" in sentences(steps)["cast weights"]
        assert sentences(steps)["copy back"].startswith("Nothing to copy")
        assert "of 26,122 FP32 weights" in sentences(steps)["step"]

    def test_o3_has_no_master_weights(self, steps):
        steps.recipe_name = "O3"
        assert (
            sentences(steps)["cast weights"]
            == "The weights are FP16, and there is no FP32 master behind them."
        )

    def test_norms_keep_fp32(self):
        steps = StepDebugger(replace(TASKS["segmentation_small"], batch_size=2))
        assert sentences(steps)["cast weights"].endswith("; 3 normalisation layers keep FP32.")

    def test_o3_with_adam_loses_its_model_in_one_step(self):
        steps = StepDebugger(replace(TASKS["segmentation_small"], batch_size=2))
        steps.recipe_name = "O3"
        # Adam divides by the root of squared gradients plus 1e-8, and in FP16 both are 0.
        assert sentences(steps)["step"].endswith("25,152 of its 25,152 updates are inf or NaN.")
        lost = "inf or NaN: this model is lost, and no later step repairs it."
        assert sentences(steps)["copy back"] == f"Every weight is {lost}"

    def test_a_step_with_a_scale_too_high_is_skipped(self, steps):
        steps.log2_scale = 40
        assert not steps.watched.stepped

    @pytest.mark.parametrize(
        ("stage", "expected"),
        [
            ("scaled backward", r".* gradients overflow.*"),
            (
                "check for inf",
                r"found_inf: .* The step is skipped, and the scale goes down to 2\^39\.",
            ),
            ("step", r"Skipped: the weights and the optimizer's state stay as they were\."),
            ("copy back", r"Nothing moved, so nothing changes\."),
        ],
    )
    def test_each_stage_of_a_skipped_step_says_so(self, steps, stage, expected):
        steps.log2_scale = 40
        assert re.fullmatch(expected, sentences(steps)[stage])

    def test_the_step_after_a_skipped_one_has_half_the_scale(self, steps):
        steps.log2_scale = 40
        steps.another_step()
        assert steps.log2_scale == 39
        assert steps.watched.scale == 2.0**39
        assert steps.watched.step == 2

    def test_reset_returns_to_the_first_step(self, steps):
        first = steps.watched.loss
        steps.another_step()
        steps.another_step()
        assert steps.watched.step == 3
        steps.reset()
        assert steps.watched.step == 1
        assert steps.watched.loss == first


@pytest.mark.parametrize(
    ("recipe", "stepped", "fate"),
    [
        ("O2", "FP32 master weights", "was less than half an ulp, and stays in the master."),
        (
            "BF16 Kahan",
            "BF16 weights with their compensation",
            "was less than half an ulp, and is kept in the compensation.",
        ),
        ("BF16 no master", "BF16 weights", "; what rounding took off is forgotten."),
        ("BF16 stochastic", "BF16 weights", "; what rounding took off is forgotten."),
    ],
)
def test_the_fate_of_a_small_update_depends_on_the_recipe(recipe, stepped, fate):
    found = sentences(StepDebugger(DIGITS, RECIPES[recipe]))
    assert f" of 26,122 {stepped}, by " in found["step"]
    assert found["copy back"].endswith(fate)


@pytest.mark.parametrize(("recipe", "operands"), [("FP8 current", "E4M3"), ("TF32", "TF32")])
def test_operands_of_products_may_have_a_format_of_their_own(recipe, operands):
    found = sentences(StepDebugger(DIGITS, RECIPES[recipe]))["cast weights"]
    assert found == f"No weight is cast: only products round their operands, to {operands}."


def test_a_loss_of_nan_is_named():
    broken = replace(DIGITS, loss=lambda outputs, _targets: (outputs * float("nan")).sum())
    assert sentences(StepDebugger(broken))["loss"].startswith("The loss is NaN: look for")


def test_a_step_whose_gradients_are_all_zero_says_so():
    """Every output is multiplied by 0."""
    dead = replace(DIGITS, loss=lambda outputs, _targets: (outputs * 0).sum())
    found = sentences(StepDebugger(dead))
    assert found["scaled backward"].endswith(
        "of them are zero: no weight will learn from this step."
    )
    assert "no finite gradient other than zero is left" in found["unscale"]
