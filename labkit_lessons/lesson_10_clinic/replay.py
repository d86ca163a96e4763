"""Replay of a training from its weights: every loss and every step of a consultation, computed once
more in FP32.

A training in 16 bits and its replay in FP32 start each step from the same weights, so they part by
rounding alone. The unit in which they are compared is FP16's: u = 2**-11, half the distance between
1 and the next number. A loss agrees where it lies within 4 u of the replay's. The median distance
between the elements of a step and of its replay, in units of their median size, is the *noise* of
the step. Measured over all seeds, 70% of the steps have a noise below 0.01 u in FP32, below 0.2 to
1.1 u in FP16, and below 3 to 8 u in BF16. (For attention it is 3 u in FP16 and 12 to 23 u in BF16.)
So the weights show in which format they were trained. A second replay separates rounding from added
random numbers: it computes its products in FP16, so that it differs from the FP32 replay as an
honest training does. The two differences have a correlation of 0.3 to 1 in the median step, and
below 0.03 where the products were computed in FP32.

Invariant: nothing here runs a learner's code, and nothing is read from the process that ran it but
the weights.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import autocast
from labkit.faults.fault import random_state_kept
from labkit.formats import FP16

from .cases import CONSULTATIONS, attended, normalised
from .treatment import Batch, one_at_a_time

U = 2.0**-11
LOSS_ULPS = 4  # u, by which a loss may differ from its replay, relative to the loss or to 1
# The least correlation, in the median step, of what a step and its replay in FP16 were rounded by.
ALIKE = 0.15
STEP = 0.5  # the largest distance between a step and its replay, as a share of the replay's length
SURE = 0.05  # nearer than this, it is nobody else's step
LENGTH = 0.05  # by so much a step may be longer or shorter than its replay
RATES = (0.5, 0.05)  # the learning rate of a schedule's first step is at least, of its last at most
Loss = Callable[[Any, Batch], Tensor]


@dataclass(frozen=True)
class Text:
    """What a consultation's text says of its training, and the replay computes.

    Attributes:
        readings: (model, batch) -> the loss; several where a repair may choose one of them, for a
            batch or for all.
        rate: The learning rate; None: it falls, and each step's own is taken from the step.
        adam: True: Adam with torch's defaults; False: SGD.
        clip: The norm to which gradients are clipped, or None.
        penalty: Added to the loss before the backward pass, or None.
        noise: The least and the largest noise, in u, of a training in the text's format.
        bfloat16: True: weights may be BF16, which rounds single steps away; so the way from the
            first weights is compared.
        unread: How many examples are broken: each may be left out, or its batch's step skipped,
            whose loss is then none.
        seeds: Of the batches that grading draws from: those on which each condition of the text can
            be decided.
    """

    readings: tuple[Loss, ...]
    rate: float | None = 0.5
    adam: bool = False
    clip: float | None = None
    penalty: Loss | None = None
    noise: tuple[float, float] = (0.04, 1.8)
    bfloat16: bool = False
    unread: int = 0
    seeds: tuple[int, ...] = tuple(range(1, 16))


@dataclass
class Replay:
    """What a replay found.

    Attributes:
        begins: The first weights are the model's.
        wrong_losses: (step, returned, replayed) of losses that do not agree.
        taken: Numbers of the batches whose steps were found between the states.
        lost: How many changes of the weights are no step of the text.
        lengths: Of each step that was taken, in units of its replay's.
        clipped: The same, of steps whose gradient the text clips.
        noises: Of each step that was taken, in u.
        alike: Correlation of each step's distance from the replay's with that of a replay in FP16.
        rates: Learning rate of each step that was taken, where the text gives none.
        partly: Names of parameters that move otherwise than in the replay.
        bare: How many steps are nearer to one without the penalty than to one with it.
    """

    begins: bool = True
    wrong_losses: list[tuple[int, float, float]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    lost: int = 0
    lengths: list[float] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)
    noises: list[float] = field(default_factory=list)
    alike: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    partly: list[str] = field(default_factory=list)
    bare: int = 0


@lru_cache(maxsize=64)
def beginning(name: str, steps: int, seed: int) -> tuple[nn.Module, list[Batch]]:
    """Return the model and the batches that a consultation begins with; the model is not to be
    changed.
    """
    with one_at_a_time, random_state_kept():
        torch.manual_seed(seed)
        case = CONSULTATIONS[name]
        return case.model(), case.batches(steps, seed)


def rebuilt(name: str, seed: int, weights: Tensor, buffers: Sequence[Tensor]) -> nn.Module:
    """Return the model of a consultation with these weights and buffers, in FP32."""
    model = copy.deepcopy(beginning(name, CONSULTATIONS[name].steps, seed)[0])
    with torch.no_grad():
        nn.utils.vector_to_parameters(weights, model.parameters())
        for own, kept in zip(model.buffers(), buffers, strict=True):
            own.copy_(kept)
    return model


def replay(name: str, seed: int, states: Tensor, losses: Sequence[float]) -> Replay:
    """Compute each loss and each step of a training again, from the same weights.

    Args:
        name: The name of the consultation.
        seed: Drew the model and the batches.
        states: FP32 [n, parameters]: all parameters, whenever they had changed; the first are those
            of the beginning.
        losses: What the training returned, a loss for each batch.
    """
    text, found = TEXTS[name], Replay()
    first, batches = beginning(name, CONSULTATIONS[name].steps, seed)
    model = copy.deepcopy(first)
    parameters = list(model.parameters())
    found.begins = bool(torch.equal(states[0], _flat(parameters)))
    if (
        text.bfloat16
        and len(states) > 1
        and bool(((states[1] - states[0]).abs() <= 2.0**-8 * states[0].abs()).all())
    ):
        states = states[1:]  # they were rounded, and no step was taken
    optimizer, in_fp16, moved, at = _Steps(text), _Steps(text), _Moves(model), 0
    path = states[0].clone()  # where the replay's steps lead, from the first weights on
    unread = text.unread
    for number, batch in enumerate(batches[: len(losses)]):
        with torch.no_grad():
            nn.utils.vector_to_parameters(states[at], parameters)
        loss, gradients, reading = _reading(text, model, batch, losses[number])
        change = states[at + 1] - states[at] if at + 1 < len(states) else None
        step = None if change is None else optimizer.step(gradients[0], change)
        off = math.inf if change is None or step is None else _apart(change, step)
        if (
            SURE < off < STEP
            and not text.bfloat16
            and change is not None
            and number + 1 < len(losses)
        ):
            # Adam's steps resemble one another: was this one skipped, and is the change that of the
            # next batch?
            after = optimizer.step(
                _reading(text, model, batches[number + 1], losses[number + 1])[1][0], change
            )
            off = math.inf if _apart(change, after) < off else off
        taken = off < STEP or (text.bfloat16 and change is not None)
        if abs(loss - losses[number]) <= LOSS_ULPS * U * max(1.0, abs(loss)):
            pass
        elif not taken and unread:
            unread -= 1
        else:
            found.wrong_losses.append((number, losses[number], loss))
        if not taken or step is None or change is None:
            continue
        found.taken.append(number)
        found.lengths.append(float(change @ step / (step @ step)))
        if text.clip and float(gradients[0].norm()) > (1 + LENGTH) * text.clip:
            found.clipped.append(found.lengths[-1])
        # below it a gradient is rounding alone
        live = gradients[0].abs() > U * gradients[0].square().mean().sqrt()
        found.noises.append(
            float((change - step)[live].abs().median() / step[live].abs().median()) / U
        )
        rounded = _rounded(text, model, batch, reading, otherwise=gradients[0])
        apart, theirs = (change - step)[live], (in_fp16.step(rounded, change) - step)[live]
        found.alike.append(float(apart @ theirs / (apart.norm() * theirs.norm()).clamp(min=1e-30)))
        in_fp16.take(rounded)
        if text.rate is None:
            found.rates.append(-float(change @ gradients[0] / (gradients[0] @ gradients[0])))
        if text.penalty is not None:
            bare = optimizer.step(gradients[1], change)
            found.bare += float((change - bare).norm()) < float((change - step).norm())
        optimizer.take(gradients[0])
        path += step
        at += 1
        apart, way = (
            (states[at] - path, path - states[0]) if text.bfloat16 else (change - step, step)
        )
        moved.add(apart * live, way * live, states[at] * live)
    found.lost = len(states) - 1 - at
    found.partly = moved.otherwise(text.bfloat16)
    return found


def _apart(change: Tensor, step: Tensor) -> float:
    return float((change - step).norm() / step.norm())


class _Steps:
    """SGD or Adam, computed on all parameters as one vector."""

    def __init__(self, text: Text) -> None:
        self.text, self.mean, self.square, self.count = text, torch.zeros(()), torch.zeros(()), 0

    def step(self, gradient: Tensor, change: Tensor) -> Tensor:
        """Return the step that this gradient makes; where the text gives no rate, one of the length
        of the change.
        """
        if self.text.clip is not None:
            gradient = gradient * min(1.0, self.text.clip / (float(gradient.norm()) + 1e-6))
        if self.text.rate is None:
            return gradient * float(change @ gradient / (gradient @ gradient))
        if not self.text.adam:
            return -self.text.rate * gradient
        mean, square = self._after(gradient)
        mean, square = (
            mean / (1 - 0.9 ** (self.count + 1)),
            square / (1 - 0.999 ** (self.count + 1)),
        )
        return -self.text.rate * mean / (square.sqrt() + 1e-8)

    def take(self, gradient: Tensor) -> None:
        """Take the step: Adam's moments go on."""
        self.mean, self.square = self._after(gradient)
        self.count += 1

    def _after(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return 0.9 * self.mean + 0.1 * gradient, 0.999 * self.square + 0.001 * gradient.square()


class _Moves:
    """How far each parameter's steps lie from the replay's."""

    def __init__(self, model: nn.Module) -> None:
        self.names = [name for name, _ in model.named_parameters()]
        self.sizes = [p.numel() for p in model.parameters()]
        self.lengths: list[list[tuple[float, ...]]] = [[] for _ in self.names]

    def add(self, apart: Tensor, way: Tensor, weights: Tensor) -> None:
        """Note a step: how far it lies from the replay's, how long that is, and how large the
        weights are.
        """
        parts = zip(*(one.split(self.sizes) for one in (apart, way, weights)), strict=True)
        for part, lengths in zip(parts, self.lengths, strict=True):
            lengths.append(tuple(float(one.norm()) for one in part))

    def otherwise(self, bfloat16: bool) -> list[str]:
        """Return the parameters whose steps are not those of the replay."""
        found = []
        for name, lengths in zip(self.names, self.lengths, strict=True):
            # Of a weight, half the distance to the next number is lost at most, and now and then a
            # step.
            if bfloat16:
                wrong = any(off > 0.3 * way + 2.0**-8 * weight for off, way, weight in lengths)
            else:
                wrong = (
                    bool(lengths)
                    and statistics.median(off / max(way, 1e-30) for off, way, _ in lengths) > STEP
                )
            if wrong:
                found.append(name)
        return found


def quantile(numbers: Sequence[float], share: float) -> float:
    """Return the number below which this share of them lies; NaN where there is none.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    return sorted(numbers)[int(share * len(numbers))] if numbers else math.nan


def bent(numbers: Sequence[float]) -> float:
    """Return the largest distance of numbers from the straight line between the first and the last.

    >>> bent([4.0, 3.0, 2.0]), bent([4.0, 4.0, 2.0])
    (0.0, 1.0)
    """
    first, fall, most = numbers[0], numbers[-1] - numbers[0], max(1, len(numbers) - 1)
    return max(abs(number - first - fall * place / most) for place, number in enumerate(numbers))


def _reading(
    text: Text, model: Any, batch: Batch, returned: float
) -> tuple[float, list[Tensor], Loss]:
    """Return the loss nearest to the returned one; gradients with the penalty, and without it; and
    which reading.
    """
    parameters = list(model.parameters())
    losses = [(reading(model, batch), reading) for reading in text.readings]
    loss, reading = min(losses, key=lambda one: abs(float(one[0].detach()) - returned))
    value, gradients = float(loss.detach()), []
    if text.penalty is not None:
        penalty = text.penalty(model, batch)
        gradients.append(_flat(torch.autograd.grad(loss + penalty, parameters, retain_graph=True)))
        if abs(value + float(penalty.detach()) - returned) < abs(value - returned):
            value += float(penalty.detach())
    gradients.append(_flat(torch.autograd.grad(loss, parameters)))
    return value, gradients, reading


def _rounded(text: Text, model: Any, batch: Batch, reading: Loss, otherwise: Tensor) -> Tensor:
    """Return the gradient whose products are computed in FP16, at the largest scale of three at
    which it is finite.
    """
    for scale in (2.0**16, 2.0**8, 1.0):
        with autocast(FP16):
            loss = reading(model, batch)
            loss = loss if text.penalty is None else loss + text.penalty(model, batch)
        gradient = _flat(torch.autograd.grad(loss * scale, list(model.parameters()))) / scale
        if gradient.isfinite().all():
            return gradient
    return otherwise


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# --- the losses of the texts ---


def _cross_entropy(model: Any, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _divergence(model: Any, batch: Batch, epsilon: float = 1e-8) -> Tensor:
    chance = model(batch[0]).softmax(1)
    wanted = F.one_hot(batch[1], 10).to(chance.dtype)
    loss: Tensor = (wanted * ((wanted + epsilon).log() - (chance + epsilon).log())).sum(1).mean()
    return loss


def _squared_slope(model: Any, batch: Batch) -> Tensor:
    inputs = batch[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        F.cross_entropy(model(inputs), batch[1]), inputs, create_graph=True
    )
    penalty: Tensor = gradient.flatten(1).norm(dim=1).square().mean()
    return penalty


def _of_body_and_last(model: Any, batch: Batch) -> Tensor:
    return F.cross_entropy(model["last"](model["body"](batch[0])), batch[1])


def _of_vectors(model: Any, batch: Batch) -> Tensor:
    return F.cross_entropy(normalised(model, batch[0]), batch[1])


def _masked(model: Any, batch: Batch, empty: str) -> Tensor:
    """Return the loss of attention; `empty` is what a text without a token attends to: all, its
    scores, or nothing.
    """
    none = batch[2].all(1)
    hidden = batch[2] if empty != "scores" else batch[2] & ~none[:, None]

    def mask(scores: Tensor) -> Tensor:
        weights = scores.masked_fill(hidden[:, None], torch.finfo(torch.float16).min).softmax(-1)
        return weights * ~none[:, None, None] if empty == "nothing" else weights

    return F.cross_entropy(attended(model, batch[0], mask), batch[1])


def _in_range(model: Any, batch: Batch, repair: str) -> Tensor:
    """Return the loss of pictures whose pixels lie between 0 and 1; `repair` says how to treat a
    broken one.
    """
    inputs, targets = batch
    largest = inputs.flatten(1).amax(1)
    if repair == "clamp" or not bool((largest > 1).any()):
        inputs = inputs.clamp(0, 1)
    elif repair == "leave out":
        inputs, targets = inputs[largest <= 1], targets[largest <= 1]
    elif repair == "blank":
        inputs = torch.where((largest > 1)[:, None, None, None], 0.0, inputs)
    elif repair == "blank pixels":
        inputs = torch.where(inputs > 1, 0.0, inputs)
    else:
        inputs = inputs / largest.clamp(min=1)[:, None, None, None]
    return F.cross_entropy(model(inputs), targets)


_EPSILONS = (1e-8, *(10.0**-n for n in range(7, 2, -1)), *(2.0**-n for n in range(24, 9, -1)))

TEXTS: dict[str, Text] = {
    "unscale": Text((_cross_entropy,)),
    # twice or more it clips
    "clip": Text((_cross_entropy,), clip=1.0, seeds=(1, 3, 4, 6, 8, 10, 11, 12, 14, 15)),
    "schedule": Text((_cross_entropy,), rate=None),
    # FP32 itself diverges on others
    "function": Text((_of_body_and_last,), seeds=(1, 2, 3, 4, 5, 6, 7, 9, 11, 13)),
    "region": Text(tuple(partial(_divergence, epsilon=e) for e in _EPSILONS), 1e-2, adam=True),
    "penalty": Text((_cross_entropy,), 1e-2, adam=True, penalty=_squared_slope),
    "mask": Text(
        tuple(partial(_masked, empty=e) for e in ("all", "scores", "nothing")),
        1e-2,
        adam=True,
        noise=(0.04, 6.0),
    ),
    "gains": Text((_cross_entropy,), 1e-3, adam=True, noise=(0.5, math.inf), bfloat16=True),
    "eval": Text(
        tuple(
            partial(_in_range, repair=r)
            for r in ("clamp", "leave out", "blank", "blank pixels", "divide")
        ),
        3e-3,
        adam=True,
        unread=1,
    ),
    "overflow": Text((_of_vectors,), 3e-3, adam=True),
}
