"""Replay of a training from its weights: every loss and step, repeated in FP32.

A training in 16 bits and its replay in FP32 start each step from the same weights, so they differ
by rounding alone. The unit of comparison is that of FP16: u = 2**-11, half the distance between 1
and the next number. A loss agrees if it is within 4 u of the replay's.

The *noise* of a step is the median distance between its elements and those of its replay, relative
to their median size. Measured over all seeds, 70% of the steps have a noise below 0.01 u in FP32,
below 0.2 to 1.1 u in FP16, and below 3 to 8 u in BF16. (For attention it is 3 u in FP16 and 12 to
23 u in BF16.) So the weights show in which format they were trained.

A second replay separates rounding from added random numbers. It computes its products in FP16, so
it differs from the FP32 replay as an honest training does. The two differences have a correlation
of 0.3 to 1 in the median step, and below 0.03 if the training computed its products in FP32.

Invariant: this module runs no learner's code, and reads nothing but weights and losses from the
process that ran it.
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
# The largest difference between a loss and its replay, in u, relative to the loss or to 1.
LOSS_ULPS = 4
# The least correlation, in the median step, between the rounding errors of a step and those of its
# replay in FP16.
ALIKE = 0.15
# The largest distance between a step and its replay, relative to the replay's length.
STEP = 0.5
# A step at less than this distance is certainly the step of its batch.
SURE = 0.05
# The largest relative difference between the lengths of a step and its replay.
LENGTH = 0.05
# The least learning rate of a schedule's first step, and the largest of its last step.
RATES = (0.5, 0.05)
Loss = Callable[[Any, Batch], Tensor]


@dataclass(frozen=True)
class Text:
    """The training that a consultation's text describes, and that the replay repeats.

    Attributes:
        readings: Losses as functions of (model, batch). There are several if a repair may choose
            one of them, for a batch or for all.
        rate: The learning rate. None for a rate that falls: it is computed from each step.
        adam: Whether the optimizer is Adam with torch's defaults; otherwise it is SGD.
        clip: The norm to which gradients are clipped, or None.
        penalty: A term that is added to the loss before the backward pass, or None.
        noise: The least and the largest noise, in u, of a training in the text's format.
        bfloat16: Whether weights may be BF16, which rounds single steps away. Then the way from the
            first weights is compared.
        unread: The number of broken examples. Each may be left out, or the step of its batch
            skipped; then that batch has no loss.
        seeds: The seeds that grading draws from, with which each condition of the text can be
            decided.
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
    """The result of a replay.

    Attributes:
        begins: Whether the first weights are those of the model.
        wrong_losses: (step, returned, replayed) for each loss that does not agree.
        taken: The numbers of the batches whose steps the states show.
        lost: The number of changes of the weights that are not steps of the text.
        lengths: The length of each taken step, relative to its replay.
        clipped: The same for the steps whose gradient the text clips.
        noises: The noise of each taken step, in u.
        alike: For each taken step, the correlation of its rounding errors with those of a replay in
            FP16.
        rates: The learning rate of each taken step, if the text has a schedule.
        partly: The names of parameters that move differently in the replay.
        bare: The number of steps that are nearer to one without the penalty than to one with it.
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
    """Return the model and the batches of a consultation. Do not change the model: it is cached."""
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
    """Repeat each loss and each step of a training, from the same weights.

    Args:
        name: The name of the consultation.
        seed: The seed of the model and the batches.
        states: FP32 [n, parameters]: all parameters at the beginning and after each change.
        losses: The losses that the training returned, one for each batch.
    """
    return _Replayer(name, seed, states, losses).run()


@dataclass(frozen=True)
class _Reading:
    """A loss of the text, repeated for a batch from the weights before its step.

    Attributes:
        function: The loss as a function of (model, batch).
        loss: The loss, with the penalty if that is nearer to the loss that was returned.
        gradient: The gradient, with the penalty if the text has one.
        gradient_without_penalty: The gradient of the loss alone.
    """

    function: Loss
    loss: float
    gradient: Tensor
    gradient_without_penalty: Tensor


class _Replayer:
    """Goes through the batches of a training and finds the step of each among the states.

    Attributes:
        state: The index of the state before the current batch.
        path: The weights to which the replay's steps lead, from the first weights on.
        unread: How many more batches may have neither a loss nor a step of their own.
    """

    def __init__(self, name: str, seed: int, states: Tensor, losses: Sequence[float]) -> None:
        self.text = TEXTS[name]
        self.result = Replay()
        first, batches = beginning(name, CONSULTATIONS[name].steps, seed)
        self.batches = batches[: len(losses)]
        self.losses = losses
        self.model = copy.deepcopy(first)
        self.result.begins = bool(torch.equal(states[0], _flat(list(first.parameters()))))
        self.states = self._without_conversion(states)
        self.optimizer = _Steps(self.text)
        self.optimizer_in_fp16 = _Steps(self.text)
        self.moves = _Moves(self.model)
        self.state = 0
        self.path = self.states[0].clone()
        self.unread = self.text.unread

    def _without_conversion(self, states: Tensor) -> Tensor:
        """Return the states without a first change that only converts the weights to BF16."""
        if not self.text.bfloat16 or len(states) < 2:
            return states
        # Such a change is less than a unit of BF16, and is not a step.
        distances = (states[1] - states[0]).abs()
        is_conversion = bool((distances <= 2.0**-8 * states[0].abs()).all())
        return states[1:] if is_conversion else states

    def run(self) -> Replay:
        for number, batch in enumerate(self.batches):
            self._replay_batch(number, batch)
        self.result.lost = len(self.states) - 1 - self.state
        self.result.partly = self.moves.otherwise(self.text.bfloat16)
        return self.result

    def _replay_batch(self, number: int, batch: Batch) -> None:
        with torch.no_grad():
            nn.utils.vector_to_parameters(self.states[self.state], self.model.parameters())
        reading = _reading(self.text, self.model, batch, self.losses[number])
        change = self._change()
        if change is None:
            self._compare_loss(number, reading.loss, is_taken=False)
            return
        step = self.optimizer.step(reading.gradient, change)
        # BF16 rounds single steps away, so a change of any length may be the step.
        is_taken = self.text.bfloat16 or self._distance_to(number, change, step) < STEP
        self._compare_loss(number, reading.loss, is_taken)
        if not is_taken:
            return
        self.result.taken.append(number)
        self._compare_length(change, step, reading)
        self._compare_rounding(change, step, batch, reading)
        self._advance(change, step, reading.gradient)

    def _change(self) -> Tensor | None:
        """Return the change of the weights after the current state; None after the last one."""
        if self.state + 1 == len(self.states):
            return None
        return self.states[self.state + 1] - self.states[self.state]

    def _distance_to(self, number: int, change: Tensor, step: Tensor) -> float:
        """Return the distance of a change from the step of a batch; inf if it is the next one's."""
        distance = _distance(change, step)
        is_unsure = SURE < distance < STEP
        if is_unsure and number + 1 < len(self.losses):
            # Adam's steps resemble each other. The change may be that of the next batch, with the
            # step of this batch skipped.
            next_loss = self.losses[number + 1]
            following = _reading(self.text, self.model, self.batches[number + 1], next_loss)
            if _distance(change, self.optimizer.step(following.gradient, change)) < distance:
                return math.inf
        return distance

    def _compare_loss(self, number: int, loss: float, is_taken: bool) -> None:
        """Compare a loss with the one that was returned."""
        returned = self.losses[number]
        if abs(loss - returned) <= LOSS_ULPS * U * max(1.0, abs(loss)):
            return
        if self.unread and not is_taken:
            self.unread -= 1
        else:
            self.result.wrong_losses.append((number, returned, loss))

    def _compare_length(self, change: Tensor, step: Tensor, reading: _Reading) -> None:
        """Compare the length of a step, and whether it includes the penalty."""
        gradient = reading.gradient
        length = float(change @ step / (step @ step))
        self.result.lengths.append(length)
        if self.text.clip and float(gradient.norm()) > (1 + LENGTH) * self.text.clip:
            self.result.clipped.append(length)
        if self.text.rate is None:
            self.result.rates.append(-float(change @ gradient / (gradient @ gradient)))
        if self.text.penalty is not None:
            bare = self.optimizer.step(reading.gradient_without_penalty, change)
            if float((change - bare).norm()) < float((change - step).norm()):
                self.result.bare += 1

    def _compare_rounding(
        self, change: Tensor, step: Tensor, batch: Batch, reading: _Reading
    ) -> None:
        """Compare the rounding errors of a step with those of its replay in FP16."""
        live = _above_rounding(reading.gradient)
        error = (change - step)[live]
        self.result.noises.append(float(error.abs().median() / step[live].abs().median()) / U)
        half_gradient = _gradient_in_fp16(self.text, self.model, batch, reading)
        half_error = (self.optimizer_in_fp16.step(half_gradient, change) - step)[live]
        norms = (error.norm() * half_error.norm()).clamp(min=1e-30)
        self.result.alike.append(float(error @ half_error / norms))
        self.optimizer_in_fp16.take(half_gradient)

    def _advance(self, change: Tensor, step: Tensor, gradient: Tensor) -> None:
        """Go on to the next state, and compare the way of each parameter."""
        self.optimizer.take(gradient)
        self.path += step
        self.state += 1
        if self.text.bfloat16:
            # BF16 rounds single steps away, so the whole way from the first weights is compared.
            offset = self.states[self.state] - self.path
            way = self.path - self.states[0]
        else:
            offset = change - step
            way = step
        live = _above_rounding(gradient)
        self.moves.add(offset * live, way * live, self.states[self.state] * live)


