"""The search for what would explain a result outside of its bound."""

from __future__ import annotations

import numpy as np

from labkit.testing.bound import Floats
from labkit.testing.kernel_result import KernelResult
from labkit.testing.operation import Places
from labkit.testing.suspects.evidence import Candidates, Evidence
from labkit.testing.suspects.measures import root_mean_square
from labkit.testing.suspects.noise import fault_of_this_noise
from labkit.testing.suspects.regions import uncleared_accumulator, wrong_region
from labkit.testing.suspects.sums import faults_of_sums
from labkit.testing.suspects.values import faults_of_values

# Elements on which a hypothesis is tried.
TRIED = 64
# Elements whose errors are compared in size.
DRAWN = 256
# How many faults that predict the same numbers are named.
MOST_NAMES = 3
# A fault is named if it is this many times nearer than the exact result.
TIMES_NEARER = 4.0


def suspects(result: KernelResult, bound: Floats) -> tuple[str, ...]:
    """Return what would explain a result, the most likely first.

    Faults that predict a result exclude each other, since each explains all of it: only the nearest
    one is named. Faults that predict the same numbers are alternatives in one clue. If none is
    near, the place and the size of the errors are compared.

    Args:
        result: the result of a kernel.
        bound: bound of the error before the final rounding, flattened.
    """
    with np.errstate(all="ignore"):
        wrong = _wrong_places(result, bound)
        if not wrong.size:
            return ("infinity or NaN where the operation has another value",)
        if not np.isfinite(result.got[wrong]).any():
            clue = (
                "infinity or NaN where the operation is finite: an overflow on the way, or a "
                "masked row"
            )
            return (clue,)
        spread = np.linspace(0, wrong.size - 1, min(wrong.size, TRIED)).astype(int)
        evidence = Evidence(result, bound, wrong, tried=wrong[spread])
        names = _nearest_faults(evidence)
        if names:
            return (_alternatives(names),)
        region = wrong_region(wrong, result.operation.value.shape)
        if region is not None:
            remark = uncleared_accumulator(result, region)
            return (str(region),) if remark is None else (remark, str(region))
        usable = np.flatnonzero(np.isfinite(result.exact) & np.isfinite(result.got))
        generator = np.random.default_rng(0)
        drawn = generator.choice(usable, min(usable.size, DRAWN), replace=False)
        return tuple(fault_of_this_noise(result, drawn))


def _wrong_places(result: KernelResult, bound: Floats) -> Places:
    """Return where the result is outside of its bound; if nowhere, where it is not the nearest."""
    low = result.stored(result.exact - bound)
    high = result.stored(result.exact + bound)
    finite = np.isfinite(result.exact)
    wrong = np.flatnonzero(~((low <= result.got) & (result.got <= high)) & finite)
    if not wrong.size:
        wrong = np.flatnonzero((result.got != result.stored(result.exact)) & finite)
    return wrong


def _candidates(evidence: Evidence) -> Candidates:
    """Yield all faults that explain the wrong elements."""
    others = evidence.result.operation.others
    if others is not None:
        for name, values in others(evidence.tried).items():
            if evidence.explains(values, evidence.tried):
                yield name, values
    yield from faults_of_values(evidence)
    yield from faults_of_sums(evidence)


def _nearest_faults(evidence: Evidence) -> list[str]:
    """Return the names of the fault nearest to the result, and of those with the same numbers."""
    result = evidence.result
    got = result.got[evidence.tried]

    def distance(values: Floats) -> float:
        return root_mean_square(got - result.stored(values))

    limit = distance(result.exact[evidence.tried]) / TIMES_NEARER
    near = [
        (distance(values), name, result.stored(values))
        for name, values in _candidates(evidence)
        if distance(values) <= limit
    ]
    if not near:
        return []
    # the sort is stable: of faults at one distance, the first that was found is the nearest
    near.sort(key=lambda fault: fault[0])
    nearest = near[0][2]
    same = [name for _, name, predicted in near if np.array_equal(predicted, nearest)]
    # a fault may be found in two ways
    return list(dict.fromkeys(same))


def _alternatives(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    return ", or ".join(names[:MOST_NAMES]) + " (the same numbers here)"
