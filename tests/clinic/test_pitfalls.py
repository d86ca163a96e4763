"""Pitfalls that are found in the record of a run."""

from labkit.clinic import Status, find_pitfalls
from labkit.train import RunRecord, StepRecord, recorded


def test_recorded_runs_have_the_pitfalls_of_their_recipes() -> None:
    for recipe, expected in (
        ("FP32", set()),
        ("FP16 dynamic", set()),
        ("FP16", {"underflow"}),
        ("FP16 static too high", {"steps"}),
    ):
        report = find_pitfalls(recorded("segmentation", recipe, 0))
        assert {finding.name for finding in report.of(Status.BAD)} == expected, recipe


def record_of(*steps: StepRecord) -> RunRecord:
    return RunRecord("digits", "FP16", 0, steps, 0.1, "accuracy", 1.0, "CPU", {}, "2026-01-01")


def remedy_of(record: RunRecord) -> str:
    return next(find_pitfalls(record).of(Status.BAD)).remedy


def test_nan_after_a_step_with_inf_came_from_the_weights() -> None:
    # Both steps were taken in spite of inf, and the second loss is NaN.
    unchecked = record_of(
        StepRecord(1, 2.0, 2.0**40, True, True, 0.0),
        StepRecord(2, float("nan"), 2.0**40, True, True),
    )
    assert "reached the weights" in remedy_of(unchecked)


def test_an_infinite_loss_came_from_the_forward_pass() -> None:
    first_step = record_of(StepRecord(1, float("inf"), 1.0, True, False, 0.0))
    # A step before it was clean, so it did not ruin the weights.
    second_step = record_of(
        StepRecord(1, 2.0, 1.0, False, True, 0.0), StepRecord(2, float("inf"), 1.0, True, True)
    )
    assert "forward pass" in remedy_of(first_step)
    assert "forward pass" in remedy_of(second_step)
    # Under O3, Adam's epsilon is another cause of an infinite loss.
    assert "Adam's epsilon" in remedy_of(first_step)
    assert find_pitfalls(first_step).summary.startswith("What went wrong in this run: 1 of 3")


def test_a_skipped_step_with_inf_did_not_reach_the_weights() -> None:
    skipped = record_of(
        StepRecord(1, 2.0, 2.0**40, True, False), StepRecord(2, float("nan"), 1.0, True, False)
    )
    assert remedy_of(skipped).startswith("no step with inf or NaN was taken before it")


def test_a_single_measurement_is_not_a_plural() -> None:
    measured = find_pitfalls(record_of(StepRecord(1, 1.0, 1.0, False, True, 0.0)))
    assert "median of 1 measurement against" in str(measured)


def test_a_record_without_steps_is_healthy() -> None:
    assert find_pitfalls(record_of()).healthy


def test_a_record_without_measurements_has_a_warning() -> None:
    unmeasured = find_pitfalls(record_of(StepRecord(1, 1.0, 1.0, False, True)))
    assert [f.what for f in unmeasured.of(Status.WARN)] == ["not measured"]


def test_an_underflow_of_nan_is_not_a_measurement() -> None:
    report = find_pitfalls(record_of(StepRecord(1, 2.0, 1.0, False, True, float("nan"))))
    assert [finding.what for finding in report.of(Status.WARN)] == ["not measured"]
