"""The roofline: how fast a device multiplies, how fast it moves bytes, and which of the two limits a case.

Idea: both ceilings are measured, by the fastest copy and the fastest large product of each format. Below the ridge, the
intensity at which the two meet, a case waits for memory, and half the bytes are twice the speed; above it, it waits for
the multipliers, and only Tensor Cores help.

Invariant: a ceiling is a measurement of one device. What was measured elsewhere makes another roofline.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.bench.cases import Case, ElementwiseCase, GemmCase, intensity
from labkit.bench.timing import GemmRun
from labkit.formats import Format


@dataclass(frozen=True)
class Roofline:
    """The measured ceilings of one device.

    bandwidth  bytes a second, read and written, of the fastest copy
    peaks      format -> FLOP/s of its fastest product

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
            ValueError: none was measured.
        """
        if format not in self.peaks:
            raise ValueError(
                f"no product of {format.name} was measured for this roofline; it has "
                f"{', '.join(row.name for row in self.peaks)}. Time a large GemmCase in {format.name} and add it."
            )
        return self.peaks[format]

    def ridge(self, format: Format) -> float:
        """Return the intensity, in FLOP for each byte, from which on the multipliers are the limit."""
        return self.peak(format) / self.bandwidth

    def ceiling(self, intensity: float, format: Format) -> float:
        """Return the most FLOP/s that a case of this intensity can reach."""
        return min(self.peak(format), self.bandwidth * intensity)

    def bound(self, case: Case) -> str:
        """Return which ceiling a case meets first, "bandwidth" or "compute"; element-wise work always the first."""
        if isinstance(case, ElementwiseCase):
            return "bandwidth"
        return "bandwidth" if intensity(case) < self.ridge(case.format) else "compute"

    def of_ceiling(self, run: GemmRun) -> float:
        """Return a run's share of the ceiling at its intensity; of the bandwidth where it is element-wise work.

        Above 1 where a cache serves what the count of bytes takes from memory.
        """
        if isinstance(run.case, ElementwiseCase):
            return run.case.bytes / run.seconds / self.bandwidth
        return run.case.flops / run.seconds / self.ceiling(intensity(run.case), run.case.format)


def roofline(runs: Iterable[GemmRun]) -> Roofline:
    """Return the ceilings that runs on one device show: the sweep "ceilings", or whatever includes copies and products.

    Raises:
        ValueError: there is no copy among them, or no product.
    """
    every = list(runs)
    copies = [run for run in every if isinstance(run.case, ElementwiseCase) and run.case.op == "copy"]
    products = [run for run in every if isinstance(run.case, GemmCase)]
    if not copies or not products:
        raise ValueError(
            f"a roofline needs a copy and a product; among these {len(every)} runs are {len(copies)} copies and "
            f'{len(products)} products. Time the sweep "ceilings".'
        )
    peaks: dict[Format, float] = {}
    for run in products:
        speed = run.case.flops / run.seconds
        peaks[run.case.format] = max(speed, peaks.get(run.case.format, 0.0))
    return Roofline(max(run.case.bytes / run.seconds for run in copies), peaks)
