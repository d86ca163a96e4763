"""Versions of handouts: the content of a lab released to a class, and the order of releases.

Idea: the lab's version is followed by a local version (PEP 440), as in
0.3.0+class.20261126.1530.g8c3df78b. Its parts are the audience of the release, the day, the time
(UTC), and a digest of the content. pip compares the parts from left to right, digits as numbers. So
a handout of a later minute replaces an earlier one. Equal content keeps its version.

A handout may also have settings that the teacher chose, in a file of the package.

Invariant: a version without such a local version, as that of a checkout, is not a handout.

Source: PEP 440, "Local version identifiers".
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

# In the wheel of a handout; no other lab has this file.
SETTINGS = "labkit/handout.json"
PATTERN = re.compile(
    r"\+(class|teacher)\.(\d{4})(\d\d)(\d\d)\.(\d{1,4})\.g([0-9a-f]{8})(?![0-9a-z])"
)


@dataclass(frozen=True)
class Handout:
    """A release of the lab to a class, as its version describes it.

    Attributes:
        kind: "class" or "teacher".
        time: time of the release: naive, in UTC, to the minute.
        digest: the first eight hexadecimal digits of the digest of its content.
    """

    kind: str
    time: datetime
    digest: str

    @property
    def local_version(self) -> str:
        """The part of a version after the plus sign."""
        # as a number without leading zeros, as pip normalizes it
        time_of_day = 100 * self.time.hour + self.time.minute
        # "g" before the digest: PEP 440 reads a part of digits only as a number
        return f"{self.kind}.{self.time:%Y%m%d}.{time_of_day}.g{self.digest}"

    def __str__(self) -> str:
        return f"the handout of {self.time:%Y-%m-%d %H:%M} UTC"


def handout_of(version: str) -> Handout | None:
    """Return the handout that a version, or the name of a wheel, describes, or None.

    >>> print(handout_of("0.3.0+class.20261126.905.g8c3df78b"))
    the handout of 2026-11-26 09:05 UTC
    >>> handout_of("0.3.0") is None
    True
    """
    match = PATTERN.search(version)
    if match is None:
        return None
    kind, year, month, day, time_of_day, digest = match.groups()
    hours, minutes = divmod(int(time_of_day), 100)
    try:
        time = datetime(int(year), int(month), int(day), hours, minutes)
    except ValueError:
        return None
    return Handout(kind, time, digest)


def settings_text(guess_first: bool) -> bytes:
    """Return the content of a handout's SETTINGS.

    Args:
        guess_first: whether the answer to a prediction opens only after the learner has committed.
    """
    return (json.dumps({"guess_first": guess_first}) + "\n").encode()


def guesses_first(packages: Path = Path(__file__).parents[2]) -> bool:
    """Return whether the installed lab is a handout that was released with "guess first".

    Args:
        packages: the folder that holds the package labkit.
    """
    file = packages / SETTINGS
    return file.is_file() and json.loads(file.read_bytes())["guess_first"] is True


def next_handout(
    kind: str,
    content: Mapping[str, bytes],
    present: Handout | None,
    earlier: Iterable[Handout],
    now: datetime,
) -> Handout:
    """Return the handout of a content: the present one if its content is equal, else a new one.

    Args:
        kind: "class" or "teacher".
        content: name -> content of the files of the release.
        present: the handout that the new one replaces, or None.
        earlier: earlier handouts. The new one is later than all of them, even if the clock was set
            back.
        now: the time: naive, in UTC.
    """
    digest = _digest(content)
    times = [each.time for each in earlier]
    if present is not None:
        if present.digest == digest:
            return present
        times.append(present.time)
    time = now.replace(second=0, microsecond=0)
    if times and max(times) >= time:
        time = max(times) + timedelta(minutes=1)
    return Handout(kind, time, digest)


def is_older(version: str, other: str) -> bool:
    """Return whether one version was handed out before another one with different content."""
    handout = handout_of(version)
    other_handout = handout_of(other)
    if handout is None or other_handout is None or handout.digest == other_handout.digest:
        return False
    return handout.time < other_handout.time


def _digest(content: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, file in sorted(content.items()):
        # digests have one length, so names and contents cannot run into one another
        digest.update(hashlib.sha256(name.encode()).digest())
        digest.update(hashlib.sha256(file).digest())
    return digest.hexdigest()[:8]
