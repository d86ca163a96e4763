"""Project, first task: gradients that FP16 cannot hold, at the least memory.

Idea: the targets are millionths, and the loss is a mean over a thousand of them. Without a scale FP16 loses the
gradients. With one, nothing else is in the way: plain SGD moves far enough for FP16 weights to notice, so no master is
needed either, and 4 bytes a weight do. BF16 does as well, without a scale.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.amp import RECIPES, Recipe, static
from labkit.formats import FP16
from labkit.grading.exercise import Exercise, mistake, mistakes_in
from labkit.grading.exercises.project_runs import PROVIDES, project_checks
from labkit.grading.given.project_tasks import FAILING

_PURE = Recipe("pure FP16, scaled", model=FP16, master_weights=False, optimizer=FP16, scaler=static(2.0**10))


def reference(seeds: tuple[int, ...]) -> Recipe:
    """Return FP16 throughout, with a loss scale.

    >>> reference((0, 1)).scaler.init_scale
    1024.0
    """
    return _PURE


@mistake
def changes_nothing(seeds: tuple[int, ...]) -> Recipe:
    """This keeps masters, but its gradients are zero before they get there. Look at their histogram, and scale."""
    return FAILING["targets"]


@mistake
def FP32_between_steps(seeds: tuple[int, ...]) -> Recipe:
    """This learns, and keeps FP32 weights and FP32 gradients between steps, as autocast does. Halve both."""
    return RECIPES["FP32"]


@mistake
def scaled_with_masters(seeds: tuple[int, ...]) -> Recipe:
    """This found the scale, and pays for masters that this task does not need: SGD's steps are large here."""
    return RECIPES["FP16 static"]


@mistake
def no_master_and_no_scale(seeds: tuple[int, ...]) -> Recipe:
    """This saved the memory and left the gradients at zero. The loss wants a scale, or the format more range."""
    return replace(_PURE, scaler=RECIPES["O3"].scaler)


@mistake
def scale_too_high(seeds: tuple[int, ...]) -> Recipe:
    """This scale makes inf of every gradient, so that every step is skipped. Take one that just lifts them."""
    return replace(_PURE, scaler=static(2.0**60))


@mistake
def scale_too_high_and_nobody_looks(seeds: tuple[int, ...]) -> Recipe:
    """This scale makes inf of the gradients, and skip_on_inf=False lets them into the weights."""
    return replace(_PURE, scaler=static(2.0**60, skip_on_inf=False))


EXERCISE = Exercise(
    id="project.targets",
    title="Targets of five millionths",
    entry="my_targets_recipe",
    difficulty=2,
    minutes=12,
    reference=reference,
    checks=project_checks("targets", limit=4),
    mistakes=mistakes_in(vars()),
    provides=PROVIDES,
)
