"""Interleaved timing of several calls, with a simulated clock."""

import time

from labkit.bench.interleaved_timing import host_seconds, time_interleaved


def test_ways_take_turns_and_each_tells_its_own_seconds() -> None:
    order: list[str] = []

    def way(name: str, seconds: list[float]):
        def call() -> float:
            order.append(name)
            return seconds[order.count(name) - 1]

        return call

    told = time_interleaved({"a": way("a", [3.0, 1.0]), "b": way("b", [5.0, 2.0])}, 2)
    assert told == {"a": [3.0, 1.0], "b": [5.0, 2.0]}
    assert order == ["a", "b", "a", "b"], "a machine that slows down slows both"


def test_seconds_of_a_call_are_those_of_a_finished_group(monkeypatch) -> None:
    """Four calls of a second each, and a device that needs two more until it is done."""
    now = [0.0]

    def passes(seconds: float):
        return lambda: now.__setitem__(0, now[0] + seconds)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert host_seconds(passes(1.0), calls=4, wait=passes(2.0)) == (4 + 2) / 4
