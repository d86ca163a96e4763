"""Figures of trainings under several recipes, and their sentences."""

from dataclasses import replace

import pytest

from labkit import widgets
from labkit.train import RunRecord, recorded
from labkit.widgets import race_figure

RECIPES = ("FP32", "FP16", "FP16 static too high")
RECORDS = [recorded("segmentation", recipe, seed) for recipe in RECIPES for seed in (0, 1)]


def test_a_race_states_its_provenance() -> None:
    first = RECORDS[0]
    provenance = (
        f"Recorded: segmentation, on {first.device} with torch {first.versions['torch']}, "
        f"{first.date[:10]}"
    )
    assert race_figure(RECORDS).get_suptitle() == provenance


def test_a_race_states_its_metrics() -> None:
    metrics = [record.metric for record in RECORDS if record.recipe == "FP32"]
    sentence = race_figure(RECORDS).get_supxlabel().replace("\n", " ")
    assert sentence == widgets.race_sentence(RECORDS)
    assert f"FP32 {sum(metrics) / len(metrics):.2f};" in sentence


def test_a_race_has_the_losses_of_each_run() -> None:
    losses, _ = race_figure(RECORDS).axes
    assert len(losses.lines) == len(RECORDS)


def test_a_race_has_the_metrics_of_each_recipe() -> None:
    _, metrics = race_figure(RECORDS).axes
    assert tuple(label.get_text() for label in metrics.get_yticklabels()) == RECIPES


ON_TWO_DEVICES = [RECORDS[0], replace(RECORDS[1], device="another")]


@pytest.mark.parametrize(
    ("records", "got"), [(ON_TWO_DEVICES, "and torch"), ([], "these are none")]
)
def test_a_race_of_no_records_or_two_devices_is_refused(records: list[RunRecord], got: str) -> None:
    with pytest.raises(ValueError, match=f"one task, device .*{got}"):
        race_figure(records)


def test_a_race_of_a_run_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="expected runs with steps"):
        race_figure([RECORDS[0], replace(RECORDS[1], steps=())])


def test_a_sentence_states_a_range_for_several_seeds_only() -> None:
    assert "FP32's seeds range from" in widgets.race_sentence(RECORDS[:2])
    assert "range" not in widgets.race_sentence(RECORDS[:1])


def test_a_sentence_of_no_records_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least one record"):
        widgets.race_sentence([])


# The shipped records were not timed.
TIMED = [
    replace(record, step_seconds=0.1 if record.recipe == "FP32" else 0.05) for record in RECORDS
]


def test_race_states_the_speed_of_one_device() -> None:
    speeds = f"Steps a second on {RECORDS[0].device}: FP32 10, FP16 20 (2 times FP32)"
    assert speeds in race_figure(TIMED).get_supxlabel().replace("\n", " ")


@pytest.mark.parametrize(
    "records",
    [RECORDS, [replace(TIMED[0], device="Tesla T4"), *TIMED[1:]]],
    ids=["not timed", "two"],
)
def test_race_of_two_devices_or_without_times_states_no_speed(records: list[RunRecord]) -> None:
    assert "Steps a second" not in widgets.race_sentence(records)


def test_lines_of_a_race_differ_in_colour_and_width() -> None:
    named = [replace(RECORDS[0], recipe=name) for name in ("FP32", "BF16 no master", "FP8", "O2")]
    lines = race_figure(named).axes[0].lines
    assert len({line.get_color() for line in lines}) == 4
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(set(widths), reverse=True)


def test_a_run_in_tf32_has_the_colour_of_its_format() -> None:
    tf32 = replace(RECORDS[0], recipe="TF32")
    losses, metrics = race_figure([tf32]).axes
    for axes in (losses, metrics):
        assert axes.lines[0].get_color() == widgets.FORMAT_COLOURS["TF32"]


def test_losses_of_a_short_race_are_means_of_its_steps() -> None:
    short = [replace(r, steps=r.steps[:4]) for r in RECORDS[:2]]
    losses = race_figure(short).axes[0]
    assert losses.get_ylabel() == "loss (mean of 4 steps)"
    for line, run in zip(losses.lines, short, strict=True):
        (mean,) = line.get_ydata()
        assert mean == pytest.approx(sum(step.loss for step in run.steps) / 4)
