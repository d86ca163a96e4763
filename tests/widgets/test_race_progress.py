"""The bar of a race: it counts what is trained and what is read."""

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, compare
from labkit.widgets import RaceProgress


def test_a_comparison_fills_the_bar(tmp_path: Path) -> None:
    short, recipes = replace(TASKS["digits"], steps=2), [RECIPES["FP32"], RECIPES["O1"]]
    compare(short, recipes, seeds=(0,), folder=tmp_path, workers=1)
    bar = RaceProgress(4)
    found = compare(short, recipes, seeds=(0, 1), folder=tmp_path, workers=1, progress=bar)
    last = found.records[-1]
    assert bar.line == f"4 of 4 runs; O1, seed 1: accuracy {last.metric:.3f}"


def test_no_runs_are_no_race() -> None:
    with pytest.raises(ValueError, match="1 run or more"):
        RaceProgress(0)
