"""Project, second task: updates that FP16 weights do not notice, at the least memory.

Idea: weights near 1.5 and steps of 3e-4, below half an ulp. A master is the cure that everybody knows, at 16 bytes a
weight with Adam. Kahan's compensation takes 14, and stochastic rounding none beyond the 12 that FP16 weights, FP16
gradients and FP32 moments take. The same in BF16 is too coarse: its random numbers add more noise than FP32's seeds
scatter.
"""

from __future__ import annotations

from labkit.amp import RECIPES, Recipe, WeightRounding
from labkit.formats import BF16
from labkit.grading.exercise import Exercise, mistake, wrong
from labkit.grading.given.project_tasks import FAILING
from labkit.grading.project_runs import PROVIDES, project_checks


def reference(seeds: tuple[int, ...]) -> Recipe:
    """Return FP16 weights without masters, rounded up as often as the cut digits say.

    >>> reference((0, 1)).rounding.value
    'stochastic'
    """
    return RECIPES["FP16 stochastic"]


@mistake
def masters(seeds: tuple[int, ...]) -> Recipe:
    """This remembers in FP32 masters, 4 bytes a weight. On average one can remember without a second number."""
    return RECIPES["FP16 static"]


@mistake
def Kahan(seeds: tuple[int, ...]) -> Recipe:
    """This remembers what rounding cut off, in 2 bytes a weight. There is a rounding that needs no memory at all."""
    return RECIPES["FP16 Kahan"]


# fmt: off
MISTAKES = (
    wrong("changes nothing", "this rounds every update away: 3e-4 is below half an ulp of a weight above 1. "
          "Something must remember.", lambda seeds: FAILING["drift"]),
    wrong("FP32 between steps", "this learns, and keeps FP32 weights and FP32 gradients between steps, as autocast "
          "does. Halve both.", lambda seeds: RECIPES["FP32"]),
    masters,
    Kahan,
    wrong("Adam in FP16", "this lets Adam compute in FP16, where its epsilon is 0. And a weight would still not "
          "notice its update.", lambda seeds: RECIPES["O3"]),
    wrong("Adam in BF16", "this has three significand bits fewer than FP16, and weights that had too few. Range was "
          "not missing.", lambda seeds: Recipe("pure BF16", model=BF16, master_weights=False, optimizer=BF16)),
    wrong("BF16 stochastic", "this remembers on average, but its random numbers decide between BF16's steps, eight "
          "times those of FP16: too much noise.",
          lambda seeds: Recipe("BF16", model=BF16, master_weights=False, rounding=WeightRounding.STOCHASTIC)),
)
# fmt: on

EXERCISE = Exercise(
    id="project.drift",
    title="A sensor that drifts",
    entry="my_drift_recipe",
    difficulty=3,
    minutes=15,
    reference=reference,
    checks=project_checks("drift", limit=12),
    mistakes=MISTAKES,
    provides=PROVIDES,
)
