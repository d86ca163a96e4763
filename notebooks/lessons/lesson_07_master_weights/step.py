"""Can you train with master weights, over several steps?

The point: the optimizer steps FP32 weights with FP32 gradients, and the model gets their rounding; the master itself
is never rounded. A step with inf or NaN changes nothing.

Invariant: weights, gradients and learning rates are whole numbers over powers of two that fit FP32's 24 bits in every
sum, so answers are compared bit for bit. Oracle in the tests: torch.optim.SGD on FP32 weights.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.amp import Weights
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

SHAPE = (4,)
Answer = tuple[Tensor, Tensor]


def reference(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """Return (model weight FP16 [n], master weight FP32 [n]) after one step of SGD for each gradient.

    >>> reference(torch.ones(1), [torch.tensor([2.0**-2]).half()] * 2, scale=1.0, lr=2.0**-10)
    (tensor([0.9995], dtype=torch.float16), tensor([0.9995]))
    """
    for scaled in scaled_grads:
        gradient = scaled.float() / scale
        if _finite(gradient):
            master = master - lr * gradient
    return master.half(), master


def _finite(gradient: Tensor) -> bool:
    return bool(torch.isfinite(gradient).all())


def _gradients(random: Random, steps: int, scale: float) -> list[Tensor]:
    """Gradients n / 2^9 below 1, scaled."""
    return [(whole(random, SHAPE, 64, 512) / 2**9 * scale).half() for _ in range(steps)]


def _case(random: Random, steps: int, lr: float, scale: float = 2.0**6) -> Case:
    master = (1024 + whole(random, SHAPE, 1, 512)) / 2**10
    return master, _gradients(random, steps, scale), scale, lr


def _large(random: Random) -> list[Case]:
    """Steps of at least a few ulps of FP16."""
    return [_case(random, steps, 0.125) for steps in (1, 3)]


def _none(random: Random) -> list[Case]:
    """No gradient at all, and gradients of 0; the master is one that FP16 does not hold."""
    master, _, scale, lr = _case(random, 0, 0.125)
    return [(master + 2.0**-14, grads, scale, lr) for grads in ([], [torch.zeros(SHAPE).half()] * 2)]  # type: ignore[operator]


def _small(random: Random) -> list[Case]:
    """Steps below a quarter of FP16's ulp, forty times: an FP16 weight would never move."""
    return [_case(random, 40, 2.0**-12)]


def _between(random: Random) -> list[Case]:
    """A master that FP16 does not hold, from the start; to the last case there is no step."""
    master, grads, scale, lr = _case(random, 2, 0.125)
    return [(master + 2.0**-14, grads, scale, lr), *_none(random)]  # type: ignore[operator]


def _tiny(random: Random) -> list[Case]:
    """Unscaled gradients below FP16's smallest subnormal."""
    grads = [whole(random, SHAPE, 1, 512).half() / 16 for _ in range(3)]
    return [(torch.zeros(SHAPE), grads, 2.0**25, 1.0)]


def _spoiled(random: Random) -> list[Case]:
    cases = [_case(random, 4, 0.125) for _ in range(3)]
    for (_, grads, *_), element in zip(cases, (torch.inf, -torch.inf, torch.nan), strict=True):
        grads[random.randrange(1, 3)][random.randrange(*SHAPE)] = element  # type: ignore[index]
    ends = [_case(random, 3, 0.125) for _ in range(3)]
    for (_, grads, *_), places in zip(ends, ((0,), (2,), (0, 1, 2)), strict=True):  # first, last, all of them
        for place in places:
            grads[place][random.randrange(*SHAPE)] = torch.inf  # type: ignore[index]
    return cases + ends


def _steps(master: Tensor, scaled_grads: list[Tensor], one: Callable[[Tensor, Tensor], Tensor]) -> Answer:
    """Return the weights after steps that are done by `one(master, scaled gradient)`."""
    for scaled in scaled_grads:
        if _finite(scaled):
            master = one(master, scaled)
    return master.half(), master


@mistake
def no_master_at_all(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is training in FP16: each step below half an ulp is rounded away, and forty of them are nothing."""
    return _steps(master, scaled_grads, lambda w, g: (w.half().float() - lr * g.float() / scale).half().float())


@mistake
def starts_from_the_model_weight(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what starting each step from the model weight gives: what the copy rounded off is gone. The master is
    never rounded."""
    return _steps(master, scaled_grads, lambda w, g: w.half().float() - lr * g.float() / scale)


@mistake
def rounds_the_master_at_the_end(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what rounding the master gives. Only the model's copy is rounded."""
    model, master = reference(master, scaled_grads, scale, lr)
    return model, master.half().float()


@mistake
def unscales_in_FP16(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what dividing in FP16 gives: small gradients underflow. Cast first."""
    return _steps(master, scaled_grads, lambda w, g: w - lr * (g / scale).float())


@mistake
def climbs(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what adding the gradient gives: the loss goes up."""
    return _steps(master, scaled_grads, lambda w, g: w + lr * g.float() / scale)


@mistake
def never_skips(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what stepping with inf or NaN gives: no weight survives it."""
    for scaled in scaled_grads:
        master = master - lr * (scaled.float() / scale)
    return master.half(), master


@mistake
def stops_at_the_first_inf(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what ending at the first step with inf or NaN gives. Skip it, and go on."""
    bad = [i for i, scaled in enumerate(scaled_grads) if not _finite(scaled)]
    return reference(master, scaled_grads[: bad[0]] if bad else scaled_grads, scale, lr)


@mistake
def replaces_inf_by_0(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what stepping with the other elements gives: a direction nobody computed. Skip the whole step."""
    return reference(master, [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in scaled_grads], scale, lr)


# fmt: off
MISTAKES = (
    no_master_at_all,
    starts_from_the_model_weight,
    rounds_the_master_at_the_end,
    unscales_in_FP16,
    wrong("forgets to unscale", "this is a step `scale` times too long.",
          lambda master, scaled_grads, scale, lr: _steps(master, scaled_grads, lambda w, g: w - lr * g.float())),
    climbs,
    never_skips,
    stops_at_the_first_inf,
    replaces_inf_by_0,
    wrong("forgets to copy back", "this is what returning the first model weight gives: the master moved and the "
          "model did not.",
          lambda master, scaled_grads, scale, lr: (master.half(), reference(master, scaled_grads, scale, lr)[1])),
    wrong("model in FP32", "this is what returning the master twice gives. The model computes with its FP16 "
          "rounding.", lambda master, scaled_grads, scale, lr: (reference(master, scaled_grads, scale, lr)[1],) * 2),
)
# fmt: on

EXERCISE = Exercise(
    id="master.step",
    title="The master step",
    entry="my_master_training",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("steps that FP16 could take too", 1, _large),
        Check("forty steps below a quarter of an ulp", 2, _small),
        Check("a master that FP16 does not hold", 1, _between),
        Check("gradients too small for FP16", 1, _tiny),
        Check("a step with inf or NaN is left out, the next one is not", 2, _spoiled),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
    withheld=(Weights,),
)
