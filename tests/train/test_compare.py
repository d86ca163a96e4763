"""Comparisons of recipes: statistics, records, and what the recorded runs show.

Statistics are compared with worked examples and with Student's t, integrated numerically. Tests of
recorded runs check where FP16 is worse than FP32 by a margin, and that each remedy is not worse
than FP32. The slow tests train every task again and compare it with its record.
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


def test_worked_example_of_a_recipe_that_is_worse() -> None:
    found = comparison([0.706, 0.659, 0.668], [0.040, 0.052, 0.354]).difference("O1")
    assert found.verdict == "worse"
    assert found.mean == pytest.approx(-0.529, abs=1e-3)
    assert found.spread == pytest.approx(0.047)
    # (0.666, 0.607, 0.314): standard deviation 0.1884, so 4.303 * 0.1884 / sqrt(3).
    assert found.interval == pytest.approx(0.468, abs=1e-3)


def test_worked_example_of_a_recipe_that_is_as_good() -> None:
    """The differences 0.009, 0.014 and 0.011 have the mean 0.0113.

    Their half-width is 2.920 * 0.0025166 / sqrt(3) = 0.0042; the sum of both is inside the margin
    of 0.02.
    """
    fp32 = [0.706, 0.659, 0.668]
    other = [0.715, 0.673, 0.679]
    found = comparison(fp32, other).difference("O1")
    assert found.verdict == "as good"
    assert found.interval_90 == pytest.approx(0.0042, abs=5e-5)
    assert str(found) == "O1: as good, +0.011 ± 0.004 (90% interval), inside the margin of 0.02"
    assert comparison(fp32, other, margin=0.015).difference("O1").verdict == "cannot tell"


# Metrics of FP32, metrics of O1, further arguments, and the verdict.
VERDICTS = [
    # Mean -0.2, far beyond FP32's spread; but one seed went up and one came down.
    ([0.6, 0.601], [0.7, 0.1], {}, "cannot tell"),
    # One seed of three failed: deep convolutions without master weights, seeds 0 to 2.
    ([0.8615, 0.8514, 0.7683], [0.8464, 0.8564, 0.1008], {}, "cannot tell"),
    # Every pair differs by 0.005, and the seeds of FP32 do not: it would be worse by the second
    # test, but the first one, equivalence within the margin, takes precedence.
    ([0.7, 0.7, 0.7], [0.695, 0.695, 0.695], {}, "as good"),
    ([0.7, 0.7, 0.7], [0.695, 0.695, 0.695], {"margin": 0.004}, "worse"),
    # Broken runs, even with the same metric; and NaN and inf are the worst ones.
    ([0.7, 0.7, 0.7], [0.7, 0.7, 0.7], {"loss": math.nan}, "cannot tell"),
    ([0.7, 0.7, 0.71], [math.nan] * 3, {"loss": math.nan}, "worse"),
    ([0.7, 0.7, 0.71], [math.inf, math.nan, -math.inf], {}, "worse"),
    ([0.50, 0.51, 0.50], [0.70, 0.71, 0.71], {}, "better"),
    ([0.7], [0.1], {}, "one seed"),
]


def test_verdicts_follow_from_the_pairs() -> None:
    for fp32, other, arguments, verdict in VERDICTS:
        difference = comparison(fp32, other, **arguments).difference("O1")
        assert difference.verdict == verdict, (fp32, other, arguments)


def test_texts_of_undecided_comparisons() -> None:
    assert "more seeds may tell" in str(comparison([0.6, 0.601], [0.7, 0.1]).difference("O1"))
    assert "one seed says nothing" in str(comparison([0.7], [0.1]).difference("O1"))
    broken = comparison([0.7, 0.7, 0.71], [math.nan] * 3, loss=math.nan).difference("O1")
    assert "3 of 3 runs ended in inf or NaN" in str(broken)


def test_a_broken_run_inside_the_margin_has_a_reason_of_its_own() -> None:
    same = [0.7, 0.7, 0.7]
    difference = comparison(same, same, loss=math.nan).difference("O1")
    assert difference.is_inside_margin
    assert "not inside the margin" not in str(difference)
    assert "inside the margin of 0.02, but a recipe that broke" in str(difference)


def test_signed_numbers_have_no_negative_zero() -> None:
    assert [signed(x, 2) for x in (-0.004, 0.004, -0.0, -0.006, 1.5)] == [
        "0.00",
        "0.00",
        "0.00",
        "-0.01",
        "+1.50",
    ]


def test_intervals_equal_those_of_student_s_t() -> None:
    """The oracle integrates the density of Student's t and finds where 5% and 2.5% remain."""
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
            # From 11 degrees of freedom on, labkit takes the points of the normal distribution.
            assert width / error == pytest.approx(point, rel=0.15 if n > 11 else 2e-3), n


