"""Consultations, and the run of a training that a learner diagnosed and repaired, with a record of
what it did.

Idea: a consultation is a model, batches and a score. The learner writes the training between them,
`(model, batches) -> (losses, diagnosis)`. While it runs, the observer records its weights whenever
they change, and counts the formats of its products. The weights are returned with the losses, as
plain numbers: grading repeats every step from them.

Invariant: the same training, seed and number of batches give the same treatment; torch's random
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

# trainings share torch's random state, and the hooks of torch's classes
one_at_a_time = threading.RLock()
Work = Callable[[Any, Any], object]  # (model, batches) -> (losses, diagnosis)
Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Consultation:
    """A training to repair: its model and data, and the conditions that a repair has to meet.

    Attributes:
        model: Creates the model, in FP32; torch's generator is seeded before.
        batches: (count, seed) -> the batches to train on.
        steps: Number of batches of a treatment.
        limit: The score that a repaired training reaches and a broken one does not.
        score: Of a trained model.
        metric: What the score is, in words.
        skips: How many steps may be skipped at most.
        format: The format of 16 bits that its text names.
        half: The least share of its products that has to be computed in it.
        decided: The parameter that an autograd function of the learner's has to be applied to; ""
            for none.
        weights: The dtypes that its parameters may have at the end.
        scaled: Its loss has to be scaled by a GradScaler.
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
    """What a training returned, and what was observed of it.

    Attributes:
        losses: Of each step, as it returned them.
        diagnosis: The second value that it returned.
        score: Of its model: higher is better, NaN is worst.
        products: Number of matrix products and convolutions.
        half: The share of them whose inputs had the consultation's format of 16 bits.
        decided: How often a function of its own was applied to the parameter that the consultation
            names.
        examples: Number of examples that went through the model.
        steps: Number of optimizer steps.
        norms: The norm of all gradients together, at each of those steps.
        rates: The learning rate in each of them.
        scales: Of the loss in each step, by a GradScaler; () without one.
        weights: The dtypes of the model's parameters at the end.
        still: The names of parameters that did not change.
        error: The error that ended it, or "".
        states: FP32 [n, parameters]: all parameters, one after another, after each change; None if
            some were added or removed.
        buffers: Of the model, at the end.
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
    """Run a training of a consultation on one thread, and return what it did.

    An exception of the training is raised.

    Args:
        case: The consultation.
        work: The training.
        seed: Draws the model and the batches.
        steps: Number of batches; None: that of the consultation.

    Raises:
        ValueError: the training did not return a pair of losses and diagnosis.
    """
    with one_at_a_time, random_state_kept(), one_thread():
        torch.manual_seed(seed)
        model, given = case.model(), case.batches(case.steps if steps is None else steps, seed)
        before = dict(model.named_parameters())
        named = before.get(case.decided)
        with unpatched().observed(model) as seen:
            answer = work(model, given)
        score = case.score(model)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], list)):
        raise ValueError("expected a pair, the list of losses and the diagnosis")
    after, sizes = dict(model.named_parameters()), [p.numel() for p in before.values()]
    first = dict(zip(before, seen.states[0].split(sizes), strict=True))
    still = (
        name
        for name, was in first.items()
        if name in after and torch.equal(was.to(after[name].dtype), after[name])
    )
    products = sum(seen.products.values())
    return Treatment(
        losses=tuple(
            loss.item() if isinstance(loss, Tensor) else float(loss) for loss in answer[0]
        ),
        diagnosis=answer[1],
        score=score,
        products=products,
        half=seen.products.get(case.format, 0) / max(1, products),
        decided=seen.functions.get(id(named), 0),
        examples=max(seen.examples.values(), default=0),
        steps=len(seen.norms),
        norms=tuple(seen.norms),
        rates=tuple(seen.rates),
        scales=tuple(seen.scales),
        weights=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in after.values()})),
        still=tuple(still),
        states=torch.stack(seen.states)
        if len({state.shape for state in seen.states}) == 1
        else None,
        buffers=tuple(buffer.detach().clone() for buffer in model.buffers()),
    )
