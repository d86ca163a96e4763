"""Can you say in torch.amp what a script says in apex?

The point: apex hides three things in two calls. `initialize` casts; `scale_loss` scales and, at the end of its block,
unscales; the patched optimizer skips. torch.amp has a call for each, and their order is yours to keep.

Invariant: where the two rules agree, and they do until a scale of 2^24, so do all bits.
Oracle in the tests: numpy, with a layer, a gradient and a scale of its own.
"""

from __future__ import annotations

from contextlib import nullcontext
from random import Random

import torch
from torch import Tensor, nn

from labkit.frameworks import GradScaler, autocast
from labkit.grading.draws import Batches, trainings
from labkit.grading.exercise import Case, Check, Exercise, wrong

LEARNING_RATE = 0.125
Trained = tuple[Tensor, float]


def a_layer(weight: Tensor) -> nn.Linear:
    """Return a linear layer with this weight, and no bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def reference(weight: Tensor, batches: Batches, max_norm: float) -> Trained:
    """Return the weight after a step for each batch, and the scale.

    >>> reference(torch.ones(1, 1), [(torch.ones(1, 1), torch.full((1, 1), 0.75))], 1000.0)
    (tensor([[0.9375]]), 65536.0)
    """
    return _train(weight, batches, max_norm)


def _train(weight: Tensor, batches: Batches, max_norm: float, *, casts: bool = True, without: str = "") -> Trained:
    """Train with all parts of a step but for those that are left out."""
    layer, scaler = a_layer(weight), GradScaler("cpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE)
    for x, y in batches:
        if "zero_grad" not in without:
            optimizer.zero_grad()
        with autocast("cpu", torch.float16) if casts else nullcontext():
            loss = nn.functional.mse_loss(layer(x), y)
        scaled = scaler.scale(loss)
        (loss if "scale" in without.split() else scaled).backward()
        if "unscale" not in without:
            scaler.unscale_(optimizer)
        if "clip" not in without:
            nn.utils.clip_grad_norm_(layer.parameters(), max_norm)
        if "skip" in without:
            optimizer.step()
        else:
            scaler.step(optimizer)
        scaler.update()
        if "memory" in without:
            scaler = GradScaler("cpu")
    return layer.weight.detach(), scaler.get_scale()


def several(random: Random) -> list[Case]:
    """Return trainings of one step and of three, none of which overflows or is clipped."""
    return [*trainings(random, (1.0,), 1000.0), *trainings(random, (1.0, 1.0, 1.0), 1000.0)]


def overflowing(random: Random) -> list[Case]:
    """Return trainings in which one step overflows, or two in a row."""
    return [*trainings(random, (1.0, 500.0, 1.0), 1000.0), *trainings(random, (500.0, 500.0, 1.0, 1.0), 1000.0)]


def clipped(random: Random) -> list[Case]:
    """Return trainings with gradients that are too long, one of which overflows too."""
    return [*trainings(random, (1.0, 1.0), 2.0**-4), *trainings(random, (20.0, 500.0, 1.0), 0.5)]


CHECKS = (
    Check("a step, and three", 2, several),
    Check("an overflow skips its step and halves the scale", 2, overflowing),
    Check("gradients that are too long are shortened", 2, clipped),
)


# fmt: off
MISTAKES = (
    wrong("clips scaled gradients", "this clips the scaled gradients, which are 65,536 times too long. apex has "
          "unscaled them at the end of its block; in torch it takes `scaler.unscale_(optimizer)` before clipping.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, without="unscale")),
    wrong("steps past the scaler", "this steps by `optimizer.step()`. apex had patched it to skip; torch's is not "
          "patched, and inf reaches the weights. Say `scaler.step(optimizer)`.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, without="skip")),
    wrong("never casts", "this trains in FP32. `amp.initialize` had patched torch's functions; here a region of "
          "`autocast` does it.", lambda weight, batches, max_norm: _train(weight, batches, max_norm, casts=False)),
    wrong("never scales", "this calls backward of the loss as it is, and then divides by the scale: the steps are "
          "65,536 times too short.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, without="scale")),
    wrong("never clips", "this forgets `clip_grad_norm_`, which the script has.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, without="clip")),
    wrong("adds up all gradients", "this forgets `zero_grad()`: gradients of earlier batches are still in the sum.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, without="zero_grad")),
    wrong("begins a new scaler each step", "this makes a new GradScaler for each batch, and it remembers nothing: "
          "make one, before the loop.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, without="memory")),
)
# fmt: on

EXERCISE = Exercise(
    id="frameworks.translate",
    title="Translate apex to torch.amp",
    entry="my_torch_training",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=CHECKS,
    mistakes=MISTAKES,
    provides={"torch": torch},
)
