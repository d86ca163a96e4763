"""Comparisons of metrics, by hand and against scipy; records saved and loaded.

And where FP16 hurts, where it does not, and what cures it: the runs on record, and a few trained
here and now. Each phenomenon is shown with a margin, each cure by the lab's own verdict: it is not
worse than FP32, and far better than what it cures. Bigger proof: `make test-all` trains every task
again and holds it to its record.
"""

import itertools
import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.train import (
    TASKS,
    Comparison,
    RunRecord,
    StepRecord,
    TrainingRun,
    compare,
    load,
    recorded,
    signed,
    train,
)
from labkit.widgets import recipe_table


def run(recipe: str, seed: int, metric: float, loss: float = 0.1) -> RunRecord:
    steps = (StepRecord(1, loss, 1.0, False, True),)
    return RunRecord(
        "t", recipe, seed, steps, metric, "accuracy", 1.0, "CPU", {"torch": "2"}, "2026-01-01"
    )


def comparison(
    fp32: list[float], other: list[float], *, margin: float = 0.02, **changes: float
) -> Comparison:
    ours = [run("FP32", seed, metric) for seed, metric in enumerate(fp32)]
    theirs = [run("O1", seed, metric, **changes) for seed, metric in enumerate(other)]
    return Comparison("t", (*ours, *theirs), margin=margin)


def test_worked_example_dense_detection_without_a_scale() -> None:
    found = comparison([0.706, 0.659, 0.668], [0.040, 0.052, 0.354]).difference("O1")
    assert found.verdict == "worse"
    assert found.mean == pytest.approx(-0.529, abs=1e-3)
    assert found.spread == pytest.approx(0.047)
    # (0.666, 0.607, 0.314): standard deviation 0.1884, so 4.303 * 0.1884 / sqrt(3).
    assert found.interval == pytest.approx(0.468, abs=1e-3)


def test_as_good_needs_a_test_of_its_own() -> None:
    """Differences 0.009, 0.014, 0.011: mean 0.0113; 2.920 * 0.0025166 / sqrt(3) = 0.0042, together
    inside 0.02.
    """
    fp32 = [0.706, 0.659, 0.668]
    other = [0.715, 0.673, 0.679]
    found = comparison(fp32, other).difference("O1")
    assert found.verdict == "as good"
    assert found.interval_90 == pytest.approx(0.0042, abs=5e-5)
    assert str(found) == "O1: as good, +0.011 ± 0.004 (90% interval), inside the margin of 0.02"
    assert comparison(fp32, other, margin=0.015).difference("O1").verdict == "cannot tell"


VERDICTS = [  # metrics of FP32, of the other, more, and the verdict
    # Mean -0.2, far beyond FP32's spread; but one seed went up and one came down.
    ([0.6, 0.601], [0.7, 0.1], {}, "cannot tell"),
    # One seed of three that died: the deep convolutions without masters, on their first three
    # seeds.
    ([0.8615, 0.8514, 0.7683], [0.8464, 0.8564, 0.1008], {}, "cannot tell"),
    # Every pair 0.005 apart, FP32's seeds alike: worse by the second test, as good by the first,
    # which comes first.
    ([0.7, 0.7, 0.7], [0.695, 0.695, 0.695], {}, "as good"),
    ([0.7, 0.7, 0.7], [0.695, 0.695, 0.695], {"margin": 0.004}, "worse"),
    # Broken runs, even with the same metric; and NaN is the worst one.
    ([0.7, 0.7, 0.7], [0.7, 0.7, 0.7], {"loss": math.nan}, "cannot tell"),
    ([0.7, 0.7, 0.71], [math.nan] * 3, {"loss": math.nan}, "worse"),
    ([0.50, 0.51, 0.50], [0.70, 0.71, 0.71], {}, "better"),
    ([0.7], [0.1], {}, "one seed"),
]


def test_verdicts_follow_from_the_pairs() -> None:
    found = [
        comparison(fp32, other, **more).difference("O1").verdict
        for fp32, other, more, _ in VERDICTS
    ]
    assert found == [verdict for *_, verdict in VERDICTS]
    assert "more seeds may tell" in str(comparison([0.6, 0.601], [0.7, 0.1]).difference("O1"))
    assert "one seed says nothing" in str(comparison([0.7], [0.1]).difference("O1"))
    broken = comparison([0.7, 0.7, 0.71], [math.nan] * 3, loss=math.nan).difference("O1")
    assert "3 of 3 runs ended in inf or NaN" in str(broken)
    assert [signed(x, 2) for x in (-0.004, 0.004, -0.0, -0.006, 1.5)] == [
        "0.00",
        "0.00",
        "0.00",
        "-0.01",
        "+1.50",
    ]


