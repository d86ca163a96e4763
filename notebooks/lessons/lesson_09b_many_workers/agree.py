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
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

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
    """Return parts of whole numbers over 2^10, rows of two, and scaled gradients; the last part is shorter."""
    shapes = [(3, 2)] * (world - 1) + [(random.randint(1, 3), 2)]
    parts = [whole(random, shape, -1024, 1024) / 2**10 for shape in shapes]
    scale = 2.0 ** random.randint(12, 15)
    gradients = [(whole(random, shape, 1, 1000) / 2**20 * scale).half() for shape in shapes]
    return parts, gradients, scale, random.choice((0.5, 0.25, 1.0))


def _clean(random: Random) -> list[Case]:
    """Gradients of ordinary size; and of FP16's largest, which are finite though their sum is not."""
    parts, gradients, scale, lr = _ranks(random, 2)
    largest = [torch.full_like(gradient, 65504) for gradient in gradients]
    return [
        *(_ranks(random, world) for world in (1, 2, 4, 5)),
        (parts, largest, scale, lr),
        _with_an_empty_part(random),
    ]


def _with_an_empty_part(random: Random) -> tuple[list[Tensor], list[Tensor], float, float]:
    """The last ranks hold nothing, as where the rows are used up."""
    parts, gradients, scale, lr = _ranks(random, 2)
    empty = torch.zeros(0, 2)
    return [*parts, empty, empty.clone()], [*gradients, empty.half(), empty.half()], scale, lr


def _spoiled(random: Random, bad: float) -> list[Case]:
    """One element, the first or another, of one rank; the first rank, the last, and one between; a scale of 1, too."""
    cases: list[Case] = []
    for world, rank, place in ((4, 0, 1), (4, 3, 0), (4, random.randint(1, 2), 1), (1, 0, 1), (6, 5, 1)):
        parts, gradients, scale, lr = _ranks(random, world)
        gradients[rank][-place, place] = bad
        cases.append((parts, gradients, 1.0 if world == 6 else scale, lr))
    return cases


def _several(random: Random) -> list[Case]:
    """Inf of either sign: their sum is NaN; on several ranks at once: the scale is halved once all the same."""
    parts, gradients, scale, lr = _ranks(random, 4)
    gradients[1][0] = torch.tensor([torch.inf, -torch.inf])
    every = [torch.full_like(g, torch.inf) for g in gradients]
    shared = _with_an_empty_part(random)
    shared[1][0][1, 1] = shared[1][1][0, 0] = torch.inf
    return [(parts, gradients, scale, lr), (parts, every, scale, lr), shared]


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
def knows_inf_but_not_nan(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This looks for inf and lets NaN pass."""
    fine = not any(bool(g.isinf().any()) for g in gradients)
    return (_stepped(parts, gradients, scale, lr), scale) if fine else (list(parts), scale / 2)


@mistake
def asks_the_largest(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This looks at each rank's largest element, where -inf is not seen. Take magnitudes, or `torch.isfinite`."""
    fine = all(bool(g.max().isfinite()) for g in gradients)
    return (_stepped(parts, gradients, scale, lr), scale) if fine else (list(parts), scale / 2)


@mistake
def asks_the_sum(parts: list[Tensor], gradients: list[Tensor], scale: float, lr: float) -> Step:
    """This looks at a sum in FP16, which overflows where all gradients are finite. Look at each element."""
    fine = bool(sum(g.sum(dtype=torch.float16) for g in gradients).isfinite())  # type: ignore[union-attr]
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


# fmt: off
MISTAKES = (
    each_decides_alone,
    asks_the_first_rank,
    skips_only_if_all_overflow,
    halves_once_for_each_rank,
    wrong("keeps the scale", "this skips, and leaves the scale as it is: the next step would overflow again.",
          lambda parts, gradients, scale, lr: (reference(parts, gradients, scale, lr)[0], scale)),
    knows_inf_but_not_nan,
    asks_the_largest,
    asks_the_sum,
    divides_in_fp16,
    forgets_to_unscale,
)
# fmt: on

EXERCISE = Exercise(
    id="workers.agree",
    title="Agree on found_inf",
    entry="my_agreed_step",
    difficulty=2,
    minutes=7,
    reference=reference,
    checks=(
        Check("clean gradients, on 1 to 5 ranks", 1, _clean),
        Check("inf on one rank", 2, lambda random: _spoiled(random, torch.inf) + _spoiled(random, -torch.inf)[-2:]),
        Check("NaN on one rank", 1, lambda random: _spoiled(random, torch.nan)),
        Check("inf on several ranks", 1, _several),
        Check("gradients that FP16 can only hold scaled", 1, _tiny),
    ),
    mistakes=MISTAKES,
    withheld=(unscale,),
)
