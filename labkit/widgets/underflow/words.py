"""What does the underflow histogram say, and which numbers does its picture need?

Idea: everything that is known once the gradients are, is computed here, also the sentence for every position of the
slider. The browser then only shifts and sums, and needs no kernel while the hand moves.

Invariant: for every layer and scale, the sentence speaks of `fate(shift(histogram, log2_scale), format)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labkit.formats import Format
from labkit.instrument import ExponentHistogram, Fate, GradSnapshot, merge
from labkit.widgets.base.number_words import percent

ALL_LAYERS = "all layers together"
LOG2_SCALES = range(31)  # positions of the slider: 2^0 to 2^30


def with_total(snapshot: GradSnapshot) -> dict[str, ExponentHistogram]:
    """Return the snapshot's layers after the histogram of all of them together.

    Raises:
        ValueError: the snapshot has no layers.
    """
    if not snapshot.layers:
        raise ValueError(
            "this snapshot has no layers, so there is no gradient to show. Take it after a backward pass: "
            "snapshot(gradients, ...) with at least one tensor."
        )
    return {ALL_LAYERS: merge(snapshot.layers.values()), **snapshot.layers}


def sentence(what: Fate, format: Format, log2_scale: int, kind: str, layer: str = ALL_LAYERS) -> str:
    """Say in one sentence what a format makes of gradients at a scale.

    >>> from labkit.formats import FP16
    >>> sentence(Fate(0.0014, 0.2786, 0.72, 0.0), FP16, 10, "activation gradients")
    'At scale 2^10, 0.14% of these activation gradients underflow in FP16, 28% are subnormal and 72% keep full
     precision.'
    """
    gradients = f"these {kind}" if layer == ALL_LAYERS else f"the {kind} of layer {layer}"
    if sum(vars(what).values()) == 0:
        return f"At scale 2^{log2_scale}, {gradients} have nothing to lose: all of them are zero already in FP32."
    at = f"At scale 2^{log2_scale}{' (no scaling)' if log2_scale == 0 else ''}, "
    first = f"{_some(what.underflowed)} of {gradients} underflow in {format.name}"
    rest = [f"{percent(what.subnormal)} are subnormal"] if what.subnormal else []
    rest.append(f"{percent(what.normal)} keep full precision" if what.normal else "none keeps full precision")
    if what.overflowed:
        rest.append(f"{percent(what.overflowed)} overflow")
    ending = "; a single infinity spoils the whole step." if what.overflowed else "."
    return at + ", ".join([first, *rest[:-1]]) + f" and {rest[-1]}{ending}"


def note(histogram: ExponentHistogram, layer: str = ALL_LAYERS, all_zero: Sequence[str] = ()) -> str:
    """Say what is not in the picture: exact zeros, infinities and NaNs of the FP32 gradients.

    Args:
        all_zero: the layers whose gradients are zero altogether, to be named with all layers.

    >>> note(ExponentHistogram(np.array([69]), lo=-20, zeros=31, non_finite=0), all_zero=["conv1"])
    '31% of all 100 elements are exactly zero already in FP32 and are left out. All zero: conv1.'
    """
    where = f"{histogram.total:,} elements" + ("" if layer == ALL_LAYERS else f" of layer {layer}")
    if histogram.zeros and histogram.zeros == histogram.total:
        said = f"All {where} are exactly zero already in FP32: no gradient arrives here."
    elif histogram.zeros:
        share = percent(histogram.zeros / histogram.total)
        said = f"{share} of all {where} are exactly zero already in FP32 and are left out."
        said += f" All zero: {', '.join(all_zero)}." if all_zero else ""
    else:
        said = f"None of the {where} is exactly zero in FP32."
    if histogram.non_finite:
        said += f" {histogram.non_finite:,} are infinite or NaN already in FP32 and are left out."
    return said


def zeros_counted(observed: Mapping[str, float], histograms: Mapping[str, ExponentHistogram]) -> dict[str, float]:
    """Return layer -> share of zeros counted inside the FP16 pass, completed by that of all layers together.

    Each share is of all elements of its layer, so layers weigh as much as they have elements.

    Raises:
        ValueError: a layer is missing, unknown, or has a share outside 0 to 1.
    """
    layers = [layer for layer in histograms if layer != ALL_LAYERS]
    given = [layer for layer in observed if layer != ALL_LAYERS]
    if sorted(given) != sorted(layers):
        raise ValueError(
            f"observed_zeros has the layers {given}, but the snapshot has {layers}; give one share for each"
        )
    wrong = {layer: share for layer, share in observed.items() if not 0 <= share <= 1}
    if wrong:
        raise ValueError(f"observed_zeros are shares from 0 to 1 (0.004 is 0.4%); it was given {wrong}")
    elements = {layer: histograms[layer].total for layer in layers}
    total = sum(observed[layer] * n for layer, n in elements.items()) / max(sum(elements.values()), 1)
    return {ALL_LAYERS: total, **observed}


def rows(
    snapshot: GradSnapshot, format: Format, observed_zeros: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Return what the browser needs of each layer, all layers together first (as JSON has it).

    name, lo, counts as in ExponentHistogram, without empty bins at its ends; note;
    observed, the share of zeros counted inside the FP16 pass, or None.
    """
    histograms = with_total(snapshot)
    observed = zeros_counted(observed_zeros, histograms) if observed_zeros is not None else {}
    all_zero = [name for name, h in histograms.items() if h.total and h.zeros == h.total]
    found = []
    for name, histogram in histograms.items():
        occupied = np.flatnonzero(histogram.counts)
        first, last = (int(occupied[0]), int(occupied[-1])) if len(occupied) else (0, -1)
        found.append(
            {
                "name": name,
                "lo": histogram.lo + first,
                "counts": histogram.counts[first : last + 1].tolist(),
                "note": note(histogram, name, all_zero if name == ALL_LAYERS else ()),
                "observed": observed.get(name),
            }
        )
    return found


def windows(format: Format) -> dict[str, Any]:
    """Return where a format's windows begin, as `fate` has them.

    >>> from labkit.formats import FP16
    >>> windows(FP16)
    {'format': 'FP16', 'survives_from': -25, 'emin': -14, 'emax': 15, 'overflows_from': 65520.0}
    """
    half_ulp_at_max = 2.0 ** (format.emax - format.significand_bits - 1)
    return {
        "format": format.name,
        "survives_from": format.emin - format.significand_bits - 1,
        "emin": format.emin,
        "emax": format.emax,
        "overflows_from": float(format.max) + half_ulp_at_max,
    }


def _some(share: float) -> str:
    return "none" if share == 0 else "all" if share == 1 else percent(share)
