"""Can you take one training step with a loss scale that never moves?

The point: cast to FP32 *before* unscaling, because FP16 loses the small gradients once more, and throw the step
away when the gradient holds inf or NaN.

Invariant: weights, gradients and learning rates are such that every sum fits FP32's 24 bits and every factor is a
power of two. The result is exact in whatever order it is written, so answers are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.amp import unscale
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong
from labkit.grading.given.scaled_backward import ScaledBackward

SHAPE = (4,)


def static_step(weight: Tensor, gradient_of: Callable[[float], Tensor], scale: float, lr: float) -> Tensor:
    """Return the FP32 weight [n] after one step, or as it was if the gradient holds inf or NaN.

    >>> static_step(torch.zeros(1), ScaledBackward(torch.tensor([2.0**-30])), scale=2.0**20, lr=0.5)
    tensor([-4.6566e-10])
    """
    (gradient,), found_inf = unscale([gradient_of(scale)], scale)
    return weight if found_inf else weight - lr * gradient


def _backward(random: Random, low: int, high: int, units: int) -> ScaledBackward:
    """Return the backward pass of a gradient of whole numbers over `units`."""
    return ScaledBackward(whole(random, SHAPE, low, high) / units)


def _ordinary(random: Random) -> list[Case]:
    """Gradients n / 2^11 below 1/2; weights n / 2^10: FP16 can hold both, and in FP32 their sum is exact."""
    cases: list[Case] = []
    for _ in range(4):
        weight, backward = whole(random, SHAPE, 0, 1024) / 2**10, _backward(random, 65, 1024, 2**11)
        cases.append((weight, backward, 2.0 ** random.randrange(4, 12), random.choice((0.5, 0.25, 0.125))))
    return cases


def _ordinary_or_unscaled(random: Random) -> list[Case]:
    """Ordinary ones; last, a scale of 1."""
    return [*_ordinary(random), (torch.zeros(SHAPE), _backward(random, 65, 1024, 2**11), 1.0, 0.5)]


def _large(random: Random) -> list[Case]:
    """Elements of 32,768 and more once they are scaled, all of one sign: each is finite, their FP16 sum is not."""
    weight, gradient = whole(random, SHAPE, 0, 1024) / 2**10, whole(random, SHAPE, 512, 1024).abs() / 2**11
    largest, zeros = torch.full(SHAPE, 2047 / 2**12), torch.zeros(SHAPE)  # 65504, once it is scaled
    drawn: list[Case] = [(weight, ScaledBackward(sign * gradient), 2.0**17, 0.5) for sign in (1, -1)]
    return [*drawn, (weight, ScaledBackward(largest), 2.0**17, 0.5), (weight, ScaledBackward(zeros), 2.0**17, 0.5)]


def _tiny(random: Random) -> list[Case]:
    """Gradients n / 2^36 below 2^-26: without a scale FP16 rounds them to 0, with 2^22 or more it holds them."""
    return [
        (
            torch.zeros(SHAPE),
            ScaledBackward(whole(random, SHAPE, 1, 1024) / 2**36),
            2.0 ** random.randrange(22, 27),
            0.5,
        )
        for _ in range(4)
    ]


def _spoiled(random: Random, element: Callable[[], float]) -> list[Case]:
    """Ordinary cases, but for one element of the gradient."""
    cases: list[Case] = []
    for weight, _, scale, lr in _ordinary(random):
        gradient = whole(random, SHAPE, 65, 1024) / 2**11
        gradient[random.randrange(*SHAPE)] = element()
        cases.append((weight, ScaledBackward(gradient), scale, lr))
    return cases


def _overflowing(random: Random) -> list[Case]:
    """One element times the scale is beyond FP16's 65504: +inf or -inf."""
    return _spoiled(random, lambda: random.choice((-1, 1)) * 2.0**13) + _spoiled(random, lambda: -(2.0**13))


def _small_steps(random: Random) -> list[Case]:
    """Weights from 8 to 16, where FP16's spacing is 2^-7, and steps below 2^-9."""
    return [
        (
            8 + whole(random, SHAPE, 1, 512).abs() / 2**6,
            ScaledBackward(whole(random, SHAPE, 1, 64) / 2**14),
            2.0**10,
            0.125,
        )
        for _ in range(4)
    ]


