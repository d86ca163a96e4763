"""Which rows of a weight does a rank hold?

The point: the parts are as long as the first one, until the rows are used up. So the last ranks may hold less, or
nothing, and who looks for inf there finds none.

Oracle in the tests: torch.chunk, and the DTensor of FSDP2.
Source: torch.distributed.tensor.Shard (as torch.chunk).
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from random import Random

import torch

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Rows = list[tuple[int, int]]


def reference(rows: int, world: int) -> Rows:
    """Return (first row, row after the last) for each rank; the same twice where it holds none.

    >>> reference(5, 4)
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    each = ceil(rows / world)
    return [(min(rank * each, rows), min((rank + 1) * each, rows)) for rank in range(world)]


def _even(random: Random) -> list[Case]:
    return [(random.randint(1, 9) * world, world) for world in (1, 2, 4, 8)]


def _uneven(random: Random) -> list[Case]:
    """A last part that is shorter; every rank holds something, and floor and fair shares differ from it."""
    return [(11, 4), (7, 4), (14, 3), (random.randint(2, 9) * 8 - 1, 8), (random.randint(500, 999) * 8 - 3, 8)]


def _empty(random: Random) -> list[Case]:
    """Ranks that hold nothing: one row, fewer rows than ranks, and the case that people do not expect."""
    return [(1, 4), (3, 8), (5, 4), (9, 8), (random.choice((17, 18)), 8), (20, 16), (3, 64), (129, 128)]


@mistake
def rounds_down(rows: int, world: int) -> Rows:
    """This rounds the quotient down and gives the last rank the rest, so the last one holds the most."""
    each = rows // world
    return [(rank * each, rows if rank == world - 1 else (rank + 1) * each) for rank in range(world)]


@mistake
def loses_the_rest(rows: int, world: int) -> Rows:
    """This rounds the quotient down, and the rows that are left belong to nobody."""
    each = rows // world
    return [(rank * each, (rank + 1) * each) for rank in range(world)]


@mistake
def shares_fairly(rows: int, world: int) -> Rows:
    """This gives the first ranks one row more, as numpy.array_split does. torch fills up rank by rank."""
    each, rest = divmod(rows, world)
    firsts = [rank * each + min(rank, rest) for rank in range(world + 1)]
    return list(pairwise(firsts))


@mistake
def goes_beyond_the_end(rows: int, world: int) -> Rows:
    """This lets the last ranks begin or end beyond the last row."""
    each = ceil(rows / world)
    return [(rank * each, (rank + 1) * each) for rank in range(world)]


@mistake
def begins_beyond_the_end(rows: int, world: int) -> Rows:
    """This ends every part in time, but a rank that holds nothing begins beyond the last row."""
    each = ceil(rows / world)
    return [(rank * each, min((rank + 1) * each, rows)) for rank in range(world)]


# fmt: off
MISTAKES = (
    rounds_down,
    loses_the_rest,
    shares_fairly,
    goes_beyond_the_end,
    begins_beyond_the_end,
    wrong("leaves out who holds nothing", "this leaves out the ranks that hold nothing. They are there, and wait in "
          "every all-reduce.",
          lambda rows, world: [(first, last) for first, last in reference(rows, world) if first < last]),
    wrong("names the last row", "this names the last row of each part; asked is the row after it.",
          lambda rows, world: [(first, last - 1) for first, last in reference(rows, world)]),
)
# fmt: on

EXERCISE = Exercise(
    id="workers.parts",
    title="Who holds which master?",
    entry="my_rows",
    difficulty=2,
    minutes=6,
    reference=reference,
    checks=(
        Check("rows that can be shared evenly", 1, _even),
        Check("a last part that is shorter", 2, _uneven),
        Check("ranks that hold nothing", 2, _empty),
    ),
    mistakes=MISTAKES,
    withheld=(torch.chunk, torch.Tensor.chunk, torch.tensor_split),
)
