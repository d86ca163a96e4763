"""How is a mean taken over ranks if it is added up in FP16?

The point: the sum may overflow although every gradient and their mean fit, and a quotient may underflow although the
mean does not. So a part of the division comes before the sum, and the rest after it.

Invariant: every operation is rounded to FP16, in the order of the ranks.
Oracle in the tests: numpy's FP16.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong


def reference(gradients: list[Tensor], before: int) -> Tensor:
    """Return the FP16 mean [n] of FP16 gradients [n], one for each rank: divided by `before`, added up, divided again.

    >>> reference([torch.tensor([60000.0]).half()] * 4, before=4)
    tensor([60000.], dtype=torch.float16)
    """
    total = gradients[0] / before
    for gradient in gradients[1:]:
        total = total + gradient / before
    return total / (len(gradients) / before)


def _draw(random: Random, world: int, low: float, high: float, sign: int = 0, elements: int = 4) -> list[Tensor]:
    """Return FP16 gradients for each rank; of one sign, where one is given."""
    signs = [[sign or random.choice((-1, 1)) for _ in range(elements)] for _ in range(world)]
    return [torch.tensor([s * random.uniform(low, high) for s in row]).half() for row in signs]


def _ordinary(random: Random) -> list[Case]:
    worlds = ((1, 1), (2, 2), (4, 2), (8, 4), (6, 2), (6, 3), (9, 3))
    return [(_draw(random, world, 0.5, 4.0, elements=world), before) for world, before in worlds]


def _large(random: Random) -> list[Case]:
    """Sums beyond 65504, and means within: divided before by 2 or by all."""
    return [(_draw(random, 4, 20_000, 30_000, sign), before) for sign in (-1, 1) for before in (2, 4)]


def _small(random: Random) -> list[Case]:
    """Gradients near 2^-24: what is divided by 8 before is lost, divided by 1 or 2 it is not."""
    return [(_draw(random, 8, 2.0**-24, 2.0**-22, 1), before) for before in (1, 2, 8)]


def _overflowing(random: Random) -> list[Case]:
    """Nothing before: then the sum is inf, and that is the answer; inf or NaN of one rank stays, inf - inf is NaN."""
    spoiled = _draw(random, 4, 1, 2)
    spoiled[2][1], spoiled[1][2], spoiled[0][3], spoiled[3][3] = torch.inf, torch.nan, torch.inf, -torch.inf
    ranks = [_draw(random, 6, 1, 2) for _ in range(3)]
    for gradients in ranks:  # inf of one sign on several ranks, on all of them, and of both signs: inf, inf, NaN
        for rank, gradient in enumerate(gradients):
            gradient[:3] = torch.tensor([torch.inf if rank % 2 else 1.0, -torch.inf, (-1) ** rank * torch.inf])
    back = [torch.tensor([x]).half() for x in (60_000.0, 50_000.0, -60_000.0, -50_000.0)]  # beyond FP16, and back
    ends = [(gradients, before) for gradients, before in zip(ranks, (1, 2, 6), strict=True)]
    return [(_draw(random, 4, 30_000, 60_000, 1), 1), (spoiled, 4), (spoiled, 1), *ends, (back, 1), (back[::-1], 1)]


@mistake
def forgets_the_rest(gradients: list[Tensor], before: int) -> Tensor:
    """This leaves out the division after the sum: the two together are the number of ranks."""
    total = gradients[0] / before
    for gradient in gradients[1:]:
        total = total + gradient / before
    return total


@mistake
def adds_up_in_fp32(gradients: list[Tensor], before: int) -> Tensor:
    """This adds up in FP32 and rounds once: more exact, and twice the bytes on the wire. The task says FP16."""
    return (sum(g.float() for g in gradients) / len(gradients)).half()  # type: ignore[union-attr]


@mistake
def adds_up_quotients_in_fp32(gradients: list[Tensor], before: int) -> Tensor:
    """This divides in FP16 and adds up in FP32; each sum is rounded to FP16 too."""
    total = sum((g / before).float() for g in gradients)
    return (total / (len(gradients) / before)).half()  # type: ignore[union-attr]


# fmt: off
MISTAKES = (
    wrong("divides only after", "this adds up first and divides by the number of ranks after: the sum overflows.",
          lambda gradients, before: reference(gradients, 1)),
    wrong("divides only before", "this divides by all ranks before the sum, whatever `before` says: small gradients "
          "underflow.", lambda gradients, before: reference(gradients, len(gradients))),
    forgets_the_rest,
    wrong("divides by all again", "this divides by the number of ranks after the sum, although it divided before.",
          lambda gradients, before: reference(gradients, before) / before),
    adds_up_in_fp32,
    adds_up_quotients_in_fp32,
    wrong("returns the sum", "this multiplies again by what it divided by: it returns the sum, and the mean was "
          "asked.", lambda gradients, before: reference(gradients, before) * len(gradients)),
)
# fmt: on

EXERCISE = Exercise(
    id="workers.predivide",
    title="Divide before and after",
    entry="my_mean_in_fp16",
    difficulty=2,
    minutes=6,
    reference=reference,
    checks=(
        Check("ordinary gradients", 1, _ordinary),
        Check("sums beyond FP16", 2, _large),
        Check("gradients near FP16's smallest", 1, _small),
        Check("inf where nothing helps", 1, _overflowing),
    ),
    mistakes=MISTAKES,
)
