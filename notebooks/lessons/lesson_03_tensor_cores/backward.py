"""Can you write the backward pass of a linear layer as the two matrix products that it is?

The point: training a layer is three GEMMs of the same work, and each of them sums over another of the three sizes.
Oracle in the tests: torch's autograd, and its FLOP counter.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Shape = tuple[int, int, int]
Answer = tuple[Tensor, Tensor, list[Shape]]


def reference(x: Tensor, weight: Tensor, grad_y: Tensor) -> Answer:
    """Return (grad_x [n, inputs], grad_weight [outputs, inputs], [(m, n, k) of the one, (m, n, k) of the other]).

    >>> reference(torch.ones(2, 3), torch.ones(5, 3), torch.ones(2, 5))[2]
    [(2, 3, 5), (5, 3, 2)]
    """
    return grad_y @ weight, grad_y.T @ x, _shapes(x, weight)


def _shapes(x: Tensor, weight: Tensor) -> list[Shape]:
    (batch, inputs), outputs = x.shape, len(weight)
    return [(batch, inputs, outputs), (outputs, inputs, batch)]


def _case(random: Random, batch: int, inputs: int, outputs: int) -> Case:
    """Whole numbers whose sums FP32 holds exactly, and FP16 does not."""
    return tuple(whole(random, shape, 16, 128) for shape in ((batch, inputs), (outputs, inputs), (batch, outputs)))


def _rectangles(random: Random) -> list[Case]:
    sizes = [random.sample(range(2, 8), 3) for _ in range(3)]
    return [_case(random, batch, inputs, outputs) for batch, inputs, outputs in sizes]


def _squares(random: Random) -> list[Case]:
    """Where every transposition fits, and only one is right."""
    return [_case(random, n, n, n) for n in (2, 3)]


def _thin(random: Random) -> list[Case]:
    """One row; one input; one output."""
    p, q = random.sample(range(2, 8), 2)
    return [_case(random, 1, p, q), _case(random, p, 1, q), _case(random, p, q, 1), _case(random, 1, 1, 1)]


@mistake
def the_two_swapped(x: Tensor, weight: Tensor, grad_y: Tensor) -> Answer:
    """This is the weight's gradient first, and x's second."""
    grad_x, grad_weight, shapes = reference(x, weight, grad_y)
    return grad_weight, grad_x, shapes


@mistake
def the_mean_over_the_batch(x: Tensor, weight: Tensor, grad_y: Tensor) -> Answer:
    """This is divided by the batch. If the loss is a mean, that is in grad_y already; here rows are added up."""
    grad_x, grad_weight, shapes = reference(x, weight, grad_y)
    return grad_x, grad_weight / len(x) / 2, shapes


@mistake
def sizes_of_the_forward_product(x: Tensor, weight: Tensor, grad_y: Tensor) -> Answer:
    """This is (m, n, k) of the forward product. k is what is summed over: outputs for dX, the batch for dW."""
    forward = (len(x), len(weight), x.shape[1])
    return (*reference(x, weight, grad_y)[:2], [forward, forward])


@mistake
def multiplies_by_y(x: Tensor, weight: Tensor, grad_y: Tensor) -> Answer:
    """This is what y gives. What comes back from the loss is grad_y."""
    y = x @ weight.T
    return y @ weight, y.T @ x, _shapes(x, weight)


# fmt: off
MISTAKES = (
    wrong("transposes the gradient of the weight", "this is the gradient of W^T. torch stores W as [outputs, "
          "inputs], and its gradient has the same shape.",
          lambda x, weight, grad_y: (grad_y @ weight, x.T @ grad_y, _shapes(x, weight))),
    wrong("weight as books write it", "this is what books write for a weight of [inputs, outputs]. torch's layer "
          "computes X W^T: transpose back.",
          lambda x, weight, grad_y: (grad_y @ weight.T, x.T @ grad_y, _shapes(x, weight))),
    the_two_swapped,
    the_mean_over_the_batch,
    sizes_of_the_forward_product,
    wrong("n and k swapped", "this is (m, k, n). The result is m by n, and k is what is summed over.",
          lambda x, weight, grad_y: (*reference(x, weight, grad_y)[:2], [(m, k, n) for m, n, k in _shapes(x, weight)])),
    multiplies_by_y,
)
# fmt: on

EXERCISE = Exercise(
    id="tensor.backward",
    title="The backward products",
    entry="my_backward",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("three different sizes", 2, _rectangles),
        Check("square matrices", 1, _squares),
        Check("one row, one input, one output", 2, _thin),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
)
