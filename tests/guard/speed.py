"""Times of steps in two trees, measured in turn by two processes.

    python -m tests.guard speed OLD_TREE [--tree TREE] [--seconds 4] [--pairs 3] [--only WORD]

A block of steps runs in one process and then in the other, so that a load of the machine slows
both. Which of them is first is drawn at random for each pair of blocks. The ratio of a case is the
median of its blocks' ratios, new to old, with a 95% interval from the order of the ratios, which
assumes no distribution. Processes are started several times, since the layout of memory makes one
process a percent faster than the next. Comparing a tree with itself shows how exact the ratios are
on this machine.
"""

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.guard.trees import environment

BLOCK = 0.02  # seconds of a block of steps
LIMIT = 1.03
FEWEST = 6  # pairs of blocks for an interval of 95%


class Worker:
    """A process that runs steps with the labkit of a tree, on request."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.cases: list[str] = self._answer()

    def seconds(self, case: str, steps: int) -> float:
        """Return the seconds of a number of steps.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps([case, steps])}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"the process ended with {self.process.wait()}; its error is above")
        return json.loads(line)


@contextmanager
def worker(tree: Path) -> Iterator[Worker]:
    """Start a process with the labkit of a tree; it ends with the block."""
    with (
        environment(tree) as variables,
        subprocess.Popen(
            [sys.executable, "-m", "tests.guard.steps"],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        yield Worker(process)


def compare_speed(old: Path, new: Path, seconds: float, pairs: int, word: str) -> int:
    """Print the ratio of each case that both trees have; return 1 if an interval is above the
    limit, 2 if one is cut.

    Args:
        old: the tree that is the base of the ratios.
        new: the other one.
        seconds: for each case, of all pairs of processes together.
        pairs: how often both processes are started.
        word: in the name of the cases.
    """
    ratios: dict[str, list[float]] = {}
    taken: dict[str, float] = {}
    for _ in range(pairs):
        with ExitStack() as stack:
            first, second = (stack.enter_context(worker(tree)) for tree in (old, new))
            for case in first.cases:
                if word in case and case in second.cases:
                    found = blocks(first, second, case, seconds / pairs)
                    ratios.setdefault(case, []).extend(theirs / ours for ours, theirs, _ in found)
                    taken[case] = median(ours / steps for ours, _, steps in found)
    print(f"{'':42}{'old, us':>9}   new / old   95% interval   blocks")
    for case, found_ratios in ratios.items():
        low, high = interval(found_ratios)
        verdict = ""
        if low > LIMIT:
            verdict = "slower"
        elif high > LIMIT:
            verdict = "cannot tell"
        print(
            f"{case:42}{taken[case] * 1e6:9.0f}{median(found_ratios):12.3f}"
            f"   {low:.3f} to {high:.3f}{len(found_ratios):9}   {verdict}"
        )
    together = [ratio for found in ratios.values() for ratio in found]
    low, high = interval(together)
    print(f"{'all of them':51}{median(together):12.3f}   {low:.3f} to {high:.3f}{len(together):9}")
    intervals = [interval(found) for found in ratios.values()]
    if any(low > LIMIT for low, _ in intervals):
        return 1
    return 2 if any(high > LIMIT for _, high in intervals) else 0


def blocks(old: Worker, new: Worker, case: str, seconds: float) -> list[tuple[float, float, int]]:
    """Return old and new seconds of pairs of blocks, and the steps of each block.

    Both do the same steps in the same order, so their trainings stay alike.
    """
    trial = [side.seconds(case, 3) for side in (old, new)]
    steps = max(1, round(BLOCK / (max(trial) / 3)))
    found: list[tuple[float, float, int]] = []
    spent = 0.0
    while spent < seconds or len(found) < FEWEST:
        if random.random() < 0.5:
            before = old.seconds(case, steps)
            after = new.seconds(case, steps)
        else:
            after = new.seconds(case, steps)
            before = old.seconds(case, steps)
        found.append((before, after, steps))
        spent += before + after
    return found


def interval(values: Sequence[float], coverage: float = 0.95) -> tuple[float, float]:
    """Return the narrowest pair of order statistics, alike from both ends, that covers the median
    so often.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (1.0, 6.0)
    >>> interval(list(range(100)))
    (39, 60)
    """
    ordered = sorted(values)
    count, outside, rank = len(ordered), 0.0, 0
    # the chance that fewer than rank + 1 of the values are below the median
    while True:
        outside += math.comb(count, rank) / 2**count
        if 2 * outside > 1 - coverage:
            break
        rank += 1
    first = max(rank - 1, 0)
    return ordered[first], ordered[count - 1 - first]
