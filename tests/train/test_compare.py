"""Is a difference one? Metrics written down here, judged by hand first, then by scipy's own numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, Comparison, RunRecord, StepRecord, compare


def run(recipe: str, seed: int, metric: float, loss: float = 0.1) -> RunRecord:
    steps = (StepRecord(1, loss, 1.0, False, True),)
    return RunRecord("t", recipe, seed, steps, metric, "accuracy", 1.0, "CPU", {"torch": "2"}, "2026-01-01")


def comparison(fp32: list[float], other: list[float], **changes: float) -> Comparison:
    ours = [run("FP32", seed, metric) for seed, metric in enumerate(fp32)]
    theirs = [run("O1", seed, metric, **changes) for seed, metric in enumerate(other)]
    return Comparison("t", (*ours, *theirs))


def test_worked_example_dense_detection_without_a_scale() -> None:
    found = comparison([0.706, 0.659, 0.668], [0.040, 0.052, 0.354]).difference("O1")
    assert found.verdict == "worse"
    assert found.mean == pytest.approx(-0.529, abs=1e-3)
    assert found.spread == pytest.approx(0.047)
    # (0.666, 0.607, 0.314): standard deviation 0.1884, so 4.303 * 0.1884 / sqrt(3).
    assert found.interval == pytest.approx(0.468, abs=1e-3)


def test_within_the_spread_of_fp32_there_is_no_difference() -> None:
    assert comparison([0.706, 0.659, 0.668], [0.715, 0.673, 0.679]).difference("O1").verdict == "as good"


def test_a_difference_that_pairs_do_not_agree_on_is_none() -> None:
    """Mean -0.2, far beyond FP32's spread; but one seed went up and one came down."""
    found = comparison([0.6, 0.601], [0.7, 0.1]).difference("O1")
    assert found.verdict == "as good"
    assert "not the same from seed to seed" in str(found), "no more than seeds scatter would be wrong: it is far more"


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
