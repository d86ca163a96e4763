"""The consultations of the clinic: models, data, and the score of a repaired training.

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
    """Return the share of test digits that a model classifies correctly in FP16 and eval mode."""
    model.eval()
    dtype = next(model.parameters()).dtype
    with torch.autocast("cpu", torch.float16, enabled=dtype is torch.float32):
        return accuracy(partial(call, model), lambda inputs: inputs.to(dtype))


def _gains_moved(model: nn.Module) -> float:
    """Return the share of LayerNorm gains that are no longer 1, their first value.

    It is NaN for a model without a LayerNorm.
    """
    gains = [norm.weight.flatten() for norm in model.modules() if isinstance(norm, nn.LayerNorm)]
    if not gains:
        return math.nan
    return float((torch.cat(gains) != 1).float().mean())


def _normed() -> nn.Module:
    named = {"flatten": nn.Flatten(), "norm": nn.LayerNorm(64), "linear": nn.Linear(64, 10)}
    return nn.Sequential(OrderedDict(named))


def _with_batch_norm() -> nn.Module:
    named = {
        "conv": nn.Conv2d(1, 8, 3, padding=1),
        "norm": nn.BatchNorm2d(8),
        "relu": nn.ReLU(),
        "flatten": nn.Flatten(),
        "linear": nn.Linear(512, 10),
    }
    return nn.Sequential(OrderedDict(named))


def _body_and_last() -> nn.Module:
    last = nn.Linear(10, 10, bias=False)
    nn.init.eye_(last.weight)
    return nn.ModuleDict({"body": _small(), "last": last})


def _call_body_and_last(model: Any, inputs: Tensor) -> Any:
    return model["last"](model["body"](inputs))


def _body_and_head() -> nn.Module:
    return nn.ModuleDict({"body": nn.Linear(64, 64), "head": nn.Linear(64, 10)})


def normalised(model: Any, inputs: Tensor) -> Any:
    """Return the output of the head for features that are scaled to a norm of 12."""
    features = model["body"](255 * inputs.flatten(1)).relu().float()
    return model["head"](12 * features / features.square().sum(1, keepdim=True).sqrt())


def _attention() -> nn.Module:
    return nn.ModuleDict(
        {"embed": nn.Linear(8, 32), "mix": nn.Linear(32, 96), "head": nn.Linear(32, 10)}
    )


def _softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1)


def attended(model: Any, inputs: Tensor, weights: Callable[[Tensor], Tensor] = _softmax) -> Any:
    """Return the output of the head after attention over eight tokens.

    Args:
        model: The model of `_attention`.
        inputs: [batch, 64], eight tokens of eight numbers.
        weights: Returns attention weights [batch, 8, 8] for scores of the same shape.
    """
    hidden = model["embed"](inputs.view(-1, 8, 8))
    query, key, value = model["mix"](hidden).chunk(3, dim=2)
    return model["head"]((weights(query @ key.mT / 32**0.5) @ value).mean(1))


def odd_step(seed: int) -> int:
    """Return the number, from 0, of the batch with something odd; 16 seeds in a row differ."""
    return 11 + 7 * seed % 16


def _one_broken_picture(steps: int, seed: int) -> list[Batch]:
    """Return batches of which one has a picture that is three million times too bright."""
    result: list[Batch] = []
    for number, (inputs, targets) in enumerate(batches(steps, seed=seed)):
        copied = inputs.clone()
        if number == odd_step(seed):
            copied[0] *= 3e6
        result.append((copied, targets))
    return result


# The size of the random numbers in place of padding. A model that attends to them learns little.
LITTER = 15.0


def _padded(steps: int, seed: int) -> list[Batch]:
    """Return batches of digits as eight tokens, with a mask that is True for padding."""
    result: list[Batch] = []
    for number, (inputs, targets) in enumerate(batches(steps, seed=seed)):
        padding = torch.zeros(len(inputs), 8, dtype=torch.bool)
        padding[::2, 5:] = True
        # One text of this batch consists of padding alone.
        if number == odd_step(seed):
            padding[5] = True
        litter = LITTER * torch.randn(len(inputs), 8, 8)
        tokens = torch.where(padding[..., None], litter, inputs.view(-1, 8, 8))
        result.append((tokens, targets, padding))
    return result


def _of_digits(steps: int, seed: int) -> list[Batch]:
    return list(batches(steps, seed=seed))


_small = partial(mlp, hidden=64, depth=1)
_digits = Consultation(_small, _of_digits, steps=40, limit=0.6, score=_reached, scaled=True)

CONSULTATIONS: dict[str, Consultation] = {
    "unscale": _digits,
    "clip": _digits,
    # A repair may also choose an epsilon that FP16 has, and then skips steps.
    "region": replace(_digits, skips=2),
    "penalty": replace(_digits, steps=30),
    "schedule": replace(_digits, steps=64, skips=24),
    "mask": Consultation(
        _attention, _padded, steps=40, limit=0.25, score=partial(_reached, call=attended)
    ),
    "function": Consultation(
        _body_and_last,
        _of_digits,
        steps=40,
        limit=0.6,
        score=partial(_reached, call=_call_body_and_last),
        half=0.4,
        decided="last.weight",
    ),
    "gains": Consultation(
        _normed,
        _of_digits,
        steps=20,
        limit=0.5,
        score=_gains_moved,
        metric="the share of gains that are no longer 1",
        weights=("bfloat16", "float32"),
        format="bfloat16",
    ),
    "eval": Consultation(
        _with_batch_norm,
        _one_broken_picture,
        steps=30,
        limit=0.6,
        score=_reached,
        skips=1,
        scaled=True,
    ),
    "overflow": Consultation(
        _body_and_head,
        _of_digits,
        steps=40,
        limit=0.6,
        score=partial(_reached, call=normalised),
        skips=1,
        scaled=True,
    ),
}


def treat(name: str, work: Work, seed: int = 0, steps: int | None = None) -> Treatment:
    """Run a training of a consultation on one thread, and return what was observed.

    An exception in the training is not caught.

    Args:
        name: The name of the consultation.
        work: The training.
        seed: The seed of the model and the batches.
        steps: The number of batches; by default that of the consultation.

    Raises:
        KeyError: If no consultation has this name.
        ValueError: If the training does not return a pair of losses and diagnosis.
    """
    return treatment(CONSULTATIONS[name], work, seed, steps)


def look(name: str, work: Work, seed: int = 0) -> Treatment:
    """Run a training of a consultation, and return what was observed.

    An exception in the training becomes the `error` of the result.
    """
    try:
        return treat(name, work, seed)
    except Exception as error:
        return Treatment(error=f"{type(error).__name__}: {error}")