def _above_rounding(gradient: Tensor) -> Tensor:
    """Return which elements of a gradient are more than rounding errors."""
    return gradient.abs() > U * gradient.square().mean().sqrt()


def _distance(change: Tensor, step: Tensor) -> float:
    """Return the distance of a change from a step, relative to the step's length."""
    return float((change - step).norm() / step.norm())


class _Steps:
    """SGD or Adam on all parameters as one vector."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.mean = torch.zeros(())
        self.square = torch.zeros(())
        self.count = 0

    def step(self, gradient: Tensor, change: Tensor) -> Tensor:
        """Return the step for a gradient.

        If the text has a schedule, the step has the length of the change in its direction.
        """
        if self.text.clip is not None:
            gradient = gradient * min(1.0, self.text.clip / (float(gradient.norm()) + 1e-6))
        if self.text.rate is None:
            return gradient * float(change @ gradient / (gradient @ gradient))
        if not self.text.adam:
            return -self.text.rate * gradient
        mean, square = self._moments(gradient)
        # The corrections of the bias towards the first moments, which are 0.
        mean = mean / (1 - 0.9 ** (self.count + 1))
        square = square / (1 - 0.999 ** (self.count + 1))
        return -self.text.rate * mean / (square.sqrt() + 1e-8)

    def take(self, gradient: Tensor) -> None:
        """Update the moments of Adam after a step that was taken."""
        self.mean, self.square = self._moments(gradient)
        self.count += 1

    def _moments(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return 0.9 * self.mean + 0.1 * gradient, 0.999 * self.square + 0.001 * gradient.square()


class _Moves:
    """The distances of each parameter's steps from those of the replay."""

    def __init__(self, model: nn.Module) -> None:
        self.names = [name for name, _ in model.named_parameters()]
        self.sizes = [p.numel() for p in model.parameters()]
        self.lengths: list[list[tuple[float, ...]]] = [[] for _ in self.names]

    def add(self, offset: Tensor, way: Tensor, weights: Tensor) -> None:
        """Add a step, each argument with all parameters as one vector.

        Args:
            offset: The difference between the training and the replay.
            way: The change in the replay.
            weights: The weights after the step.
        """
        offsets = offset.split(self.sizes)
        ways = way.split(self.sizes)
        all_weights = weights.split(self.sizes)
        for lengths, *vectors in zip(self.lengths, offsets, ways, all_weights, strict=True):
            lengths.append(tuple(float(vector.norm()) for vector in vectors))

    def otherwise(self, bfloat16: bool) -> list[str]:
        """Return the parameters whose steps are not those of the replay."""
        different = []
        for name, lengths in zip(self.names, self.lengths, strict=True):
            if bfloat16:
                # Rounding moves a weight by at most half a unit, and can undo a step now and then.
                is_different = any(
                    offset > 0.3 * way + 2.0**-8 * weight for offset, way, weight in lengths
                )
            else:
                shares = [offset / max(way, 1e-30) for offset, way, _ in lengths]
                is_different = bool(shares) and statistics.median(shares) > STEP
            if is_different:
                different.append(name)
        return different


