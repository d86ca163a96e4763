"""Times of steps in two trees, measured in turn by two processes.

    python -m tests.guard speed OLD_TREE [--tree TREE] [--seconds 4] [--pairs 3] [--only WORD]

A block of steps runs in one process and then in the other, so that other work on the machine slows
both. Which of them is first is drawn at random for each pair of blocks. The ratio of a case is the
median of its blocks' ratios, new to old. Its 95% interval is between two of the sorted ratios,
which assumes nothing about their distribution. Processes are started several times, since the
layout of memory makes one process about a percent faster than the next. Comparing a tree with
itself shows how exact the ratios are on this machine.
"""

import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.guard.trees import environment

# Seconds of a block of steps, about.
BLOCK = 0.02
# Steps of the first trial, which tells how many steps a block has.
TRIAL_STEPS = 3
# A ratio above this counts as slower.
LIMIT = 1.03
# Fewest pairs of blocks: of five values, not even the smallest and the largest are a 95% interval.
FEWEST = 6


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
        line = self.process.stdout.readline()
        if not line:
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


@dataclass(frozen=True)
class Block:
    """Seconds for each step of a block of steps, in the old tree and in the new one."""

    old: float
    new: float

    @property
    def ratio(self) -> float:
        """New seconds to old seconds."""
        return self.new / self.old


def compare_speed(old: Path, new: Path, seconds: float, pairs: int, word: str) -> int:
    """Print the ratio of each case that both trees have.

    Args:
        old: The tree that is the base of the ratios.
        new: The other tree.
        seconds: Seconds for each case, of all pairs of processes together.
        pairs: How often both processes are started.
        word: A part of the names of the cases.

    Returns:
        The exit status: 1 if the interval of a case is above the limit, 2 if the limit is inside an
        interval, otherwise 0.

    Raises:
        SystemExit: no case of both trees has the word in its name.
    """
    blocks_by_case: dict[str, list[Block]] = {}
    for _ in range(pairs):
        with worker(old) as old_worker, worker(new) as new_worker:
            for case in old_worker.cases:
                if word in case and case in new_worker.cases:
                    blocks = measure(old_worker, new_worker, case, seconds / pairs)
                    blocks_by_case.setdefault(case, []).extend(blocks)
    if not blocks_by_case:
        raise SystemExit(f"no case of both trees has {word!r} in its name")
    return print_ratios(blocks_by_case)


def print_ratios(blocks_by_case: dict[str, list[Block]]) -> int:
    """Print the ratio of each case and of all of them, and return the exit status."""
    print(f"{'':42}{'old, us':>9}   new / old   95% interval   blocks")
    all_ratios: list[float] = []
    verdicts = set()
    for case, blocks in blocks_by_case.items():
        ratios = [block.ratio for block in blocks]
        all_ratios += ratios
        low, high = interval(ratios)
        verdict = ""
        if low > LIMIT:
            verdict = "slower"
        elif high > LIMIT:
            verdict = "cannot tell"
        verdicts.add(verdict)
        microseconds = 1e6 * median(block.old for block in blocks)
        print(
            f"{case:42}{microseconds:9.0f}{median(ratios):12.3f}"
            f"   {low:.3f} to {high:.3f}{len(ratios):9}   {verdict}"
        )
    low, high = interval(all_ratios)
    print(
        f"{'all of them':51}{median(all_ratios):12.3f}   {low:.3f} to {high:.3f}{len(all_ratios):9}"
    )
    if "slower" in verdicts:
        return 1
    if "cannot tell" in verdicts:
        return 2
    return 0


def measure(old: Worker, new: Worker, case: str, seconds: float) -> list[Block]:
    """Return blocks of steps that took about these seconds together, and not fewer than FEWEST.

    Both do the same steps in the same order, so their trainings stay alike.
    """
    longest_trial = max(old.seconds(case, TRIAL_STEPS), new.seconds(case, TRIAL_STEPS))
    steps = max(1, round(BLOCK / (longest_trial / TRIAL_STEPS)))
    blocks: list[Block] = []
    spent = 0.0
    while spent < seconds or len(blocks) < FEWEST:
        if random.random() < 0.5:
            before = old.seconds(case, steps)
            after = new.seconds(case, steps)
        else:
            after = new.seconds(case, steps)
            before = old.seconds(case, steps)
        blocks.append(Block(before / steps, after / steps))
        spent += before + after
    return blocks


def interval(values: Sequence[float], coverage: float = 0.95) -> tuple[float, float]:
    """Return an interval that covers the median with a given probability.

    It is between two of the sorted values that are equally far from both ends: the narrowest such
    pair. Fewer than FEWEST values do not reach 95%; of them it is the smallest and the largest.

    >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    (1.0, 6.0)
    >>> interval(list(range(100)))
    (39, 60)
    """
    ordered = sorted(values)
    count = len(ordered)
    # Each value is below the median with probability 1/2. `outside` is the probability that fewer
    # than rank + 1 of them are below, so that the median lies outside on that side.
    outside = 0.0
    rank = 0
    while True:
        outside += math.comb(count, rank) / 2**count
        if 2 * outside > 1 - coverage:
            break
        rank += 1
    first = max(rank - 1, 0)
    return ordered[first], ordered[count - 1 - first]
