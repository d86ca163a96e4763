"""Who is timed takes turns: in order, round by round, each with a clock that says what it is told to say."""

from __future__ import annotations

from labkit.records import turns
from labkit.records.turns import host_seconds, take_turns


def test_ways_take_turns_and_each_tells_its_own_seconds() -> None:
    order: list[str] = []

    def way(name: str, seconds: list[float]):
        def call() -> float:
            order.append(name)
            return seconds[order.count(name) - 1]

        return call

    told = take_turns({"a": way("a", [3.0, 1.0]), "b": way("b", [5.0, 2.0])}, 2)
    assert told == {"a": [3.0, 1.0], "b": [5.0, 2.0]}
    assert order == ["a", "b", "a", "b"], "a machine that slows down slows both"


def test_who_has_had_enough_gives_its_turns_away() -> None:
    asked: list[tuple[str, int]] = []

    def over(way: str, seconds: list[float]) -> bool:
        asked.append((way, len(seconds)))
        return way == "long" and len(seconds) == 1

    assert take_turns({"long": lambda: 9.0, "short": lambda: 1.0}, 3, over) == {"long": [9.0], "short": [1.0] * 3}
    assert asked[:4] == [("long", 0), ("short", 0), ("long", 1), ("short", 1)], "asked before each turn"


def test_seconds_of_a_call_are_those_of_a_group_that_the_device_has_done(monkeypatch) -> None:
    """Four calls of a second each, and a device that needs two more until it is done."""
    now = [0.0]

    def passes(seconds: float):
        return lambda: now.__setitem__(0, now[0] + seconds)

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    assert host_seconds(passes(1.0), calls=4, wait=passes(2.0)) == (4 + 2) / 4
