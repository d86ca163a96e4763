"""Project, second task: updates that FP16 weights do not notice, at the least memory.

Idea: weights near 1.5 and steps of 3e-4, below half an ulp. A master is the cure that everybody knows, at 16 bytes a
weight with Adam. Kahan's compensation takes 14, and stochastic rounding none beyond the 12 that FP16 weights,
FP16 gradients and FP32 moments take. The same in BF16 is too coarse: its dice add more noise than FP32's seeds scatter.
"""

from __future__ import annotations

from labkit.amp import RECIPES, Recipe, WeightRounding
from labkit.formats import BF16
from labkit.grading.exercise import Exercise, Mistake
from labkit.grading.exercises.project_runs import PROVIDES, always, project_checks
from labkit.grading.exercises.project_tasks import FAILING


def reference(seeds: tuple[int, ...]) -> Recipe:
    """Return FP16 weights without masters, rounded up as often as the lost digits say.

    >>> reference((0, 1)).rounding.value
    'stochastic'
    """
    return RECIPES["FP16 stochastic"]


EXERCISE = Exercise(
    id="project.drift",
    lesson="12_project",
    title="A sensor that drifts",
    entry="my_drift_recipe",
    difficulty=3,
    minutes=15,
    reference=reference,
    checks=project_checks("drift", limit=12),
    mistakes=(
        Mistake(
            "changes nothing",
            always(FAILING["drift"]),
            "this rounds every update away: 3e-4 is below half an ulp of a weight above 1. Something must remember.",
        ),
        Mistake(
            "FP32 between steps",
            always(RECIPES["FP32"]),
            "this learns, and keeps FP32 weights and FP32 gradients between steps, as autocast does. Halve both.",
        ),
        Mistake(
            "masters",
            always(RECIPES["FP16 static"]),
            "this remembers in FP32 masters, 4 bytes a weight. On average one can remember without a second number.",
        ),
        Mistake(
            "Kahan",
            always(RECIPES["FP16 Kahan"]),
            "this remembers what rounding lost, in 2 bytes a weight. There is a rounding that needs no memory at all.",
        ),
        Mistake(
            "Adam in FP16",
            always(RECIPES["O3"]),
            "this lets Adam compute in FP16, where its epsilon is 0. And a weight would still not notice its update.",
        ),
        Mistake(
            "Adam in BF16",
            always(Recipe("pure BF16", model=BF16, master_weights=False, optimizer=BF16)),
            "this has three significand bits fewer than FP16, and weights that had too few. Range was not missing.",
        ),
        Mistake(
            "BF16, stochastic",
            always(Recipe("BF16", model=BF16, master_weights=False, rounding=WeightRounding.STOCHASTIC)),
            "this remembers on average, but its dice fall in BF16's steps, eight times those of FP16: too much noise.",
        ),
    ),
    provides=PROVIDES,
)
