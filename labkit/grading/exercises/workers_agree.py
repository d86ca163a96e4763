"""Can several ranks take one step, or skip it, as one?

The point: each rank sees only its own part of the gradients. If one of them holds inf, all skip, and the one scale that
all share is halved once.

Invariant: gradients, scales and learning rates are such that every step is exact in FP32.
Oracle in the tests: one process that holds all parts in one tensor, and torch's GradScaler.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.amp import unscale
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, mistakes_in

Step = tuple[list[Tensor], float]


def reference(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """Return each rank's part after the step, and the scale after it.

    >>> reference([torch.ones(1), torch.ones(1)], [torch.tensor([8.0]).half(), torch.tensor([4.0]).half()], 8.0, 0.5)
    ([tensor([0.5000]), tensor([0.7500])], 8.0)
    """
    plain, found_inf = unscale(gradients, scale)
    if found_inf:
        return list(parts), scale / 2
    return [part - lr * gradient for part, gradient in zip(parts, plain, strict=True)], scale


def _ranks(random: Random, world: int) -> tuple[list[Tensor], list[Tensor], float, float]:
    """Return parts of whole numbers over 2^10 and scaled gradients; the last part is shorter."""
    sizes = [3] * (world - 1) + [random.randint(1, 3)]
    parts = [whole(random, (size,), -1024, 1024) / 2**10 for size in sizes]
    scale = 2.0 ** random.randint(12, 15)
    gradients = [(whole(random, (size,), 1, 1000) / 2**20 * scale).half() for size in sizes]
    return parts, gradients, scale, random.choice((0.5, 0.25, 1.0))


def _spoiled(random: Random, bad: float) -> list[Case]:
    """One element of one rank; the first rank, the last, and one between."""
    cases: list[Case] = []
    for world, rank in ((4, 0), (4, 3), (4, random.randint(1, 2)), (1, 0)):
        parts, gradients, scale, lr = _ranks(random, world)
        gradients[rank][0] = bad
        cases.append((parts, gradients, scale, lr))
    return cases


def _several(random: Random) -> list[Case]:
    """Inf of either sign on several ranks at once: their sum is NaN, and the scale is halved once all the same."""
    parts, gradients, scale, lr = _ranks(random, 4)
    gradients[1][0], gradients[2][0] = torch.inf, -torch.inf
    every = [torch.full_like(g, torch.inf) for g in gradients]
    return [(parts, gradients, scale, lr), (parts, every, scale, lr)]


def _tiny(random: Random) -> list[Case]:
    """Scaled gradients of FP16's smallest numbers: divided in FP16, nothing would be left."""
    sizes = (2, 2)
    gradients = [(whole(random, (n,), 1, 30) * 2.0**-24).half() for n in sizes]
    return [([torch.zeros(n) for n in sizes], gradients, 2.0**14, 0.5)]


def _finite(gradients: list[Tensor]) -> list[bool]:
    return [bool(torch.isfinite(g).all()) for g in gradients]


def _stepped(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> list[Tensor]:
    return [part - lr * (g.float() / scale) for part, g in zip(parts, gradients, strict=True)]


@mistake
def each_decides_alone(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This lets the ranks without inf step. All of them step or none does."""
    stepped, clean = _stepped(parts, gradients, scale, lr), _finite(gradients)
    every = [new if fine else old for new, old, fine in zip(stepped, parts, clean, strict=True)]
    return every, scale if all(clean) else scale / 2


@mistake
def asks_the_first_rank(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This looks at the first rank's gradients only."""
    fine = _finite(gradients)[0]
    return (_stepped(parts, gradients, scale, lr), scale) if fine else (list(parts), scale / 2)


@mistake
def skips_only_if_all_overflow(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This skips only when every rank holds inf or NaN. One is enough."""
    fine = any(_finite(gradients))
    return (_stepped(parts, gradients, scale, lr), scale) if fine else (list(parts), scale / 2)


@mistake
def halves_once_for_each_rank(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This halves the scale once for each rank that holds inf. There is one scale and one decision."""
    bad = _finite(gradients).count(False)
    return (list(parts), scale / 2**bad) if bad else (_stepped(parts, gradients, scale, lr), scale)


@mistake
def keeps_the_scale(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This skips, and leaves the scale as it is: the next step would overflow again."""
    return reference(parts, gradients, scale, lr)[0], scale


@mistake
def knows_inf_but_not_nan(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This looks for inf and lets NaN pass."""
    fine = not any(bool(g.isinf().any()) for g in gradients)
    return (_stepped(parts, gradients, scale, lr), scale) if fine else (list(parts), scale / 2)


@mistake
def divides_in_fp16(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This divides by the scale in FP16, where small gradients underflow. Cast to FP32 first."""
    if not all(_finite(gradients)):
        return list(parts), scale / 2
    return [part - lr * (g / scale).float() for part, g in zip(parts, gradients, strict=True)], scale


@mistake
def forgets_to_unscale(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This steps with gradients that are still multiplied by the scale."""
    if not all(_finite(gradients)):
        return list(parts), scale / 2
    return _stepped(parts, gradients, 1.0, lr), scale


EXERCISE = Exercise(
    id="workers.agree",
    title="Agree on found_inf",
    entry="my_agreed_step",
    difficulty=2,
    minutes=7,
    reference=reference,
    checks=(
        Check("clean gradients, on 1 to 5 ranks", 1, lambda random: [_ranks(random, world) for world in (1, 2, 4, 5)]),
        Check("inf on one rank", 2, lambda random: _spoiled(random, torch.inf)),
        Check("NaN on one rank", 1, lambda random: _spoiled(random, torch.nan)),
        Check("inf on several ranks", 1, _several),
        Check("gradients that FP16 can only hold scaled", 1, _tiny),
    ),
    mistakes=mistakes_in(vars()),
    withheld=(unscale,),
)
