"""Versions of handouts, ordered by PyPA's own rules."""

import itertools
import random
from datetime import datetime, timedelta

import pytest
from packaging.version import Version

from labkit.records.handout import Handout, handout_of, is_older, next_handout

NOON = datetime(2026, 11, 26, 12, 0)


def test_version_is_written_as_pip_writes_it() -> None:
    handout = next_handout("class", {"a.py": b"1"}, None, [], datetime(2026, 11, 26, 0, 5, 30))
    version = f"0.2.0+{handout.local_version}"
    assert version.startswith("0.2.0+class.20261126.5.g")
    assert str(Version(version)) == version
    assert handout_of(version) == handout
    assert handout_of(f"fp16_lab-{version}-py3-none-any1.whl") == handout
    assert str(handout) == "the handout of 2026-11-26 00:05 UTC"


def test_later_handout_is_a_later_version() -> None:
    draw = random.Random(0)
    handouts = [
        Handout("class", NOON + timedelta(minutes=draw.randrange(10**6)), f"{n:08}")
        for n in range(200)
    ]
    handouts.sort(key=lambda each: each.time)
    versions = [f"0.2.0+{each.local_version}" for each in handouts]
    assert len({each.time for each in handouts}) == 200
    assert [str(each) for each in sorted(map(Version, versions))] == versions
    for a, b in itertools.pairwise(versions):
        assert is_older(a, b), (a, b)
        assert not is_older(b, a), (a, b)
        assert Version("0.2.0") < Version(a) < Version("0.2.1")


def test_equal_content_has_one_version() -> None:
    first = next_handout("class", {"a": b"1", "b": b"2"}, None, [], NOON)
    later = NOON + timedelta(days=7)
    assert next_handout("class", {"b": b"2", "a": b"1"}, first, [], later) == first
    for other in ({"a": b"1"}, {"a": b"12", "b": b""}, {"a": b"1", "c": b"2"}, {"ab": b"12"}):
        new = next_handout("class", other, first, [], later)
        assert new.time == later
        assert new.digest != first.digest


def test_earlier_content_returns_as_a_new_version() -> None:
    """A correction that is taken back reaches the class, too."""
    first = next_handout("class", {"a": b"1"}, None, [], NOON)
    second = next_handout("class", {"a": b"2"}, first, [], NOON)
    third = next_handout("class", {"a": b"1"}, second, [first], NOON)
    assert [each.time - NOON for each in (first, second, third)] == [
        timedelta(minutes=minutes) for minutes in range(3)
    ], "within a minute"
    assert third.digest == first.digest
    back = next_handout("class", {"a": b"3"}, None, [third, first], NOON - timedelta(days=400))
    assert back.time > third.time, "after a clock that was set back"


@pytest.mark.parametrize(
    "version",
    ["0.2.0", "", "0.2.0+cpu", "0.2.0+class.20261399.905.g8c3df78b", "0.2.0+class.20261126.905"],
)
def test_what_is_no_handout_is_neither_older_nor_newer(version: str) -> None:
    handout = "0.2.0+class.20261126.905.g8c3df78b"
    assert handout_of(version) is None
    assert not is_older(version, handout)
    assert not is_older(handout, version)
