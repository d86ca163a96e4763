"""Where FP16 hurts, where it does not, and what cures it: the runs on record, and a few trained here and now.

Each phenomenon is shown with a margin, each cure by the lab's own verdict: it is not worse than FP32, and far better
than what it cures. Bigger proof: `make test-all` trains every task again and holds it to its record.
"""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.train import TASKS, Comparison, TrainingRun, recorded, train
from labkit.widgets import recipe_table

SEEDS = (0, 1, 2)
CARELESS = ("digits", "digits_cnn", "autoencoder", "char_lstm", "gpt", "unet")


def found(task: str, *recipes: str) -> Comparison:
    return Comparison(task, tuple(recorded(task, recipe, seed) for recipe in ("FP32", *recipes) for seed in SEEDS))


def test_underflow_without_a_scale_and_every_cure_of_it() -> None:
    for task, margin in {"segmentation": 0.4, "small_targets": 0.5, "gauss_conv": 0.5}.items():
        comparison = found(task, "FP16", "FP16 static", "O1", "O2", "BF16")
        worse = comparison.difference("FP16")
        assert (worse.verdict, worse.mean < -margin) == ("worse", True), task
        for cure in ("FP16 static", "O1", "O2", "BF16"):
            cured = comparison.difference(cure)
            assert cured.verdict in ("as good", "cannot tell"), (task, cure)
            assert cured.mean > worse.mean + margin, (task, cure)


def test_the_coarser_segmentation_loses_less_but_loses_on_every_seed() -> None:
    """Its Dice scatters as much as it falls; the loss does not."""
    for seed in SEEDS:
        fp32, fp16 = (recorded("segmentation_small", recipe, seed).final_loss for recipe in ("FP32", "FP16"))
        assert fp16 > 1.15 * fp32
        assert recorded("segmentation_small", "FP16 static", seed).final_loss < 1.05 * fp32


def test_swallowed_updates_without_a_master_and_every_cure_of_them() -> None:
    comparison = found(
        "fine_tuning", "FP16 no master", "BF16 no master", "FP16 static", "FP16 stochastic", "FP16 Kahan"
    )
    fp16, bf16 = comparison.difference("FP16 no master"), comparison.difference("BF16 no master")
    assert (fp16.verdict, bf16.verdict) == ("worse", "worse")
    assert bf16.mean < fp16.mean - 0.1 < -0.25, "fewer significand bits: worse than FP16"
    for cure in ("FP16 static", "FP16 stochastic", "FP16 Kahan"):
        assert comparison.difference(cure).verdict == "as good", cure


def test_where_gradients_underflow_and_nothing_happens() -> None:
    verdicts = {task: found(task, "FP16").difference("FP16").verdict for task in CARELESS}
    assert verdicts == dict.fromkeys(CARELESS, "as good")


def test_pure_fp16_with_adam_breaks() -> None:
    """Adam's epsilon of 1e-8 is 0 in FP16, and the squares of small gradients are 0: the update is inf or NaN."""
    tasks = ("digits_cnn", "autoencoder", "char_lstm", "gpt", "unet", "gauss_conv")
    for task, seed in itertools.product(tasks, SEEDS):
        record, metric = recorded(task, "O3", seed), recorded(task, "FP32", seed).metric
        assert not math.isfinite(record.final_loss) or record.metric < metric - 0.1, (task, seed)


def test_autocast_and_masters_are_worse_than_fp32_on_no_task() -> None:
    """As lesson 08 says of O1 and O2, on every seed that is on record."""
    table = recipe_table(TASKS, ["O1", "O2", "FP16"])
    verdicts = {recipe: [table.verdict(task, recipe) for task in TASKS] for recipe in table.recipes}
    for recipe in ("O1", "O2"):
        assert set(verdicts[recipe]) == {"as good", "cannot tell"}
        assert verdicts[recipe].count("as good") > len(TASKS) / 2
    assert verdicts["FP16"].count("worse") == 3


def test_one_seed_of_the_deep_convolutions_learns_nothing_even_in_fp32() -> None:
    recipes = ("FP32", "BF16", "BF16 no master", "FP16 no master", "O1")
    died = {r: [seed for seed in range(5) if recorded("gauss_conv", r, seed).metric < 0.15] for r in recipes}
    assert died == {"FP32": [4], "BF16": [3, 4], "BF16 no master": [1, 3, 4], "FP16 no master": [1, 4], "O1": [4]}


def test_every_task_is_on_record_and_says_where_it_was_made() -> None:
    for task, recipe, seed in itertools.product(TASKS, ("FP32", "FP16", "O1", "O2", "O3", "BF16"), SEEDS):
        record = recorded(task, recipe, seed)
        assert (record.task, record.recipe, record.seed) == (task, recipe, seed)
        assert all((record.device, record.versions["torch"], record.fingerprint, record.date)), record
        assert not record.stopped
        assert len(record.steps) == TASKS[task].steps


def test_live_the_cliff_is_the_number_of_elements_in_the_mean() -> None:
    """The same regression, the mean over 64 targets and over 1,000: trained here, half a second each."""
    wide = TASKS["small_targets"]
    narrow = replace(wide, batch_size=64)
    lost = train(wide, RECIPES["FP16"], measure_every=0).metric
    kept = train(narrow, RECIPES["FP16"], measure_every=0).metric
    assert lost < 0.2 < 0.5 < kept


def test_live_each_layer_of_small_weights_loses_more() -> None:
    task, shares = TASKS["gauss_conv"], []
    for depth in (2, 4, 6):
        deeper = replace(task, make_model=partial(task.make_model, depth=depth))
        shares.append(TrainingRun(deeper, RECIPES["FP16"]).step().underflow)
    assert shares[0] < 0.05 < shares[1] < 0.4 < shares[2]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["FP32", "FP16", "O2"])
@pytest.mark.parametrize("task", sorted(TASKS))
def test_what_is_on_record_happens_again(task: str, recipe: str) -> None:
    """Another processor, maybe of the same name, rounds other sums; an FP16 number may then be its neighbour.

    So the first loss agrees to four digits in FP32, to FP16's epsilon else, and the next ones by as much more in each
    step, since each step trains on; the metric as near as seeds do.
    """
    record = recorded(task, recipe, 0)
    again = train(TASKS[task], RECIPES[recipe], 0)
    if (again.device, again.versions) == (record.device, record.versions):
        losses, before = ([step.loss for step in run.steps[:10]] for run in (again, record))
        near = 1e-4 if recipe == "FP32" else FP16.epsilon
        for step, (now, then) in enumerate(zip(losses, before, strict=True)):
            assert now == pytest.approx(then, rel=near * (1 + step), nan_ok=True), step
    assert again.metric == pytest.approx(record.metric, abs=0.1)
