"""Interleaved timing of several functions, so that a slowdown affects all of them alike.

Idea: the functions are called in rotation. Each one measures its own call, on the host's clock
(`host_seconds`) or a GPU's. The first round includes the warm-up; the caller may discard it.

Invariant: a round calls each function at most once, in the order of the mapping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Name = TypeVar("Name")


def time_interleaved(
    timers: Mapping[Name, Callable[[], float]],
    rounds: int,
    finished: Callable[[Name, list[float]], bool] = lambda *_: False,
) -> dict[Name, list[float]]:
    """Return name -> the seconds that each call of its timer returned.

    Args:
        timers: name -> a function that runs once and returns its seconds.
        rounds: number of calls of each timer.
        finished: (name, its seconds so far) -> whether to stop calling it; evaluated before each
            call.

    >>> timers = {"quick": lambda: 0.1, "slow": lambda: 2.0}
    >>> time_interleaved(timers, 3, finished=lambda _, seconds: sum(seconds) > 3)
    {'quick': [0.1, 0.1, 0.1], 'slow': [2.0, 2.0]}
    """
    seconds: dict[Name, list[float]] = {name: [] for name in timers}
    for _ in range(rounds):
        for name, timer in timers.items():
            if not finished(name, seconds[name]):
                seconds[name].append(timer())
    return seconds


def host_seconds(
    call: Callable[[], object], calls: int = 1, wait: Callable[[], None] = lambda: None
) -> float:
    """Return the mean seconds of a call on the host's clock.

    Args:
        call: the function to time.
        calls: number of calls.
        wait: blocks until a device is idle; called before and after the calls.
    """
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - start) / calls
