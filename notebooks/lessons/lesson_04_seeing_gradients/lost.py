"""Can you count what FP16 lost, and not what was zero all along?

The point: a zero inside an FP16 pass may have been a zero in FP32 (a ReLU made it). Lost is what is non-zero in FP32
and
zero in FP16, as a share of what is non-zero in FP32, over all tensors together.

Oracle in the tests: numpy, on one long array.
"""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong
from labkit.instrument import underflow, zeros_inside


def reference(in_fp32: list[Tensor], in_fp16: list[Tensor]) -> float:
    """Return the share of the non-zero FP32 gradients that are zero in FP16; 0 if none is non-zero.

    >>> reference([torch.tensor([1.0, 1e-9, 0.0])], [torch.tensor([1.0, 0.0, 0.0]).half()])
    0.5
    """
    alive = lost = 0
    for exact, half in zip(in_fp32, in_fp16, strict=True):
        alive += int((exact != 0).sum())
        lost += int(((exact != 0) & (half == 0)).sum())
    return lost / alive if alive else 0.0


def _pair(random: Random, n: int, zeros: int, lost: int) -> tuple[Tensor, Tensor]:
    """Return n non-zero gradients, of which `lost` are zero in FP16 alone, and zeros in both."""
    exact = whole(random, (n + zeros,), 1, 512) * 2.0**-12
    half = exact.clone()
    places = random.sample(range(n + zeros), zeros + lost)
    half[places] = 0
    exact[places[:zeros]] = 0
    return exact, half.half()


def _case(*pairs: tuple[Tensor, Tensor]) -> Case:
    return [exact for exact, _ in pairs], [half for _, half in pairs]


def _zeros_all_along(random: Random) -> list[Case]:
    return [_case(_pair(random, 8, zeros, 3)) for zeros in (2, 5, 24)]


def _several(random: Random) -> list[Case]:
    """Tensors of different sizes, so that a mean of shares is not the share; a matrix, a number, an empty one."""
    matrix = [part.reshape(4, 5) for part in _pair(random, 16, 4, 1)]
    number = torch.tensor(2.0**-30), torch.tensor(0.0).half()
    return [
        _case(_pair(random, 3, 2, 2), _pair(random, 20, 4, 1), _pair(random, 5, 0, 0)),
        _case(_pair(random, 2, 1, 0), (matrix[0], matrix[1]), _pair(random, 6, 1, 6), number, _pair(random, 0, 0, 0)),
    ]


def _other_zeros(random: Random) -> list[Case]:
    """Gradients that FP16 could hold and lost on the way, and tiny ones that arrived as others; -0 is a zero.

    And FP32's smallest numbers, whose products are 0; and inf and NaN, which are spoiled, but not zero.
    """
    tiny = torch.tensor([2.0**-30, -(2.0**-27), 2.0**-10, 2.0**-40])
    arrived = torch.tensor([2.0**-24, -(2.0**-24), 0.0, -0.0]).half()
    appeared = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([2.0**-20, 0.0, -1.0]).half()
    smallest = torch.tensor([2.0**-149, -(2.0**-140), 2.0**-149, 2.0**-126])  # times FP16's smallest, these are 0
    reached = torch.tensor([2.0**-24, 2.0**-24, 0.0, -(2.0**-24)]).half()
    spoiled = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([math.inf, -math.inf, math.nan, 0.0]).half()
    return [_case((tiny, arrived)), _case(appeared, _pair(random, 5, 1, 2)), _case((smallest, reached)), _case(spoiled)]


def _nothing(_: Random) -> list[Case]:
    zeros = torch.zeros(3)
    return [_case((zeros, zeros.half())), _case((zeros, torch.tensor([0.0, 1.0, 0.0]).half())), ([], [])]


def _together(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten().float() for tensor in tensors]) if tensors else torch.zeros(0)


@mistake
def counts_zeros_inside(in_fp32: list[Tensor], in_fp16: list[Tensor]) -> float:
    """This is the share of zeros inside the FP16 pass: it counts what was zero in FP32 too."""
    half = _together(in_fp16)
    return float((half == 0).sum()) / len(half) if len(half) else 0.0


@mistake
def divides_by_all(in_fp32: list[Tensor], in_fp16: list[Tensor]) -> float:
    """This divides by all elements. Only what is non-zero in FP32 can be lost."""
    exact, half = _together(in_fp32), _together(in_fp16)
    return int(((exact != 0) & (half == 0)).sum()) / len(exact) if len(exact) else 0.0


@mistake
def subtracts_the_counts(in_fp32: list[Tensor], in_fp16: list[Tensor]) -> float:
    """This subtracts two numbers of zeros. A gradient that appeared in FP16 then hides one that was lost: compare
    element by element."""
    exact, half = _together(in_fp32), _together(in_fp16)
    alive = int((exact != 0).sum())
    return (int((half == 0).sum()) - int((exact == 0).sum())) / alive if alive else 0.0


@mistake
def averages_the_tensors(in_fp32: list[Tensor], in_fp16: list[Tensor]) -> float:
    """This is the mean of the tensors' shares: a small tensor then counts as much as a large one. Add up the counts
    first."""
    shares = [reference([exact], [half]) for exact, half in zip(in_fp32, in_fp16, strict=True)]
    return sum(shares) / len(shares) if shares else 0.0


# fmt: off
MISTAKES = (
    counts_zeros_inside,
    divides_by_all,
    subtracts_the_counts,
    averages_the_tensors,
    wrong("looks at the first tensor", "this is the first tensor's share alone.",
          lambda in_fp32, in_fp16: reference(in_fp32[:1], in_fp16[:1])),
    wrong("rounds the fp32 gradients", "this rounds the FP32 gradients and looks at what becomes zero. An FP16 pass "
          "loses more than that: what was zero further up stays zero. Look at the FP16 gradients themselves.",
          lambda in_fp32, in_fp16: reference(in_fp32, [exact.half() for exact in in_fp32])),
    wrong("says what survived", "this is the share that survived.",
          lambda in_fp32, in_fp16: 1 - reference(in_fp32, in_fp16)),
)
# fmt: on

EXERCISE = Exercise(
    id="gradients.lost",
    title="Lost, or zero all along?",
    entry="my_lost",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("the share of one tensor", 1, lambda random: [_case(_pair(random, 8, 0, lost)) for lost in (2, 0, 8)]),
        Check("what is zero in FP32 cannot be lost", 2, _zeros_all_along),
        Check("all tensors together", 1, _several),
        Check("element by element, by what arrived", 1, _other_zeros),
        Check("where nothing is non-zero, nothing is lost", 1, _nothing),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
    ulps=2**30,  # a share may be had in FP32
    withheld=(underflow, zeros_inside),
)
