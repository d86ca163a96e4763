"""The three tasks of the project, the recipes that fail on them, and the training of a recipe.

In "targets" the gradients are too small for FP16. In "drift" the updates are too small for FP16
weights: weights near 1.5 follow a change of at most 0.1 in steps of 3e-4, below half an ulp. In
"digits" epsilon is too small for an optimizer in FP16. All are short, so grading takes seconds.

Invariant: FP32 learns each task on every seed, and the failing recipe learns none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Recipe
from labkit.train import TASKS, Data, Task, train

INPUTS = 32
OUTPUTS = 8
# The largest change of a weight in the task "drift".
DRIFT = 0.1


@cache
def _before() -> Tensor:
    """Return the weights [outputs, inputs] before the drift: between 1 and 2."""
    return 1 + torch.rand(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(0))


@cache
def _after() -> Data:
    """Return inputs and outputs of the layer after the drift."""
    generator = torch.Generator().manual_seed(1)
    now = _before() + DRIFT * (2 * torch.rand(OUTPUTS, INPUTS, generator=generator) - 1)
    inputs = torch.randn(1200, INPUTS, generator=generator)
    return Data(inputs[:1000], inputs[:1000] @ now.T, inputs[1000:], inputs[1000:] @ now.T)


def _calibrated_model() -> nn.Module:
    """Return a layer that fits the weights before the drift, up to an error of calibration."""
    layer = nn.Linear(INPUTS, OUTPUTS)
    with torch.no_grad():
        layer.weight.copy_(_before() + DRIFT / 6 * torch.randn(OUTPUTS, INPUTS))
        layer.bias.zero_()
    return nn.Sequential(layer)


def recovered_share(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of the drift's mean square error that outputs remove, from 0 to 1.

    It is 0 if the error grew or is NaN.
    """
    initial = F.mse_loss(_after().test_inputs @ _before().T, targets)
    share = 1 - float(F.mse_loss(outputs, targets) / initial)
    return share if share > 0 else 0.0


PROJECT_TASKS: dict[str, Task] = {
    "targets": replace(TASKS["small_targets"], steps=120),
    "drift": Task(
        name="drift",
        about="follow a sensor whose weights moved by less than a tenth",
        make_model=_calibrated_model,
        make_data=_after,
        loss=F.mse_loss,
        metric=recovered_share,
        metric_name="share of the drift made up",
        make_optimizer=partial(torch.optim.Adam, lr=3e-4),
        batch_size=32,
        steps=300,
    ),
    "digits": replace(
        TASKS["digits"],
        name="digits_adam",
        about="classify digits with a small MLP and Adam",
        make_optimizer=partial(torch.optim.Adam, lr=1e-3),
        steps=100,
    ),
}
FAILING: dict[str, Recipe] = {
    "targets": RECIPES["FP16"],
    "drift": RECIPES["FP16 no master"],
    "digits": RECIPES["O3"],
}


@dataclass(frozen=True)
class ProjectRun:
    """The results of a training by which a project is judged.

    Attributes:
        metric: The metric after the last step.
        metric_name: The name of the metric.
        not_finite: The first step with a loss of inf or NaN, or None.
        stepped: For each step, whether the optimizer stepped.
        memory: Bytes by category, after the first step that was not skipped.
    """

    metric: float
    metric_name: str
    not_finite: int | None
    stepped: tuple[bool, ...]
    memory: dict[str, int]


def run(task: str, recipe: Recipe, seed: int) -> ProjectRun:
    """Train a project's task under a recipe."""
    record = train(PROJECT_TASKS[task], recipe, seed, measure_every=0)
    broken = [step.step for step in record.steps if not math.isfinite(step.loss)]
    return ProjectRun(
        metric=record.metric,
        metric_name=record.metric_name,
        not_finite=broken[0] if broken else None,
        stepped=tuple(step.stepped for step in record.steps),
        memory=dict(record.memory),
    )
