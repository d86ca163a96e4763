"""Timing of several ways that take turns, so that a machine that slows down slows all of them.

Idea: here is only whose turn it is. What a call takes is told by the caller's clock: the host's (`host_seconds`), or a
GPU's. A first round in which everything warms up is the caller's to leave out.

Invariant: in a round each way has one turn at the most, in the order given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Way = TypeVar("Way")


def take_turns(
    ways: Mapping[Way, Callable[[], float]], rounds: int, over: Callable[[Way, list[float]], bool] = lambda *_: False
) -> dict[Way, list[float]]:
    """Return way -> the seconds that it told of each of its turns.

    Args:
        over: (way, its seconds so far) -> whether it has no turn any more; asked before each.

    >>> take_turns({"quick": lambda: 0.1, "slow": lambda: 2.0}, 3, over=lambda _, seconds: sum(seconds) > 3)
    {'quick': [0.1, 0.1, 0.1], 'slow': [2.0, 2.0]}
    """
    seconds: dict[Way, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, seconds_of_a_call in ways.items():
            if not over(way, seconds[way]):
                seconds[way].append(seconds_of_a_call())
    return seconds


def host_seconds(call: Callable[[], object], calls: int = 1, wait: Callable[[], None] = lambda: None) -> float:
    """Return what one of `calls` calls takes by the host's clock; `wait` returns when a device has done its work."""
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return (time.perf_counter() - began) / calls
