"""Roofline model: a device's ceilings of bandwidth and compute, and the one that limits a case.

Idea: both ceilings are measured, by the fastest copy and the fastest large product of each format.
They meet at the ridge intensity. Below it, bandwidth is the limit, and half the bytes give twice
the speed; above it, compute is the limit, and only Tensor Cores help.

Invariant: ceilings are measurements of one device; another device has its own roofline.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.bench.cases import Case, ElementwiseCase, GemmCase, intensity
from labkit.bench.timing import GemmRun
from labkit.formats import FORMATS, Format
from labkit.machine.published import published


@dataclass(frozen=True)
class Roofline:
    """Measured ceilings of one device.

    Attributes:
        bandwidth: bytes a second, read and written, of the fastest copy.
        peaks: format -> FLOP/s of its fastest product.

    >>> from labkit.formats import FP16
    >>> roof = Roofline(bandwidth=1e12, peaks={FP16: 100e12})
    >>> roof.ridge(FP16), roof.ceiling(10.0, FP16) / 1e12, roof.bound(GemmCase(64, 4096, 4096))
    (100.0, 10.0, 'bandwidth')
    """

    bandwidth: float
    peaks: dict[Format, float]

    def peak(self, format: Format) -> float:
        """Return the FLOP/s of the fastest product of a format.

        Raises:
            ValueError: no product of this format was measured.
        """
        if format not in self.peaks:
            raise ValueError(
                f"no product of {format.name} was measured for this roofline; it has "
                f"{', '.join(row.name for row in self.peaks)}. Time a large GemmCase in "
                f"{format.name} and add it."
            )
        return self.peaks[format]

    def ridge(self, format: Format) -> float:
        """Return the intensity, in FLOP for each byte, above which compute is the limit."""
        return self.peak(format) / self.bandwidth

    def ceiling(self, intensity: float, format: Format) -> float:
        """Return the maximum FLOP/s at an intensity."""
        return min(self.peak(format), self.bandwidth * intensity)

    def bound(self, case: Case) -> str:
        """Return the ceiling that limits a case, "bandwidth" or "compute".

        For element-wise operations it is "bandwidth".
        """
        if isinstance(case, ElementwiseCase):
            return "bandwidth"
        return "bandwidth" if intensity(case) < self.ridge(case.format) else "compute"

    def of_ceiling(self, run: GemmRun) -> float:
        """Return a run's share of the ceiling at its intensity.

        For element-wise operations it is the share of the bandwidth. It exceeds 1 if a cache serves
        bytes that count as memory traffic.
        """
        case = run.case
        if isinstance(case, ElementwiseCase):
            return case.bytes / run.seconds / self.bandwidth
        return case.flops / run.seconds / self.ceiling(intensity(case), case.format)


def roofline(runs: Iterable[GemmRun]) -> Roofline:
    """Return the ceilings of runs on one device, such as those of the sweep "ceilings".

    Raises:
        ValueError: the runs contain no copy or no product.
    """
    runs = list(runs)
    copies = [
        run for run in runs if isinstance(run.case, ElementwiseCase) and run.case.op == "copy"
    ]
    products = [run for run in runs if isinstance(run.case, GemmCase)]
    if not copies or not products:
        raise ValueError(
            f"expected a copy and a product among the runs, got {len(copies)} copies and "
            f'{len(products)} products in {len(runs)} runs. Time the sweep "ceilings".'
        )
    peaks: dict[Format, float] = {}
    for run in products:
        speed = run.case.flops / run.seconds
        peaks[run.case.format] = max(speed, peaks.get(run.case.format, 0.0))
    bandwidth = max(run.case.bytes / run.seconds for run in copies)
    return Roofline(bandwidth, peaks)


def data_sheet(card: str) -> Roofline | None:
    """Return the ceilings in a card's data sheet, or None if it lacks the bandwidth or FP16's peak.

    >>> roof = data_sheet("V100")
    >>> roof.peak(FORMATS["FP16"]) / roof.peak(FORMATS["FP32"]) > 7.9
    True
    """
    rows = published("data sheet", card)
    # published in GB/s and TFLOP/s
    bandwidth = [row.value * 1e9 for row in rows if row.format == "memory"]
    peaks = {FORMATS[row.format]: row.value * 1e12 for row in rows if row.format in FORMATS}
    if not bandwidth or FORMATS["FP16"] not in peaks:
        return None
    return Roofline(bandwidth[0], peaks)
