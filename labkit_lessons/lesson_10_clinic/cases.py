"""The trainings that are brought to the consultations of this lesson, and what a repaired one
reaches.

Invariant: the same name, seed and number of batches give the same model and batches, after
torch.manual_seed.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.faults.loops import accuracy, batches
from labkit.train.networks import mlp

from .treatment import Batch, Consultation, Treatment, Work, treatment


def _reached(model: nn.Module, call: Callable[[Any, Tensor], Any] = nn.Module.__call__) -> float:
    """Return the share of test digits that a model gets right as it is used after training: in
    eval(), in FP16.
    """
    model.eval()
    dtype = next(model.parameters()).dtype
    with torch.autocast("cpu", torch.float16, enabled=dtype is torch.float32):
        return accuracy(partial(call, model), lambda inputs: inputs.to(dtype))


def _gains_moved(model: nn.Module) -> float:
    """Return the share of the norms' gains, which begin at 1, that are no longer 1; NaN where there
    is no norm.
    """
    gains = [norm.weight.flatten() for norm in model.modules() if isinstance(norm, nn.LayerNorm)]
    return float((torch.cat(gains) != 1).float().mean()) if gains else math.nan


def _normed() -> nn.Module:
    named = {"flatten": nn.Flatten(), "norm": nn.LayerNorm(64), "linear": nn.Linear(64, 10)}
    return nn.Sequential(OrderedDict(named))


def _with_batch_norm() -> nn.Module:
    conv, norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
    named = {
        "conv": conv,
        "norm": norm,
        "relu": nn.ReLU(),
        "flatten": nn.Flatten(),
        "linear": nn.Linear(512, 10),
    }
    return nn.Sequential(OrderedDict(named))


def _body_and_last() -> nn.Module:
    last = nn.Linear(10, 10, bias=False)
    nn.init.eye_(last.weight)
    return nn.ModuleDict({"body": _small(), "last": last})


def _body_and_head() -> nn.Module:
    return nn.ModuleDict({"body": nn.Linear(64, 64), "head": nn.Linear(64, 10)})


def normalised(model: Any, inputs: Tensor) -> Any:
    """Return what the head makes of features of length 12."""
    features = model["body"](255 * inputs.flatten(1)).relu().float()
    return model["head"](12 * features / features.square().sum(1, keepdim=True).sqrt())


def _attention() -> nn.Module:
    return nn.ModuleDict(
        {"embed": nn.Linear(8, 32), "mix": nn.Linear(32, 96), "head": nn.Linear(32, 10)}
    )


def _softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def attended(model: Any, inputs: Tensor, weights: Callable[[Tensor], Tensor] = _softmax) -> Any:
    """Return what the head makes of eight tokens; `weights` makes them of the scores."""
    hidden = model["embed"](inputs.view(-1, 8, 8))
    query, key, value = model["mix"](hidden).chunk(3, dim=2)
    return model["head"]((weights(query @ key.mT / 32**0.5) @ value).mean(1))


def odd_step(seed: int) -> int:
    """Return the number of the batch, from 0, in which something is odd: another one for 16 seeds."""
    return 11 + 7 * seed % 16


def _one_broken_picture(steps: int, seed: int) -> list[Batch]:
    """Return batches in one of which one picture is three million times too bright."""
    given: list[Batch] = [
        (inputs.clone(), targets) for inputs, targets in batches(steps, seed=seed)
    ]
    for inputs, _ in given[odd_step(seed) : odd_step(seed) + 1]:
        inputs[0] *= 3e6
    return given


LITTER = 15.0  # what stands where there is no token: whoever attends to it learns little


def _padded(steps: int, seed: int) -> list[Batch]:
    """Return batches of digits as eight tokens of eight numbers, and which of them are padding."""
    given: list[Batch] = []
    for number, (inputs, targets) in enumerate(batches(steps, seed=seed)):
        padding = torch.zeros(len(inputs), 8, dtype=torch.bool)
        padding[::2, 5:] = True
        padding[5] |= number == odd_step(seed)
        litter = LITTER * torch.randn(len(inputs), 8, 8)
        tokens = torch.where(padding[..., None], litter, inputs.view(-1, 8, 8))
        given.append((tokens, targets, padding))
    return given


def _of_digits(steps: int, seed: int) -> list[Batch]:
    return list(batches(steps, seed=seed))


_small = partial(mlp, hidden=64, depth=1)
_digits = Consultation(_small, _of_digits, steps=40, limit=0.6, score=_reached, scaled=True)

CONSULTATIONS: dict[str, Consultation] = {
    "unscale": _digits,
    "clip": _digits,
    "region": replace(_digits, skips=2),  # an epsilon that FP16 has is a cure, too
    "penalty": replace(_digits, steps=30),
    "schedule": replace(_digits, steps=64, skips=24),
    "mask": Consultation(
        _attention, _padded, steps=40, limit=0.25, score=partial(_reached, call=attended)
    ),
    "function": Consultation(
        _body_and_last,
        _of_digits,
        40,
        0.6,
        partial(_reached, call=lambda m, x: m["last"](m["body"](x))),
        half=0.4,
        decided="last.weight",
    ),
    "gains": Consultation(
        _normed,
        _of_digits,
        20,
        0.5,
        _gains_moved,
        metric="the share of gains that are no longer 1",
        weights=("bfloat16", "float32"),
        format="bfloat16",
    ),
    "eval": Consultation(
        _with_batch_norm, _one_broken_picture, 30, 0.6, _reached, skips=1, scaled=True
    ),
    "overflow": Consultation(
        _body_and_head,
        _of_digits,
        40,
        0.6,
        partial(_reached, call=normalised),
        skips=1,
        scaled=True,
    ),
}


def treat(name: str, work: Work, seed: int = 0, steps: int | None = None) -> Treatment:
    """Run a training of a consultation on one thread, and return what it did.

    An exception of the training is raised.

    Args:
        name: The name of the consultation.
        work: The training.
        seed: Draws the model and the batches.
        steps: Number of batches; None: that of the consultation.

    Raises:
        KeyError: there is no consultation of this name.
        ValueError: the training did not return a pair of losses and diagnosis.
    """
    return treatment(CONSULTATIONS[name], work, seed, steps)


def look(name: str, work: Work, seed: int = 0) -> Treatment:
    """Run a training of a consultation, and return what it did; an exception ends it and becomes
    its `error`.
    """
    try:
        return treat(name, work, seed)
    except Exception as error:
        return Treatment(error=f"{type(error).__name__}: {error}")
