"""Verdicts on pairs of trainings whose difference is known."""

from dataclasses import replace
from pathlib import Path

import pytest

from labkit.testing.trainings import TrainingVerdictKind, compare_trainings
from tests.testing.training_runs import Training, record

SAME, ROUNDING, OTHER_START, FAULT = TrainingVerdictKind
HEALTHY = Training()
TWO_RANKS = Training(ranks=2)
# what was planted -> the healthy run, the other one, the verdict, and a word of its reason
PLANTED = {
    "nothing": (HEALTHY, HEALTHY, SAME, "same bits"),
    "another seed": (HEALTHY, replace(HEALTHY, seed=1), OTHER_START, "seeds are 0 and 1"),
    "another batch order": (
        HEALTHY,
        replace(HEALTHY, order=1),
        OTHER_START,
        "another order of batches",
    ),
    "TF32": (HEALTHY, replace(HEALTHY, operands="tf32"), ROUNDING, "TF32"),
    "one layer in FP16": (HEALTHY, replace(HEALTHY, half="6"), ROUNDING, "float16"),
    "a changed epsilon": (HEALTHY, replace(HEALTHY, eps=1e-4), FAULT, "AdamW eps"),
    "a lost all-reduce": (TWO_RANKS, replace(TWO_RANKS, lost_from=9), FAULT, "all-reduce"),
    "another order of sums": (HEALTHY, replace(HEALTHY, sums="slices"), ROUNDING, "order of sums"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_the_verdict_names_what_was_planted(planted: str, tmp_path: Path) -> None:
    healthy, other, kind, word = PLANTED[planted]
    found = compare_trainings(
        record(healthy, tmp_path / "healthy.labkit"), record(other, tmp_path / "other.labkit")
    )
    assert (found.kind, word in found.reason) == (kind, True), str(found)
