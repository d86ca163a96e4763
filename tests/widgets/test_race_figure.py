"""The picture of recorded runs: its title says where they were made, its sentence what it shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.train import recorded
from labkit.widgets import race_figure, race_sentence

RECIPES = ("FP32", "FP16", "FP16 static too high")
RECORDS = [recorded("segmentation", recipe, seed) for recipe in RECIPES for seed in (0, 1)]


def test_it_says_what_it_shows_and_where_that_was_made() -> None:
    figure = race_figure(RECORDS)
    first = RECORDS[0]
    where = f"Recorded: segmentation, on {first.device} with torch {first.versions['torch']}, {first.date[:10]}"
    assert figure.get_suptitle() == where
    assert figure.get_supxlabel().replace("\n", " ") == race_sentence(RECORDS)
    fp32 = [r.metric for r in RECORDS if r.recipe == "FP32"]
    assert f"FP32 {sum(fp32) / 2:.2f};" in race_sentence(RECORDS)
    losses, metrics = figure.axes
    assert len(losses.lines) == len(RECORDS), "each run is a line"
    assert [label.get_text() for label in metrics.get_yticklabels()] == ["FP32", "FP16", "FP16 static too high"]


def test_steps_a_second_are_told_of_timed_runs_of_one_device() -> None:
    timed = [replace(r, step_seconds=0.1 if r.recipe == "FP32" else 0.05) for r in RECORDS]
    told = f"Steps a second on {RECORDS[0].device}: FP32 10, FP16 20 (2 times FP32)"
    assert told in race_sentence(timed)
    assert told in race_figure(timed).get_supxlabel().replace("\n", " ")
    assert "Steps a second" not in race_sentence(RECORDS), "nobody timed what is on record"
    elsewhere = [replace(timed[0], device="Tesla T4"), *timed[1:]]
    assert "Steps a second" not in race_sentence(elsewhere), "two devices are never on one scale"


def test_a_recipe_has_the_colour_of_its_format_and_one_that_lies_below_another_is_wider() -> None:
    named = [replace(RECORDS[0], recipe=name) for name in ("FP32", "BF16 no master", "FP8", "O2")]
    lines = race_figure(named).axes[0].lines
    assert len({line.get_color() for line in lines}) == 4
    widths = [line.get_linewidth() for line in lines]
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == 4


def test_what_does_not_belong_into_one_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="one task, device and torch"):
        race_figure([RECORDS[0], replace(RECORDS[1], device="another")])
    with pytest.raises(ValueError, match="one task, device and torch; these are none"):
        race_figure([])
    with pytest.raises(ValueError, match="no records"):
        race_sentence([])
