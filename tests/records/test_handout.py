"""Versions of handouts, which `packaging` must order as the lab does."""

import itertools
import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from packaging.version import Version

from labkit.records.handout import (
    SETTINGS,
    Handout,
    guesses_first,
    handout_of,
    is_older,
    next_handout,
    settings_text,
)

NOON = datetime(2026, 11, 26, 12, 0)


AFTER_MIDNIGHT = next_handout("class", {"a.py": b"1"}, None, [], datetime(2026, 11, 26, 0, 5, 30))
VERSION = f"0.2.0+{AFTER_MIDNIGHT.local_version}"


def test_version_has_the_day_and_the_minute_of_the_handout() -> None:
    assert VERSION.startswith("0.2.0+class.20261126.5.g")


def test_version_is_written_as_pip_writes_it() -> None:
    assert str(Version(VERSION)) == VERSION


@pytest.mark.parametrize("text", [VERSION, f"fp16_lab-{VERSION}-py3-none-any1.whl"])
def test_a_handout_is_read_from_its_version(text: str) -> None:
    assert handout_of(text) == AFTER_MIDNIGHT


def test_a_handout_is_called_by_its_time() -> None:
    assert str(AFTER_MIDNIGHT) == "the handout of 2026-11-26 00:05 UTC"


@pytest.fixture(scope="module")
def versions() -> list[str]:
    """The versions of 200 handouts, by time; no two are of the same minute."""
    random_minutes = random.Random(0).sample(range(10**6), 200)
    return [
        f"0.2.0+{Handout('class', NOON + timedelta(minutes=minutes), f'{number:08}').local_version}"
        for number, minutes in enumerate(sorted(random_minutes))
    ]


def test_packaging_orders_versions_by_time(versions: list[str]) -> None:
    assert [str(version) for version in sorted(map(Version, versions))] == versions


def test_the_handout_before_is_older(versions: list[str]) -> None:
    for earlier, later in itertools.pairwise(versions):
        assert is_older(earlier, later), (earlier, later)
        assert not is_older(later, earlier), (earlier, later)


def test_a_handout_is_between_two_releases(versions: list[str]) -> None:
    for version in versions:
        assert Version("0.2.0") < Version(version) < Version("0.2.1")


FIRST = next_handout("class", {"a": b"1", "b": b"2"}, None, [], NOON)
A_WEEK_LATER = NOON + timedelta(days=7)


def test_equal_content_has_one_version() -> None:
    """The order of the files does not count."""
    assert next_handout("class", {"b": b"2", "a": b"1"}, FIRST, [], A_WEEK_LATER) == FIRST


@pytest.mark.parametrize(
    "content",
    [{"a": b"1"}, {"a": b"12", "b": b""}, {"a": b"1", "c": b"2"}, {"ab": b"12"}],
    ids=["a file less", "moved text", "another name", "joined"],
)
def test_other_content_has_another_version(content: dict[str, bytes]) -> None:
    handout = next_handout("class", content, FIRST, [], A_WEEK_LATER)
    assert handout.time == A_WEEK_LATER
    assert handout.digest != FIRST.digest


@pytest.fixture
def three_handouts() -> list[Handout]:
    """Handouts of one minute; the third takes the correction of the second back."""
    first = next_handout("class", {"a": b"1"}, None, [], NOON)
    second = next_handout("class", {"a": b"2"}, first, [], NOON)
    third = next_handout("class", {"a": b"1"}, second, [first], NOON)
    return [first, second, third]


def test_earlier_content_returns_as_a_new_version(three_handouts: list[Handout]) -> None:
    first, _, third = three_handouts
    assert third.digest == first.digest
    assert third.time > first.time


def test_handouts_of_one_minute_are_a_minute_apart(three_handouts: list[Handout]) -> None:
    minutes = [(handout.time - NOON) / timedelta(minutes=1) for handout in three_handouts]
    assert minutes == [0, 1, 2]


def test_after_a_clock_is_set_back_the_next_version_is_later(three_handouts: list[Handout]) -> None:
    first, _, third = three_handouts
    long_before = NOON - timedelta(days=400)
    handout = next_handout("class", {"a": b"3"}, None, [third, first], long_before)
    assert handout.time > third.time


@pytest.mark.parametrize(
    "version",
    ["0.2.0", "", "0.2.0+cpu", "0.2.0+class.20261399.905.g8c3df78b", "0.2.0+class.20261126.905"],
)
def test_another_version_is_neither_older_nor_newer(version: str) -> None:
    handout = "0.2.0+class.20261126.905.g8c3df78b"
    assert handout_of(version) is None
    assert not is_older(version, handout)
    assert not is_older(handout, version)


@pytest.mark.parametrize("guess_first", [True, False])
def test_handout_says_whether_predictions_are_guessed_first(
    tmp_path: Path, guess_first: bool
) -> None:
    file = tmp_path / SETTINGS
    file.parent.mkdir()
    file.write_bytes(settings_text(guess_first))
    assert guesses_first(tmp_path) is guess_first


def test_lab_without_a_handout_does_not_guess_first(tmp_path: Path) -> None:
    assert guesses_first(tmp_path) is False
