"""Can you choose the recipe that costs least among those that are as good as FP32?

Idea: memory is counted, the metric is measured on the same seeds, and a recipe passes if its mean falls short of FP32's
by no more than FP32's seeds scatter. Among those that pass, bytes decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Candidate = tuple[str, int, list[float]]
Candidates = list[Candidate]
NAMES = ("O1", "O2", "O3", "BF16", "BF16 no master", "FP16 no master")


def reference(fp32: list[float], candidates: Candidates) -> str:
    """Return the name of the passing candidate with the fewest bytes, or "FP32" if none passes.

    >>> reference([0.90, 0.92], [("O2", 16, [0.91, 0.90]), ("O3", 8, [0.10, math.nan])])
    'O2'
    """
    return _cheapest(candidate for candidate in candidates if _passes(fp32, candidate[2]))


def _passes(fp32: list[float], metrics: list[float]) -> bool:
    return not any(map(math.isnan, metrics)) and statistics.fmean(metrics) >= _lowest(fp32)


def _lowest(fp32: list[float]) -> float:
    """Return the lowest mean that passes."""
    return statistics.fmean(fp32) - (max(fp32) - min(fp32))


def _cheapest(passing: Iterable[Candidate], otherwise: str = "FP32") -> str:
    return min(passing, key=lambda candidate: candidate[1], default=(otherwise,))[0]


def _fp32(random: Random) -> list[float]:
    """In no order: the first and the last are not the lowest and the highest."""
    middle = random.uniform(0.7, 0.9)
    return [round(middle + d, 3) for d in (0.0, 0.02, -0.02)]


def _near(random: Random, fp32: list[float], shift: float) -> list[float]:
    return [round(m + shift + random.uniform(-0.004, 0.004), 3) for m in fp32]


def _candidates(random: Random, fp32: list[float], shifts: list[float]) -> Candidates:
    """As many recipes as shifts, each with other bytes: the further behind, the cheaper."""
    names = random.sample(NAMES, len(shifts))
    sizes = sorted(random.sample(range(6, 20), len(shifts)), reverse=True)
    made = [(n, 1000 * size, _near(random, fp32, s)) for n, size, s in zip(names, sizes, shifts, strict=True)]
    random.shuffle(made)
    return made


def _plain(random: Random) -> list[Case]:
    fp32 = _fp32(random)
    same = [0.75] * 3  # a range of 0; candidates that ran on more seeds, the last ones bad, or better
    name, other = random.sample(NAMES, 2)
    ends = [
        (same, [(name, 7000, same), (other, 9000, same)]),
        (same, [(name, 7000, [*same, 0.1, 0.1]), (other, 9000, same)]),
        (same, [(name, 7000, [*same, 0.8, 0.9]), (other, 9000, same)]),
    ]
    return [*((fp32, _candidates(random, fp32, [0.03, 0.008, -0.2])) for _ in range(2)), *ends]


def _behind(random: Random) -> list[Case]:
    """A cheap one that is a little behind, within what seeds do; a cheaper one of which one seed alone went well."""
    fp32 = _fp32(random)
    drawn = [(fp32, _cheapest_gets(_candidates(random, fp32, [0.01, -0.025, -0.3]), 0, max(fp32))) for _ in range(2)]
    return [*drawn, *_at_the_limit(random)]


def _at_the_limit(random: Random) -> list[Case]:
    """Beside one that passes, a cheaper one: just at the lowest mean that does, and 2^-10 below; then it alone."""
    middle, step = random.randrange(40, 56) / 64, random.randrange(1, 4) / 64  # exact, however a mean is taken
    fp32, lowest = [middle - step, middle + 2 * step, middle - step], middle - 3 * step  # middle is its mean alone
    small, large = random.sample(NAMES, 2)
    at, below = (small, 6000, [lowest] * 3), (small, 6000, [lowest - 2.0**-10] * 3)
    uneven = (small, 6000, [lowest + d / 64 for d in (-1, 2, -1)])  # its mean passes, its median would not
    return [*((fp32, [(large, 9000, fp32), one]) for one in (at, below, uneven)), (fp32, [at]), (fp32, [below])]


def _cheapest_gets(candidates: Candidates, seed: int, metric: float) -> Candidates:
    """Replace the metric of one seed of the candidate with the fewest bytes."""
    cheapest = min(size for _, size, _ in candidates)
    return [
        (name, size, [*m[:seed], metric, *m[seed + 1 :]] if size == cheapest else m) for name, size, m in candidates
    ]


def _none(random: Random) -> list[Case]:
    fp32 = _fp32(random)
    return [(fp32, _candidates(random, fp32, [-0.2, -0.4])), (fp32, [])]


def _broken(random: Random) -> list[Case]:
    """One seed of the cheapest ended in NaN; once where FP32 scatters so much that even a 0 for it would pass."""
    near, far = _fp32(random), [round(random.uniform(0.5, 0.6) + d, 3) for d in (0.0, 0.2, -0.2)]
    return [(fp32, _cheapest_gets(_candidates(random, fp32, [0.016, 0.008, 0.0]), 2, math.nan)) for fp32 in (near, far)]


def _mean_without_nan(metrics: list[float]) -> float:
    return statistics.fmean([m for m in metrics if not math.isnan(m)] or [0.0])


@mistake
def the_best(fp32: list[float], candidates: Candidates) -> str:
    """This is the one with the best metric. Among those that pass, bytes decide."""
    passing = [c for c in candidates if _passes(fp32, c[2])]
    return max(passing, key=lambda c: statistics.fmean(c[2]))[0] if passing else "FP32"


@mistake
def must_reach_the_mean_of_FP32(fp32: list[float], candidates: Candidates) -> str:
    """This asks for FP32's own mean. Another seed of FP32 would fail it half of the time: allow its spread."""
    return _cheapest(c for c in candidates if _passes(fp32, c[2]) and statistics.fmean(c[2]) >= statistics.fmean(fp32))


