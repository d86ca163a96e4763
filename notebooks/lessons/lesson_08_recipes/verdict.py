"""Can you say whether a recipe is as good, worse or better, or whether its runs cannot tell?

Idea: runs of one seed share first weights and batches, so they are pairs, and their differences count. *As good* is
shown if the 90% interval of their mean lies inside the margin; *worse* or *better* if the mean is beyond both the range
of FP32's own seeds and the half width of its 95% interval. Else nobody can tell.

Oracle in the tests: numpy, and Student's t from an independent table.
"""

from __future__ import annotations

import math
import statistics
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

# Student's t by number of pairs, for 90% and for 95%; NIST/SEMATECH e-Handbook 1.3.6.7.2.
T_90 = {3: 2.920, 4: 2.353, 5: 2.132}
T_95 = {3: 4.303, 4: 3.182, 5: 2.776}
MARGIN = 0.02


def reference(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """Return "as good", "worse", "better" or "cannot tell".

    >>> reference([0.90, 0.91, 0.92], [0.70, 0.72, 0.71], 0.02, 2.920, 4.303)
    'worse'
    """
    differences = _differences(fp32, other)
    limit = max(_range(fp32), _half_width(differences, t_95))
    return _judged(differences, margin - _half_width(differences, t_90), limit)


def _differences(fp32: list[float], other: list[float]) -> list[float]:
    """Return the differences of the pairs; a run that broke counts as metric 0."""
    return [(0.0 if math.isnan(b) else b) - a for a, b in zip(fp32, other, strict=True)]


def _range(metrics: list[float]) -> float:
    return max(metrics) - min(metrics)


def _half_width(differences: list[float], t: float) -> float:
    """Return half the width of the interval of the differences' mean."""
    return t * statistics.stdev(differences) / math.sqrt(len(differences))


def _judged(differences: list[float], near: float, far: float) -> str:
    """Return the verdict of a mean: as good if it is nearer to zero than `near`, a difference if further than `far`."""
    mean = statistics.fmean(differences)
    if abs(mean) < near:
        return "as good"
    if not abs(mean) > far:
        return "cannot tell"
    return "worse" if mean < 0 else "better"


def _runs(random: Random, shift: float, scatter: float, noise: float, seeds: int) -> Case:
    """FP32 scatters around 0.55; the other is as far from it as `shift`, give or take `noise`."""
    fp32 = [round(0.55 + scatter * (i / (seeds - 1) - 0.5), 3) for i in range(seeds)]
    random.shuffle(fp32)
    signs = [1 if i % 2 else -1 for i in range(seeds)]
    other = [
        round(a + shift + noise * sign * random.uniform(0.97, 1.0), 3) for a, sign in zip(fp32, signs, strict=True)
    ]
    return fp32, other, MARGIN, T_90[seeds], T_95[seeds]


def _clear(random: Random) -> list[Case]:
    return [_runs(random, shift, 0.05, 0.01, n) for shift in (-0.3, 0.12) for n in (3, 5)]


def _alike(random: Random) -> list[Case]:
    """Differences that are small and steady: the interval lies inside the margin; last, beyond FP32's range too."""
    within = [_runs(random, shift, 0.05, 0.004, n) for shift in (-0.004, 0.0, 0.004) for n in (3, 5)]
    return within + [_runs(random, shift, 0.004, 0.001, n) for shift in (-0.012, 0.012) for n in (3, 5)]


def _within(random: Random) -> list[Case]:
    """Steady differences that are larger than the margin, and smaller than what another seed does."""
    return [_runs(random, shift, 0.08, 0.001, n) for shift in (-0.03, 0.03) for n in (3, 5)]


def _noisy(random: Random) -> list[Case]:
    """Beyond FP32's range, or inside the margin, but with an interval that holds much else."""
    shifts = ((-0.06, 3), (0.06, 4), (-0.2, 3), (0.15, 4), (0.004, 4))
    return [_runs(random, shift, 0.02, 0.11, n) for shift, n in shifts]


def _beside(random: Random, seeds: int, noise: float, part: float, near: bool = False) -> Case:
    """Draw a mean difference that is this part of a limit: where "as good" ends (near), or where a difference begins.

    Where that is the interval's doing (a noise of 0.05), the scatter of `other` alone would decide otherwise.
    """
    t_90, t_95 = T_90[seeds], T_95[seeds]
    while True:
        fp32 = [round(random.gauss(0.55, 0.02), 4) for _ in range(seeds)]
        apart = [random.gauss(0.0, noise) for _ in range(seeds)]
        limit = MARGIN - _half_width(apart, t_90) if near else max(_range(fp32), _half_width(apart, t_95))
        mean = random.choice((-1, 1)) * part * limit
        other = [round(a + d + mean - statistics.fmean(apart), 4) for a, d in zip(fp32, apart, strict=True)]
        alone = _judged(
            _differences(fp32, other),
            MARGIN - _half_width(other, t_90),
            max(_range(fp32), _half_width(other, t_95)),
        )
        if limit > 0.005 and (noise < 0.05 or alone != reference(fp32, other, MARGIN, t_90, t_95)):
            return fp32, other, MARGIN, t_90, t_95


def _at_the_limits(random: Random) -> list[Case]:
    """Just inside and just beyond: the interval, FP32's range, and the margin."""
    far = [_beside(random, n, noise, part) for n, noise in ((3, 0.05), (5, 0.05), (4, 0.003)) for part in (0.96, 1.04)]
    near = [_beside(random, n, 0.008, part, near=True) for n in (4, 5) for part in (0.9, 1.1)]
    return [*far, *near, *_just_at(random)]


def _just_at(random: Random) -> list[Case]:
    """Differences that are all the margin, all FP32's range, and 2^-12 to either side: exact, however it is written."""
    fp32 = [random.randrange(28, 34) / 64 + d / 64 for d in (0, 1, 2)]
    margin, sign = 1 / 64, random.choice((-1, 1))
    apart = [limit + side for limit in (margin, max(fp32) - min(fp32)) for side in (-(2.0**-12), 0.0, 2.0**-12)]
    return [(fp32, [a + sign * d for a in fp32], margin, T_90[3], T_95[3]) for d in apart]


def _broken(random: Random) -> list[Case]:
    """All runs ended in NaN; and one of five, whose 0 leaves the mean uncertain, though the others are better."""
    fp32 = [round(random.uniform(0.52, 0.58), 3) for _ in range(5)]
    one = [round(a + random.uniform(0.19, 0.21), 3) for a in fp32]
    one[random.randrange(5)] = math.nan
    return [(fp32, other, MARGIN, T_90[5], T_95[5]) for other in ([math.nan] * 5, one)]


@mistake
def any_difference(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This calls every difference of means one. Two seeds of the same recipe differ too."""
    differences = _differences(fp32, other)
    return _judged(differences, margin - _half_width(differences, t_90), 0.0)


@mistake
def what_is_not_shown_is_as_good(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This says "as good" wherever no difference was shown. As good has to be shown too; else nobody can tell."""
    found = reference(fp32, other, margin, t_90, t_95)
    return "as good" if found == "cannot tell" else found


@mistake
def a_small_mean_is_as_good(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This says "as good" if the mean is inside the margin. The whole 90% interval has to be."""
    differences = _differences(fp32, other)
    return _judged(differences, margin, max(_range(fp32), _half_width(differences, t_95)))


@mistake
def the_interval_alone(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This asks the interval alone. A difference can be certain and still smaller than what another seed does."""
    differences = _differences(fp32, other)
    return _judged(differences, margin - _half_width(differences, t_90), _half_width(differences, t_95))


@mistake
def the_range_alone(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This asks FP32's range alone. A few pairs that vary as much as this say nothing about their mean."""
    differences = _differences(fp32, other)
    return _judged(differences, margin - _half_width(differences, t_90), _range(fp32))


@mistake
def forgets_the_root(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This divides by n instead of its square root, so the intervals are too narrow."""
    root = math.sqrt(len(fp32))
    return reference(fp32, other, margin, t_90 / root, t_95 / root)


@mistake
def never_divides_by_the_root(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This is the deviation of one pair, not of their mean: divide by the square root of n."""
    root = math.sqrt(len(fp32))
    return reference(fp32, other, margin, t_90 * root, t_95 * root)


@mistake
def deviation_of_the_population(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This divides by n inside the deviation (`pstdev`), so the intervals are too narrow. Here n - 1 is asked for."""
    smaller = math.sqrt(1 - 1 / len(fp32))
    return reference(fp32, other, margin, t_90 * smaller, t_95 * smaller)


@mistake
def the_wrong_way_round(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This is FP32 minus the other: worse and better have changed places."""
    found = reference(fp32, other, margin, t_90, t_95)
    return {"worse": "better", "better": "worse"}.get(found, found)


@mistake
def leaves_NaN_in(fp32: list[float], other: list[float], margin: float, t_90: float, t_95: float) -> str:
    """This lets NaN into the mean, where no comparison is true. A run that broke counts as metric 0."""
    if any(map(math.isnan, other)):
        return "cannot tell"
    return reference(fp32, other, margin, t_90, t_95)


# fmt: off
MISTAKES = (
    any_difference,
    what_is_not_shown_is_as_good,
    a_small_mean_is_as_good,
    the_interval_alone,
    the_range_alone,
    forgets_the_root,
    never_divides_by_the_root,
    deviation_of_the_population,
    wrong("one seed", "this looks at one seed. One pair says nothing about a difference.",
          lambda fp32, other, margin, t_90, t_95: "worse" if other[0] < fp32[0] else "better"),
    the_wrong_way_round,
    leaves_NaN_in,
)
# fmt: on

EXERCISE = Exercise(
    id="recipes.verdict",
    title="A difference, or only seeds?",
    entry="my_verdict",
    difficulty=2,
    minutes=12,
    reference=reference,
    checks=(
        Check("differences that anybody sees", 1, _clear),
        Check("differences that do not matter", 1, _alike),
        Check("differences smaller than what seeds do", 1, _within),
        Check("differences that vary too much from seed to seed", 2, _noisy),
        Check("differences just inside and just beyond a limit", 2, _at_the_limits),
        Check("runs that ended in NaN", 1, _broken),
    ),
    mistakes=MISTAKES,
    provides={"math": math, "statistics": statistics},
)
