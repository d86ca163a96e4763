"""Versions of handouts: the content of a lab released to a class, and the order of releases.

Idea: the lab's own version is followed by a local one (PEP 440), as in
0.3.0+class.20261126.1530.g8c3df78b. It says for whom the lab was released, on which day, at which
minute (UTC), and a digest of the content. pip compares the parts from left to right, digits as
numbers. So the handout of a later minute replaces the earlier one. Equal content keeps its version.

Invariant: a lab without such a part, a checkout's for instance, is not a handout.

Source: PEP 440, "Local version identifiers".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

PATTERN = re.compile(
    r"\+(class|teacher)\.(\d{4})(\d\d)(\d\d)\.(\d{1,4})\.g([0-9a-f]{8})(?![0-9a-z])"
)


@dataclass(frozen=True)
class Handout:
    """What a version says of a handout.

    Attributes:
        kind: "class" or "teacher".
        time: when it was made: naive, in UTC, to the minute.
        digest: the first eight hexadecimal digits of its content's.
    """

    kind: str
    time: datetime
    digest: str

    @property
    def local_version(self) -> str:
        """The part of a version behind the plus sign.

        A number of minutes has no leading zero, as pip writes it.
        """
        minute = 100 * self.time.hour + self.time.minute
        # a letter before the digits: PEP 440 reads a part of digits as a number
        return f"{self.kind}.{self.time:%Y%m%d}.{minute}.g{self.digest}"

    def __str__(self) -> str:
        return f"the handout of {self.time:%Y-%m-%d %H:%M} UTC"


def handout_of(version: str) -> Handout | None:
    """Return what a version, or the name of a wheel, says of its handout, or None.

    >>> print(handout_of("0.3.0+class.20261126.905.g8c3df78b"))
    the handout of 2026-11-26 09:05 UTC
    >>> handout_of("0.3.0") is None
    True
    """
    found = PATTERN.search(version)
    if found is None:
        return None
    kind, year, month, day, minute, digest = found.groups()
    hours, minutes = divmod(int(minute), 100)
    try:
        time = datetime(int(year), int(month), int(day), hours, minutes)
    except ValueError:
        return None
    return Handout(kind, time, digest)


def next_handout(
    kind: str,
    content: Mapping[str, bytes],
    present: Handout | None,
    earlier: Iterable[Handout],
    now: datetime,
) -> Handout:
    """Return the handout of this content: the present one if it has the same, else a new one.

    Args:
        kind: "class" or "teacher".
        content: name -> content of its files.
        present: the handout that this one replaces.
        earlier: those before. A new one is later than all of them, even if the clock was set back.
        now: naive, in UTC.
    """
    digest = _digest(content)
    time = now.replace(second=0, microsecond=0)
    if present is None:
        before = [each.time for each in earlier]
    elif present.digest == digest:
        return present
    else:
        before = [present.time, *(each.time for each in earlier)]
    if before and max(before) >= time:
        time = max(before) + timedelta(minutes=1)
    return Handout(kind, time, digest)


def is_older(version: str, other: str) -> bool:
    """Return whether one version was handed out before another one with different content."""
    a, b = handout_of(version), handout_of(other)
    return a is not None and b is not None and a.digest != b.digest and a.time < b.time


def _digest(content: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, each in sorted(content.items()):
        whole.update(hashlib.sha256(name.encode()).digest() + hashlib.sha256(each).digest())
    return whole.hexdigest()[:8]
