"""Is a difference one? Metrics written down here, judged by hand first, then by scipy's own numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, Comparison, RunRecord, StepRecord, compare, signed


def run(recipe: str, seed: int, metric: float, loss: float = 0.1) -> RunRecord:
    steps = (StepRecord(1, loss, 1.0, False, True),)
    return RunRecord("t", recipe, seed, steps, metric, "accuracy", 1.0, "CPU", {"torch": "2"}, "2026-01-01")


def comparison(fp32: list[float], other: list[float], *, margin: float = 0.02, **changes: float) -> Comparison:
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


def test_worked_example_as_good_is_a_claim_with_a_test_of_its_own() -> None:
    """Differences 0.009, 0.014, 0.011: mean 0.0113; 2.920 * 0.0025166 / sqrt(3) = 0.0042, together inside 0.02."""
    found = comparison([0.706, 0.659, 0.668], [0.715, 0.673, 0.679]).difference("O1")
    assert found.verdict == "as good"
    assert found.interval_90 == pytest.approx(0.0042, abs=5e-5)
    assert str(found) == "O1: as good, +0.011 ± 0.004 (90% interval), inside the margin of 0.02"
    assert comparison([0.706, 0.659, 0.668], [0.715, 0.673, 0.679], margin=0.015).difference("O1").verdict == (
        "cannot tell"
    )


def test_a_difference_that_pairs_do_not_agree_on_cannot_be_told() -> None:
    """Mean -0.2, far beyond FP32's spread; but one seed went up and one came down."""
    found = comparison([0.6, 0.601], [0.7, 0.1]).difference("O1")
    assert found.verdict == "cannot tell"
    assert "more seeds may tell" in str(found)


def test_one_seed_of_three_that_died_is_not_as_good() -> None:
    """What the deep convolutions did without masters, on their first three seeds."""
    found = comparison([0.8615, 0.8514, 0.7683], [0.8464, 0.8564, 0.1008]).difference("O1")
    assert found.mean == pytest.approx(-0.226, abs=1e-3)
    assert found.verdict == "cannot tell"


def test_a_sure_difference_inside_the_margin_does_not_matter() -> None:
    """Every pair 0.005 apart, FP32's seeds alike: worse by the second test, as good by the first, which comes first."""
    assert comparison([0.7, 0.7, 0.7], [0.695, 0.695, 0.695]).difference("O1").verdict == "as good"
    assert comparison([0.7, 0.7, 0.7], [0.695, 0.695, 0.695], margin=0.004).difference("O1").verdict == "worse"


def test_broken_runs_are_never_as_good_even_with_the_same_metric() -> None:
    assert comparison([0.7, 0.7, 0.7], [0.7, 0.7, 0.7], loss=math.nan).difference("O1").verdict == "cannot tell"


def test_the_margin_is_the_task_s_and_no_part_of_what_is_trained() -> None:
    from dataclasses import replace

    from labkit.train.fingerprint import fingerprint

    wide = replace(TASKS["digits"], margin=0.1)
    assert fingerprint(wide, RECIPES["O1"]) == fingerprint(TASKS["digits"], RECIPES["O1"])
    assert {task.margin for task in TASKS.values()} == {0.02}


def test_nothing_is_shown_as_minus_zero() -> None:
    assert [signed(x, 2) for x in (-0.004, 0.004, -0.0, -0.006, 1.5)] == ["0.00", "0.00", "0.00", "-0.01", "+1.50"]
    assert "-0.000" not in str(comparison([0.5, 0.5], [0.4999, 0.4999]).difference("O1"))


@pytest.mark.parametrize("n", range(2, 13))
def test_the_two_intervals_are_students(n: int) -> None:
    """Points of Student's t by another way: integrate its density, and find where 5% and 2.5% are left."""
    import numpy as np

    v = n - 1
    x = np.linspace(0, 20, 400_001)
    density = (1 + x * x / v) ** (-(v + 1) / 2)
    upper = math.gamma((v + 1) / 2) / (math.sqrt(v * math.pi) * math.gamma(v / 2)) * np.cumsum(density) * (x[1] - x[0])
    values = np.arange(n, dtype=float)
    found = comparison([0.0] * n, values.tolist()).difference("O1")
    error = values.std(ddof=1) / math.sqrt(n)
    for width, share in ((found.interval_90, 0.45), (found.interval, 0.475)):
        point = x[np.searchsorted(upper, share)]
        assert width / error == pytest.approx(point, rel=0.15 if n > 11 else 2e-3)


