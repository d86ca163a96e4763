"""What does a training step cost on a device? Seconds, all ways in turn, and memory at its peak."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial

import torch

from labkit.records.turns import host_seconds, take_turns

Step = Callable[[], object]


def median_seconds(steps: Mapping[str, Step], device: str, count: int, rounds: int) -> dict[str, float]:
    """Return way -> seconds of a step, the median over the rounds; a turn has `count` steps, a first one warms up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    ways = {way: partial(host_seconds, step, count, wait) for way, step in steps.items()}
    return {way: statistics.median(seconds[1:]) for way, seconds in take_turns(ways, rounds + 1).items()}


def peak(make: Callable[[], Step], device: str) -> float | None:
    """Return the MiB that a fourth step holds at its peak, optimizer included; None where nobody counts."""
    if device != "cuda":
        return None
    others = torch.cuda.memory_allocated()
    step = make()
    for _ in range(3):  # an optimizer's state is made, and a graph is traced
        step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return (torch.cuda.max_memory_allocated() - others) / 2**20
