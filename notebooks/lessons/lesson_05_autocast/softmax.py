"""Can you write a softmax that survives FP16 logits?

The point: exp(x) is inf in FP16 from 11.1 on and in FP32 from 88.8 on, so subtract the largest logit of the *row*
first; and sum in FP32. Oracle in the tests: torch's softmax in FP64, rounded.

Invariant: a correct answer may write its FP32 arithmetic in any order. No probability that is asked for lies so near
the middle of two FP16 numbers that this could change it, so answers are compared bit for bit.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

COLUMNS = 6
TORCHS_OWN = (
    torch.softmax, torch.special.softmax, torch.Tensor.softmax, torch.nn.functional.softmax,
    torch.log_softmax, torch.special.log_softmax, torch.Tensor.log_softmax, torch.nn.functional.log_softmax,
)  # fmt: skip


def reference(logits: Tensor) -> Tensor:
    """Return the softmax of each row, FP16 in and FP16 out.

    >>> reference(torch.tensor([[60000.0, 60000.0, 0.0]]).half())
    tensor([[0.5000, 0.5000, 0.0000]], dtype=torch.float16)
    """
    return _shifted(logits, logits.float().max(dim=1, keepdim=True).values)


def _shifted(logits: Tensor, shift: Tensor | float) -> Tensor:
    """Return the softmax, computed in FP32 after subtracting something from the logits."""
    powers = torch.exp(logits.float() - shift)
    return (powers / powers.sum(dim=1, keepdim=True)).half()


def _settled(logits: Tensor) -> bool:
    """Return whether every probability rounds to the same FP16 number when it is a few FP32 ulps off."""
    exact = torch.softmax(logits.double(), dim=1)
    return bool(((exact * (1 - 2.0**-20)).half() == (exact * (1 + 2.0**-20)).half()).all())


def _logits(random: Random, low: float, high: float, rows: int = 3, columns: int = COLUMNS) -> Tensor:
    while True:
        logits = torch.tensor([[random.uniform(low, high) for _ in range(columns)] for _ in range(rows)]).half()
        if _settled(logits):
            return logits


def _ordinary(random: Random) -> list[Case]:
    return [
        *((_logits(random, -2, 2),) for _ in range(3)),
        (_logits(random, -2, 2, columns=1),),
        (_logits(random, -16, 0, rows=6),),
    ]


def _above_eleven(random: Random) -> list[Case]:
    """From 12 to 14: exp is above 65520, so inf in FP16, and fine in FP32."""
    return [(_logits(random, 12, 14),) for _ in range(2)]


def _above_ninety(random: Random) -> list[Case]:
    ends = torch.tensor(
        [[65504.0, 65504.0, -65504.0], [-65504.0, -65504.0, -65472.0], [65504.0, 65472.0, 20000.0]]
    ).half()
    return [(_logits(random, 100, 103),), (_logits(random, 6000, 6001),), (ends,)]


def _rows_apart(random: Random) -> list[Case]:
    """One row lies far below the other."""
    return [(torch.cat([_logits(random, 0, 2, rows=1), _logits(random, -502, -500, rows=1)]),)]


def _masked(random: Random) -> list[Case]:
    while True:
        logits = _logits(random, -2, 2)
        logits[:, 2] = logits[0, 0] = -torch.inf
        ends = torch.full((COLUMNS, COLUMNS), -torch.inf).half()  # row by row, all but one masked, or the others
        ends.fill_diagonal_(random.uniform(-2, 2))
        lowest = torch.full((1, COLUMNS), -65504.0).half()
        lowest[0, random.randrange(COLUMNS)] = -torch.inf
        if _settled(logits):
            others = torch.where(ends.isinf(), logits[:1].nan_to_num(neginf=0.5), -torch.inf)
            return [(one,) for one in (logits, ends, others, lowest)]


def _many(random: Random) -> list[Case]:
    """4,096 logits: each probability is about 2^-12, and their FP16 sum, term by term, would stop growing at 2048."""
    return [(_logits(random, -0.5, 0.5, rows=1, columns=8).repeat(1, 512),)]


@mistake
def naive_in_FP16(logits: Tensor) -> Tensor:
    """This is exp(x) / sum(exp(x)) in FP16: inf / inf from x = 11.1 on."""
    powers = torch.exp(logits)
    return powers / powers.sum(dim=1, keepdim=True)


@mistake
def replaces_inf_by_65504(logits: Tensor) -> Tensor:
    """This is what replacing inf by 65504 gives: no NaN, and wrong probabilities. That is worse."""
    powers = torch.nan_to_num(torch.exp(logits), posinf=65504.0)
    return powers / powers.float().sum(dim=1, keepdim=True).half()


@mistake
def computes_in_FP16(logits: Tensor) -> Tensor:
    """This is what computing in FP16 gives: exp, sum and quotient are each rounded. Cast first, round at the end."""
    powers = torch.exp(logits - logits.max(dim=1, keepdim=True).values)
    return powers / powers.sum(dim=1, keepdim=True)


@mistake
def rounds_the_sum_to_FP16(logits: Tensor) -> Tensor:
    """This is what rounding the sum to FP16 gives: each probability is off by as much. Round at the end only."""
    powers = torch.exp(logits.float() - logits.float().max(dim=1, keepdim=True).values)
    return (powers / powers.sum(dim=1, keepdim=True).half().float()).half()


@mistake
def sums_in_FP16(logits: Tensor) -> Tensor:
    """This is what an FP16 sum gives: it loses digits with each term, and stops growing long before the end."""
    powers = torch.exp(logits - logits.max(dim=1, keepdim=True).values)
    total = torch.zeros(len(logits), 1).half()
    for column in range(logits.shape[1]):
        total = total + powers[:, column : column + 1]
    return powers / total


# fmt: off
MISTAKES = (
    naive_in_FP16,
    wrong("naive in FP32", "this is exp(x) / sum(exp(x)) in FP32: that only moves the cliff from 11 to 88.7.",
          lambda logits: _shifted(logits, 0.0)),
    wrong("one maximum for all", "this is what subtracting the largest logit of all rows gives: a row far below it "
          "becomes 0 / 0.", lambda logits: _shifted(logits, logits.float().max())),
    wrong("subtracts the mean", "this is what subtracting the mean gives. Only after subtracting the maximum is "
          "every exponent at most 0.", lambda logits: _shifted(logits, logits.float().mean(dim=1, keepdim=True))),
    wrong("clamps the logits", "this is what clamping the logits gives: everything above the clamp becomes equally "
          "likely.", lambda logits: reference(logits.clamp(max=11.0))),
    replaces_inf_by_65504,
    wrong("over the columns", "this is the softmax of the columns. Each row is one example: dim=1.",
          lambda logits: reference(logits.T.contiguous()).T.contiguous()),
    wrong("answers in FP32", "this is right, in FP32. The next layer is to get FP16: round at the end.",
          lambda logits: torch.softmax(logits.float(), dim=1)),
    computes_in_FP16,
    rounds_the_sum_to_FP16,
    sums_in_FP16,
)
# fmt: on

EXERCISE = Exercise(
    id="autocast.softmax",
    title="A softmax that survives FP16",
    entry="my_softmax",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("small logits", 1, _ordinary),
        Check("logits above 11, where exp leaves FP16", 1, _above_eleven),
        Check("logits above 89, where exp leaves FP32", 2, _above_ninety),
        Check("one row far below another", 1, _rows_apart),
        Check("a masked logit of -inf", 1, _masked),
        Check("4,096 logits, summed in FP32", 2, _many),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
    withheld=TORCHS_OWN,
)
