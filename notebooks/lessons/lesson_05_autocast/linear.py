"""Can you write a linear layer as autocast runs it: casts, forward, and the gradients that come back?

The point: operands are rounded to FP16, each of the three products is accumulated in FP32 and rounded once, and a
gradient passes through a cast by being cast the other way, so an FP32 weight gets an FP32 gradient that holds an FP16
value.

Invariant: inputs are small whole numbers over powers of two, so every product and FP32 sum is exact in any order, and
answers are compared bit for bit. Oracle in the tests: torch's autograd through explicit casts.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Answer = tuple[Tensor, Tensor, Tensor]


def reference(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """Return (y FP16 [n, out], grad_x FP32 [n, in], grad_weight FP32 [out, in]).

    >>> y, grad_x, grad_weight = reference(torch.ones(1, 2), torch.ones(3, 2), torch.zeros(3), torch.ones(1, 3).half())
    >>> y, grad_weight.dtype
    (tensor([[2., 2., 2.]], dtype=torch.float16), torch.float32)
    """
    return _layer(x.half(), weight.half(), bias.half(), grad_y)


def _layer(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """Return the three products, each accumulated in FP32 and rounded to FP16 once; gradients cast to FP32."""
    y = (x.float() @ weight.float().T + bias.float()).half()
    grad_x = (grad_y.float() @ weight.float()).half().float()
    grad_weight = (grad_y.float().T @ x.float()).half().float()
    return y, grad_x, grad_weight


def _case(random: Random, extra: int = 0, n: int = 3, k: int = 4, m: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers of up to 5 significand bits; `extra` adds bits that FP16 does not hold to x and weight."""
    x, weight = (whole(random, (rows, k), 16, 32) / 16 for rows in (n, m))
    bias, grad_y = (whole(random, (rows, m), 16, 32) / 16 for rows in (1, n))
    if extra:
        x, weight = (t + whole(random, (t.shape[0], k), 1, 8) * 2.0**-15 for t in (x, weight))
    return x, weight, bias[0], grad_y.half()


def _rounded(random: Random) -> list[Case]:
    return [*(_case(random, extra=1) for _ in range(2)), _rounded_bias(random), *_beyond(random)]


def _beyond(random: Random) -> list[Case]:
    """Results beyond FP16, which are inf: of all three products, and of either sign; and operands that are inf once
    they are FP16, each in turn; the last is a gradient that arrives so.
    """
    (x, weight, bias, grad_y), large = _case(random), 2.0**17
    x, weight, grad_y = x.abs(), weight.abs(), grad_y.abs()
    results: list[Case] = [(sign * x * 256, weight * 256, bias, sign * grad_y * 256) for sign in (1, -1)]
    mixed = (x * 256, -weight * 256, bias, grad_y * 256)
    operands = [(x, weight * large, bias, grad_y), (x * large, weight / 16, bias, grad_y)]
    others = [(x, weight, bias * large, grad_y), (x, weight / 16, bias, grad_y / 0)]
    return [*results, mixed, *operands, *others]


def _rounded_bias(random: Random) -> Case:
    """A bias that FP16 must round, beside products so small that the rounding shows in y."""
    while True:
        x, weight, bias, grad_y = _case(random, extra=1)
        weight, bias = weight * 2.0**-11, bias + whole(random, bias.shape, 1, 32) * 2.0**-16
        unrounded = (x.half().float() @ weight.half().float().T + bias).half()
        if not torch.equal(unrounded, reference(x, weight, bias, grad_y)[0]):
            return x, weight, bias, grad_y


def _long(random: Random) -> list[Case]:
    """A sum over 64 products of 10 bits: its FP32 value has more bits than FP16 holds."""
    return [_case(random, k=64, n=2), _case(random, n=64)]


def _swamped(random: Random) -> list[Case]:
    """Outputs near 2048, to which a bias below 1 and the last products are added: order and rounding show."""
    cases: list[Case] = []
    for _ in range(2):
        x = torch.cat([torch.full((2, 2), 32.0), whole(random, (2, 8), 1, 8).abs() / 16], dim=1)
        weight = torch.cat([torch.full((3, 2), 32.0), whole(random, (3, 8), 1, 8).abs() / 4], dim=1)
        bias = whole(random, (1, 3), 3, 8).abs()[0] / 8
        cases.append((x, weight, bias, whole(random, (2, 3), 16, 32).half() / 16))
    return cases


