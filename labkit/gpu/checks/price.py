"""What does a training step cost on a device? Seconds, all ways in turn, and memory at its peak."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from functools import partial

import torch

from labkit.gpu.checks.progress import reason
from labkit.records.turns import host_seconds, take_turns

Step = Callable[[], object]


def median_seconds(steps: Mapping[str, Step], device: str, count: int, rounds: int) -> dict[str, float]:
    """Return way -> seconds of a step, the median over the rounds; a turn has `count` steps, a first one warms up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    ways = {way: partial(host_seconds, step, count, wait) for way, step in steps.items()}
    return {way: statistics.median(seconds[1:]) for way, seconds in take_turns(ways, rounds + 1).items()}


def prepared(make: Callable[[], Step], device: str) -> tuple[Step, float | None]:
    """Return a step that has run four times, and the MiB that the fourth held at its peak; None off a GPU.

    The MiB are those of this step alone, optimizer included.
    """
    gc.collect()  # what earlier steps left in cycles is freed now, not while this one is measured
    others = torch.cuda.memory_allocated() if device == "cuda" else 0
    step = make()
    for _ in range(3):  # an optimizer's state is made, and a graph is traced
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step()
    return step, (torch.cuda.max_memory_allocated() - others) / 2**20 if device == "cuda" else None


def all_prepared(
    ways: Mapping[str, Callable[[], Step]], device: str, left_out: Callable[[str, str], object]
) -> tuple[dict[str, Step], dict[str, float | None]]:
    """Return the steps of all ways, and their MiB; a way that raises is left out, with its reason."""
    steps: dict[str, Step] = {}
    memory: dict[str, float | None] = {}
    for way, make in ways.items():
        try:
            steps[way], memory[way] = prepared(make, device)
        except Exception as error:
            left_out(way, reason(error))
    return steps, memory
