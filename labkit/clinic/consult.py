"""Run of a training that a learner diagnosed and repaired, and a record of what it did.

Idea: a consultation of lesson 10 is a model, batches, and a score. Whoever is consulted writes the training between
them, `(model, batches) -> (losses, diagnosis)`. While it runs, labkit.clinic.observer notes its weights whenever they
change, and counts in which format its products are computed. The weights come back with the losses, as plain numbers:
grading repeats every step from them.

Invariant: the same training, seed and number of batches give the same treatment; torch's random state stays as it was.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from labkit.clinic.consultations import consultations
from labkit.clinic.observer import unpatched
from labkit.faults.fault import random_state_kept

one_at_a_time = threading.RLock()  # trainings share torch's random state, and the hooks of torch's classes
Work = Callable[[Any, Any], object]  # (model, batches) -> (losses, diagnosis)


@dataclass(frozen=True)
class Treatment:
    """What a training returned, and what was seen of it.

    losses     of each step, as it returned them
    diagnosis  what else it returned
    score      what its model reaches: higher is better, NaN is worst
    products   how many products it computed: of matrices, and convolutions
    half       the share of them whose inputs had the text's format of 16 bits
    decided    how often a function of its own was applied to the parameter that the consultation names
    examples   how many went through the model
    steps      how often an optimizer was stepped
    norms      the length of all gradients together, at each of those steps
    rates      the learning rate in each of them
    scales     of the loss in each step, by a GradScaler; () without one
    weights    the dtypes of the model's parameters at the end
    still      the names of parameters that are what they were at the beginning
    error      what ended it, or ""
    states     FP32 [n, parameters]: all parameters, one after another, whenever they had changed; None where some were
               added or taken away
    buffers    what else the model keeps, at the end
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


def treat(name: str, work: Work, seed: int = 0, steps: int | None = None) -> Treatment:
    """Run a training of a consultation and return what it did. Whatever it raises is raised.

    steps   how many batches it is given; None: as many as the consultation has

    Raises:
        KeyError: there is no consultation of this name.
        ValueError: the training did not return a pair of losses and diagnosis.
    """
    case = consultations()[name]
    with one_at_a_time, random_state_kept():
        torch.manual_seed(seed)
        model, given = case.model(), case.batches(case.steps if steps is None else steps, seed)
        before = dict(model.named_parameters())
        named = before.get(case.decided)
        with unpatched().observed(model) as seen:
            answer = work(model, given)
        score = case.score(model)
    if not (isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], list)):
        raise ValueError("a treatment returns two things: the list of its losses, and the diagnosis")
    after, sizes = dict(model.named_parameters()), [p.numel() for p in before.values()]
    first = dict(zip(before, seen.states[0].split(sizes), strict=True))
    still = (
        name for name, was in first.items() if name in after and torch.equal(was.to(after[name].dtype), after[name])
    )
    products = sum(seen.products.values())
    return Treatment(
        losses=tuple(loss.item() if isinstance(loss, Tensor) else float(loss) for loss in answer[0]),
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
        states=torch.stack(seen.states) if len({state.shape for state in seen.states}) == 1 else None,
        buffers=tuple(buffer.detach().clone() for buffer in model.buffers()),
    )


def look(name: str, work: Work, seed: int = 0) -> Treatment:
    """Run a training of a consultation, and return what it did up to its end, or to the error that ended it."""
    try:
        return treat(name, work, seed)
    except Exception as error:
        return Treatment(error=f"{type(error).__name__}: {error}")
