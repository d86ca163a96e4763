"""Can you choose the recipe that costs least among those that are as good as FP32?

Idea: memory is counted, the metric is measured on the same seeds, and a recipe passes if its mean falls short of FP32's
by no more than FP32's seeds scatter. Among those that pass, bytes decide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, Mistake

Candidates = list[tuple[str, int, list[float]]]
NAMES = ("O1", "O2", "O3", "BF16", "BF16 no master", "FP16 no master")


def reference(fp32: list[float], candidates: Candidates) -> str:
    """Return the name of the passing candidate with the fewest bytes, or "FP32" if none passes.

    >>> reference([0.90, 0.92], [("O2", 16, [0.91, 0.90]), ("O3", 8, [0.10, math.nan])])
    'O2'
    """
    passing = [(size, name) for name, size, metrics in candidates if _passes(fp32, metrics)]
    return min(passing)[1] if passing else "FP32"


def _passes(fp32: list[float], metrics: list[float]) -> bool:
    if any(math.isnan(m) for m in metrics):
        return False
    return statistics.fmean(metrics) >= statistics.fmean(fp32) - (max(fp32) - min(fp32))


def _fp32(random: Random) -> list[float]:
    middle = random.uniform(0.7, 0.9)
    return [round(middle + d, 3) for d in (-0.02, 0.0, 0.02)]


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
    return [(fp32, _candidates(random, fp32, [0.03, 0.008, -0.2])) for _ in range(2)]


def _behind(random: Random) -> list[Case]:
    """A cheap one that is a little behind, within what seeds do; a cheaper one of which one seed alone went well."""
    fp32 = _fp32(random)
    return [(fp32, _cheapest_gets(_candidates(random, fp32, [0.01, -0.025, -0.3]), 0, max(fp32))) for _ in range(2)]


def _cheapest_gets(candidates: Candidates, seed: int, metric: float) -> Candidates:
    """Replace the metric of one seed of the candidate with the fewest bytes."""
    cheapest = min(size for _, size, _ in candidates)
    return [
        (name, size, [*m[:seed], metric, *m[seed + 1 :]] if size == cheapest else m) for name, size, m in candidates
    ]


def _none(random: Random) -> list[Case]:
    fp32 = _fp32(random)
    return [(fp32, _candidates(random, fp32, [-0.2, -0.4]))]


def _broken(random: Random) -> list[Case]:
    """One seed of the cheapest ended in NaN."""
    fp32 = _fp32(random)
    return [(fp32, _cheapest_gets(_candidates(random, fp32, [0.016, 0.008, 0.0]), 2, math.nan))]


def _choose(
    passes: Callable[[list[float], list[float]], bool],
    order: Callable[[tuple[str, int, list[float]]], float] = lambda c: c[1],
    otherwise: str = "FP32",
) -> Callable[[list[float], Candidates], str]:
    def answer(fp32: list[float], candidates: Candidates) -> str:
        passing = [c for c in candidates if passes(fp32, c[2])]
        return min(passing, key=order)[0] if passing else otherwise

    return answer


def _mean_without_nan(metrics: list[float]) -> float:
    return statistics.fmean([m for m in metrics if not math.isnan(m)] or [0.0])


def _no_fallback(fp32: list[float], candidates: Candidates) -> str:
    best = max(candidates, key=lambda c: _mean_without_nan(c[2]))[0]
    return _choose(_passes, otherwise=best)(fp32, candidates)


EXERCISE = Exercise(
    id="recipes.cheapest",
    lesson="08_recipes",
    title="The cheapest that passes",
    entry="my_choice",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("a cheap one that fails, two that pass", 1, _plain),
        Check("one that is behind by less than seeds scatter", 2, _behind),
        Check("none that passes", 1, _none),
        Check("one whose last seed broke", 1, _broken, hidden=True),
    ),
    mistakes=(
        Mistake(
            "the cheapest",
            _choose(lambda *_: True),
            "this is the cheapest of all, whether it learns or not.",
        ),
        Mistake(
            "the best",
            _choose(_passes, lambda c: -_mean_without_nan(c[2])),
            "this is the one with the best metric. Among those that pass, bytes decide.",
        ),
        Mistake(
            "must reach FP32's mean",
            _choose(lambda a, m: not any(map(math.isnan, m)) and statistics.fmean(m) >= statistics.fmean(a)),
            "this asks for FP32's own mean. Another seed of FP32 would fail it half of the time: allow its spread.",
        ),
        Mistake(
            "one good seed is enough",
            _choose(lambda a, m: max(x for x in m if not math.isnan(x)) >= statistics.fmean(a) - (max(a) - min(a))),
            "this lets the best seed speak for all of them.",
        ),
        Mistake(
            "leaves NaN out",
            _choose(lambda a, m: _mean_without_nan(m) >= statistics.fmean(a) - (max(a) - min(a))),
            "this leaves out the seed that broke. A recipe that breaks one run in three does not pass.",
        ),
        Mistake(
            "always chooses one",
            _no_fallback,
            "this chooses one of the candidates even where none passes; then FP32 it is.",
        ),
    ),
    provides={"math": math, "statistics": statistics},
)
