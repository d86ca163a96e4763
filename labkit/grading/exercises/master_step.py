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
from labkit.grading.exercise import Case, Check, Exercise, Mistake

SIZE = 4
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


def _whole(random: Random, low: int, high: int) -> Tensor:
    return torch.tensor([float(random.choice((-1, 1)) * random.randrange(low, high)) for _ in range(SIZE)])


def _gradients(random: Random, steps: int, scale: float) -> list[Tensor]:
    """Gradients n / 2^9 below 1, scaled."""
    return [(_whole(random, 64, 512) / 2**9 * scale).half() for _ in range(steps)]


def _case(random: Random, steps: int, lr: float, scale: float = 2.0**6) -> Case:
    master = (1024 + _whole(random, 1, 512)) / 2**10
    return master, _gradients(random, steps, scale), scale, lr


def _large(random: Random) -> list[Case]:
    """Steps of at least a few ulps of FP16."""
    return [_case(random, steps, 0.125) for steps in (1, 3)]


def _small(random: Random) -> list[Case]:
    """Steps below a quarter of FP16's ulp, forty times: an FP16 weight would never move."""
    return [_case(random, 40, 2.0**-12)]


def _between(random: Random) -> list[Case]:
    """A master that FP16 does not hold, from the start."""
    master, grads, scale, lr = _case(random, 2, 0.125)
    return [(master + 2.0**-14, grads, scale, lr)]  # type: ignore[operator]


def _tiny(random: Random) -> list[Case]:
    """Unscaled gradients below FP16's smallest subnormal."""
    grads = [_whole(random, 1, 512).half() / 16 for _ in range(3)]
    return [(torch.zeros(SIZE), grads, 2.0**25, 1.0)]


def _spoiled(random: Random) -> list[Case]:
    cases = [_case(random, 4, 0.125) for _ in range(3)]
    for (_, grads, *_), element in zip(cases, (torch.inf, -torch.inf, torch.nan), strict=True):
        grads[random.randrange(1, 3)][random.randrange(SIZE)] = element  # type: ignore[index]
    return cases


def _steps(
    one: Callable[[Tensor, Tensor, float, float], Tensor],
) -> Callable[[Tensor, list[Tensor], float, float], Answer]:
    """Return an answer whose steps are done by `one(master, scaled gradient, scale, lr)`."""

    def answer(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
        for scaled in scaled_grads:
            if _finite(scaled):
                master = one(master, scaled, scale, lr)
        return master.half(), master

    return answer


def _no_memory(master: Tensor, scaled: Tensor, scale: float, lr: float) -> Tensor:
    return (master.half().float() - lr * scaled.float() / scale).half().float()


def _forgets_at_copy(master: Tensor, scaled: Tensor, scale: float, lr: float) -> Tensor:
    return master.half().float() - lr * scaled.float() / scale


def _stops_at_inf(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    bad = [i for i, scaled in enumerate(scaled_grads) if not _finite(scaled)]
    return reference(master, scaled_grads[: bad[0]] if bad else scaled_grads, scale, lr)


def _never_skips(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    for scaled in scaled_grads:
        master = master - lr * (scaled.float() / scale)
    return master.half(), master


def _zeroes_inf(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    return reference(master, [torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in scaled_grads], scale, lr)


def _rounds_at_the_end(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    model, master = reference(master, scaled_grads, scale, lr)
    return model, master.half().float()


def _forgets_to_copy(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    return master.half(), reference(master, scaled_grads, scale, lr)[1]


def _model_in_fp32(master: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    return (reference(master, scaled_grads, scale, lr)[1],) * 2


EXERCISE = Exercise(
    id="master.step",
    lesson="07_master_weights",
    title="The master step",
    entry="my_master_training",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("steps that FP16 could take too", 1, _large),
        Check("forty steps below a quarter of an ulp", 2, _small),
        Check("a master that FP16 does not hold", 1, _between),
        Check("gradients too small for FP16", 1, _tiny, hidden=True),
        Check("a step with inf or NaN is left out, the next one is not", 2, _spoiled),
    ),
    mistakes=(
        Mistake(
            "no master at all",
            _steps(_no_memory),
            "this is training in FP16: each step below half an ulp is rounded away, and forty of them are nothing.",
        ),
        Mistake(
            "starts from the model weight",
            _steps(_forgets_at_copy),
            "this is what starting each step from the model weight gives: what the copy rounded off is lost. The "
            "master is never rounded.",
        ),
        Mistake(
            "rounds the master at the end",
            _rounds_at_the_end,
            "this is what rounding the master gives. Only the model's copy is rounded.",
        ),
        Mistake(
            "unscales in FP16",
            _steps(lambda master, scaled, scale, lr: master - lr * (scaled / scale).float()),
            "this is what dividing in FP16 gives: small gradients underflow. Convert first.",
        ),
        Mistake(
            "forgets to unscale",
            _steps(lambda master, scaled, scale, lr: master - lr * scaled.float()),
            "this is a step `scale` times too long.",
        ),
        Mistake(
            "climbs",
            _steps(lambda master, scaled, scale, lr: master + lr * scaled.float() / scale),
            "this is what adding the gradient gives: the loss goes up.",
        ),
        Mistake("never skips", _never_skips, "this is what stepping with inf or NaN gives: no weight survives it."),
        Mistake(
            "stops at the first inf",
            _stops_at_inf,
            "this is what ending at the first bad step gives. Skip it, and go on.",
        ),
        Mistake(
            "replaces inf by 0",
            _zeroes_inf,
            "this is what stepping with the other elements gives: a direction nobody computed. Skip the whole step.",
        ),
        Mistake(
            "forgets to copy back",
            _forgets_to_copy,
            "this is what returning the first model weight gives: the master moved and the model did not.",
        ),
        Mistake(
            "model in FP32",
            _model_in_fp32,
            "this is what returning the master twice gives. The model computes with its FP16 rounding.",
        ),
    ),
    provides={"torch": torch},
    withheld=(Weights,),
)
