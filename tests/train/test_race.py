"""Many runs, none of them twice; and what the recorded ones show about FP16."""

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS, RunRecord, race, record_path, recorded, train

SHORT = replace(TASKS["digits"], steps=3)
SEEDS = (0, 1, 2)


def test_a_stopped_race_goes_on_where_it_was(tmp_path: Path) -> None:
    first = race(SHORT, [RECIPES["FP32"]], [0], tmp_path)
    told: list[RunRecord] = []
    both = race(SHORT, [RECIPES["FP32"], RECIPES["O1"]], [0], tmp_path, progress=told.append)
    assert both[0] == first[0], "the date in it too: it was read, not run again"
    assert [r.recipe for r in told] == ["FP32", "O1"]
    assert record_path(tmp_path, "digits", "O1", 0).exists()


def test_what_is_not_on_record_says_how_to_record_it() -> None:
    with pytest.raises(FileNotFoundError, match="labkit race digits"):
        recorded("digits", "BF16", 99)


def dice(recipe: str) -> list[float]:
    return [recorded("segmentation", recipe, seed).metric for seed in SEEDS]


def test_on_record_unscaled_fp16_is_clearly_worse_and_scaling_restores_fp32() -> None:
    fp32 = dice("FP32")
    spread = max(fp32) - min(fp32)
    assert min(fp32) > 0.6
    assert max(dice("FP16")) < 0.4 < min(fp32) - 5 * spread
    for recipe in ("FP16 static", "FP16 dynamic"):
        assert abs(sum(dice(recipe)) - sum(fp32)) / 3 <= spread, f"{recipe}: its mean lies within FP32's spread"


def test_on_record_a_scale_too_high_overflows_and_skips() -> None:
    for seed in SEEDS:
        record = recorded("segmentation", "FP16 static too high", seed)
        assert record.skipped > 100
        assert all(s.found_inf for s in record.steps if not s.stepped)


def test_records_say_where_they_were_made() -> None:
    for recipe in ("FP32", "FP16", "FP16 static", "FP16 dynamic", "FP16 static too high"):
        record = recorded("segmentation", recipe, 0)
        assert record.device
        assert record.versions["torch"]
        assert record.date.startswith("20")
        assert len(record.steps) == TASKS["segmentation"].steps


@pytest.mark.parametrize("recipe", ["FP16", "FP16 dynamic"])
def test_live_the_same_is_seen_here(recipe: str) -> None:
    """Eighty real steps on this machine: without scaling the loss lags far behind, with it it does not."""
    reference = train(TASKS["segmentation"], RECIPES["FP32"], steps=80, measure_every=0).final_loss
    lag = train(TASKS["segmentation"], RECIPES[recipe], steps=80, measure_every=0).final_loss / reference
    assert lag > 1.25 if recipe == "FP16" else lag < 1.1
