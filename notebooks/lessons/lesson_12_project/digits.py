"""Project, third task: an epsilon that FP16 does not have, at the least memory.

Idea: O3 runs Adam in FP16, where epsilon, 1e-8, is 0 and a square of a small gradient is 0 too: 0 divided by 0. A scale
does not help, for Adam meets gradients that were unscaled. An optimizer in FP32 does, at 12 bytes a weight; BF16 has
the range for epsilon, and takes 8.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.amp import RECIPES, Recipe, static
from labkit.formats import BF16
from labkit.grading.exercise import Exercise, mistake, wrong
from labkit.grading.given.project_tasks import FAILING
from labkit.grading.project_runs import PROVIDES, project_checks


def reference(seeds: tuple[int, ...]) -> Recipe:
    """Return BF16 throughout.

    >>> reference((0, 1)).optimizer.name
    'BF16'
    """
    return Recipe("pure BF16", model=BF16, master_weights=False, optimizer=BF16)


@mistake
def masters(seeds: tuple[int, ...]) -> Recipe:
    """This steps FP32 masters, where epsilon is what it says, and costs as much as FP32. Who needs them here?"""
    return RECIPES["FP16 static"]


@mistake
def Kahan(seeds: tuple[int, ...]) -> Recipe:
    """This remembers digits that nobody misses here; what lacked was range, inside the optimizer."""
    return RECIPES["FP16 Kahan"]


# fmt: off
MISTAKES = (
    wrong("changes nothing", "this lets Adam divide 0 by 0: epsilon is 1e-8, which FP16 rounds to 0. No loss scale "
          "changes that.", lambda seeds: FAILING["digits"]),
    wrong("FP32 between steps", "this learns, and keeps FP32 weights, gradients and moments between steps, as "
          "autocast does. Halve all.", lambda seeds: RECIPES["FP32"]),
    masters,
    wrong("Adam in FP32", "this steps in FP32 without masters: good, but the moments take 8 bytes a weight. Which 16 "
          "bits hold 1e-8?", lambda seeds: RECIPES["FP16 no master"]),
    Kahan,
    wrong("scale too high", "this never gets as far as epsilon: the scale makes inf of the gradients, and every step "
          "is skipped.", lambda seeds: replace(RECIPES["O3"], scaler=static(2.0**60))),
)
# fmt: on

EXERCISE = Exercise(
    id="project.digits",
    title="Adam in sixteen bits",
    entry="my_digits_recipe",
    difficulty=2,
    minutes=12,
    reference=reference,
    checks=project_checks("digits", limit=8),
    mistakes=MISTAKES,
    provides=PROVIDES,
)
