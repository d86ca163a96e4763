"""The table of recipes by tasks: its verdicts, its words, and what is missing in it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.train import RunRecord, StepRecord, record_path
from labkit.widgets import recipe_table
from labkit.widgets.results.recipe_table import RecipeTable

STEP = StepRecord(1, 0.5, 1.0, False, True)
RECORD = RunRecord("toy", "FP32", 0, (STEP,), 0.9, "accuracy", 1.0, "CPU", {"torch": "2"}, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with records of three seeds.

    FP32 has 0.90, 0.91 and 0.92; O1 is as good, O3 worse; one run of BF16 broke; 60% of FP16's
    gradients underflow in its first step.
    """
    metrics = {"FP32": 0.90, "O1": 0.895, "O3": 0.40, "BF16": 0.90, "FP16": 0.91}
    for recipe, metric in metrics.items():
        for seed in range(3):
            loss = math.nan if recipe == "BF16" and seed == 2 else 0.5
            step = replace(STEP, loss=loss, underflow=0.6 if recipe == "FP16" else None)
            put(tmp_path, recipe, seed, metric=metric + 0.01 * seed, steps=(step,))
    return tmp_path


def put(folder: Path, recipe: str, seed: int, **fields: Any) -> None:
    record = replace(RECORD, recipe=recipe, seed=seed, **fields)
    record.save(record_path(folder, "toy", recipe, seed))


@pytest.fixture
def table(folder: Path) -> RecipeTable:
    """A table with a recipe of each verdict; O2 has not been run."""
    return recipe_table(["toy"], ["O1", "O3", "BF16", "O2"], folder=folder)


def test_each_cell_is_the_verdict_of_its_records(table: RecipeTable) -> None:
    verdicts = [table.verdict("toy", recipe) for recipe in table.recipes]
    assert verdicts == ["as good", "worse", "broken", ""]


def test_a_table_is_printed_with_a_row_for_each_recipe(table: RecipeTable) -> None:
    assert repr(table).splitlines()[1:3] == ["O1      as good    ", "O3      worse      "]


def test_the_sentence_of_a_table_counts_its_verdicts(table: RecipeTable) -> None:
    expected = "Of 3 pairs of recipe and task: 1 as good, 1 worse, 1 broken. 1 is not run yet."
    assert table.sentence == expected


def test_the_sentence_of_a_table_counts_a_single_pair(folder: Path) -> None:
    table = recipe_table(["toy"], ["O3", "O2", "O1 graph"], folder=folder)
    assert table.sentence == "Of 1 pair of recipe and task: 1 worse. 2 are not run yet."


def test_one_seed_is_not_enough_for_a_verdict(folder: Path) -> None:
    table = recipe_table(["toy"], ["O3"], seeds=(1,), folder=folder)
    assert table.verdict("toy", "O3") == "one seed"


def test_a_table_uses_all_common_seeds_unless_seeds_are_given(folder: Path) -> None:
    put(folder, "FP32", 7)
    put(folder, "O1", 7, metric=0.89)
    for seeds, expected in ((None, 4), ((0, 1), 2)):
        difference = recipe_table(["toy"], ["O1"], seeds, folder).difference("toy", "O1")
        assert difference is not None
        assert difference.seeds == expected


def test_table_states_its_rule_and_margin(table: RecipeTable) -> None:
    html = table._repr_html_()
    assert "the 90% interval of the difference lies inside the margin of 0.02" in html
    assert "3 seeds, margin 0.02" in html


def test_a_difference_that_rounds_to_zero_has_no_sign(folder: Path) -> None:
    for seed in range(3):
        put(folder, "O2", seed, metric=0.898 + 0.01 * seed)
    html = recipe_table(["toy"], ["O2"], folder=folder)._repr_html_()
    assert ">0.00<" in html
    assert ">-0.00<" not in html


def test_table_states_the_underflow_of_fp16(table: RecipeTable) -> None:
    assert table.lost("toy") == pytest.approx(0.6)
    assert "60%" in table._repr_html_()


def test_table_states_the_range_of_the_reference(table: RecipeTable) -> None:
    assert "0.90 to 0.92" in table._repr_html_()


def test_table_states_where_it_was_recorded(table: RecipeTable) -> None:
    assert "Recorded on CPU with torch 2." in table._repr_html_()


def test_a_record_of_another_device_is_refused(folder: Path) -> None:
    put(folder, "O1", 0, device="Tesla T4")
    with pytest.raises(ValueError, match=r"expected a record of CPU .*, got one of Tesla T4"):
        recipe_table(["toy"], ["O1"], folder=folder)


def test_empty_cell_names_the_command_that_fills_it(folder: Path) -> None:
    table = recipe_table(["toy"], ["O1", "FP16 static"], folder=folder)
    command = f'labkit compare toy --recipes FP32 "FP16 static" --seeds 0 1 2 --folder {folder}'
    assert table.missing() == command


def test_a_full_table_lacks_nothing(folder: Path) -> None:
    assert recipe_table(["toy"], ["O1"], folder=folder).missing() == ""


def test_without_fp32_there_is_no_verdict(folder: Path) -> None:
    for seed in range(3):
        record_path(folder, "toy", "FP32", seed).unlink()
    assert recipe_table(["toy"], ["O1"], folder=folder).verdict("toy", "O1") == ""