def _step(weight: Tensor, gradient: Tensor, lr: float, skip: bool) -> Tensor:
    return weight if skip else weight - lr * gradient


def _bad(gradient: Tensor) -> bool:
    return not bool(torch.isfinite(gradient).all())


Step = Callable[[float], Tensor]


@mistake
def forgets_to_unscale(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what forgetting to unscale gives: the step is `scale` times too long."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float(), lr, _bad(scaled))


@mistake
def unscales_in_FP16(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what dividing in FP16 gives: what the scale had saved underflows again. Cast to FP32 first, then
    divide."""
    scaled = gradient_of(scale)
    return _step(weight, (scaled / scale).float(), lr, _bad(scaled))


@mistake
def multiplies_by_the_scale_again(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what multiplying by the scale once more gives. The loss was multiplied; to undo it, divide."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float() * scale, lr, _bad(scaled))


@mistake
def divides_the_learning_rate_as_well(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what unscaling twice gives: the gradient and the learning rate were both divided by the scale."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float() / scale, lr / scale, _bad(scaled))


@mistake
def asks_the_sum_in_FP16(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what asking the FP16 sum gives: it overflows although every element is finite. Ask every element."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float() / scale, lr, _bad(scaled.sum()))


@mistake
def skips_on_NaN_only(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what looking for NaN alone gives. An overflow makes inf first; NaN comes later, from inf - inf."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float() / scale, lr, bool(scaled.isnan().any()))


@mistake
def skips_on_inf_only(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what looking for inf alone gives. Where two infs met in the backward pass there is NaN."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float() / scale, lr, bool(scaled.isinf().any()))


@mistake
def overlooks_minus_inf(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what comparing with +inf gives: gradients overflow downwards as well."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float() / scale, lr, bool(((scaled == torch.inf) | scaled.isnan()).any()))


@mistake
def puts_0_for_inf(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what replacing inf by 0 gives: the other elements still step, in a direction nobody computed. Skip the
    whole step."""
    return weight - lr * torch.nan_to_num(gradient_of(scale).float() / scale, nan=0.0, posinf=0.0, neginf=0.0)


@mistake
def steps_in_FP16(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what an FP16 weight gives: steps below its spacing are rounded away. Keep the weight in FP32."""
    scaled = gradient_of(scale)
    return weight if _bad(scaled) else (weight.half() - (lr * scaled.float() / scale).half()).float()


@mistake
def forgets_to_scale(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what a scale of 1 gives: the small gradients underflow in the backward pass, and nothing brings them
    back."""
    gradient = gradient_of(1.0)
    return _step(weight, gradient.float(), lr, _bad(gradient))


@mistake
def climbs(weight: Tensor, gradient_of: Step, scale: float, lr: float) -> Tensor:
    """This is what adding the gradient gives: the loss goes up. Subtract."""
    scaled = gradient_of(scale)
    return _step(weight, scaled.float() / scale, -lr, _bad(scaled))


# fmt: off
MISTAKES = (
    forgets_to_unscale,
    unscales_in_FP16,
    multiplies_by_the_scale_again,
    divides_the_learning_rate_as_well,
    wrong("never skips", "this is what stepping with inf or NaN gives: one such step and the weight never recovers.",
          lambda weight, gradient_of, scale, lr: weight - lr * (gradient_of(scale).float() / scale)),
    asks_the_sum_in_FP16,
    skips_on_NaN_only,
    skips_on_inf_only,
    overlooks_minus_inf,
    puts_0_for_inf,
    steps_in_FP16,
    forgets_to_scale,
    climbs,
)
# fmt: on

EXERCISE = Exercise(
    id="scaling.static_step",
    title="One step with a static scale",
    entry="my_static_step",
    difficulty=1,
    minutes=8,
    reference=static_step,
    checks=(
        Check("ordinary gradients move the weight by lr times the gradient", 2, _ordinary_or_unscaled),
        Check("gradients too small for FP16 arrive", 2, _tiny),
        Check("large gradients that are finite are no reason to skip", 1, _large),
        Check("inf skips the step", 1, _overflowing),
        Check("NaN skips the step", 1, lambda random: _spoiled(random, lambda: float("nan"))),
        Check("steps too small for an FP16 weight arrive", 2, _small_steps),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
)