@pytest.mark.parametrize(("n", "scatter"), [(3, 0.01), (5, 0.015), (5, 0.03)])
def test_a_recipe_off_by_the_margin_is_called_as_good_one_time_in_twenty_at_most(n: int, scatter: float) -> None:
    """What TOST promises, drawn a thousand times with a true difference of exactly the margin."""
    import numpy as np

    rng = np.random.default_rng(n)
    runs = 0.5 - 0.02 + scatter * rng.normal(size=(1000, n))
    wrong = sum(comparison([0.5] * n, run.tolist()).difference("O1").verdict == "as good" for run in runs)
    assert wrong / 1000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_better_is_said_too() -> None:
    assert comparison([0.50, 0.51, 0.50], [0.70, 0.71, 0.71]).difference("O1").verdict == "better"


def test_one_seed_says_nothing() -> None:
    found = comparison([0.7], [0.1]).difference("O1")
    assert (found.verdict, found.interval) == ("one seed", math.inf)
    assert "one seed says nothing" in str(found)


def test_a_broken_run_is_counted_and_its_nan_is_the_worst_metric() -> None:
    found = comparison([0.7, 0.7, 0.71], [math.nan] * 3, loss=math.nan).difference("O1")
    assert (found.verdict, found.broken) == ("worse", 3)
    assert "3 of 3 runs ended in inf or NaN" in str(found)


def test_what_is_compared_with_is_named() -> None:
    runs = (run("O1", 0, 0.7), run("O1", 1, 0.7), run("O2", 0, 0.2), run("O2", 1, 0.21))
    text = str(Comparison("t", runs, reference="O1"))
    assert "beyond O1's spread" in text
    assert "FP32" not in text


def test_seeds_that_only_one_of_them_has_are_left_out() -> None:
    both = Comparison("t", (run("FP32", 0, 0.7), run("FP32", 1, 0.7), run("O1", 1, 0.7), run("O1", 2, 0.0)))
    assert both.difference("O1").seeds == 1
    with pytest.raises(ValueError, match="no seed in common"):
        Comparison("t", (run("FP32", 0, 0.7), run("O1", 2, 0.0))).difference("O1")


def test_a_comparison_without_its_reference_still_says_what_it_has() -> None:
    assert str(Comparison("t", (run("O1", 0, 0.7),))) == "t against FP32:\n  O1: no seed in common with FP32"
    part = str(Comparison("t", (run("FP32", 0, 0.7), run("O1", 0, 0.7), run("O2", 1, 0.7))))
    assert "O1: one seed" in part
    assert "O2: no seed in common" in part
    assert str(Comparison("t", ())) == "t against FP32:\n  no other recipe has run"


@pytest.mark.parametrize("n", range(2, 12))
def test_the_interval_covers_the_truth_nineteen_times_in_twenty(n: int) -> None:
    """Student's own experiment: draw pairs without a difference, and count how often the interval leaves out zero."""
    import numpy as np

    rng = np.random.default_rng(n)
    misses = 0
    for _ in range(400):
        values = rng.normal(size=n).tolist()
        found = comparison([0.0] * n, values).difference("O1")
        misses += abs(found.mean) > found.interval
    assert 0.02 < misses / 400 < 0.09  # 0.05 +- 3.7 standard errors of 400 draws


def test_a_comparison_runs_what_is_missing_and_reads_the_rest(tmp_path: Path) -> None:
    from dataclasses import replace

    short = replace(TASKS["digits"], steps=2)
    recipes = [RECIPES["FP32"], RECIPES["O1"]]
    first = compare(short, recipes, seeds=(0,), folder=tmp_path, workers=1)
    again = compare(short, recipes, seeds=(0, 1), folder=tmp_path, workers=1)
    assert again.records[:2] == first.records
    assert again.recipes == ("FP32", "O1")
    assert "one seed" in str(first)