def test_the_two_intervals_are_students() -> None:
    """Points of Student's t by another way: integrate its density, and find where 5% and 2.5% are
    left.
    """
    x = np.linspace(0, 20, 400_001)
    for n in range(2, 13):
        v = n - 1
        unit = math.gamma((v + 1) / 2) / (math.sqrt(v * math.pi) * math.gamma(v / 2))
        upper = unit * np.cumsum((1 + x * x / v) ** (-(v + 1) / 2)) * (x[1] - x[0])
        values = np.arange(n, dtype=float)
        found = comparison([0.0] * n, values.tolist()).difference("O1")
        error = values.std(ddof=1) / math.sqrt(n)
        for width, share in ((found.interval_90, 0.45), (found.interval, 0.475)):
            point = x[np.searchsorted(upper, share)]
            assert width / error == pytest.approx(point, rel=0.15 if n > 11 else 2e-3), n


def test_comparison_uses_common_seeds_only() -> None:
    runs = (run("O1", 0, 0.7), run("O1", 1, 0.7), run("O2", 0, 0.2), run("O2", 1, 0.21))
    text = str(Comparison("t", runs, reference="O1"))
    assert "beyond O1's spread" in text
    assert "FP32" not in text
    both = Comparison(
        "t", (run("FP32", 0, 0.7), run("FP32", 1, 0.7), run("O1", 1, 0.7), run("O1", 2, 0.0))
    )
    assert both.difference("O1").seeds == 1
    with pytest.raises(ValueError, match="no seed in common"):
        Comparison("t", (run("FP32", 0, 0.7), run("O1", 2, 0.0))).difference("O1")
    assert (
        str(Comparison("t", (run("O1", 0, 0.7),)))
        == "t against FP32:\n  O1: no seed in common with FP32"
    )
    assert str(Comparison("t", ())) == "t against FP32:\n  no other recipe has run"


def test_a_comparison_runs_what_is_missing_and_reads_the_rest(tmp_path: Path) -> None:
    short = replace(TASKS["digits"], steps=2)
    recipes = [RECIPES["FP32"], RECIPES["O1"]]
    first = compare(short, recipes, seeds=(0,), folder=tmp_path, workers=1)
    wide = replace(short, margin=0.1)  # which is the task's, and no part of what is trained
    again = compare(wide, recipes, seeds=(0, 1), folder=tmp_path, workers=1)
    assert again.records[:2] == first.records
    assert again.recipes == ("FP32", "O1")
    assert "one seed" in str(first)


def test_worked_example_of_a_record(tmp_path: Path) -> None:
    first = StepRecord(1, 0.5, 1024.0, False, True, 0.25)
    second = StepRecord(2, math.inf, 1024.0, True, False)
    record = replace(run("O1", 3, math.inf), steps=(first, second), stopped=True)
    path = record.save(tmp_path / "run.json")
    assert load(path) == record
    assert record.skipped == 1
    nan = load(replace(record, steps=(first, replace(second, loss=math.nan))).save(path))
    assert math.isnan(nan.steps[1].loss)
    assert json.loads(path.read_text())["steps"]["loss"] == [0.5, "nan"], (
        "plain JSON, that any program reads"
    )


