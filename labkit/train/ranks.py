"""How is a race shared by the processes that torchrun started, on one host or on several?

Idea: the ranks say what each has on record; what nobody has is dealt out, one run after the other. At the end they hand
one another their records, so each host's folder is whole, shared or not.

Invariant: every rank returns the same records. A race that was ended goes on where it was: what is on record is kept.

Source: torch.distributed.run (RANK, WORLD_SIZE; its rendezvous joins the hosts).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from labkit.amp import Recipe
from labkit.train.record import RunRecord

Run = tuple[Recipe, int]  # and its seed
LONGEST = timedelta(days=7)  # that a rank trains while others wait


def started() -> bool:
    """Say whether torchrun started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Say whether this process is the one that speaks: rank 0, or no rank at all."""
    return os.environ.get("RANK", "0") == "0"


def by_ranks(
    runs: Sequence[Run], known: Sequence[RunRecord], train: Callable[[Run], RunRecord], path: Callable[[str, int], Path]
) -> Iterator[RunRecord]:
    """Yield the records of the runs that this rank has not, trained here or by another rank, each kept at its `path`.

    Args:
        runs: all of the race, in the same order on each rank.
        known: what this rank has on record.
        train: trains a run, and keeps it.
        path: recipe's name and seed -> where the record is kept.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=LONGEST)
    own = {(record.recipe, record.seed): record for record in known}
    anywhere = {key for keys in _gathered(set(own)) for key in keys}
    missing = [run for run in runs if (run[0].name, run[1]) not in anywhere]
    mine = [train(run) for run in missing[dist.get_rank() :: dist.get_world_size()]]
    yield from mine
    own |= {(record.recipe, record.seed): record for record in mine}
    for records in _gathered(list(own.values())):
        for record in records:
            if (record.recipe, record.seed) not in own:
                own[record.recipe, record.seed] = record
                if not path(record.recipe, record.seed).exists():
                    record.save(path(record.recipe, record.seed))
                yield record


def _gathered(own: Any) -> list[Any]:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every
