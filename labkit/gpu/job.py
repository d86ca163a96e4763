"""What one serving process does: a part of `labkit gpu` or a passport, device, time, folder."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from labkit.bench import DeviceReport, device_report
from labkit.bench.cases import GPU_SHORT, QUICK, Extent


@dataclass(frozen=True)
class Job:
    """Job of a process that serves items.

    Attributes:
        device: "cuda", or "cpu" for a rehearsal.
        part: name of a part of `labkit gpu`; "" for a passport.
        quick: on a GPU, a third of the time, and only two tasks in a passport; on a CPU, small
            cases, as a dry run.
        until: when to end, as Unix time, which all processes share.
        folder: where results are saved.
    """

    device: str
    part: str = ""
    quick: bool = False
    until: float = math.inf
    folder: Path = Path()

    @property
    def report(self) -> DeviceReport:
        """Facts of the device."""
        return device_report(self.device)

    @property
    def rehearsal(self) -> bool:
        """Whether this is a dry run, with cases too small for meaningful numbers."""
        return self.quick and self.device == "cpu"

    @property
    def extent(self) -> Extent | None:
        """The sizes of sweeps; None for those of the device."""
        if self.rehearsal:
            return QUICK
        return GPU_SHORT if self.quick else None

    @property
    def words(self) -> list[str]:
        """The job as words of a command, which `from_words` reads."""
        quick = "quick" if self.quick else ""
        return [self.device, self.part, quick, f"{self.until:.1f}", f"{self.folder}"]

    @staticmethod
    def from_words(device: str, part: str, quick: str, until: str, folder: str) -> Job:
        """Return the job of a command's words.

        >>> Job.from_words(*Job("cpu", "size", quick=True, until=5.0).words).part
        'size'
        """
        return Job(device, part, bool(quick), float(until), Path(folder))

    def seconds_left(self) -> float:
        return max(0.0, self.until - time.time())

    def path(self, kind: str, name: str) -> Path:
        """Return where a result is saved: FOLDER/kind/device/name."""
        return self.folder / kind / self.report.slug / name

    def size(self, width: int) -> dict[str, int]:
        """Return the width and the batch of networks; a rehearsal ignores `width`."""
        if self.rehearsal:
            return {"width": 64, "batch": 8}
        return {"width": width, "batch": 256}

    def repetitions(self) -> dict[str, int]:
        """Return `steps` and `rounds` of timings in a rehearsal; {} for the defaults."""
        if self.rehearsal:
            return {"steps": 2, "rounds": 1}
        return {}
