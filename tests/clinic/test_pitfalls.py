"""Findings from the record of a run: each recorded failure has its own name."""

from labkit.clinic import Status, find_pitfalls
from labkit.train import RunRecord, StepRecord, recorded


def test_the_runs_on_record() -> None:
    for recipe, wrong in (
        ("FP32", set()),
        ("FP16 dynamic", set()),
        ("FP16", {"underflow"}),
        ("FP16 static too high", {"steps"}),
    ):
        report = find_pitfalls(recorded("segmentation", recipe, 0))
        assert {finding.name for finding in report.of(Status.BAD)} == wrong, recipe


def made_of(*steps: StepRecord) -> RunRecord:
    return RunRecord("digits", "FP16", 0, steps, 0.1, "accuracy", 1.0, "CPU", {}, "2026-01-01")


def test_nan_is_attributed_to_its_source() -> None:
    unchecked = made_of(
        StepRecord(1, 2.0, 2.0**40, True, True, 0.0),
        StepRecord(2, float("nan"), 2.0**40, True, True),
    )
    forward = made_of(StepRecord(1, float("inf"), 1.0, True, False, 0.0))
    unlucky = made_of(
        StepRecord(1, 2.0, 1.0, False, True, 0.0), StepRecord(2, float("inf"), 1.0, True, True)
    )
    assert "forward pass" in next(find_pitfalls(unlucky).of(Status.BAD)).remedy, (
        "a loss is not ruined by a later step"
    )
    assert "reached the weights" in next(find_pitfalls(unchecked).of(Status.BAD)).remedy
    assert "forward pass" in next(find_pitfalls(forward).of(Status.BAD)).remedy
    assert "Adam's epsilon" in next(find_pitfalls(forward).of(Status.BAD)).remedy, (
        "O3's other way into NaN"
    )
    assert find_pitfalls(forward).summary.startswith("What went wrong in this run: 1 of 3")


def test_nothing_to_read() -> None:
    assert find_pitfalls(made_of()).healthy
    unmeasured = find_pitfalls(made_of(StepRecord(1, 1.0, 1.0, False, True)))
    assert [f.what for f in unmeasured.of(Status.WARN)] == ["not measured"]
