"""Faults that show in the values alone: a wrong scale, an offset, a transposed result.

Each hypothesis yields its name and what it predicts for the elements that are tried, if the values
fit it; otherwise it yields nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.formats import BF16, FP16, Rounding, round_to
from labkit.testing.bound import Floats
from labkit.testing.operation import Places
from labkit.testing.suspects.evidence import Candidates, Evidence

# The smallest number of wrong elements that a shift of all of them must explain.
FEWEST = 5
# The share of the elements that a fault must explain, right ones included.
NEARLY_ALL = 0.95


def faults_of_values(evidence: Evidence) -> Candidates:
    """Yield the faults that the values fit."""
    yield from _saturation(evidence)
    if (evidence.got == 0).all():
        # any scale and any neighbour fits zeros
        yield _zeros(evidence)
        return
    yield from _scale(evidence)
    yield from _offset(evidence)
    yield from _truncation(evidence)
    yield from _double_rounding(evidence)
    yield from _transposition(evidence)
    yield from _neighbours(evidence)


def _saturation(evidence: Evidence) -> Candidates:
    if (np.abs(evidence.got) == evidence.result.out.max).all():
        name = "a result that saturates: if the kernel is meant to, pass overflow=Overflow.SATURATE"
        yield name, evidence.result.got[evidence.tried]


def _zeros(evidence: Evidence) -> tuple[str, Floats]:
    """Return why elements may be 0: subnormal ones are flushed, others were not computed."""
    if (np.abs(evidence.exact) < evidence.result.out.smallest_normal).all():
        name = "subnormal results flushed to zero"
    else:
        name = "elements that were not written, or masked: they are 0"
    return name, evidence.result.got[evidence.tried]


def _scale(evidence: Evidence) -> Candidates:
    got = evidence.result.got
    exact = evidence.result.exact
    out = evidence.result.out
    # elements whose errors are small beside their values show a ratio
    usable = np.abs(exact) > 8 * (evidence.bound + out.smallest_normal)
    ratios = got[usable] / exact[usable]
    if ratios.size < 2 or not np.isfinite(ratios).all():
        return
    scale = float(np.median(ratios))
    allowed = 2 * evidence.bound * abs(scale) + 4 * out.epsilon * np.abs(got)
    fits = (np.abs(got - scale * exact) <= allowed)[usable].mean() > NEARLY_ALL
    # errors of the additions might look like a small scale
    is_clear = (allowed < 0.1 * abs(scale - 1) * np.abs(exact))[usable].mean() > 0.5
    if fits and is_clear and abs(scale - 1) > 8 * out.epsilon:
        name = f"a scale: the result is {scale:.6g} times the exact one"
        yield name, scale * exact[evidence.tried]


def _offset(evidence: Evidence) -> Candidates:
    if evidence.wrong.size < FEWEST:
        return
    offset = float(np.median(evidence.got - evidence.exact))
    # errors of the additions might look like a small offset
    is_clear = (10 * evidence.bound[evidence.wrong] < abs(offset)).mean() > 0.5
    if is_clear and evidence.explains(evidence.exact + offset, evidence.wrong):
        name = f"an offset: {offset:.3g} was added to the exact result"
        yield name, evidence.result.exact[evidence.tried] + offset


def _truncation(evidence: Evidence) -> Candidates:
    """Yield rounding toward zero, if all elements fit it.

    The right elements must fit, too: a fault that makes some elements smaller is another one.
    """
    result = evidence.result
    known = np.isfinite(result.exact) & np.isfinite(result.got)
    cut = np.asarray(round_to(result.exact[known], result.out, Rounding.TOWARD_ZERO), np.float64)
    wrong_cut = _at(evidence.wrong, cut, known)
    if (evidence.got == wrong_cut).all() and (result.got[known] == cut).mean() > NEARLY_ALL:
        yield "rounding toward zero at the end", result.got[evidence.tried]


def _double_rounding(evidence: Evidence) -> Candidates:
    result = evidence.result
    known = np.isfinite(result.exact) & np.isfinite(result.got)
    for first in (BF16, FP16):
        if first == result.out:
            continue
        rounded = np.asarray(round_to(result.exact[known], first), np.float64)
        twice = result.stored(rounded)
        wrong_twice = _at(evidence.wrong, twice, known)
        if (
            (evidence.got == wrong_twice).all()
            and (result.got[known] == twice).mean() > NEARLY_ALL
            and (wrong_twice != result.stored(evidence.exact)).any()
        ):
            yield f"a double rounding: to {first.name} first", result.got[evidence.tried]


def _transposition(evidence: Evidence) -> Candidates:
    result = evidence.result
    shape = result.operation.value.shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        return
    transposed = np.swapaxes(result.exact.reshape(shape), -1, -2).reshape(-1)
    predicted = transposed[evidence.wrong]
    fits = np.allclose(
        evidence.got, predicted, rtol=4 * result.out.epsilon, atol=float(evidence.bound.max())
    )
    if fits and not np.array_equal(predicted, evidence.exact):
        yield "the transposed result", transposed[evidence.tried]


def _neighbours(evidence: Evidence) -> Candidates:
    if evidence.wrong.size < FEWEST:
        return
    shape = evidence.result.operation.value.shape
    for axis in range(len(shape)):
        for step in (1, -1):
            shifted = np.roll(evidence.result.exact.reshape(shape), step, axis).reshape(-1)
            if evidence.explains(shifted[evidence.wrong], evidence.wrong):
                name = f"the result of the neighbour in dimension {axis} (an index off by {step})"
                yield name, shifted[evidence.tried]


def _at(places: Places, values: Floats, known: NDArray[np.bool_]) -> Floats:
    """Return values at some places, of values that were computed where `known` is true."""
    everywhere = np.full(known.shape, np.nan)
    everywhere[known] = values
    return everywhere[places]
