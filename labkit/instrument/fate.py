"""Four effects of rounding to a format: underflowed, subnormal, normal, overflowed.

Idea: the exponent of a binade decides its fate, except in three small intervals. For FP16:
- 2^-25 itself ties to even and becomes 0. The rest of its binade rounds up to 2^-24.
- The last half ulp under 2^-14 rounds up to the smallest normal number. Its binade is counted as
  subnormal.
- 65520 to 65536 rounds to infinity. Its binade is counted as normal.

The tests measure how small these intervals are. The third one is wider in formats whose top binade
is cut short (E4M3 ends at 448).

Invariant: the four fractions are of the non-zero finite elements and add up to 1, or are all 0 when
there are none.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.formats import FormatLike, as_format
from labkit.formats.arguments import require_kind
from labkit.instrument.histogram import ExponentHistogram


@dataclass(frozen=True)
class Fate:
    """Fractions (0 to 1) of the finite non-zero elements, by the effect of rounding to a format.

    Attributes:
        underflowed: rounded to zero.
        subnormal: kept with fewer significant bits than normal numbers of the format have.
        normal: kept with all significant bits of the format.
        overflowed: beyond the largest number of the format.
    """

    underflowed: float
    subnormal: float
    normal: float
    overflowed: float


def fate(histogram: ExponentHistogram, format: FormatLike) -> Fate:
    """Return the effect of rounding the numbers of a histogram to `format`.

    Raises:
        ValueError: the format has no sign, and maybe no zero (E8M0). It cannot represent negative
            numbers, and without a zero nothing underflows.

    >>> import torch
    >>> from labkit.formats import FP16
    >>> from labkit.instrument import exponent_histogram, shift
    >>> h = exponent_histogram(torch.tensor([2.0**-30, 2.0**-20, 1.0, 2.0**20]))
    >>> fate(h, FP16)
    Fate(underflowed=0.25, subnormal=0.25, normal=0.25, overflowed=0.25)
    >>> fate(shift(h, 10), FP16).underflowed
    0.0
    """
    require_kind(
        histogram, ExponentHistogram, "histogram", "Count a tensor: exponent_histogram(tensor)."
    )
    format = as_format(format)
    # a format without a zero has no sign, either
    if not format.signed:
        missing = "no sign" if format.has_zero else "no sign and no zero"
        raise ValueError(
            f"format: expected one with a sign and a zero, got {format.name}, which has {missing}. "
            "Take a format that has both, such as FP16 or E4M3."
        )
    total = histogram.finite_non_zero
    if total == 0:
        return Fate(0.0, 0.0, 0.0, 0.0)
    # More than half of the smallest subnormal rounds up to it, so the binade below it survives;
    # exactly half is the first of the small intervals above.
    survives_from = format.emin - format.significand_bits - 1
    return Fate(
        underflowed=histogram.count(last=survives_from - 1) / total,
        subnormal=histogram.count(survives_from, format.emin - 1) / total,
        normal=histogram.count(format.emin, format.emax) / total,
        overflowed=histogram.count(first=format.emax + 1) / total,
    )