@mistake
def one_good_seed_is_enough(fp32: list[float], candidates: Candidates) -> str:
    """This lets the best seed speak for all of them."""
    return _cheapest(c for c in candidates if max(m for m in c[2] if not math.isnan(m)) >= _lowest(fp32))


@mistake
def always_chooses_one(fp32: list[float], candidates: Candidates) -> str:
    """This chooses one of the candidates even where none passes; then FP32 it is."""
    best = max(candidates, key=lambda c: _mean_without_nan(c[2]))[0]
    return _cheapest((c for c in candidates if _passes(fp32, c[2])), otherwise=best)


# fmt: off
MISTAKES = (
    wrong("the cheapest", "this is the cheapest of all, whether it learns or not.",
          lambda fp32, candidates: _cheapest(candidates)),
    the_best,
    must_reach_the_mean_of_FP32,
    one_good_seed_is_enough,
    wrong("counts NaN as 0", "this counts a seed that broke as 0, which a wide spread forgives. A recipe with a "
          "broken run does not pass.",
          lambda fp32, candidates: _cheapest(
              c for c in candidates if statistics.fmean(0.0 if math.isnan(m) else m for m in c[2]) >= _lowest(fp32)
          )),
    wrong("leaves NaN out", "this leaves out the seed that broke. A recipe that breaks one run in three does not "
          "pass.",
          lambda fp32, candidates: _cheapest(c for c in candidates if _mean_without_nan(c[2]) >= _lowest(fp32))),
    always_chooses_one,
)
# fmt: on

EXERCISE = Exercise(
    id="recipes.cheapest",
    title="The cheapest that passes",
    entry="my_choice",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("a cheap one that fails, two that pass", 1, _plain),
        Check("one that is behind by less than seeds scatter", 2, _behind),
        Check("none that passes", 1, _none),
        Check("one whose last seed broke", 1, _broken),
    ),
    mistakes=MISTAKES,
    provides={"math": math, "statistics": statistics},
)
