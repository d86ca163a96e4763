"""Project, first task: gradients that FP16 cannot hold, at the least memory.

Idea: the targets are millionths, and the loss is a mean over a thousand of them. Without a scale FP16 loses the
gradients. With one, nothing else is in the way: plain SGD moves far enough for FP16 weights to notice, so no master is
needed either, and 4 bytes a weight do. BF16 does as well, without a scale.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.amp import RECIPES, Recipe, static
from labkit.formats import FP16
from labkit.grading.exercise import Exercise, wrong
from labkit.grading.given.project_tasks import FAILING
from labkit.grading.project_runs import PROVIDES, project_checks

_PURE = Recipe("pure FP16, scaled", model=FP16, master_weights=False, optimizer=FP16, scaler=static(2.0**10))


def reference(seeds: tuple[int, ...]) -> Recipe:
    """Return FP16 throughout, with a loss scale.

    >>> reference((0, 1)).scaler.init_scale
    1024.0
    """
    return _PURE


# fmt: off
MISTAKES = (
    wrong("changes nothing", "this keeps masters, but its gradients are zero before they get there. Look at their "
          "histogram, and scale.", lambda seeds: FAILING["targets"]),
    wrong("FP32 between steps", "this learns, and keeps FP32 weights and FP32 gradients between steps, as autocast "
          "does. Halve both.", lambda seeds: RECIPES["FP32"]),
    wrong("scaled with masters", "this found the scale, and pays for masters that this task does not need: SGD's "
          "steps are large here.", lambda seeds: RECIPES["FP16 static"]),
    wrong("no master and no scale", "this saved the memory and left the gradients at zero. The loss wants a scale, "
          "or the format more range.", lambda seeds: replace(_PURE, scaler=RECIPES["O3"].scaler)),
    wrong("scale too high", "this scale makes inf of every gradient, so that every step is skipped. Take one that "
          "just lifts them.", lambda seeds: replace(_PURE, scaler=static(2.0**60))),
    wrong("scale too high and nobody looks", "this scale makes inf of the gradients, and skip_on_inf=False lets them "
          "into the weights.", lambda seeds: replace(_PURE, scaler=static(2.0**60, skip_on_inf=False))),
)
# fmt: on

EXERCISE = Exercise(
    id="project.targets",
    title="Targets of five millionths",
    entry="my_targets_recipe",
    difficulty=2,
    minutes=12,
    reference=reference,
    checks=project_checks("targets", limit=4),
    mistakes=MISTAKES,
    provides=PROVIDES,
)
