"""Differences of metrics, judged by hand and then by scipy's own numbers; and records, saved and loaded whole."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, Comparison, RunRecord, StepRecord, compare, load, signed
from labkit.train.record import fingerprint


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
    fp32, other = [0.706, 0.659, 0.668], [0.715, 0.673, 0.679]
    found = comparison(fp32, other).difference("O1")
    assert found.verdict == "as good"
    assert found.interval_90 == pytest.approx(0.0042, abs=5e-5)
    assert str(found) == "O1: as good, +0.011 ± 0.004 (90% interval), inside the margin of 0.02"
    assert comparison(fp32, other, margin=0.015).difference("O1").verdict == "cannot tell"


VERDICTS = [  # metrics of FP32, of the other, more, and the verdict
    # Mean -0.2, far beyond FP32's spread; but one seed went up and one came down.
    ([0.6, 0.601], [0.7, 0.1], {}, "cannot tell"),
    # One seed of three that died: the deep convolutions without masters, on their first three seeds.
    ([0.8615, 0.8514, 0.7683], [0.8464, 0.8564, 0.1008], {}, "cannot tell"),
    # Every pair 0.005 apart, FP32's seeds alike: worse by the second test, as good by the first, which comes first.
    ([0.7, 0.7, 0.7], [0.695, 0.695, 0.695], {}, "as good"),
    ([0.7, 0.7, 0.7], [0.695, 0.695, 0.695], {"margin": 0.004}, "worse"),
    # Broken runs, even with the same metric; and NaN is the worst one.
    ([0.7, 0.7, 0.7], [0.7, 0.7, 0.7], {"loss": math.nan}, "cannot tell"),
    ([0.7, 0.7, 0.71], [math.nan] * 3, {"loss": math.nan}, "worse"),
    ([0.50, 0.51, 0.50], [0.70, 0.71, 0.71], {}, "better"),
    ([0.7], [0.1], {}, "one seed"),
]


def test_verdicts_follow_from_the_pairs() -> None:
    found = [comparison(fp32, other, **more).difference("O1").verdict for fp32, other, more, _ in VERDICTS]
    assert found == [verdict for *_, verdict in VERDICTS]
    assert "more seeds may tell" in str(comparison([0.6, 0.601], [0.7, 0.1]).difference("O1"))
    assert "one seed says nothing" in str(comparison([0.7], [0.1]).difference("O1"))
    broken = comparison([0.7, 0.7, 0.71], [math.nan] * 3, loss=math.nan).difference("O1")
    assert "3 of 3 runs ended in inf or NaN" in str(broken)


def test_the_margin_is_the_task_s_and_no_part_of_what_is_trained() -> None:
    wide = replace(TASKS["digits"], margin=0.1)
    assert fingerprint(wide, RECIPES["O1"]) == fingerprint(TASKS["digits"], RECIPES["O1"])


def test_nothing_is_shown_as_minus_zero() -> None:
    assert [signed(x, 2) for x in (-0.004, 0.004, -0.0, -0.006, 1.5)] == ["0.00", "0.00", "0.00", "-0.01", "+1.50"]
    assert "-0.000" not in str(comparison([0.5, 0.5], [0.4999, 0.4999]).difference("O1"))


def test_the_two_intervals_are_students() -> None:
    """Points of Student's t by another way: integrate its density, and find where 5% and 2.5% are left."""
    x = np.linspace(0, 20, 400_001)
    for n in range(2, 13):
        v = n - 1
        density = (1 + x * x / v) ** (-(v + 1) / 2)
        unit = math.gamma((v + 1) / 2) / (math.sqrt(v * math.pi) * math.gamma(v / 2))
        upper = unit * np.cumsum(density) * (x[1] - x[0])
        values = np.arange(n, dtype=float)
        found = comparison([0.0] * n, values.tolist()).difference("O1")
        error = values.std(ddof=1) / math.sqrt(n)
        for width, share in ((found.interval_90, 0.45), (found.interval, 0.475)):
            point = x[np.searchsorted(upper, share)]
            assert width / error == pytest.approx(point, rel=0.15 if n > 11 else 2e-3), n


def test_a_recipe_off_by_the_margin_is_called_as_good_one_time_in_twenty_at_most() -> None:
    """What TOST promises, drawn a thousand times with a true difference of exactly the margin."""
    for n, scatter in ((3, 0.01), (5, 0.015), (5, 0.03)):
        runs = 0.5 - 0.02 + scatter * np.random.default_rng(n).normal(size=(1000, n))
        wrong = sum(comparison([0.5] * n, run.tolist()).difference("O1").verdict == "as good" for run in runs)
        assert wrong / 1000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000), (n, scatter)


def test_what_is_compared_with_is_named_and_seeds_that_only_one_has_are_left_out() -> None:
    runs = (run("O1", 0, 0.7), run("O1", 1, 0.7), run("O2", 0, 0.2), run("O2", 1, 0.21))
    text = str(Comparison("t", runs, reference="O1"))
    assert "beyond O1's spread" in text
    assert "FP32" not in text
    both = Comparison("t", (run("FP32", 0, 0.7), run("FP32", 1, 0.7), run("O1", 1, 0.7), run("O1", 2, 0.0)))
    assert both.difference("O1").seeds == 1
    with pytest.raises(ValueError, match="no seed in common"):
        Comparison("t", (run("FP32", 0, 0.7), run("O1", 2, 0.0))).difference("O1")
    assert str(Comparison("t", (run("O1", 0, 0.7),))) == "t against FP32:\n  O1: no seed in common with FP32"
    assert str(Comparison("t", ())) == "t against FP32:\n  no other recipe has run"


def test_a_comparison_runs_what_is_missing_and_reads_the_rest(tmp_path: Path) -> None:
    short, recipes = replace(TASKS["digits"], steps=2), [RECIPES["FP32"], RECIPES["O1"]]
    first = compare(short, recipes, seeds=(0,), folder=tmp_path, workers=1)
    again = compare(short, recipes, seeds=(0, 1), folder=tmp_path, workers=1)
    assert again.records[:2] == first.records
    assert again.recipes == ("FP32", "O1")
    assert "one seed" in str(first)


def record(**changes: object) -> RunRecord:
    steps = (
        StepRecord(1, 0.5, 1024.0, False, True, 0.25),
        StepRecord(2, math.inf, 1024.0, True, False),
        StepRecord(3, math.nan, 512.0, True, False),
    )
    fields = {
        "task": "digits", "recipe": "FP16 dynamic", "seed": 3, "steps": steps, "metric": 0.5, "metric_name": "accuracy",
        "seconds": 1.5, "device": "CPU", "versions": {"torch": "2.13.0"}, "date": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return RunRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_worked_example(tmp_path: Path) -> None:
    path = record().save(tmp_path / "run.json")
    back = load(path)
    assert back.steps[0] == record().steps[0]
    assert back.skipped == 2
    assert math.isinf(back.steps[1].loss)
    assert math.isnan(back.steps[2].loss)
    assert back.steps[1].underflow is None
    assert json.loads(path.read_text())["steps"]["loss"] == [0.5, "inf", "nan"], "plain JSON, that any program reads"
    whole = record(steps=record().steps[:2], metric=math.inf, stopped=True)
    assert load(whole.save(path)) == whole


def test_another_file_is_refused_in_words(tmp_path: Path) -> None:
    for text in ("", "not json", "[1, 2]", '{"schema": "other/1"}', '{"schema": "labkit.run/1"}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match="is not a run record"):
            load(tmp_path / "x.json")
