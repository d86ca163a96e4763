"""What do a learner's hand and a scaler compete on? One network, trained twice, under a loss whose weight wanders.

Idea: where the window of good scales stays put, any scale inside it does. It moves when losses change their size: a
term that is faded in, a reward that grows. Here the loss is multiplied by 2^w, and w follows a course that neither side
knows. The unscaled gradients are clipped to one norm before the step, so the optimizer sees nothing of w; FP16 does.

Invariant: both runs have the same first weights, batches and course; only the scale differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from labkit.amp import RECIPES, Recipe, ScalerState, static
from labkit.instrument import merge, shift, snapshot
from labkit.train import TASKS, StepRecord, Task, TrainingRun
from labkit.widgets.scaler_timeline.trace import OVERFLOWS_FROM, keeps_from

START_LOG2 = 16  # where both scales begin
LOWEST_WEIGHT, HIGHEST_WEIGHT = -6, 22  # log2; the window goes from about 2^13 ... 2^31 down to 2^-13 ... 2^3
CALM_STEPS = 40  # before the weight first moves
CLIP_NORM = 2.0**-20  # below the norm of any step's gradients, whatever their weight
LEARNING_RATE, EPSILON = 5e-3, 1e-12

# A third of the usual batch: two runs at eight steps a second leave a slow machine time to draw.
TASK = replace(TASKS["segmentation_small"], name="segmentation_small, batches of 8", batch_size=8)
YOURS = replace(RECIPES["FP16 dynamic"], name="FP16 by hand", scaler=static(2.0**START_LOG2))
SCALERS = RECIPES["FP16 dynamic"]  # starts at 2^16 too, and grows after 25 clean steps


def course(steps: int, seed: int = 0) -> tuple[int, ...]:
    """Return the log2 of the loss's weight at each step: it rests, climbs, jumps and falls, as the seed has it.

    >>> course(100)[:40] == (0,) * 40, len(course(100))
    (True, 100)
    """
    generator = np.random.default_rng(seed)
    weights, at = [0.0] * CALM_STEPS, 0.0
    places = range(LOWEST_WEIGHT, HIGHEST_WEIGHT + 1)
    while len(weights) < steps:
        far = [target for target in places if abs(target - at) >= len(places) / 2]
        target = float(generator.choice(far))
        duration = int(generator.choice([1, 20, 40]))  # a jump, a quick slide, a slow one
        weights += list(np.linspace(at, target, duration + 1)[1:]) + [target] * int(generator.integers(20, 45))
        at = target
    return tuple(round(weight) for weight in weights[:steps])


@dataclass(frozen=True)
class GameStep:
    """One step of one side.

    loss          of the batch, without the wandering weight
    scale         what the loss was multiplied by
    skipped       the gradients held inf or NaN, so the weights did not move
    keeps_from    log2 of the scale below which more than 1% of the activation gradients underflow
    overflows_at  log2 of the scale from which the step overflows
    """

    step: int
    loss: float
    scale: float
    skipped: bool
    keeps_from: float
    overflows_at: float

    @property
    def lossy(self) -> bool:
        """Whether the step was taken at a scale that loses gradients."""
        return not self.skipped and math.log2(self.scale) < self.keeps_from

    @property
    def useful(self) -> bool:
        """Whether the step was taken and kept its gradients."""
        return not self.skipped and not self.lossy


class Run(Protocol):
    """What the game needs of a run."""

    @property
    def scaler(self) -> ScalerState: ...
    @scaler.setter
    def scaler(self, state: ScalerState) -> None: ...
    def step(self) -> StepRecord: ...
    def window(self) -> tuple[float, float]: ...


MakeRun = Callable[..., Run]  # (task, recipe, seed, log2 weights, device=)


class WeightedRun(TrainingRun):
    """A run whose loss is multiplied by a power of two that changes from step to step."""

    def __init__(self, task: Task, recipe: Recipe, seed: int, weights: Sequence[int], **where: Any) -> None:
        super().__init__(task, recipe, seed, measure_every=0, **where)
        self.log2_weights = weights

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted loss of the present step."""
        return super().loss(inputs, targets) * 2.0 ** self.log2_weights[self.steps_done]

    def window(self) -> tuple[float, float]:
        """Return the window of the next step as if its weight were 1: log2 of where it keeps, of where it overflows."""
        twin, weight = self.fp32_twin(), self.log2_weights[self.steps_done]
        activations, weights = twin.next_gradients("activation gradients"), twin.next_gradients("weight gradients")
        histogram = merge(snapshot(activations, step=self.steps_done, kind="activation gradients").layers.values())
        largest = float(torch.stack([g.abs().max() for g in (*activations.values(), *weights.values())]).max())
        return keeps_from(shift(histogram, -weight)), math.log2(OVERFLOWS_FROM / largest) + weight


class ClippedAdam(torch.optim.Adam):
    """Adam on gradients that are clipped together, to a norm so small that they always are."""

    def step(self, closure: Any = None) -> Any:
        """Clip, then step."""
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], CLIP_NORM)
        return super().step(closure)


def make_run(task: Task, recipe: Recipe, seed: int, weights: Sequence[int], **where: Any) -> Run:
    """Return a run that trains."""
    clipped = replace(task, make_optimizer=partial(ClippedAdam, lr=LEARNING_RATE, eps=EPSILON))
    return WeightedRun(clipped, recipe, seed, weights, **where)
