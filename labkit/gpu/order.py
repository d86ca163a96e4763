"""What is a part of `labkit gpu`, and what is it asked?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.bench import DeviceReport


@dataclass(frozen=True)
class Order:
    """What a part is asked: on which device, into which folder, until when (time.monotonic), and how much.

    quick means: on a GPU, in a third of the time; on a CPU, small cases that rehearse the code.
    """

    report: DeviceReport
    folder: Path
    end: float
    quick: bool

    @property
    def rehearsal(self) -> bool:
        """Say whether cases are so small that their numbers mean nothing."""
        return self.quick and self.report.kind == "cpu"

    def over(self) -> bool:
        """Say whether the time is up."""
        return time.monotonic() > self.end

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.end - time.monotonic())

    def path(self, kind: str, name: str) -> Path:
        """Return where a result is kept: FOLDER/kind/device/name."""
        return self.folder / kind / self.report.slug / name


@dataclass(frozen=True)
class Part:
    """One part: a line about it, its seconds, and what it does, yielding a line for each thing that is done."""

    about: str
    seconds: float
    run: Callable[[Order], Iterator[str]]