def test_a_comparison_may_have_another_reference_than_fp32() -> None:
    runs = (run("O1", 0, 0.7), run("O1", 1, 0.7), run("O2", 0, 0.2), run("O2", 1, 0.21))
    text = str(Comparison("t", runs, reference="O1"))
    assert "beyond O1's spread" in text
    assert "FP32" not in text


def test_a_comparison_uses_common_seeds_only() -> None:
    both = Comparison(
        "t", (run("FP32", 0, 0.7), run("FP32", 1, 0.7), run("O1", 1, 0.6), run("O1", 2, 0.0))
    )
    difference = both.difference("O1")
    assert difference.seeds == 1
    assert difference.mean == pytest.approx(-0.1)


def test_comparison_without_a_common_seed_has_no_difference() -> None:
    with pytest.raises(ValueError, match="no seed in common"):
        Comparison("t", (run("FP32", 0, 0.7), run("O1", 2, 0.0))).difference("O1")
    assert (
        str(Comparison("t", (run("O1", 0, 0.7),)))
        == "t against FP32:\n  O1: no seed in common with FP32"
    )
    assert str(Comparison("t", ())) == "t against FP32:\n  no other recipe has run"


def test_a_comparison_trains_only_what_is_not_recorded(tmp_path: Path) -> None:
    short = replace(TASKS["digits"], steps=2)
    recipes = [RECIPES["FP32"], RECIPES["O1"]]
    first = compare(short, recipes, seeds=(0,), folder=tmp_path, workers=1)
    # The margin does not affect the training, so records stay valid.
    wide = replace(short, margin=0.1)
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
    # Strict JSON has no NaN, so it is written as text.
    assert json.loads(path.read_text())["steps"]["loss"] == [0.5, "nan"]


def test_a_record_with_numbers_of_numpy_is_saved(tmp_path: Path) -> None:
    step = StepRecord(1, np.float32(0.5), np.float64(1024), np.bool_(False), True)
    record = replace(run("O1", 3, np.float32("nan")), steps=(step,), seconds=np.float32(2))
    loaded = load(record.save(tmp_path / "run.json"))
    assert loaded.steps == (step,)
    assert loaded.seconds == 2
    assert math.isnan(loaded.metric)


def test_infinities_in_a_table_of_a_record_are_kept(tmp_path: Path) -> None:
    tables = {"memory": {"weights": math.inf}, "arithmetic": {"allow_tf32": "inf"}}
    loaded = load(replace(run("O1", 3, 0.5), **tables).save(tmp_path / "run.json"))
    assert loaded.memory == tables["memory"]
    assert loaded.arithmetic == tables["arithmetic"]


@pytest.mark.parametrize(
    "text", ["", "not json", "[1, 2]", '{"schema": "other/1"}', '{"schema": "labkit.run/1"}']
)
def test_a_file_that_is_not_a_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="is not a run record"):
        load(tmp_path / "x.json")


SEEDS = (0, 1, 2)
# Tasks whose gradients underflow in FP16, without harm to their metrics.
UNHARMED = ("digits", "digits_cnn", "autoencoder", "char_lstm", "gpt", "unet")


def recorded_comparison(task: str, *recipes: str) -> Comparison:
    return Comparison(
        task, tuple(recorded(task, recipe, seed) for recipe in ("FP32", *recipes) for seed in SEEDS)
    )


def test_every_remedy_of_underflow_works() -> None:
    for task, margin in {
        "segmentation": 0.4,
        "small_targets": 0.5,
        "gauss_conv": 0.5,
        "painted_picture": 0.8,
    }.items():
        comparison = recorded_comparison(task, "FP16", "FP16 static", "O1", "O2", "BF16")
        worse = comparison.difference("FP16")
        assert worse.verdict == "worse", task
        assert worse.mean < -margin, task
        for cure in ("FP16 static", "O1", "O2", "BF16"):
            cured = comparison.difference(cure)
            assert cured.verdict in ("as good", "cannot tell"), (task, cure)
            assert cured.mean > worse.mean + margin, (task, cure)


def test_coarser_segmentation_loses_on_every_seed() -> None:
    """The loss decides, because Dice falls by no more than it varies between seeds."""
    for seed in SEEDS:
        fp32, fp16 = (
            recorded("segmentation_small", recipe, seed).final_loss for recipe in ("FP32", "FP16")
        )
        assert fp16 > 1.15 * fp32
        assert recorded("segmentation_small", "FP16 static", seed).final_loss < 1.05 * fp32


def test_every_remedy_of_swallowed_updates_works() -> None:
    cures = ("FP16 static", "FP16 stochastic", "FP16 Kahan")
    comparison = recorded_comparison("fine_tuning", "FP16 no master", "BF16 no master", *cures)
    fp16 = comparison.difference("FP16 no master")
    bf16 = comparison.difference("BF16 no master")
    assert fp16.verdict == "worse"
    assert bf16.verdict == "worse"
    # BF16 has fewer significand bits than FP16, so it loses more updates.
    assert bf16.mean < fp16.mean - 0.1 < -0.25
    assert [comparison.difference(cure).verdict for cure in cures] == ["as good"] * 3


