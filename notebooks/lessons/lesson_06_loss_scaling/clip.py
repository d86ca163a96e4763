"""Can you clip gradients that still carry a loss scale?

The point: `max_norm` is about the gradient of the loss, so unscale first (in FP32), then measure one norm over all
tensors, and only ever shorten.

Tolerance: a learner may or may not add torch's 1e-6 to the norm, and may sum in another order. Wherever a case clips,
the norm is above 1, so the 1e-6 moves the result by at most 1e-6 / 2^-24 < 17 ulps, and a sum of 9 squares by fewer
than 9: 64 ulps accept both. The nearest mistake, a norm rounded to FP16, is up to 2^12 ulps away.
"""

from __future__ import annotations

from random import Random
from typing import cast

import torch
from torch import Tensor

from labkit.amp import unscale
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

SHAPES = ((2,), (2, 2), (3,))


def clip_step(scaled_grads: list[Tensor], scale: float, max_norm: float) -> list[Tensor] | None:
    """Return the unscaled FP32 gradients, shortened together to a norm of at most max_norm; None on inf or NaN.

    >>> clip_step([torch.tensor([24.0]).half(), torch.tensor([32.0]).half()], scale=8.0, max_norm=2.5)
    [tensor([1.5000]), tensor([2.0000])]
    """
    gradients, found_inf = unscale(scaled_grads, scale)
    return None if found_inf else _shorten(gradients, max_norm / (_norm(gradients) + 1e-6))


def _norm(gradients: list[Tensor]) -> float:
    return float(torch.stack([gradient.float().norm() for gradient in gradients]).norm())


def _shorten(gradients: list[Tensor], by: float) -> list[Tensor]:
    return [gradient * min(1.0, by) for gradient in gradients]


def _scaled(random: Random, low: int, high: int, log2_unit: int) -> list[Tensor]:
    """Return FP16 tensors of whole numbers, low <= |n| < high <= 2048, in units of a power of two: all exact."""
    return [(whole(random, shape, low, high) * 2.0**log2_unit).half() for shape in SHAPES]


def _long(random: Random) -> list[Case]:
    """Elements from 1 to 8, so norms from 3 to 24."""
    return [(_scaled(random, 128, 1024, k - 7), 2.0**k, random.choice((0.5, 1.0, 2.0))) for k in (4, 6, 8)]


def _long_or_one(random: Random) -> list[Case]:
    """The same; last, a single number."""
    single = (whole(random, (1,), 256, 1024) * 2.0**-3).half()
    shapes = [single.reshape(()), single[:0]]  # a number without dimensions, and an empty tensor
    return [*_long(random), ([single], 2.0**4, 0.5), (shapes, 2.0**4, 0.5), *_near(random)[2:]]


def _short(random: Random) -> list[Case]:
    """Elements below 2, so norms below 6."""
    return [(_scaled(random, 16, 1024, k - 9), 2.0**k, random.choice((10.0, 20.0))) for k in (4, 6, 8)]


def _near(random: Random) -> list[Case]:
    """A limit of half a percent above the norm, just at it, and half a percent below."""
    cases: list[Case] = []
    for part in (1.005, 1.0, 0.995):
        scaled, scale = _scaled(random, 128, 1024, -1), 2.0**6
        cases.append((scaled, scale, _norm([gradient.float() / scale for gradient in scaled]) * part))
    return cases


def _tiny(random: Random) -> list[Case]:
    """Elements below 2^-26, which FP16 would round to 0 if it unscaled them."""
    return [(_scaled(random, 1, 1024, k - 36), 2.0**k, 1.0) for k in (22, 23, 24)]


def _spoiled(random: Random, elements: tuple[float, ...]) -> list[Case]:
    cases = _long(random) + _short(random)
    for at, ((gradients, *_), element) in enumerate(zip(cases, elements * 3, strict=True)):
        random.choice(cast("list[Tensor]", gradients)).view(-1)[at % 2] = element
    return cases


def _together(random: Random) -> list[Case]:
    """Each tensor shorter than max_norm, by Pythagoras all together longer: elements from 1/2 to 5/8."""
    return [(_scaled(random, 512, 640, k - 10), 2.0**k, 1.3) for k in (4, 6, 8)]


def _heavy(random: Random) -> list[Case]:
    """Scaled elements from 28,800 to 32,736: finite each, but the norm of the nine is above 86,400."""
    return [(_scaled(random, 900, 1024, 5), 2.0**k, 1.0) for k in (10, 11, 12)]


def _zero(random: Random) -> list[Case]:
    return [([torch.zeros(shape).half() for shape in SHAPES], 2.0 ** random.randrange(4, 9), 1.0)]


Answer = list[Tensor] | None


