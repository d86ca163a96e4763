"""Does a run of many processes go on, whoever was killed when, and with another number of them?"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.amp.distributed.checkpoint import KEPT, latest
from tests.amp.distributed.ranks import RUN_STEPS, launch, results, start, wait
from tests.slowness import slowness


def equal(these: Any, those: Any) -> bool:
    """Whether two dicts of tensors are equal to the bit."""
    return these.keys() == those.keys() and all(torch.equal(these[name], those[name]) for name in these)


@pytest.mark.slow
@pytest.mark.parametrize("readers", [1, 2, 4])
def test_another_number_of_ranks_goes_on_sharded_or_not_flat_or_not(tmp_path: Path, readers: int) -> None:
    (tmp_path / "written").mkdir()
    (tmp_path / "read").mkdir()
    written = launch("write", 2, tmp_path / "written")
    read = launch("read", readers, tmp_path / "read", WRITTEN=str(tmp_path / "written"))
    assert len(written[0][True][1]) == 4 * 3  # step, exp_avg and exp_avg_sq of four parameters
    for rank, found in enumerate(read):
        for (by, sharded, flat), (extra, masters, optimizer, scaler, reports) in found.items():
            assert extra == {"epoch": 3, "rank": rank if rank < 2 else 0}
            assert equal(masters, written[0][by][0]), (by, sharded, flat)
            assert equal(optimizer, written[0][by][1]), (by, sharded, flat)
            assert scaler == written[0][by][2]
            assert reports == read[0][by, sharded, flat][4]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_twelve_ranks_that_are_killed_anywhere_cost_no_step(tmp_path: Path, sharded: bool) -> None:
    """Somebody kills a rank, and does not know what it does: joins, builds, trains, writes or reads.

    The moment is drawn over the time that a process takes to get as far as its third step; every second time, over two
    steps from a checkpoint on. All six ranks of each kind are alive when they are hit (else it does not count), and
    each of the others ends by itself and says why.
    """
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    expected = launch("long_run", 2, whole, SHARDED=str(sharded))
    began, *steps = expected[0][3]
    generator, hits, faster = random.Random(4), 0, 1.0
    while hits < 6:
        written = latest(broken / "checkpoints")
        for mark in broken.glob("began-*"):
            mark.unlink()
        ranks = start("long_run", 2, broken, SHARDED=str(sharded), TIMEOUT_S=str(10 * slowness()))
        victim = generator.randrange(2)
        while ranks[victim].is_alive() and not (
            (broken / f"began-{victim}").exists() and (hits % 2 == 0 or latest(broken / "checkpoints") != written)
        ):
            ranks[victim].join(0.01)
        span = (steps[-1] - steps[-3]) if hits % 2 else steps[2] - began
        ranks[victim].join(generator.uniform(0.0, span / faster))
        was_alive = ranks[victim].is_alive()
        ranks[victim].kill()
        assert wait(ranks)[1 - victim] == 0
        if not was_alive:  # the machine is faster than it was, and all steps were done
            faster *= 2
            shutil.rmtree(broken / "checkpoints")
            continue
        left = torch.load(broken / f"{1 - victim}.pt", weights_only=False)
        (broken / f"{1 - victim}.pt").unlink()
        assert f"RankLost: rank {1 - victim} of 2 cannot go on: " in left
        hits += 1
        assert len(list((broken / "checkpoints").glob("step-*"))) <= KEPT + 1
    resumed = launch("long_run", 2, broken, SHARDED=str(sharded))
    for (losses, masters, scaler, _), (losses_2, masters_2, scaler_2, _) in zip(expected, resumed, strict=True):
        assert losses == losses_2
        assert len(losses) == RUN_STEPS
        assert equal(masters, masters_2)
        assert scaler == scaler_2
    assert latest(broken / "checkpoints") == broken / "checkpoints" / f"step-{RUN_STEPS:08d}"
    assert results(2, whole)