def test_underflow_does_not_harm_some_tasks() -> None:
    for task in UNHARMED:
        assert recorded_comparison(task, "FP16").difference("FP16").verdict == "as good", task


def test_pure_fp16_with_adam_breaks() -> None:
    """In FP16, Adam's epsilon of 1e-8 is 0, and so are the squares of small gradients.

    Updates that are divided by their sum are inf or NaN, and so is the loss at the end.
    """
    tasks = ("digits_cnn", "autoencoder", "char_lstm", "gpt", "unet", "gauss_conv")
    for task, seed in itertools.product(tasks, SEEDS):
        assert not math.isfinite(recorded(task, "O3", seed).final_loss), (task, seed)


def test_autocast_and_masters_are_worse_than_fp32_on_no_task() -> None:
    """Lesson 08 states this of O1 and O2; all recorded seeds are compared."""
    table = recipe_table(TASKS, ["O1", "O2", "FP16"])
    verdicts = {recipe: [table.verdict(task, recipe) for task in TASKS] for recipe in table.recipes}
    for recipe in ("O1", "O2"):
        assert set(verdicts[recipe]) == {"as good", "cannot tell"}
        assert verdicts[recipe].count("as good") > len(TASKS) / 2
    assert verdicts["FP16"].count("worse") == 4


def test_one_seed_of_deep_convolutions_fails_in_fp32() -> None:
    recipes = ("FP32", "BF16", "BF16 no master", "FP16 no master", "O1")
    failed_seeds = {
        r: [seed for seed in range(5) if recorded("gauss_conv", r, seed).metric < 0.15]
        for r in recipes
    }
    assert failed_seeds == {
        "FP32": [4],
        "BF16": [3, 4],
        "BF16 no master": [1, 3, 4],
        "FP16 no master": [1, 4],
        "O1": [4],
    }


RECORDED = [*itertools.product(TASKS, ("FP32", "FP16", "O1", "O2", "O3", "BF16"), SEEDS)]


def test_every_task_is_recorded_with_its_provenance() -> None:
    for task, recipe, seed in RECORDED:
        record = recorded(task, recipe, seed)
        assert (record.task, record.recipe, record.seed) == (task, recipe, seed)
        provenance = [record.device, record.versions["torch"], record.fingerprint, record.date]
        assert all(provenance), record


def test_every_record_has_all_steps_of_its_task() -> None:
    for task, recipe, seed in RECORDED:
        record = recorded(task, recipe, seed)
        assert not record.stopped, record
        assert len(record.steps) == TASKS[task].steps, record


def test_a_missing_record_names_the_command_that_makes_it() -> None:
    with pytest.raises(FileNotFoundError, match="labkit compare digits"):
        recorded("digits", "BF16", 99)


def test_underflow_depends_on_the_number_of_elements_in_a_mean() -> None:
    """A mean divides gradients by its number of elements.

    Over 1,000 targets they underflow, and over 64 they do not.
    """
    task = TASKS["small_targets"]
    large_batch = train(task, RECIPES["FP16"], measure_every=0).metric
    small_batch = train(replace(task, batch_size=64), RECIPES["FP16"], measure_every=0).metric
    assert large_batch < 0.2
    assert small_batch > 0.5


def test_underflow_grows_with_the_number_of_layers() -> None:
    task = TASKS["gauss_conv"]
    shares = []
    for depth in (2, 4, 6):
        deeper = replace(task, make_model=partial(task.make_model, depth=depth))
        shares.append(TrainingRun(deeper, RECIPES["FP16"]).step().underflow)
    assert shares[0] < 0.05
    assert shares[1] > 0.05
    assert shares[1] < 0.4
    assert shares[2] > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["FP32", "FP16", "O2"])
@pytest.mark.parametrize("task", sorted(TASKS))
def test_recorded_runs_can_be_repeated(task: str, recipe: str) -> None:
    """Train a task again and compare it with its record.

    Another processor may add in another order, and an FP16 number may then be its neighbour. So the
    first loss must agree to four digits in FP32, and to FP16's epsilon otherwise; each further step
    may add as much. The metric may differ as much as between seeds.
    """
    record = recorded(task, recipe, 0)
    again = train(TASKS[task], RECIPES[recipe], 0)
    if (again.device, again.versions) == (record.device, record.versions):
        losses, before = ([step.loss for step in run.steps[:10]] for run in (again, record))
        tolerance = 1e-4 if recipe == "FP32" else FP16.epsilon
        for step, (now, then) in enumerate(zip(losses, before, strict=True)):
            assert now == pytest.approx(then, rel=tolerance * (1 + step), nan_ok=True), step
    assert again.metric == pytest.approx(record.metric, abs=0.1)
