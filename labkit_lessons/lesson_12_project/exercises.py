"""Exercises of the project: three tasks that FP16 cannot train, repaired with little memory."""

from __future__ import annotations

from dataclasses import replace

from labkit.amp import RECIPES, Recipe, WeightRounding, static
from labkit.formats import BF16
from labkit.grading.exercise import Exercise, wrong

from .cases import FAILING
from .runs import PROVIDES, project_checks, trained

TARGETS = Exercise(
    id="project.targets",
    notes="""\
The targets are millionths, and the loss is a mean over a thousand of them. Without a scale FP16
loses the gradients. With one, nothing else is in the way: plain SGD moves far enough for FP16
weights to notice, so no master is needed either, and 4 bytes a weight do. BF16 does as well,
without a scale.""",
    checks=project_checks("targets", limit=4),
    mistakes=(
        wrong(
            "changes nothing",
            "this keeps masters, but its gradients are zero before they get there. Look at "
            "their histogram, and scale.",
            lambda seeds: FAILING["targets"],
        ),
        wrong(
            "FP32 between steps",
            "this is plain FP32: it learns, and it is what you were to improve. Compute in 16 "
            "bits, and halve the weights and gradients between steps.",
            lambda seeds: RECIPES["FP32"],
        ),
        wrong(
            "scaled with masters",
            "this found the scale, and pays for masters that this task does not need: SGD's "
            "steps are large here.",
            lambda seeds: RECIPES["FP16 static"],
        ),
        wrong(
            "no master and no scale",
            "this saved the memory and left the gradients at zero. The loss wants a "
            "scale, or the format more range.",
            replace=(", scaler=static(2.0**10)", ""),
        ),
        wrong(
            "scale too high",
            "this scale makes inf of every gradient, so that every step is skipped. Take one "
            "that just lifts them.",
            replace=("2.0**10", "2.0**60"),
        ),
        wrong(
            "scale too high and nobody looks",
            "this scale makes inf of the gradients, and skip_on_inf=False lets "
            "them into the weights.",
            replace=("2.0**10", "2.0**60, skip_on_inf=False"),
        ),
    ),
    provides=PROVIDES,
    trained=trained("targets"),
)

DRIFT = Exercise(
    id="project.drift",
    notes="""\
Weights near 1.5 and steps of 3e-4, below half an ulp. A master is the cure that everybody knows, at
16 bytes a weight with Adam. Kahan's compensation takes 14, and stochastic rounding none beyond the
12 that FP16 weights, FP16 gradients and FP32 moments take. The same in BF16 is too coarse: its
random numbers add more noise than FP32's seeds scatter.""",
    checks=project_checks("drift", limit=12),
    mistakes=(
        wrong(
            "changes nothing",
            "this rounds every update away: 3e-4 is below half an ulp of a weight above 1. "
            "Something must remember.",
            lambda seeds: FAILING["drift"],
        ),
        wrong(
            "FP32 between steps",
            "this is plain FP32: it learns, and it is what you were to improve. Compute in 16 "
            "bits, and halve the weights and gradients between steps.",
            lambda seeds: RECIPES["FP32"],
        ),
        wrong(
            "masters",
            "this remembers in FP32 masters, 4 bytes a weight. On average one can remember "
            "without a second number.",
            lambda seeds: RECIPES["FP16 static"],
        ),
        wrong(
            "Kahan",
            "this remembers what rounding cut off, in 2 bytes a weight. There is a rounding "
            "that needs no memory at all.",
            lambda seeds: RECIPES["FP16 Kahan"],
        ),
        wrong(
            "Adam in FP16",
            "this lets Adam compute in FP16, where its epsilon is 0. And a weight would still not "
            "notice its update.",
            lambda seeds: RECIPES["O3"],
        ),
        wrong(
            "Adam in BF16",
            "this has three significand bits fewer than FP16, and weights that had too few. Range "
            "was not missing.",
            lambda seeds: Recipe("pure BF16", model=BF16, master_weights=False, optimizer=BF16),
        ),
        wrong(
            "BF16 stochastic",
            "this remembers on average, but its random numbers decide between BF16's steps, "
            "eight times those of FP16: too much noise.",
            lambda seeds: Recipe(
                "BF16", model=BF16, master_weights=False, rounding=WeightRounding.STOCHASTIC
            ),
        ),
    ),
    provides=PROVIDES,
    trained=trained("drift"),
)

DIGITS = Exercise(
    id="project.digits",
    notes="""\
O3 runs Adam in FP16, where epsilon, 1e-8, is 0 and a square of a small gradient is 0 too: 0 divided
by 0. A scale does not help, for Adam meets gradients that were unscaled. An optimizer in FP32 does,
at 12 bytes a weight; BF16 has the range for epsilon, and takes 8.""",
    checks=project_checks("digits", limit=8),
    mistakes=(
        wrong(
            "changes nothing",
            "this lets Adam divide 0 by 0: epsilon is 1e-8, which FP16 rounds to 0. No loss "
            "scale changes that.",
            lambda seeds: FAILING["digits"],
        ),
        wrong(
            "FP32 between steps",
            "this is plain FP32: it learns, and it is what you were to improve. Compute in 16 "
            "bits, and halve the weights, gradients and moments between steps.",
            lambda seeds: RECIPES["FP32"],
        ),
        wrong(
            "masters",
            "this steps FP32 masters, where epsilon is what it says, and costs as much as FP32. "
            "Who needs them here?",
            lambda seeds: RECIPES["FP16 static"],
        ),
        wrong(
            "Adam in FP32",
            "this steps in FP32 without masters: good, but the moments take 8 bytes a weight. "
            "Which 16 bits hold 1e-8?",
            lambda seeds: RECIPES["FP16 no master"],
        ),
        wrong(
            "Kahan",
            "this keeps bits that are not missing here. The missing part was range, inside the "
            "optimizer.",
            lambda seeds: RECIPES["FP16 Kahan"],
        ),
        wrong(
            "scale too high",
            "this never gets as far as epsilon: the scale makes inf of the gradients, and every "
            "step is skipped.",
            lambda seeds: replace(RECIPES["O3"], scaler=static(2.0**60)),
        ),
    ),
    provides=PROVIDES,
    trained=trained("digits"),
)

EXERCISES = (TARGETS, DRIFT, DIGITS)
