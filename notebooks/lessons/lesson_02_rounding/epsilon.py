"""Can you repair an epsilon that FP16 rounds to zero?

The point: constants are rounded too, and 1e-8 is 0 in FP16. A larger epsilon hides the symptom and changes the
answer; what helps is to compute in FP32 and round once, at the end. This is RMSNorm as its authors wrote it.
Source: B. Zhang, R. Sennrich, Root Mean Square Layer Normalization, arXiv:1910.07467; github.com/bzhangGo/rmsnorm.

Tolerance: FP32 may sum in any order, which can move the result across one rounding to FP16: 1 ulp.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, wrong

EPSILON = 1e-8


def reference(x: Tensor) -> Tensor:
    """Return x / (root of the mean square + 1e-8), computed in FP32 and rounded once to FP16.

    >>> reference(torch.tensor([3.0, 4.0]).half()), reference(torch.zeros(2).half())
    (tensor([0.8486, 1.1318], dtype=torch.float16), tensor([0., 0.], dtype=torch.float16))
    """
    return _in_fp32(x).half()


def _in_fp32(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    wide = x.float()
    return wide / (wide.pow(2).mean().sqrt() + epsilon)


def _wholes(random: Random, low: int, high: int, log2_unit: int) -> Tensor:
    """Return eight FP16 numbers n * 2^log2_unit, low <= |n| < high, of either sign."""
    return whole(random, (8,), low, high).half() * 2.0**log2_unit


def _ordinary(random: Random) -> list[Case]:
    return [
        *((_wholes(random, 200, 1024, -8),) for _ in range(3)),
        (_wholes(random, 200, 1024, -8)[:1],),
        (whole(random, (40,), 200, 1024).half() / 256,),
    ]


def _small(random: Random) -> list[Case]:
    """From 6e-5 to 1e-3, where the squares are subnormal in FP16 or 0; and a few times 2^-24, where the root is too."""
    return [(_wholes(random, low, high, unit),) for low, high, unit in ((100, 1024, -20), (2, 9, -24), (1, 30, -24))]


def _large(random: Random) -> list[Case]:
    """From 3,200 to 32,000: their squares are beyond 65504."""
    return [*((_wholes(random, 100, 1000, 5),) for _ in range(2)), (torch.tensor([65504.0, -65504.0, 1000.0]).half(),)]


def _one_small(random: Random) -> list[Case]:
    """One number among zeros, and one among large ones."""
    alone, beside = torch.zeros(8, dtype=torch.float16), _wholes(random, 100, 1000, 4)
    alone[3], beside[5] = random.randrange(50, 500) * 2.0**-24, 2.0**-10
    return [(alone,), (beside,)]


def _as_given(x: Tensor, epsilon: float = EPSILON) -> Tensor:
    return x / ((x * x).mean().sqrt() + epsilon)


# fmt: off
MISTAKES = (
    wrong("as it was", "this is the code as it was: in FP16 1e-8 is 0, small squares underflow, and large ones "
          "overflow.", lambda x: _as_given(x)),
    wrong("a larger epsilon", "this is what an epsilon of 1e-4 in FP16 gives: no NaN for zeros, but the squares "
          "still underflow and overflow, and small numbers are shrunk.", lambda x: _as_given(x, epsilon=1e-4)),
    wrong("FP32 and a larger epsilon", "this is right but for the epsilon: 1e-4 is larger than the small numbers. In "
          "FP32 1e-8 is fine.", lambda x: _in_fp32(x, 1e-4).half()),
    wrong("no epsilon", "this is what leaving the epsilon out gives: 0 / 0 is NaN in any precision.",
          lambda x: _in_fp32(x, 0.0).half()),
    wrong("squares in FP16", "this is what casting after squaring gives: the squares had already gone to 0 or inf. "
          "Cast x first.", lambda x: (x.float() / ((x * x).float().mean().sqrt() + EPSILON)).half()),
    wrong("widens the root only", "this is what casting after the root gives: the squares were FP16, and had gone to "
          "0 or inf.", lambda x: (x / ((x * x).mean().sqrt().float() + EPSILON)).half()),
    wrong("divides in FP16", "this is what going back to FP16 before dividing gives: the epsilon becomes 0 again. "
          "Divide, then cast.", lambda x: x / (x.float().pow(2).mean().sqrt() + EPSILON).half()),
    wrong("forgets to return FP16", "this is FP32. Compute in it, but return FP16, as the rest of the network "
          "expects.", lambda x: _in_fp32(x)),
    wrong("epsilon inside the root", "this is what adding the epsilon under the root gives. Later models do that, "
          "but it is another formula: there 1e-8 counts as 1e-4.",
          lambda x: (x.float() / (x.float().pow(2).mean() + EPSILON).sqrt()).half()),
    wrong("sum for mean", "this is what the sum of squares gives. RMS is root of the *mean* square.",
          lambda x: (x.float() / (x.float().pow(2).sum().sqrt() + EPSILON)).half()),
    wrong("clears away NaN", "this is what nan_to_num on the old code gives: zeros where an answer should be. The "
          "symptom is gone, and the small numbers with it.",
          lambda x: torch.nan_to_num(_as_given(x), nan=0.0, posinf=0.0, neginf=0.0)),
)
# fmt: on

EXERCISE = Exercise(
    id="rounding.epsilon",
    title="Repair the epsilon",
    entry="my_normalise",
    difficulty=2,
    minutes=6,
    reference=reference,
    checks=(
        Check("ordinary numbers, answered in FP16", 1, _ordinary),
        Check("zeros stay zeros", 1, lambda random: [(torch.zeros(8, dtype=torch.float16),)]),
        Check("small numbers", 2, _small),
        Check("large numbers", 1, _large),
        Check("one number that differs from the rest", 1, _one_small),
    ),
    mistakes=MISTAKES,
    ulps=1,
    provides={"torch": torch},
)