def _clipped(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    gradients, _ = unscale(scaled_grads, scale)
    return _shorten(gradients, max_norm / (_norm(gradients) + 1e-6))


@mistake
def clips_before_unscaling(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what clipping before unscaling gives: max_norm was applied to gradients `scale` times too long, and then
    they were divided as well."""
    clipped = clip_step(scaled_grads, 1.0, max_norm)
    return clipped and [gradient / scale for gradient in clipped]


@mistake
def unscales_in_FP16(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what dividing in FP16 gives: small gradients underflow. Cast to FP32 first, then divide."""
    return clip_step([gradient / scale for gradient in scaled_grads], 1.0, max_norm)


@mistake
def measures_the_norm_in_FP16(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what a norm in FP16 gives: it rounds to 11 bits, and beyond 65504 it is inf."""
    gradients, found_inf = unscale(scaled_grads, scale)
    norm = float(torch.stack([gradient.norm() for gradient in scaled_grads]).norm()) / scale
    return None if found_inf else _shorten(gradients, max_norm / (norm + 1e-6))


@mistake
def clips_each_tensor_by_itself(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what clipping tensor by tensor gives: each gets a factor of its own, and the direction of the step
    changes."""
    gradients, found_inf = unscale(scaled_grads, scale)
    return None if found_inf else [_shorten([g], max_norm / (_norm([g]) + 1e-6))[0] for g in gradients]


@mistake
def clamps_the_elements(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what clamping each element gives: the direction of the step changes."""
    gradients, found_inf = unscale(scaled_grads, scale)
    return None if found_inf else [gradient.clamp(-max_norm, max_norm) for gradient in gradients]


@mistake
def adds_the_norms(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what adding up the tensors' norms gives. It is their squares that add up."""
    gradients, found_inf = unscale(scaled_grads, scale)
    return None if found_inf else _shorten(gradients, max_norm / (sum(_norm([g]) for g in gradients) + 1e-6))


@mistake
def forgets_the_square_root(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what forgetting the square root gives."""
    gradients, found_inf = unscale(scaled_grads, scale)
    return None if found_inf else _shorten(gradients, max_norm / (_norm(gradients) ** 2 + 1e-6))


@mistake
def lengthens_short_gradients(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what forgetting min(1, ...) gives: short gradients are stretched to max_norm."""
    gradients, found_inf = unscale(scaled_grads, scale)
    by = max_norm / (_norm(gradients) + 1e-6)
    return None if found_inf else [gradient * by for gradient in gradients]


@mistake
def skips_on_inf_only(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what looking for inf alone gives: a NaN makes the norm NaN, and with it every weight."""
    bad = any(bool(gradient.isinf().any()) for gradient in scaled_grads)
    return None if bad else _clipped(scaled_grads, scale, max_norm)


@mistake
def skips_on_NaN_only(scaled_grads: list[Tensor], scale: float, max_norm: float) -> Answer:
    """This is what looking for NaN alone gives. An overflow makes inf."""
    bad = any(bool(gradient.isnan().any()) for gradient in scaled_grads)
    return None if bad else _clipped(scaled_grads, scale, max_norm)


# fmt: off
MISTAKES = (
    clips_before_unscaling,
    wrong("forgets to unscale", "this is what forgetting to unscale gives: the scaled gradients were clipped and "
          "returned.", lambda scaled_grads, scale, max_norm: clip_step(scaled_grads, 1.0, max_norm)),
    unscales_in_FP16,
    measures_the_norm_in_FP16,
    clips_each_tensor_by_itself,
    clamps_the_elements,
    adds_the_norms,
    forgets_the_square_root,
    lengthens_short_gradients,
    wrong("scales the limit as well", "this is what comparing unscaled gradients with max_norm x scale gives: next "
          "to nothing is clipped.",
          lambda scaled_grads, scale, max_norm: clip_step(scaled_grads, scale, max_norm * scale)),
    wrong("never skips", "this is what clipping inf gives: a factor of 0, and inf x 0 is NaN.",
          lambda scaled_grads, scale, max_norm: _clipped(scaled_grads, scale, max_norm)),
    skips_on_inf_only,
    skips_on_NaN_only,
)
# fmt: on

EXERCISE = Exercise(
    id="scaling.clip",
    title="Clip at the right place",
    entry="my_clip_step",
    difficulty=2,
    minutes=12,
    reference=clip_step,
    checks=(
        Check("long gradients are shortened to max_norm, all by the same factor", 2, _long_or_one),
        Check("short gradients stay as they are", 1, lambda random: _short(random) + _near(random)[:2]),
        Check("gradients too small for FP16 arrive", 1, _tiny),
        Check("inf skips the step", 1, lambda random: _spoiled(random, (torch.inf, -torch.inf))),
        Check("NaN skips the step", 1, lambda random: _spoiled(random, (torch.nan, torch.nan))),
        Check("no tensor is too long by itself, but all together are", 1, _together),
        Check("the norm of large scaled gradients", 2, _heavy),
        Check("gradients of zero stay zero", 1, _zero),
    ),
    mistakes=MISTAKES,
    ulps=64,
    provides={"torch": torch},
)