def test_another_file_is_refused_in_words(tmp_path: Path) -> None:
    for text in ("", "not json", "[1, 2]", '{"schema": "other/1"}', '{"schema": "labkit.run/1"}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match="is not a run record"):
            load(tmp_path / "x.json")


SEEDS = (0, 1, 2)
CARELESS = ("digits", "digits_cnn", "autoencoder", "char_lstm", "gpt", "unet")


def found(task: str, *recipes: str) -> Comparison:
    return Comparison(
        task, tuple(recorded(task, recipe, seed) for recipe in ("FP32", *recipes) for seed in SEEDS)
    )


def test_underflow_without_a_scale_and_every_cure_of_it() -> None:
    for task, margin in {
        "segmentation": 0.4,
        "small_targets": 0.5,
        "gauss_conv": 0.5,
        "painted_picture": 0.8,
    }.items():
        comparison = found(task, "FP16", "FP16 static", "O1", "O2", "BF16")
        worse = comparison.difference("FP16")
        assert (worse.verdict, worse.mean < -margin) == ("worse", True), task
        for cure in ("FP16 static", "O1", "O2", "BF16"):
            cured = comparison.difference(cure)
            assert cured.verdict in ("as good", "cannot tell"), (task, cure)
            assert cured.mean > worse.mean + margin, (task, cure)


def test_coarser_segmentation_loses_on_every_seed() -> None:
    """Its Dice scatters as much as it falls; the loss does not."""
    for seed in SEEDS:
        fp32, fp16 = (
            recorded("segmentation_small", recipe, seed).final_loss for recipe in ("FP32", "FP16")
        )
        assert fp16 > 1.15 * fp32
        assert recorded("segmentation_small", "FP16 static", seed).final_loss < 1.05 * fp32


def test_every_cure_of_swallowed_updates_works() -> None:
    cures = ("FP16 static", "FP16 stochastic", "FP16 Kahan")
    comparison = found("fine_tuning", "FP16 no master", "BF16 no master", *cures)
    fp16 = comparison.difference("FP16 no master")
    bf16 = comparison.difference("BF16 no master")
    assert (fp16.verdict, bf16.verdict) == ("worse", "worse")
    assert bf16.mean < fp16.mean - 0.1 < -0.25, "fewer significand bits: worse than FP16"
    assert [comparison.difference(cure).verdict for cure in cures] == ["as good"] * 3


def test_where_gradients_underflow_and_nothing_happens() -> None:
    verdicts = {task: found(task, "FP16").difference("FP16").verdict for task in CARELESS}
    assert verdicts == dict.fromkeys(CARELESS, "as good")


def test_pure_fp16_with_adam_breaks() -> None:
    """Adam's epsilon of 1e-8 is 0 in FP16, and the squares of small gradients are 0: the update is
    inf or NaN.
    """
    tasks = ("digits_cnn", "autoencoder", "char_lstm", "gpt", "unet", "gauss_conv")
    for task, seed in itertools.product(tasks, SEEDS):
        record = recorded(task, "O3", seed)
        metric = recorded(task, "FP32", seed).metric
        assert not math.isfinite(record.final_loss) or record.metric < metric - 0.1, (task, seed)


def test_autocast_and_masters_are_worse_than_fp32_on_no_task() -> None:
    """As lesson 08 says of O1 and O2, on every seed that is on record."""
    table = recipe_table(TASKS, ["O1", "O2", "FP16"])
    verdicts = {recipe: [table.verdict(task, recipe) for task in TASKS] for recipe in table.recipes}
    for recipe in ("O1", "O2"):
        assert set(verdicts[recipe]) == {"as good", "cannot tell"}
        assert verdicts[recipe].count("as good") > len(TASKS) / 2
    assert verdicts["FP16"].count("worse") == 4


def test_one_seed_of_deep_convolutions_fails_in_fp32() -> None:
    recipes = ("FP32", "BF16", "BF16 no master", "FP16 no master", "O1")
    died = {
        r: [seed for seed in range(5) if recorded("gauss_conv", r, seed).metric < 0.15]
        for r in recipes
    }
    assert died == {
        "FP32": [4],
        "BF16": [3, 4],
        "BF16 no master": [1, 3, 4],
        "FP16 no master": [1, 4],
        "O1": [4],
    }


def test_every_task_is_on_record_and_says_where_it_was_made() -> None:
    for task, recipe, seed in itertools.product(
        TASKS, ("FP32", "FP16", "O1", "O2", "O3", "BF16"), SEEDS
    ):
        record = recorded(task, recipe, seed)
        assert (record.task, record.recipe, record.seed) == (task, recipe, seed)
        assert all((record.device, record.versions["torch"], record.fingerprint, record.date)), (
            record
        )
        assert (record.stopped, len(record.steps)) == (False, TASKS[task].steps)
    with pytest.raises(FileNotFoundError, match="labkit compare digits"):
        recorded("digits", "BF16", 99)


def test_live_the_cliff_is_the_number_of_elements_in_the_mean() -> None:
    """The same regression, the mean over 64 targets and over 1,000: trained here, half a second
    each.
    """
    wide = TASKS["small_targets"]
    tasks = wide, replace(wide, batch_size=64)
    lost, kept = (train(task, RECIPES["FP16"], measure_every=0).metric for task in tasks)
    assert lost < 0.2 < 0.5 < kept


def test_live_each_layer_of_small_weights_loses_more() -> None:
    task = TASKS["gauss_conv"]
    shares = []
    for depth in (2, 4, 6):
        deeper = replace(task, make_model=partial(task.make_model, depth=depth))
        shares.append(TrainingRun(deeper, RECIPES["FP16"]).step().underflow)
    assert shares[0] < 0.05 < shares[1] < 0.4 < shares[2]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["FP32", "FP16", "O2"])
@pytest.mark.parametrize("task", sorted(TASKS))
def test_what_is_on_record_happens_again(task: str, recipe: str) -> None:
    """Another processor, maybe of the same name, rounds other sums; an FP16 number may then be its
    neighbour.

    So the first loss agrees to four digits in FP32, to FP16's epsilon else, and the next ones by as
    much more in each step, since each step trains on; the metric as near as seeds do.
    """
    record = recorded(task, recipe, 0)
    again = train(TASKS[task], RECIPES[recipe], 0)
    if (again.device, again.versions) == (record.device, record.versions):
        losses, before = ([step.loss for step in run.steps[:10]] for run in (again, record))
        near = 1e-4 if recipe == "FP32" else FP16.epsilon
        for step, (now, then) in enumerate(zip(losses, before, strict=True)):
            assert now == pytest.approx(then, rel=near * (1 + step), nan_ok=True), step
    assert again.metric == pytest.approx(record.metric, abs=0.1)
