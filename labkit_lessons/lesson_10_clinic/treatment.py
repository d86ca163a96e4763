"""Consultations, and runs of the trainings that learners write for them.

A consultation is a model, batches and a score. The learner writes the training,
`(model, batches) -> (losses, diagnosis)`. While it runs, the observer records the weights whenever
they change, and counts the formats of products. The weights are returned with the losses as plain
numbers, and grading repeats every step from them.

Invariant: the same training, seed and number of batches give the same treatment. torch's random
state stays as it was.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from labkit.faults.fault import random_state_kept
from labkit.train import one_thread

from .observer import unpatched

# Trainings share torch's random state and the hooks of torch's classes.
one_at_a_time = threading.RLock()
# (model, batches) -> (losses, diagnosis)
Work = Callable[[Any, Any], object]
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Consultation:
    """A training to repair: its model and data, and the conditions for a repair.

    Attributes:
        model: Returns the model in FP32. torch's generator is seeded before.
        batches: Returns the batches for (count, seed).
        steps: The number of batches of a treatment.
        limit: The score that a repaired training reaches and a broken one does not.
        score: Returns the score of a trained model.
        metric: A description of the score.
        skips: The largest number of skipped steps.
        format: The 16-bit format that the consultation's text names.
        half: The least share of products in this format.
        decided: The parameter to which the learner has to apply an autograd function, or "".
        weights: The dtypes that the parameters may have at the end.
        scaled: Whether a GradScaler has to scale the loss.
    """

    model: Callable[[], nn.Module]
    batches: Callable[[int, int], list[Batch]]
    steps: int
    limit: float
    score: Callable[[nn.Module], float]
    metric: str = "the share of test digits that it gets right"
    skips: int = 0
    format: str = "float16"
    half: float = 0.9
    decided: str = ""
    weights: tuple[str, ...] = ("float32",)
    scaled: bool = False


@dataclass(frozen=True)
class Treatment:
    """The results and the observations of a training.

    Attributes:
        losses: The losses that the training returned.
        diagnosis: The diagnosis that it returned.
        score: The score of its model: higher is better, NaN is worst.
        products: The number of matrix products and convolutions.
        half: The share of products whose inputs had the consultation's 16-bit format.
        decided: The number of times that an autograd function of the learner was applied to the
            parameter that the consultation names.
        examples: The number of examples that went through the model.
        steps: The number of optimizer steps.
        norms: The norm of all gradients at each step.
        rates: The learning rate at each step.
        scales: The loss scale at each step; empty without a GradScaler.
        weights: The dtypes of the model's parameters at the end.
        still: The names of parameters that did not change.
        error: The error that ended the training, or "".
        states: FP32 [n, parameters]: all parameters at the beginning and after each change. None if
            parameters were added or removed.
        buffers: The buffers of the model at the end.
    """

    losses: tuple[float, ...] = ()
    diagnosis: object = None
    score: float = math.nan
    products: int = 0
    half: float = 0.0
    decided: int = 0
    examples: int = 0
    steps: int = 0
    norms: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    weights: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    error: str = ""
    states: Tensor | None = field(default=None, compare=False, repr=False)
    buffers: tuple[Tensor, ...] = field(default=(), compare=False, repr=False)


def treatment(case: Consultation, work: Work, seed: int = 0, steps: int | None = None) -> Treatment:
    """Run a training of a consultation on one thread, and return what was observed.

    An exception in the training is not caught.

    Args:
        case: The consultation.
        work: The training.
        seed: The seed of the model and the batches.
        steps: The number of batches; by default that of the consultation.

    Raises:
        ValueError: If the training does not return a pair of losses and diagnosis.
    """
    with one_at_a_time, random_state_kept(), one_thread():
        torch.manual_seed(seed)
        model = case.model()
        batches = case.batches(case.steps if steps is None else steps, seed)
        before = dict(model.named_parameters())
        with unpatched().observed(model) as observations:
            answer = work(model, batches)
        score = case.score(model)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], list)):
        raise ValueError("expected a pair, the list of losses and the diagnosis")
    losses, diagnosis = answer

    after = dict(model.named_parameters())
    sizes = [parameter.numel() for parameter in before.values()]
    first = dict(zip(before, observations.states[0].split(sizes), strict=True))
    still = [
        name
        for name, start in first.items()
        if name in after and torch.equal(start.to(after[name].dtype), after[name].flatten())
    ]
    states = None
    if len({state.shape for state in observations.states}) == 1:
        states = torch.stack(observations.states)
    products = sum(observations.products.values())
    dtypes = {str(parameter.dtype).removeprefix("torch.") for parameter in after.values()}
    decided = before.get(case.decided)
    return Treatment(
        losses=tuple(loss.item() if isinstance(loss, Tensor) else float(loss) for loss in losses),
        diagnosis=diagnosis,
        score=score,
        products=products,
        half=observations.products.get(case.format, 0) / max(1, products),
        decided=observations.functions.get(id(decided), 0),
        examples=max(observations.examples.values(), default=0),
        steps=len(observations.norms),
        norms=tuple(observations.norms),
        rates=tuple(observations.rates),
        scales=tuple(observations.scales),
        weights=tuple(sorted(dtypes)),
        still=tuple(still),
        states=states,
        buffers=tuple(buffer.detach().clone() for buffer in model.buffers()),
    )