def _tiny(random: Random) -> list[Case]:
    """Gradients whose products fall below FP16's smallest subnormal; and operands that are subnormal numbers."""
    x, weight, bias, grad_y = _case(random)
    drawn: list[Case] = [
        (x, weight * 2.0**-10, bias, grad_y * 2.0**-16),
        (x * 2.0**-10, weight, bias, grad_y * 2.0**-16),
    ]
    return [*drawn, (x * 2.0**-17, weight, bias * 2.0**-17, grad_y), (x, weight * 2.0**-17, bias * 2.0**-17, grad_y)]


@mistake
def answers_in_FP32(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """This is y in FP32. It leaves the layer as FP16, half the bytes to move."""
    y, grad_x, grad_weight = reference(x, weight, bias, grad_y)
    return y.float(), grad_x, grad_weight


@mistake
def gradients_stay_FP16(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """This is what forgetting the backward of the casts gives: x and weight are FP32, and so are their gradients."""
    y, grad_x, grad_weight = reference(x, weight, bias, grad_y)
    return y, grad_x.half(), grad_weight.half()


@mistake
def gradients_are_never_rounded(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """This is what FP32 gradients give. The backward products write FP16 too, then the cast widens them: here
    gradients underflow."""
    y, _, _ = reference(x, weight, bias, grad_y)
    return y, grad_y.float() @ weight.half().float(), grad_y.float().T @ x.half().float()


@mistake
def gradients_from_unrounded_operands(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """This is what using the FP32 x and weight in the backward pass gives. Autograd saved their FP16 casts."""
    return reference(x, weight, bias, grad_y)[0], *_layer(x, weight, bias, grad_y)[1:]


@mistake
def rounds_before_the_bias(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """This is what rounding the product and then adding the bias gives: two roundings. The bias joins the FP32 sum."""
    _, grad_x, grad_weight = reference(x, weight, bias, grad_y)
    product = (x.half().float() @ weight.half().float().T).half()
    return product + bias.half(), grad_x, grad_weight


@mistake
def accumulates_in_FP16(x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor) -> Answer:
    """This is what an FP16 accumulator gives: every addition rounds to 11 bits."""

    def product(a: Tensor, b: Tensor, start: Tensor) -> Tensor:
        total = start.half()
        for k in range(a.shape[1]):
            total = total + a[:, k : k + 1].half() * b[k : k + 1].half()
        return total

    zero = torch.zeros(1).half()
    y = product(x, weight.T, bias)
    return y, product(grad_y, weight, zero).float(), product(grad_y.T, x, zero).float()


# fmt: off
MISTAKES = (
    wrong("stays in FP32", "this is the FP32 layer. autocast rounds the operands to FP16 first.",
          lambda x, weight, bias, grad_y: (x @ weight.T + bias, grad_y.float() @ weight, grad_y.float().T @ x)),
    wrong("rounds the results only", "this is what rounding the results alone gives. A Tensor Core takes FP16 "
          "operands.", lambda x, weight, bias, grad_y: _layer(x, weight, bias, grad_y)),
    answers_in_FP32,
    gradients_stay_FP16,
    gradients_are_never_rounded,
    gradients_from_unrounded_operands,
    rounds_before_the_bias,
    wrong("forgets the bias", "this is the layer without its bias.",
          lambda x, weight, bias, grad_y: reference(x, weight, torch.zeros_like(bias), grad_y)),
    accumulates_in_FP16,
)
# fmt: on

EXERCISE = Exercise(
    id="autocast.linear",
    title="A linear layer, cast by hand",
    entry="my_linear",
    difficulty=3,
    minutes=15,
    reference=reference,
    checks=(
        Check("numbers that FP16 holds", 1, lambda random: [_case(random), _case(random, n=1, k=2, m=3)]),
        Check("operands that FP16 must round", 2, _rounded),
        Check("long sums: accumulate in FP32, round once", 2, _long),
        Check("the bias belongs into the FP32 sum", 2, _swamped),
        Check("gradients that underflow, underflow", 1, _tiny),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
)
