"""Can you keep the master weights of a group in one flat tensor, and get the model back out of it?

The point: one tensor means one kernel for unscaling, one for the step, instead of one for each layer; the price is
bookkeeping. Order and shapes must survive.

Invariant: all numbers are whole over powers of two, so answers are compared bit for bit. Oracle in the tests:
torch.nn.utils.parameters_to_vector and vector_to_parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Answer = tuple[Tensor, list[Tensor]]


def reference(flat: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """Return (the flat FP32 master after a step of SGD, the FP16 model weights, shaped as the gradients).

    >>> flat, (weight, bias) = reference(torch.ones(3), [torch.ones(1, 2).half(), torch.ones(1).half()], 1.0, 0.5)
    >>> flat, weight.shape
    (tensor([0.5000, 0.5000, 0.5000]), torch.Size([1, 2]))
    """
    gradient = torch.cat([grad.float().reshape(-1) for grad in scaled_grads]) / scale
    return _split(flat - lr * gradient, [tuple(grad.shape) for grad in scaled_grads])


def _split(flat: Tensor, shapes: list[tuple[int, ...]]) -> Answer:
    sizes = [math.prod(shape) for shape in shapes]
    parts = flat.split(sizes)
    return flat, [part.reshape(shape).half() for part, shape in zip(parts, shapes, strict=True)]


def _case(random: Random, *shapes: tuple[int, ...]) -> Case:
    flat = whole(random, (sum(math.prod(shape) for shape in shapes),), 1024, 2048) / 2**10 + 2.0**-14
    scale = 2.0 ** random.randrange(4, 8)
    return flat, [(whole(random, shape, 16, 64) / 2**6 * scale).half() for shape in shapes], scale, 0.125


def _matrices(random: Random) -> list[Case]:
    return [_case(random, (2, 3), (2,)), _case(random, (3, 2), (3,), (4, 3), (4,))]


def _more(random: Random) -> list[Case]:
    """A filter of four dimensions, a single number, one tensor alone."""
    return [
        _case(random, (2, 1, 3, 3), (2,), ()),
        _case(random, (4, 4)),
        _case(random, (3,), (0,), (2, 0), (2,)),
        _transposed(random),
    ]


def _transposed(random: Random) -> Case:
    """A gradient that is a view of its transpose: row by row is not as it lies in memory."""
    flat, grads, scale, lr = _case(random, (5, 3))
    return flat, [grad.T for grad in grads], scale, lr  # type: ignore[attr-defined]


def _tiny(random: Random) -> list[Case]:
    """Unscaled gradients below FP16's smallest subnormal, into masters of that size."""
    shapes = ((2, 2), (3,))
    grads = [whole(random, shape, 1, 512).half() / 16 for shape in shapes]
    return [(torch.zeros(7), grads, 2.0**25, 1.0)]


def _shapes(grads: list[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(grad.shape) for grad in grads]


def _stepped(flat: Tensor, grads: list[Tensor], scale: float, lr: float) -> Tensor:
    return reference(flat, grads, scale, lr)[0]


def _cut(flat: Tensor, grads: list[Tensor], scale: float, lr: float, order: Callable[[Tensor], Tensor]) -> Answer:
    """Return the step with each gradient laid flat in another order."""
    gradient = torch.cat([order(grad.float()).reshape(-1) for grad in grads]) / scale
    return _split(flat - lr * gradient, _shapes(grads))


@mistake
def gradients_in_reverse(flat: Tensor, grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what laying the gradients out in another order than the weights gives."""
    gradient = torch.cat([grad.float().reshape(-1) for grad in reversed(grads)]) / scale
    return _split(flat - lr * gradient, _shapes(grads))


@mistake
def columns_first(flat: Tensor, scaled_grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what laying a gradient flat column by column gives; the weights are row by row."""
    return _cut(flat, scaled_grads, scale, lr, lambda g: g.mT if g.dim() > 1 else g)


@mistake
def every_weight_from_the_start(flat: Tensor, grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what cutting each weight from the beginning of the flat tensor gives: keep an offset, or use split."""
    new = _stepped(flat, grads, scale, lr)
    return new, [new[: grad.numel()].reshape(grad.shape).half() for grad in grads]


@mistake
def forgets_the_shapes(flat: Tensor, grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is flat weights: give each its shape back."""
    new = _stepped(flat, grads, scale, lr)
    return new, [part.half() for part in new.split([grad.numel() for grad in grads])]


@mistake
def model_in_FP32(flat: Tensor, grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is model weights in FP32. The model computes in FP16: round."""
    new = _stepped(flat, grads, scale, lr)
    return new, [
        part.reshape(grad.shape) for part, grad in zip(new.split([g.numel() for g in grads]), grads, strict=True)
    ]


@mistake
def rounds_the_master(flat: Tensor, grads: list[Tensor], scale: float, lr: float) -> Answer:
    """This is what rounding the master gives. It keeps what FP16 cannot: that is what it is for."""
    new, weights = reference(flat, grads, scale, lr)
    return new.half().float(), weights


# fmt: off
MISTAKES = (
    gradients_in_reverse,
    columns_first,
    every_weight_from_the_start,
    forgets_the_shapes,
    model_in_FP32,
    wrong("old weights", "this is what cutting the weights before the step gives.",
          lambda flat, grads, scale, lr: (_stepped(flat, grads, scale, lr), _split(flat, _shapes(grads))[1])),
    rounds_the_master,
    wrong("unscales in FP16", "this is what dividing in FP16 gives: small gradients underflow. Cast first.",
          lambda flat, scaled_grads, scale, lr: reference(flat, [grad / scale for grad in scaled_grads], 1.0, lr)),
    wrong("forgets to unscale", "this is a step `scale` times too long.",
          lambda flat, scaled_grads, scale, lr: reference(flat, scaled_grads, 1.0, lr)),
)
# fmt: on

EXERCISE = Exercise(
    id="master.flat",
    title="One flat master",
    entry="my_flat_step",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("vectors", 1, lambda random: [_case(random, (3,), (4,)), _case(random, (2,), (5,), (3,))]),
        Check("matrices and biases", 2, _matrices),
        Check("gradients too small for FP16", 1, _tiny),
        Check("filters, a single number, one tensor alone", 1, _more),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
    withheld=(torch.nn.utils.parameters_to_vector, torch.nn.utils.vector_to_parameters),
)