def quantile(numbers: Sequence[float], share: float) -> float:
    """Return the number below which a share of the numbers lies; NaN for an empty sequence.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    return sorted(numbers)[int(share * len(numbers))] if numbers else math.nan


def bent(numbers: Sequence[float]) -> float:
    """Return the largest distance of numbers from the line between the first and the last.

    >>> bent([4.0, 3.0, 2.0]), bent([4.0, 4.0, 2.0])
    (0.0, 1.0)
    """
    first = numbers[0]
    slope = (numbers[-1] - first) / max(1, len(numbers) - 1)
    return max(abs(number - first - slope * place) for place, number in enumerate(numbers))


def _reading(text: Text, model: Any, batch: Batch, returned: float) -> _Reading:
    """Replay the loss of a batch in the reading that is nearest to the returned loss.

    Args:
        text: The text of the consultation.
        model: The model, with the weights before the step.
        batch: The batch.
        returned: The loss that the training returned.
    """
    parameters = list(model.parameters())
    losses = [(function(model, batch), function) for function in text.readings]
    loss, function = min(losses, key=lambda pair: abs(float(pair[0].detach()) - returned))
    value = float(loss.detach())
    if text.penalty is None:
        gradient = _flat(torch.autograd.grad(loss, parameters))
        return _Reading(function, value, gradient, gradient)
    penalty = text.penalty(model, batch)
    gradient = _flat(torch.autograd.grad(loss + penalty, parameters, retain_graph=True))
    # A training may return its loss with the penalty or without it.
    with_penalty = value + float(penalty.detach())
    if abs(with_penalty - returned) < abs(value - returned):
        value = with_penalty
    bare_gradient = _flat(torch.autograd.grad(loss, parameters))
    return _Reading(function, value, gradient, bare_gradient)


def _gradient_in_fp16(text: Text, model: Any, batch: Batch, reading: _Reading) -> Tensor:
    """Return the gradient with products in FP16, at the largest scale that keeps it finite.

    If no scale does, return the gradient of the reading, which is FP32.
    """
    for scale in (2.0**16, 2.0**8, 1.0):
        with autocast(FP16):
            loss = reading.function(model, batch)
            if text.penalty is not None:
                loss = loss + text.penalty(model, batch)
        gradient = _flat(torch.autograd.grad(loss * scale, list(model.parameters()))) / scale
        if gradient.isfinite().all():
            return gradient
    return reading.gradient


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
    """Return the loss of attention over texts with padding.

    Args:
        model: The model.
        batch: Inputs, targets, and True for each token that is padding.
        empty: How a text of padding alone attends: to "all" tokens equally, by its "scores", or to
            "nothing".
    """
    is_empty = batch[2].all(1)
    hidden = batch[2] & ~is_empty[:, None] if empty == "scores" else batch[2]

    def mask(scores: Tensor) -> Tensor:
        weights = scores.masked_fill(hidden[:, None], torch.finfo(torch.float16).min).softmax(-1)
        if empty == "nothing":
            weights = weights * ~is_empty[:, None, None]
        return weights

    return F.cross_entropy(attended(model, batch[0], mask), batch[1])


def _in_range(model: Any, batch: Batch, repair: str) -> Tensor:
    """Return the loss of pictures with pixels from 0 to 1.

    Args:
        model: The model.
        batch: Pictures and targets; a broken picture has larger pixels.
        repair: How a broken picture is treated, one of `_REPAIRS`.
    """
    inputs, targets = batch
    largest = inputs.flatten(1).amax(1)
    if repair == "clamp" or not bool((largest > 1).any()):
        inputs = inputs.clamp(0, 1)
    elif repair == "leave out":
        inputs = inputs[largest <= 1]
        targets = targets[largest <= 1]
    elif repair == "blank":
        inputs = torch.where((largest > 1)[:, None, None, None], 0.0, inputs)
    elif repair == "blank pixels":
        inputs = torch.where(inputs > 1, 0.0, inputs)
    else:
        inputs = inputs / largest.clamp(min=1)[:, None, None, None]
    return F.cross_entropy(model(inputs), targets)


# A repair may choose any of these.
_EPSILONS = (
    1e-8,
    *(10.0**exponent for exponent in range(-7, -2)),
    *(2.0**exponent for exponent in range(-24, -9)),
)
_REPAIRS = ("clamp", "leave out", "blank", "blank pixels", "divide")

TEXTS: dict[str, Text] = {
    "unscale": Text((_cross_entropy,)),
    # With these seeds, at least two steps are clipped.
    "clip": Text((_cross_entropy,), clip=1.0, seeds=(1, 3, 4, 6, 8, 10, 11, 12, 14, 15)),
    "schedule": Text((_cross_entropy,), rate=None),
    # With other seeds, FP32 itself diverges.
    "function": Text((_of_body_and_last,), seeds=(1, 2, 3, 4, 5, 6, 7, 9, 11, 13)),
    "region": Text(
        tuple(partial(_divergence, epsilon=epsilon) for epsilon in _EPSILONS), rate=1e-2, adam=True
    ),
    "penalty": Text((_cross_entropy,), rate=1e-2, adam=True, penalty=_squared_slope),
    "mask": Text(
        tuple(partial(_masked, empty=empty) for empty in ("all", "scores", "nothing")),
        rate=1e-2,
        adam=True,
        noise=(0.04, 6.0),
    ),
    "gains": Text((_cross_entropy,), rate=1e-3, adam=True, noise=(0.5, math.inf), bfloat16=True),
    "eval": Text(
        tuple(partial(_in_range, repair=repair) for repair in _REPAIRS),
        rate=3e-3,
        adam=True,
        unread=1,
    ),
    "overflow": Text((_of_vectors,), rate=3e-3, adam=True),
}
