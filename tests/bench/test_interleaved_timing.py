"""Interleaved timing of several calls, with a simulated clock."""

import time
from functools import partial

from labkit.bench.interleaved_timing import host_seconds, time_interleaved


def test_timed_functions_take_turns() -> None:
    """So that a machine that slows down slows both."""
    order: list[str] = []

    def timed(name: str, seconds: list[float]):
        def call() -> float:
            order.append(name)
            return seconds[order.count(name) - 1]

        return call

    calls = {"a": timed("a", [3.0, 1.0]), "b": timed("b", [5.0, 2.0])}
    assert time_interleaved(calls, 2) == {"a": [3.0, 1.0], "b": [5.0, 2.0]}
    assert order == ["a", "b", "a", "b"]


class Clock:
    """A clock that moves only when `work` is called."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def work(self, seconds: float) -> None:
        self.seconds += seconds


def test_seconds_of_a_call_are_those_of_a_finished_group(monkeypatch) -> None:
    """Four calls of a second each, and a device that needs two more until it is done."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock.now)
    call = partial(clock.work, 1.0)
    wait = partial(clock.work, 2.0)
    assert host_seconds(call, calls=4, wait=wait) == (4 + 2) / 4
