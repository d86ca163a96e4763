"""What became of the weight, in words and in a table?

Idea: the curves are measured: where each one ends, how often it moved, and whether it went as far as it should have.
The rule behind it is the learner's to find, so no word here tells it.

Invariant: pure functions of the curves; every number in a sentence is one of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import frexp
from typing import Any

from labkit.formats import FP16, ulp
from labkit.widgets.base.number_words import number
from labkit.widgets.swallowed.curves import Curve, moved

ARRIVED, NEAR = 0.02, 0.1  # what may be missing, as a share of the way, besides one ulp of FP16


def quarters(value: float) -> str:
    """Write a number that is a few quarters times a power of two as such, and in decimal.

    >>> quarters(2.0**-12), quarters(1.25 * 2.0**-9), quarters(1.0), quarters(0.0001)
    ('2^-12 = 2.441e-4', '1.25 × 2^-9 = 0.002441', '2^0 = 1', '1e-4')
    """
    half, above = frexp(value)
    if half * 8 != int(half * 8):
        return short(value)
    return f"{f'{2 * half:g} × ' if half != 0.5 else ''}2^{above - 1} = {short(value)}"


def short(value: float) -> str:
    """Write a number with four digits.

    >>> short(0.755859375), short(-0.5), short(0.000244140625)
    ('0.7559', '−0.5', '2.441e-4')
    """
    return number(float(f"{value:.4g}"))


def rows(curves: Mapping[str, Curve], exact_end: float) -> list[dict[str, Any]]:
    """Return the table: for each method its end value, what is missing, and in how many steps the weight moved."""
    return [
        {
            "name": name,
            "end": short(float(curve[-1])),
            "off": _signed(float(curve[-1]) - exact_end),
            "moved": f"{moved(curve):,}",
        }
        for name, curve in curves.items()
    ]


def sentence(curves: Mapping[str, Curve], weight: float, update: float) -> str:
    """Say which methods arrived where the exact sum does, which never moved, and where the others ended.

    >>> from labkit.widgets.swallowed.curves import curves
    >>> sentence(curves(1.0, 2.0**-12, 1000), 1.0, 2.0**-12)
    '1,000 updates of 2^-12 should take the weight from 1 to 0.7559: FP32, FP16 + Kahan and FP16 + FP32
     master arrive, FP16 + stochastic comes near at 0.7471, FP16 and BF16 have not moved once.'
    """
    steps = len(next(iter(curves.values()))) - 1
    end = weight - steps * update
    found: dict[str, list[str]] = {"arrive": [], "near": [], "still": [], "short": [], "far": []}
    for name, curve in curves.items():
        found[_outcome(curve, end, steps * update)].append(name)
    said = []
    if found["arrive"]:
        said.append(f"{_listed(found['arrive'])} {'arrives' if len(found['arrive']) == 1 else 'arrive'}")
    said += [f"{name} comes near at {short(float(curves[name][-1]))}" for name in found["near"]]
    if found["still"]:
        said.append(f"{_listed(found['still'])} {'has' if len(found['still']) == 1 else 'have'} not moved once")
    for kind, words in (("short", "too short a way"), ("far", "too far")):
        said += [f"{name} ends at {short(float(curves[name][-1]))}, {words}" for name in found[kind]]
    size = quarters(update).split(" = ")[0]
    start = f"{steps:,} updates of {size} should take the weight from {short(weight)} to {short(end)}"
    return f"{start}: {', '.join(said)}."


def _outcome(curve: Curve, exact_end: float, way: float) -> str:
    end = float(curve[-1])
    if moved(curve) == 0:
        return "still"
    missing = abs(end - exact_end) - float(ulp(end, FP16))
    if missing <= NEAR * way:
        return "arrive" if missing <= ARRIVED * way else "near"
    return "short" if end > exact_end else "far"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + short(value)
