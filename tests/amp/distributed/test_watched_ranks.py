"""One report of what several ranks saw: the counts of one process that has the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from labkit.instrument import Report, exponent_histogram
from labkit.instrument.ranks import added_up
from labkit.instrument.records import Skip, WatchedStep, trimmed
from tests.amp.distributed.ranks import OF_PARAMETERS, launch, watched_by_one


def step(number: int, scale: float, **histograms: list[float]) -> WatchedStep:
    """Return a sampled step that counted these numbers, of a layer called "a"."""
    counted = {
        kind.replace("_", " "): {"a": trimmed(exponent_histogram(torch.tensor(n)))} for kind, n in histograms.items()
    }
    return WatchedStep(number, scale, counted, {"a": (2, 1)}, {"weights": 8}, {"float32 to float16": (1, 4)})


def test_worked_example_what_is_a_ranks_own_is_added_and_what_all_hold_is_counted_once() -> None:
    ours = Report("Net", 1, (step(0, 8.0, weights=[1.0, 2.0], activations=[1.0]),))
    theirs = Report("Net", 1, (step(0, 8.0, weights=[1.0, 2.0], activations=[2.0, 0.0]),))
    together = added_up([ours, theirs])
    assert (together.histograms("weights")["a"].total, together.histograms("activations")["a"].total) == (2, 3)
    assert (together.watched[0].moves, together.watched[0].memory) == ({"a": (2, 1)}, {"weights": 8})
    assert together.watched[0].casts == {"float32 to float16": (2, 8)}
    sharded = added_up([ours, theirs], frozenset("a"))
    assert (sharded.histograms("weights")["a"].total, sharded.watched[0].moves) == (4, {"a": (4, 2)})
    assert added_up([ours]).watched == ours.watched


def test_ranks_that_part_are_found_by_their_skips_and_by_their_scales() -> None:
    skips = (Skip(3, 8.0, ("a",), "inf or NaN in a"),)
    (found,) = added_up([Report("Net", 4), Report("Net", 4, skips=skips)]).findings
    assert (found.what, found.step) == ("ranks parted", 3)
    assert not added_up([Report("Net", 4, skips=skips)] * 2).findings
    (found,) = added_up([Report("Net", 1, (step(0, scale),)) for scale in (8.0, 4.0)]).findings
    assert "at 4 and 8 times the loss" in found.says


@pytest.mark.slow
def test_four_ranks_and_an_odd_number_of_rows_count_the_same(tmp_path: Path) -> None:
    for (by, _), (_, together) in launch("watched", 4, tmp_path)[3][0].items():
        assert all(together.histograms(kind) == watched_by_one(by).histograms(kind) for kind in OF_PARAMETERS)
