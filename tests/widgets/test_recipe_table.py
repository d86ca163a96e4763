"""The table of recipes by tasks: from records alone, empty where there are none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.train import RunRecord, StepRecord, record_path
from labkit.widgets import recipe_table

RECORD = RunRecord(
    "toy", "FP32", 0, (StepRecord(1, 0.5, 1.0, False, True),), 0.9, "accuracy", 1.0, "CPU", {"torch": "2"}, ""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """FP32 at 0.90, 0.91, 0.92; O1 as good; O3 worse; BF16 broken once; FP16 loses 60% at its first step."""
    metrics = {"FP32": 0.90, "O1": 0.895, "O3": 0.40, "BF16": 0.90, "FP16": 0.91}
    for recipe, metric in metrics.items():
        for seed in range(3):
            broken = recipe == "BF16" and seed == 2
            lost = 0.6 if recipe == "FP16" else None
            step = StepRecord(1, math.nan if broken else 0.5, 1.0, False, True, lost)
            made = replace(RECORD, recipe=recipe, seed=seed, metric=metric + 0.01 * seed, steps=(step,))
            made.save(record_path(tmp_path, "toy", recipe, seed))
    return tmp_path


def test_each_cell_is_the_verdict_of_its_records(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1", "O3", "BF16", "O2"], folder=folder)
    assert [table.verdict("toy", r) for r in table.recipes] == ["as good", "worse", "broken", ""]
    assert repr(table).splitlines()[1:3] == ["O1      as good    ", "O3      worse      "]
    assert recipe_table(["toy"], ["O3"], seeds=(1,), folder=folder).verdict("toy", "O3") == "one seed"
    assert table.sentence == "Of 3 pairs of recipe and task: 1 as good, 1 worse, 1 broken. 1 are not run yet."


def test_the_table_says_its_rule_its_margin_and_no_minus_zero(folder: Path) -> None:
    for seed in range(3):
        replace(RECORD, recipe="O2", seed=seed, metric=0.898 + 0.01 * seed).save(record_path(folder, "toy", "O2", seed))
    html = recipe_table(["toy"], ["O2"], folder=folder)._repr_html_()
    assert "the 90% interval of the difference lies inside the margin of 0.02" in html
    assert "accuracy, margin 0.02" in html
    assert ">0.00<" in html
    assert ">-0.00<" not in html


def test_all_seeds_on_record_are_read_unless_some_are_asked_for(folder: Path) -> None:
    replace(RECORD, recipe="FP32", seed=7).save(record_path(folder, "toy", "FP32", 7))
    replace(RECORD, recipe="O1", seed=7, metric=0.89).save(record_path(folder, "toy", "O1", 7))
    found = [recipe_table(["toy"], ["O1"], seeds, folder).difference("toy", "O1") for seeds in (None, (0, 1))]
    assert [difference.seeds for difference in found if difference is not None] == [4, 2]


def test_an_empty_cell_says_which_command_fills_it_and_a_full_table_nothing(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1", "FP16 static"], folder=folder)
    assert table.missing() == f'labkit race toy --recipes FP32 "FP16 static" --seeds 0 1 2 --folder {folder}'
    assert recipe_table(["toy"], ["O1"], folder=folder).missing() == ""
    for seed in range(3):
        record_path(folder, "toy", "FP32", seed).unlink()
    assert recipe_table(["toy"], ["O1"], folder=folder).verdict("toy", "O1") == "", "nothing to compare with"


def test_what_fp16_loses_without_a_scale_stands_below(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1"], folder=folder)
    assert table.lost("toy") == pytest.approx(0.6)
    html = table._repr_html_()
    assert "60%" in html
    assert "0.90 to 0.92" in html
    assert "Recorded on CPU with torch 2." in html


def test_a_run_of_a_gpu_among_those_of_a_cpu_is_refused(folder: Path) -> None:
    replace(RECORD, recipe="O1", device="Tesla T4").save(record_path(folder, "toy", "O1", 0))
    with pytest.raises(ValueError, match=r"is a record of Tesla T4, and CPU .* was asked for"):
        recipe_table(["toy"], ["O1"], folder=folder)
