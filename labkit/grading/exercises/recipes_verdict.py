"""Can you say whether a recipe is worse, or whether seeds merely scatter?

Idea: runs of one seed share first weights and batches, so they are pairs, and their differences count. A difference is
called one only if its mean is beyond both the range of FP32's own seeds and the half width of its 95% interval.

Oracle in the tests: numpy, and Student's t from an independent table.
"""

from __future__ import annotations

import math
import statistics
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, mistakes_in

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}  # by number of pairs; NIST/SEMATECH e-Handbook 1.3.6.7.2


def reference(fp32: list[float], other: list[float], t: float) -> str:
    """Return "worse", "better" or "as good".

    >>> reference([0.90, 0.91, 0.92], [0.70, 0.72, 0.71], 4.303)
    'worse'
    """
    differences = _differences(fp32, other)
    return _judged(differences, max(_range(fp32), _half_width(differences, t)))


def _differences(fp32: list[float], other: list[float]) -> list[float]:
    """Return the differences of the pairs; a run that broke counts as metric 0."""
    return [(0.0 if math.isnan(b) else b) - a for a, b in zip(fp32, other, strict=True)]


def _range(metrics: list[float]) -> float:
    return max(metrics) - min(metrics)


def _half_width(differences: list[float], t: float) -> float:
    """Return half the width of the interval of the differences' mean."""
    return t * statistics.stdev(differences) / math.sqrt(len(differences))


def _judged(differences: list[float], limit: float) -> str:
    mean = statistics.fmean(differences)
    if not abs(mean) > limit:
        return "as good"
    return "worse" if mean < 0 else "better"


def _runs(random: Random, shift: float, scatter: float, noise: float, seeds: int) -> Case:
    """FP32 scatters around 0.55; the other is as far from it as `shift`, give or take `noise`."""
    fp32 = [round(0.55 + scatter * (i / (seeds - 1) - 0.5), 3) for i in range(seeds)]
    random.shuffle(fp32)
    signs = [1 if i % 2 else -1 for i in range(seeds)]
    other = [
        round(a + shift + noise * sign * random.uniform(0.97, 1.0), 3) for a, sign in zip(fp32, signs, strict=True)
    ]
    return fp32, other, T_95[seeds]


def _clear(random: Random) -> list[Case]:
    return [_runs(random, shift, 0.05, 0.01, n) for shift in (-0.3, 0.12) for n in (3, 5)]


def _within(random: Random) -> list[Case]:
    """Paired differences that are all alike, but smaller than what another seed does."""
    return [_runs(random, shift, 0.08, 0.001, n) for shift in (-0.03, 0.03) for n in (3, 5)]


def _noisy(random: Random) -> list[Case]:
    """Beyond FP32's range, but with an interval that holds zero."""
    return [_runs(random, shift, 0.02, 0.11, n) for shift, n in ((-0.06, 3), (0.06, 4), (-0.2, 3), (0.15, 4))]


def _broken(random: Random) -> list[Case]:
    fp32, _, t = _runs(random, 0.0, 0.05, 0.01, 5)
    return [(fp32, [math.nan] * 5, t)]


@mistake
def any_difference(fp32: list[float], other: list[float], t: float) -> str:
    """This calls every difference of means one. Two seeds of the same recipe differ too."""
    return _judged(_differences(fp32, other), 0.0)


@mistake
def the_interval_alone(fp32: list[float], other: list[float], t: float) -> str:
    """This asks the interval alone. A difference can be certain and still smaller than what another seed does."""
    differences = _differences(fp32, other)
    return _judged(differences, _half_width(differences, t))


@mistake
def the_range_alone(fp32: list[float], other: list[float], t: float) -> str:
    """This asks FP32's range alone. A few pairs that vary as much as this say nothing about their mean."""
    return _judged(_differences(fp32, other), _range(fp32))


@mistake
def forgets_the_root(fp32: list[float], other: list[float], t: float) -> str:
    """This divides by n instead of its square root, so the interval is too narrow."""
    differences = _differences(fp32, other)
    return _judged(differences, max(_range(fp32), t * statistics.stdev(differences) / len(differences)))


@mistake
def one_seed(fp32: list[float], other: list[float], t: float) -> str:
    """This looks at one seed. One pair says nothing about a difference."""
    return "worse" if other[0] < fp32[0] else "better"


@mistake
def the_wrong_way_round(fp32: list[float], other: list[float], t: float) -> str:
    """This is FP32 minus the other: worse and better have changed places."""
    found = reference(fp32, other, t)
    return {"worse": "better", "better": "worse"}.get(found, found)


@mistake
def leaves_NaN_in(fp32: list[float], other: list[float], t: float) -> str:
    """This lets NaN into the mean, where no comparison is true. A run that broke counts as metric 0."""
    differences = [b - a for a, b in zip(fp32, other, strict=True)]
    return _judged(differences, max(_range(fp32), _half_width(differences, t)))


EXERCISE = Exercise(
    id="recipes.verdict",
    title="A difference, or only seeds?",
    entry="my_verdict",
    difficulty=2,
    minutes=12,
    reference=reference,
    checks=(
        Check("differences that anybody sees", 1, _clear),
        Check("differences smaller than what seeds do", 2, _within),
        Check("differences that vary too much from seed to seed", 2, _noisy),
        Check("runs that ended in NaN", 1, _broken),
    ),
    mistakes=mistakes_in(vars()),
    provides={"math": math, "statistics": statistics},
)
